"""What every model does with an ask before scoring it: check it, lay out its tree, and remember it for `keep`.

Knows token ids, parents and lengths. Does not know logits, tensors or any kind of model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.interfaces import Ask
from headstart.rows import FloatArray

__all__ = ["Layout", "Tail", "feature_layers", "lay_out", "lay_out_all", "wanted_features"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A checked ask: its tokens and where each hangs. `parents` is None for a chain."""

    start: int  # length of the cache before the pass
    tokens: NDArray[np.int64]  # [tokens]
    parents: tuple[int, ...] | None  # [tokens]
    num_logits: int

    @property
    def depths(self) -> NDArray[np.int64]:
        """[tokens]: how far below the cache's end each token hangs, 0 for its direct continuations."""
        if self.parents is None:
            return np.arange(len(self.tokens))
        depths = np.zeros(len(self.tokens), dtype=np.int64)
        for place, parent in enumerate(self.parents):
            depths[place] = depths[parent] + 1 if parent >= 0 else 0
        return depths

    @property
    def ancestors(self) -> NDArray[np.bool_]:
        """[tokens, tokens]: whether the column's token is the row's token itself or above it."""
        if self.parents is None:
            return np.tri(len(self.tokens), dtype=np.bool_)
        sees = np.eye(len(self.tokens), dtype=np.bool_)
        for place, parent in enumerate(self.parents):
            if parent >= 0:
                sees[place] |= sees[parent]
        return sees


@dataclass(frozen=True, slots=True)
class Tail:
    """The tokens of a cache's last `score`: `keep` chooses among them, and a tree must be resolved before the next one."""

    start: int
    length: int
    parents: tuple[int, ...] | None = None  # [tokens]; None: a chain

    @staticmethod
    def of(layout: Layout) -> Tail:
        """The tail that scoring `layout` leaves behind."""
        return Tail(layout.start, layout.start + len(layout.tokens), layout.parents)

    @property
    def branched(self) -> bool:
        """Whether the tail is not one chain."""
        return self.parents is not None and any(parent != place - 1 for place, parent in enumerate(self.parents))

    def rewound(self, length: int) -> Tail:
        """The tail after everything beyond `length` is forgotten. Raises ValueError if `length` exceeds what is held."""
        if not 0 <= length <= self.length:
            raise ValueError(f"`length` must be from 0 to the {self.length} tokens held, got {length}")
        if length <= self.start:
            return Tail(length, length)
        parents = None if self.parents is None else self.parents[: length - self.start]
        return Tail(self.start, length, parents)

    def kept(self, path: Sequence[int]) -> Tail:
        """The tail after `keep(path)`. Raises ValueError unless `path` is a chain from the old end through the last score."""
        above = -1
        for index in path:
            if not above < index < self.length - self.start:
                held = self.length - self.start
                raise ValueError(f"`path` must increase within the {held} tokens of the last score, got {list(path)}")
            parent = index - 1 if self.parents is None else self.parents[index]
            if parent != above:
                raise ValueError(
                    f"`path` must follow parents: index {index} hangs from {parent}, not from {above}, got {list(path)}"
                )
            above = index
        return Tail(self.start, self.start + len(path))


class _Held(Protocol):
    """A cache that remembers its tail."""

    tail: Tail


def lay_out_all(asks: Sequence[Ask], caches: Sequence[_Held], vocab_size: int, context_limit: int) -> list[Layout]:
    """Every ask of one pass, checked as `lay_out` does. Raises ValueError also where two asks name one cache."""
    if len({id(cache) for cache in caches}) != len(caches):
        raise ValueError("`asks` must not name one cache twice; fork it")
    return [lay_out(ask, cache.tail, vocab_size, context_limit) for ask, cache in zip(asks, caches, strict=True)]


def lay_out(ask: Ask, tail: Tail, vocab_size: int, context_limit: int) -> Layout:
    """`ask` checked against the cache's tail. Raises ValueError for anything a model could not answer truthfully."""
    tokens = np.asarray(ask.tokens, dtype=np.int64)
    if tokens.ndim != 1 or tokens.size == 0:
        raise ValueError("`tokens` must hold at least one token id")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"`tokens` must be ids from 0 to {vocab_size - 1}, got {int(tokens.min())} … {int(tokens.max())}")
    if tail.length + tokens.size > context_limit:
        raise ValueError(f"{tail.length} tokens held and {tokens.size} more exceed `context_limit`, {context_limit}")
    if tail.branched:
        raise ValueError("the last score of this cache was a tree: call keep(path) or rewind(length) before scoring again")
    num_logits = tokens.size if ask.num_logits is None else ask.num_logits
    if not 0 <= num_logits <= tokens.size:
        raise ValueError(f"`num_logits` must be from 0 to the {tokens.size} tokens asked, got {num_logits}")
    parents = None if ask.parents is None else tuple(int(parent) for parent in ask.parents)
    if parents is not None:
        if len(parents) != tokens.size:
            raise ValueError(f"`parents` must name one parent a token, got {len(parents)} for {tokens.size} tokens")
        if any(not -1 <= parent < place for place, parent in enumerate(parents)):
            raise ValueError(f"`parents` must come before their children, −1 for the cache's end, got {list(parents)}")
    return Layout(start=tail.length, tokens=tokens, parents=parents, num_logits=num_logits)


def feature_layers(asks: Sequence[Ask], num_layers: int) -> list[int]:
    """Every layer some ask of the pass wants hidden states of, increasing. Raises ValueError for a layer there is not."""
    layers = sorted({layer for ask in asks for layer in ask.feature_layers})
    if layers and not 0 <= layers[0] <= layers[-1] <= num_layers:
        raise ValueError(f"`feature_layers` must be from 0 to {num_layers}, got {layers}")
    return layers


def wanted_features(ask: Ask, layers: Sequence[int], features: FloatArray | None) -> FloatArray | None:
    """Of the pass's `features` [tokens, layers, hidden] those `ask` wants, [tokens, wanted · hidden]; or None."""
    if features is None or not ask.feature_layers:
        return None
    if list(ask.feature_layers) != list(layers):
        features = features[:, [layers.index(layer) for layer in ask.feature_layers]]
    return features.reshape(len(features), -1)
