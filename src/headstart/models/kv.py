"""`KVCache`: the keys and values of one sequence, every layer's, in tensors with room to spare.

There is one length for all layers, and slots beyond it are never read: to rewind is to lower a number. Sliding-window
layers keep every key too; their window is the attention's business, so they rewind like any other. Slot j of a chain holds
position j; the tokens of a tree lie side by side behind the chain until `keep` makes one chain of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstart.models.asks import Tail
from headstart.models.torch_extra import torch

__all__ = ["KVCache"]

_FIRST_CAPACITY = 64


class KVCache:
    """What a transformers model remembers of one sequence."""

    def __init__(self, owner: object, num_layers: int, context_limit: int) -> None:
        self.owner = owner
        self.tail = Tail(0, 0)
        self._whole, self._layers = 0, num_layers  # tokens all layers hold; the first `_layers` hold those after them too
        self._limit = context_limit
        self._keys: list[Any] = [None] * num_layers  # each [1, kv_heads, capacity, dim]
        self._values: list[Any] = [None] * num_layers  # each [1, kv_heads, capacity, value_dim]

    @property
    def length(self) -> int:
        """Number of tokens held, the same in every layer."""
        return self.tail.length

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens. Raises ValueError if `length` exceeds what is held."""
        self.tail = self.tail.rewound(length)
        self._whole = min(self._whole, length)

    def keep(self, path: Sequence[int]) -> None:
        """Of the last score keep the chain at the indices `path`, drop the rest. Raises ValueError if it is not a chain."""
        start, kept, by_all = self.tail.start, self.tail.kept(path), self._whole == self.length
        # Interrupted halfway, the cache stands where it stood before the last score.
        self.tail, self._whole = Tail(start, start), min(self._whole, start)
        if list(path) != list(range(len(path))):
            self._gather(start, path)
        self.tail = kept
        if by_all:
            self._whole = kept.length

    def fork(self) -> KVCache:
        """An independent copy."""
        copy = KVCache(self.owner, len(self._keys), self._limit)
        with torch.inference_mode():
            copy._keys = [None if keys is None else keys[:, :, : self.length].clone() for keys in self._keys]
            copy._values = [None if values is None else values[:, :, : self.length].clone() for values in self._values]
        copy.tail, copy._whole, copy._layers = self.tail, self._whole, self._layers
        return copy

    def extend(self, layer: int, start: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Write the keys and values of new tokens at slots `start` … and return views of all up to there.

        `keys` and `values` are [1, kv_heads, tokens, dim]. The length is not touched: that is `commit`'s, after the pass."""
        end = start + keys.shape[2]
        self._keys[layer] = self._with_room(self._keys[layer], start, end, keys)
        self._values[layer] = self._with_room(self._values[layer], start, end, values)
        all_keys, all_values = self._keys[layer][:, :, :end], self._values[layer][:, :, :end]
        all_keys[:, :, start:].copy_(keys)
        all_values[:, :, start:].copy_(values)
        return all_keys, all_values

    def check(self, layers: int) -> None:
        """Raises ValueError where the tokens held were scored by fewer than the first `layers`."""
        if self._whole < self.length and self._layers < layers:
            raise ValueError(f"tokens scored by the first {self._layers} layers must be rewound before {layers} score")

    def commit(self, tail: Tail, layers: int) -> None:
        """Count the tokens a pass of the first `layers` has written, now that it has succeeded."""
        self.tail, self._layers = tail, layers
        if layers == len(self._keys):
            self._whole = tail.length

    def _with_room(self, held: Any, start: int, end: int, like: Any) -> Any:
        """`held` if it has `end` slots, else a larger copy of its first `start`."""
        if held is not None and held.shape[2] >= end:
            return held
        capacity = max(end, min(self._limit, max(_FIRST_CAPACITY, 2 * end)))
        larger = like.new_empty((1, like.shape[1], capacity, like.shape[3]))
        if held is not None:
            larger[:, :, :start].copy_(held[:, :, :start])
        return larger

    def _gather(self, start: int, path: Sequence[int]) -> None:
        """Move the slots `start + path` to `start` …, in every layer that has them."""
        end = start + len(path)
        with torch.inference_mode():
            for held in (*self._keys[: self._layers], *self._values[: self._layers]):
                slots = start + torch.tensor(path, dtype=torch.long, device=held.device)
                held[:, :, start:end] = held[:, :, slots]
