"""What Medusa heads compute: residual blocks x + SiLU(Wx + b), then a projection onto the vocabulary (Cai et al. 2024).

Nothing that a head reads depends on another head, so all of them are computed together: their first blocks are one matrix, and
where one projection serves them all (the target's own rows, as in Medusa-1), its bytes are read once. Does not know drafts,
rounds or chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints import MedusaHead, Tensor
from headstart.interfaces import ProductEngine, Products

__all__ = ["MedusaForward"]

Floats = NDArray[np.float32]


class MedusaForward:
    """Heads ready to run, on the threads of an engine that multiplies by matrices beside its model, else in numpy."""

    def __init__(self, head: MedusaHead, engine: object = None, *, quantize: str | None = None) -> None:
        """`quantize`: q8_0 (an engine's default) or q4_0. Raises ModelError for matrices the engine cannot use."""
        w = head.weights
        self.hidden_size, self.num_heads = head.hidden_size, head.num_heads
        heads, blocks = range(head.num_heads), range(head.num_layers)
        self._biases = [np.stack([w[f"{i}.{b}.linear.bias"].floats() for i in heads]) for b in blocks]  # a block: [heads, hidden]
        own = [[w[f"{i}.{b}.linear.weight"] for i in heads] for b in blocks]
        projections = _distinct([w[f"{i}.{head.num_layers}.weight"] for i in heads])
        self._shared = len(projections) == 1
        matrices = [_stacked(block) for block in own[:1]]
        self._later = [[len(matrices) + b * head.num_heads + i for i in heads] for b in range(head.num_layers - 1)]
        matrices += [tensor for block in own[1:] for tensor in block]
        self._projections = [len(matrices) + min(i, len(projections) - 1) for i in heads]
        matrices += projections
        self._products: Products = (
            engine.products(matrices, quantize) if isinstance(engine, ProductEngine) else _NumpyProducts(matrices)
        )

    def logits(self, hidden: Floats, heads: int) -> Floats:
        """[heads, n, draft vocab] of the first `heads` heads, from hidden states [n, hidden]."""
        x = np.broadcast_to(hidden, (heads, *hidden.shape))
        if self._biases:
            inner = self._products.multiply(0, hidden, heads * self.hidden_size)
            x = self._past(x, inner.reshape(len(hidden), heads, -1).swapaxes(0, 1), 0)
        for block, places in enumerate(self._later, start=1):
            x = self._past(x, np.stack([self._products.multiply(places[i], x[i]) for i in range(heads)]), block)
        if self._shared:
            flat = self._products.multiply(self._projections[0], np.ascontiguousarray(x).reshape(heads * len(hidden), -1))
            return flat.reshape(heads, len(hidden), -1)
        return np.stack([self._products.multiply(self._projections[i], np.ascontiguousarray(x[i])) for i in range(heads)])

    def _past(self, x: Floats, inner: Floats, block: int) -> Floats:
        """[heads, n, hidden] after a block of every head, whose product with `x` is `inner`."""
        inner = inner + self._biases[block][: len(x), None]
        out: Floats = x + inner / (1 + np.exp(-np.maximum(inner, -80)))
        return out


class _NumpyProducts:
    """Products in float32."""

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self._matrices = [tensor.floats() for tensor in matrices]

    def multiply(self, index: int, x: Floats, outputs: int | None = None) -> Floats:
        """See `Products`."""
        out: Floats = x @ self._matrices[index][:outputs].T
        return out


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One matrix of all their outputs."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) == 1:
        return Tensor(np.concatenate([tensor.array for tensor in tensors]), *kinds)
    return Tensor.of(np.concatenate([tensor.floats() for tensor in tensors]))


def _distinct(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The first alone where all are equal, bit for bit."""
    first = tensors[0]
    return [first] if all(tensor is first or tensor.same_as(first) for tensor in tensors) else tensors
