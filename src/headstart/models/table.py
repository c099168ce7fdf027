"""`TableModel`: a language model small enough to write down, so that claims about it can be checked by summing.

The next token depends on the last n tokens and on nothing else. Knows tables and the ask/cache contract; does not know
text, sampling or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headstart.errors import OptionError
from headstart.interfaces import Ask, Scores
from headstart.models.asks import Layout, Tail, lay_out_all

__all__ = ["TableCache", "TableModel"]

_SUM_TOLERANCE = 1e-9  # tables are for exact claims: a row off by more than rounding is a mistake


class TableCache:
    """The tokens of one sequence."""

    def __init__(self, model: TableModel) -> None:
        self.model = model
        self.tokens: tuple[int, ...] = ()
        self.tail = Tail(0, 0)

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return len(self.tokens)

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens. Raises ValueError if `length` exceeds what is held."""
        self.tail = self.tail.rewound(length)
        self.tokens = self.tokens[:length]

    def keep(self, path: Sequence[int]) -> None:
        """Of the last score keep the chain at the indices `path`, drop the rest. Raises ValueError if it is not a chain."""
        start = self.tail.start
        self.tail = self.tail.kept(path)
        self.tokens = self.tokens[:start] + tuple(self.tokens[start + index] for index in path)

    def fork(self) -> TableCache:
        """An independent copy."""
        copy = TableCache(self.model)
        copy.tokens, copy.tail = self.tokens, self.tail
        return copy


class TableModel:
    """A model of order n given by its table: `probs[x_1, …, x_n]` is the law of the token after … x_1 … x_n.

    Order 0 is a single row. Where fewer than n tokens precede, the context is completed on the left with token 0.
    Logits are the logarithm of the table in float64 (−inf at zeros), so their softmax is the table to rounding.
    """

    def __init__(self, probs: ArrayLike, *, context_limit: int = 2**31 - 1) -> None:
        """`probs` is [vocab] * (n + 1). Raises OptionError unless every row is a law, of sum 1 to 1e-9."""
        table = np.asarray(probs, dtype=np.float64)
        if not np.isfinite(table).all() or (table < 0).any():
            raise OptionError(f"`probs` must hold finite probabilities of 0 or more, got a smallest entry of {table.min()}")
        sums = table.sum(axis=-1) if table.ndim else table
        if table.ndim and table.size and np.abs(sums - 1.0).max() > _SUM_TOLERANCE:
            worst = float(sums.flat[np.abs(sums - 1.0).argmax()])
            raise OptionError(f"`probs` must have rows that sum to 1, got a row of sum {worst:.12g}; normalise it first")
        with np.errstate(divide="ignore"):
            self._take(np.log(table), context_limit, "probs")

    @classmethod
    def from_logits(cls, logits: ArrayLike, *, context_limit: int = 2**31 - 1) -> TableModel:
        """A model that answers with these logits as they are, NaN and −inf included; `logits` is [vocab] * (n + 1)."""
        model = cls.__new__(cls)
        model._take(np.array(logits, dtype=np.float64), context_limit, "logits")
        return model

    def _take(self, logits: NDArray[np.float64], context_limit: int, name: str) -> None:
        if logits.ndim == 0 or logits.size == 0 or len(set(logits.shape)) != 1:
            raise OptionError(f"`{name}` must have shape [vocab] * (order + 1), got {list(logits.shape)}")
        if context_limit < 1:
            raise OptionError(f"`context_limit` must be 1 or more, got {context_limit}")
        self._logits = logits
        self.vocab_size = int(logits.shape[-1])
        self.order = logits.ndim - 1
        self.context_limit = context_limit

    def open(self) -> TableCache:
        """An empty cache for one sequence."""
        return TableCache(self)

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        """Logits [num_logits, vocab] in float64 for each ask. Raises ValueError, with no cache changed, for an impossible ask."""
        caches = [self._own(ask) for ask in asks]
        layouts = lay_out_all(asks, caches, self.vocab_size, self.context_limit)
        scores = [Scores(logits=self._rows(cache, layout)) for cache, layout in zip(caches, layouts, strict=True)]
        for cache, layout in zip(caches, layouts, strict=True):
            cache.tokens += tuple(layout.tokens.tolist())
            cache.tail = Tail.of(layout)
        return scores

    def _own(self, ask: Ask) -> TableCache:
        cache = ask.cache
        if not isinstance(cache, TableCache) or cache.model is not self:
            raise ValueError("`cache` must come from open() of the model that scores it")
        return cache

    def _rows(self, cache: TableCache, layout: Layout) -> NDArray[np.float64]:
        """[num_logits, vocab]: the table's row at the context of each wanted token."""
        order, size = self.order, len(layout.tokens)
        # Row 0 is the context at the cache's end, row i + 1 the context after token i.
        contexts = np.zeros((size + 1, order), dtype=np.int64)
        if order:
            last = cache.tokens[-order:]
            contexts[0, order - len(last) :] = last
            for place, token in enumerate(layout.tokens):
                parent = place - 1 if layout.parents is None else layout.parents[place]
                contexts[place + 1, :-1] = contexts[parent + 1, 1:]
                contexts[place + 1, -1] = token
        wanted = contexts[size + 1 - layout.num_logits :]
        if order == 0:
            return np.tile(self._logits, (layout.num_logits, 1))
        rows: NDArray[np.float64] = self._logits[tuple(wanted.T)]
        return rows
