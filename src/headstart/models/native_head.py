"""`NativeHead`: a draft head (EAGLE) run by the C++ core, on the threads of the model beside it.

Matrices are made 8- or 4-bit at load, as the head's config says, but for `fc` and for rows borrowed from the target, which keep
their bits; so rows differ a little from those of the head in float32 (`drafters.eagle_forward`). They are the same bit for bit
however they came about: alone or beside other sequences, in a tree or as a chain, on any number of threads. Does not know drafts
or chance. `native_products` does the same for the matrices of heads that have no layer (Medusa).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from headstart import _core
from headstart.checkpoints import EagleHead, Tensor
from headstart.errors import ModelError
from headstart.interfaces import HeadAsk, Scores

__all__ = ["NativeHead", "native_products"]

Floats = NDArray[np.float32]
_RUN = ("F32", "F16", "BF16")  # types that the core reads


@final
class NativeHead:
    """A head ready to run beside one native model, whose vocabulary matrices it borrows where it brings none."""

    def __init__(self, head: EagleHead, target: _core.Model) -> None:
        """Raises ModelError for widths or numbers that the core cannot run."""
        c = head.config
        ids = np.arange(c.draft_vocab_size) if head.token_ids is None else head.token_ids
        try:
            self.core = _core.Head.load(
                target,
                [(name, *_held(tensor)) for name, tensor in head.weights.items()],
                ids.astype(np.int32),
                generation=c.generation,
                norm_before_residual=c.norm_before_residual,
                hidden=c.hidden_size,
                states=c.hidden_size if c.generation == 1 else c.num_features * c.target_hidden_size,
                heads=c.num_heads,
                kv_heads=c.num_kv_heads,
                head_dim=c.head_dim,
                ff=c.intermediate_size,
                eps=c.rms_norm_eps,
                rope=c.rope.rates(c.head_dim).tolist(),
                rope_magnitude=c.rope.magnitude,
                quantize=c.quantize.upper(),
            )
        except _core.FileError as error:
            raise ModelError(str(error)) from None
        self.weight_bytes, self.bytes_per_pass = self.core.weight_bytes, self.core.bytes_per_pass

    def open(self) -> _core.Cache:
        """An empty cache."""
        return self.core.open()

    def run(self, asks: Sequence[HeadAsk], *, from_target: bool = False) -> list[Scores]:
        """See `HeadRunner`. Raises ValueError for an impossible ask; every cache is then as long as before."""
        parts = [(ask.cache, ask.tokens, ask.hidden, ask.parents, ask.grows, ask.num_logits) for ask in asks]
        return [Scores(logits=logits, features=out, best=best) for out, logits, best in self.core.score(parts, from_target)]


def native_products(matrices: Sequence[Tensor], target: _core.Model, quantize: str | None) -> _core.Products:
    """Matrices on the threads of `target`. Raises ModelError for those that the core cannot use."""
    try:
        named = [(f"matrix {place}", *_held(tensor)) for place, tensor in enumerate(matrices)]
        return _core.Products.load(target, named, (quantize or "q8_0").upper())
    except _core.FileError as error:
        raise ModelError(str(error)) from None


def _held(tensor: Tensor) -> tuple[NDArray[np.generic], str]:
    """The bits and their type; of another type than the core reads, as float32."""
    if tensor.dtype in _RUN:
        return np.ascontiguousarray(tensor.array), tensor.dtype
    return np.ascontiguousarray(tensor.floats()), "F32"
