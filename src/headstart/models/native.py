"""`NativeModel`: a decoder-only model run by the C++ core, on the CPU, from a GGUF file or a Hugging Face folder.

Weights keep the bits they have in the file, unless they are to be quantised.

A row of logits is the same bit for bit however it came about: one token a pass or many, alone or beside other sequences, as a
chain, a tree or a kept path, on any number of threads. It may differ between instruction sets in no bit that finite numbers
show. Knows asks, caches and options; does not know the arithmetic (csrc/) or text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headstart import _core
from headstart.checkpoints import EagleHead, Tensor
from headstart.errors import ModelError, OptionError, did_you_mean
from headstart.interfaces import Ask, Scores
from headstart.models.asks import Tail, feature_layers, lay_out_all, wanted_features
from headstart.models.folder import Folder
from headstart.models.memory import SMALLER, Needs, check_memory
from headstart.models.native_head import NativeHead, native_products
from headstart.rows import IntArray

__all__ = ["QUANTIZED", "NativeCache", "NativeModel", "NativePart", "physical_cores"]

QUANTIZED = ("q8_0", "q4_0")  # what wider matrices can be made into at load
_TILE = 16  # tokens whose logits the core computes together


class NativeCache:
    """What a native model remembers of one sequence."""

    def __init__(self, owner: NativeModel, core: _core.Cache, tail: Tail = Tail(0, 0)) -> None:  # noqa: B008  (a frozen value)
        self.owner = owner
        self.core = core
        self.tail = tail

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return self.tail.length

    @property
    def bytes(self) -> int:
        """Memory held for keys and values, spare room included."""
        return self.core.bytes

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens. Raises ValueError if `length` exceeds what is held."""
        tail = self.tail.rewound(length)
        self.core.rewind(length)
        self.tail = tail

    def keep(self, path: Sequence[int]) -> None:
        """Of the last score keep the chain at the indices `path`, drop the rest. Raises ValueError if it is not a chain."""
        tail = self.tail.kept(path)
        self.core.keep(path)
        self.tail = tail

    def fork(self) -> NativeCache:
        """An independent copy."""
        return NativeCache(self.owner, self.core.fork(), self.tail)


class NativeModel:
    """A causal language model run by the C++ core. Threads may score at once, on different caches: they take turns."""

    engine = "native"
    device = "cpu"

    def __init__(self, core: _core.Model, *, types: dict[str, int], quantize: str | None = None) -> None:
        """`types` is how many numbers the file holds in each weight type; users call `load`."""
        self.core = core
        self.vocab_size = core.vocab
        self.context_limit = core.context
        self.num_layers = core.layers
        self.hidden_size = core.hidden
        self.num_parameters = sum(types.values())
        self.dtype = max(types, key=lambda name: types[name])  # the type of most weights, before `quantize`
        self.quantize = quantize
        self.threads = core.threads
        self.instruction_set = core.instruction_set
        self.weight_bytes = core.weight_bytes
        self.bytes_per_pass = core.bytes_per_pass
        self.cache_bytes_per_token = core.cache_bytes_per_token

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        threads: int | None = None,
        context: int | None = None,
        quantize: str | None = None,
        instruction_set: str | None = None,
        progress: Callable[[str, float | None], None] | None = None,
    ) -> NativeModel:
        """A model from a GGUF file (of a split one, name the first part) or from a Hugging Face folder with safetensors.

        `threads` is by default the number of physical cores this process may use. `context` lowers `context_limit`.
        `quantize` 'q8_0' or 'q4_0' makes matrices of more bits a weight 8- or 4-bit, which makes another model of it.
        `instruction_set` is by default the fastest here. `progress` is called with the stage, its memory stated, and the
        fraction done.

        Raises ModelError if the file cannot be found, read, run or held in memory, OptionError for an option that cannot be
        honoured."""
        if threads is not None and not 1 <= threads <= 1024:
            raise OptionError(f"`threads` must be {'1 or more' if threads < 1 else 'at most 1024'}, got {threads}")
        if instruction_set is not None and instruction_set not in _core.instruction_sets():
            known = _core.instruction_sets()
            hint = did_you_mean(instruction_set, known)
            raise OptionError(f"`instruction_set` must be one of {', '.join(known)} here, got {instruction_set!r}{hint}")
        source = _Source(path, quantize)
        needs = source.needs(context)
        check_memory([needs], context)
        stage = f"reading the weights ({needs})"
        tell = progress or (lambda stage, fraction: None)
        tell(stage, 0.0)
        with source.explained():
            core = _core.Model.load(
                source.file,
                threads or physical_cores(),
                instruction_set,
                context or 0,
                source.quantizes,
                lambda fraction: tell(stage, fraction),
            )
        tell(stage, 1.0)
        return cls(core, types=source.types, quantize=quantize)

    @classmethod
    def needs(cls, path: str | Path, *, context: int | None = None, quantize: str | None = None) -> Needs:
        """What `load` would hold in memory, from headers alone. Raises as `load` does."""
        return _Source(path, quantize).needs(context)

    def open(self) -> NativeCache:
        """An empty cache for one sequence."""
        return NativeCache(self, self.core.open())

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        """Logits [num_logits, vocab] in float32 for each ask, in one pass (several for more than 256 tokens in all).

        Raises ValueError for an impossible ask. Whatever is raised, every cache is as long as before."""
        return self.score_part(asks)

    def part(self, *, layers: int | None = None, ids: Sequence[int] | None = None) -> NativePart:
        """The first `layers` layers with the model's own final norm and head; of the head, the groups of sixteen tokens that hold
        `ids`. Weights and caches are the model's own: what fewer layers have scored must be rewound before more layers score.

        Raises OptionError for layers or tokens there are not."""
        return NativePart(self, layers=layers, ids=ids)

    def score_part(self, asks: Sequence[Ask], ids: IntArray | None = None, **extent: Any) -> list[Scores]:
        """`score` by a part of the model, `extent` as the core takes it, whose logits are of the tokens `ids`."""
        caches = [self._own(ask) for ask in asks]
        layouts = lay_out_all(asks, caches, self.vocab_size, self.context_limit)
        layers = feature_layers(asks, self.num_layers)
        answers = self.core.score(
            [
                (cache.core, layout.tokens.astype(np.int32), layout.parents, layout.num_logits)
                for cache, layout in zip(caches, layouts, strict=True)
            ],
            layers,
            **extent,
        )
        for cache, layout in zip(caches, layouts, strict=True):
            cache.tail = Tail.of(layout)
        return [
            Scores(logits=logits, ids=ids, features=wanted_features(ask, layers, features), best=best)
            for ask, (logits, features, best) in zip(asks, answers, strict=True)
        ]

    def embeddings(self, tokens: Sequence[int] | IntArray) -> NDArray[np.float32]:
        """[tokens, hidden]: what the first layer reads for each token. Raises ValueError outside the vocabulary."""
        return self.core.embeddings(np.asarray(tokens, dtype=np.int32))

    def head_rows(self, tokens: Sequence[int] | IntArray) -> NDArray[np.float32]:
        """[tokens, hidden]: rows of the vocabulary head, as the file holds them. Raises ValueError outside the vocabulary."""
        return self.core.head_rows(np.asarray(tokens, dtype=np.int32))

    def head_runner(self, head: EagleHead) -> NativeHead:
        """A draft head on this model's threads. Raises ModelError for one that the core cannot run."""
        return NativeHead(head, self.core)

    def products(self, matrices: Sequence[Tensor], quantize: str | None = None) -> _core.Products:
        """Matrices on this model's threads, 8-bit unless `quantize` is q4_0. Raises ModelError for those the core cannot use."""
        return native_products(matrices, self.core, quantize)

    def _own(self, ask: Ask) -> NativeCache:
        cache = ask.cache
        if not isinstance(cache, NativeCache) or cache.owner is not self:
            raise ValueError("`cache` must come from open() of the model that scores it")
        return cache


