"""`TransformersModel`: a decoder-only model run by transformers, scoring many sequences in one pass.

Knows how asks become one forward pass and logits become numpy. Does not know where models come from (`checkpoint`), how
keys are kept (`kv`) or who sees whom (`attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import OptionError
from headstart.interfaces import Ask, Scores
from headstart.models.asks import Layout, Tail, feature_layers, lay_out_all, wanted_features
from headstart.models.attention import Pass, Piece, running
from headstart.models.checkpoint import load_network
from headstart.models.kv import KVCache
from headstart.models.partial import network_part
from headstart.models.selfcheck import check
from headstart.models.torch_extra import torch
from headstart.rows import FloatArray, IntArray

__all__ = ["TransformersModel"]

# Most tokens in one forward pass: more gains no speed on a CPU, and bounds what a long prompt needs in memory.
_CHUNK_TOKENS = 512


class TransformersModel:
    """A causal language model run by transformers. Two threads may score at once, on different caches."""

    engine = "transformers"

    def __init__(self, network: Any, *, context_limit: int) -> None:
        """Trusts `network` to be a transformers model prepared by `load_network`; users call `load`."""
        self.network = network
        self.config = network.config
        text = network.config.get_text_config()
        self.vocab_size: int = text.vocab_size
        self.context_limit = context_limit
        self.dtype = str(network.dtype).removeprefix("torch.")
        self.device = str(network.device)
        self.num_parameters: int = network.num_parameters()
        self.windows: dict[int, int | None] = {}  # layer → sliding window, as the network asked for it in the last pass
        self.num_layers: int = text.num_hidden_layers
        self.hidden_size: int = text.hidden_size
        self._caches_of, self._layers = self, self.num_layers  # a part of a model works on the whole model's caches
        self._ids: IntArray | None = None  # tokens its logits are of; None: all

    @classmethod
    def load(
        cls,
        ref: str | Path,
        *,
        revision: str | None = None,
        gguf_file: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        offline: bool = False,
        context: int | None = None,
        progress: Callable[[str, float | None], None] | None = None,
    ) -> TransformersModel:
        """A model from a Hugging Face folder, a hub id or a GGUF file.

        `gguf_file` names a file within a folder or hub repository. `dtype` is 'float32', 'bfloat16', 'float16' (CUDA only) or
        'auto': bfloat16 where the hardware computes in it, else float32. `device` is 'cpu', 'cuda', 'cuda:N' or 'auto'.
        `threads` is the number of CPU threads of the whole process. `context` lowers `context_limit`. `progress` is called
        with the name of each stage and the fraction done, if known. Code that comes with a model is never run.

        Raises ModelError if the model cannot be found, read or rolled back, OptionError for an option that cannot be
        honoured."""
        progress = progress or (lambda stage, fraction: None)
        network, limit = load_network(
            str(ref),
            revision=revision,
            gguf_file=gguf_file,
            dtype=dtype,
            device=device,
            threads=threads,
            offline=offline,
            context=context,
            progress=progress,
        )
        progress("checking that it rolls back", None)
        model = cls(network, context_limit=limit)
        check(model, str(ref))
        return model

    def open(self) -> KVCache:
        """An empty cache for one sequence."""
        return KVCache(self._caches_of, self._caches_of.num_layers, self.context_limit)

    def part(self, *, layers: int | None = None, ids: Sequence[int] | None = None) -> TransformersModel:
        """The first `layers` layers with the model's own final norm and head; of the head, the rows of `ids`.

        Weights (but for a copy of those rows) and caches are the model's own: what fewer layers have scored must be rewound
        before more layers score. Raises OptionError for layers or tokens there are not."""
        if layers is not None and not 1 <= layers <= self.num_layers:
            raise OptionError(f"`layers` must be from 1 to the model's {self.num_layers}, got {layers}")
        wanted = None if ids is None else np.unique(np.asarray(ids, dtype=np.int64))
        if wanted is not None and not (wanted.size and wanted[0] >= 0 and wanted[-1] < self.vocab_size):
            raise OptionError(f"`ids` must be tokens from 0 to {self.vocab_size - 1}, at least one, got {list(ids or ())[:3]} …")
        part = TransformersModel(network_part(self.network, layers, wanted), context_limit=self.context_limit)
        part._caches_of, part._layers, part._ids = self._caches_of, layers or self._layers, wanted
        return part

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        """Logits [num_logits, vocab] in float32 for each ask, in one pass (several for more than 512 tokens in all).

        Raises ValueError for an impossible ask. Whatever is raised, every cache is as long as before."""
        caches = [self._own(ask) for ask in asks]
        layouts = lay_out_all(asks, caches, self.vocab_size, self.context_limit)
        layers = feature_layers(asks, self.num_layers)
        if layers and self._layers < self.num_layers:
            raise ValueError("`feature_layers` need a pass of all layers")
        for cache in caches:
            cache.check(self._layers)
        width = self.vocab_size if self._ids is None else self._ids.size
        rows: list[list[FloatArray]] = [[np.empty((0, width), dtype=np.float32)] for _ in layouts]
        features: list[list[FloatArray]] = [[] for _ in layouts]
        with torch.inference_mode():
            for group in _groups(layouts):
                pieces = [Piece(caches[index], layouts[index], first, last) for index, first, last in group]
                logits, states = self._forward(Pass(pieces), layers)
                for (index, _, _), new, seen in zip(group, logits, states, strict=True):
                    rows[index].append(new)
                    features[index].append(seen)
        for cache, layout in zip(caches, layouts, strict=True):
            cache.commit(Tail.of(layout), self._layers)
        every = [np.concatenate(seen, axis=1).swapaxes(0, 1) for seen in features]  # [tokens, layers, hidden]
        return [
            Scores(logits=_joined(parts), ids=self._ids, features=wanted_features(ask, layers, seen))
            for ask, parts, seen in zip(asks, rows, every, strict=True)
        ]

    def embeddings(self, tokens: Sequence[int] | IntArray) -> NDArray[np.float32]:
        """[tokens, hidden]: what the first layer reads for each token."""
        with torch.inference_mode():
            found = self.network.get_input_embeddings()(self._tensor([np.asarray(tokens, dtype=np.int64)]))
        array: NDArray[np.float32] = found.to(device="cpu", dtype=torch.float32).numpy()
        return array

    def head_rows(self, tokens: Sequence[int] | IntArray) -> NDArray[np.float32]:
        """[tokens, hidden]: rows of the vocabulary head."""
        weight = self.network.get_output_embeddings().weight.detach()
        found = weight[self._tensor([np.asarray(tokens, dtype=np.int64)])]
        array: NDArray[np.float32] = found.to(device="cpu", dtype=torch.float32).numpy()
        return array

    def _own(self, ask: Ask) -> KVCache:
        cache = ask.cache
        if not isinstance(cache, KVCache) or cache.owner is not self._caches_of:
            raise ValueError("`cache` must come from open() of the model that scores it")
        return cache

    def _forward(self, this: Pass, layers: Sequence[int]) -> tuple[list[FloatArray], list[FloatArray]]:
        """Run one pass; for each piece the logits wanted of it, [wanted, vocab], and hidden states, [layers, tokens, hidden]."""
        tokens, positions, wanted, counts, offset = [], [], [], [], 0
        for piece in this.pieces:
            layout = piece.layout
            tokens.append(layout.tokens[piece.first : piece.last])
            positions.append(layout.start + layout.depths[piece.first : piece.last])
            first_wanted = max(0, len(layout.tokens) - layout.num_logits - piece.first)
            wanted.append(np.arange(offset + min(first_wanted, piece.size), offset + piece.size))
            counts.append(len(wanted[-1]))
            offset += piece.size
        with running(this):
            output = self.network(
                input_ids=self._tensor(tokens)[None],
                position_ids=self._tensor(positions)[None],
                logits_to_keep=self._tensor(wanted),
                use_cache=False,
                output_hidden_states=bool(layers),
            )
        self.windows = this.windows
        rows: FloatArray = output.logits[0].to(device="cpu", dtype=torch.float32).numpy()
        states = np.zeros((len(layers), offset, 0), dtype=np.float32)
        if layers:
            # What transformers calls hidden states are the inputs to each layer, and last what its final norm gives.
            found = torch.stack([output.hidden_states[layer][0] for layer in layers])
            states = found.to(device="cpu", dtype=torch.float32).numpy()
        sizes = [piece.size for piece in this.pieces]
        return np.split(rows, np.cumsum(counts)[:-1]), np.split(states, np.cumsum(sizes)[:-1], axis=1)

    def _tensor(self, parts: Sequence[Any]) -> Any:
        return torch.from_numpy(np.concatenate(parts)).to(self.network.device)


def _groups(layouts: Sequence[Layout]) -> Iterator[list[tuple[int, int, int]]]:
    """Passes of at most `_CHUNK_TOKENS` tokens, each a list of (index of the layout, first token, end)."""
    group: list[tuple[int, int, int]] = []
    room = _CHUNK_TOKENS
    for index, layout in enumerate(layouts):
        first = 0
        while first < len(layout.tokens):
            last = min(len(layout.tokens), first + room)
            group.append((index, first, last))
            room -= last - first
            first = last
            if room == 0:
                yield group
                group, room = [], _CHUNK_TOKENS
    if group:
        yield group


def _joined(parts: list[FloatArray]) -> FloatArray:
    """The parts one under another; a single filled one as it is."""
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else np.concatenate(filled or parts)