class _Source:
    """Weights on disk, opened; and how to speak of what is wrong with them."""

    def __init__(self, path: str | Path, quantize: str | None) -> None:
        self.name = os.fspath(path)
        folder = Path(path).is_dir() if "\0" not in self.name else False
        if quantize is not None and quantize not in QUANTIZED:
            raise OptionError(f"`quantize` must be one of {', '.join(QUANTIZED)}, got {quantize!r}")
        self.quantizes = None if quantize is None else quantize.upper()
        self._folder = Folder(Path(path)) if folder else None
        with self.explained():
            self.file = self._folder.file if self._folder else _core.open_gguf(self.name)
        self.types: dict[str, int] = self.file.types

    def needs(self, context: int | None) -> Needs:
        """Of the model with this context (None: its own)."""
        if context is not None and not 1 <= context < 2**31:
            raise OptionError(f"`context` must be 1 or more, up to what the model can hold, got {context}")
        with self.explained():
            weights, per_token, limit = self.file.needs(context or 0, self.quantizes)
        return Needs(name=self.name, weight_bytes=weights, cache_bytes_per_token=per_token, context=limit)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns errors of the core into ours, with the names this source uses."""
        try:
            yield
        except _core.FileError as error:
            message = self._folder.told(str(error)) if self._folder else str(error)
            if message.startswith("`context`"):
                raise OptionError(message) from None
            raise ModelError(message if self.name in message else f"{self.name}: {message}") from None
        except MemoryError:
            raise ModelError(f"{self.name}: not enough memory for its weights; {SMALLER}") from None


@final
class NativePart:
    """The first layers of a native model, or the head of some of its vocabulary, or both: a `Model` on the same caches."""

    def __init__(self, model: NativeModel, *, layers: int | None, ids: Sequence[int] | None) -> None:
        if layers is not None and not 1 <= layers <= model.num_layers:
            raise OptionError(f"`layers` must be from 1 to the model's {model.num_layers}, got {layers}")
        self._model = model
        self._extent: dict[str, Any] = {} if layers is None else {"layers": layers}
        self.vocab_size, self.context_limit = model.vocab_size, model.context_limit
        self._ids: IntArray | None = None
        if ids is not None:
            wanted = np.unique(np.asarray(ids, dtype=np.int64))
            if wanted.size == 0 or wanted[0] < 0 or wanted[-1] >= self.vocab_size:
                raise OptionError(f"`ids` must be tokens from 0 to {self.vocab_size - 1}, at least one, got {list(ids)[:3]} …")
            tiles = np.unique(wanted // _TILE)
            every = (tiles[:, None] * _TILE + np.arange(_TILE)).ravel()
            self._extent["tiles"], self._ids = tiles.tolist(), every[every < self.vocab_size]

    def open(self) -> NativeCache:
        """An empty cache of the model."""
        return self._model.open()

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        """As the model's, by this part of it."""
        return self._model.score_part(asks, self._ids, **self._extent)


def physical_cores() -> int:
    """Cores this process may run on, two hardware threads of one core counted once. At least 1."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # no such call outside Linux
        return os.cpu_count() or 1
    folder = Path("/sys/devices/system/cpu")
    try:
        cores = {(folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text() for cpu in allowed}
    except OSError:
        return max(1, len(allowed))
    return max(1, min(len(cores), _quota()))


def _quota() -> int:
    """Processors' worth of time a container grants, rounded up; threads beyond it would only wait for one another."""
    try:
        granted, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, -(-int(granted) // int(period)))
    except (OSError, ValueError):  # no limit reads as "max"
        return 1024
