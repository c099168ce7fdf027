"""`Row`: one probability row over a vocabulary, dense, truncated or a single token.

Greedy decoding, n-gram drafts and top-k rows are not special cases anywhere in Headstart: they are rows with a small
support. This file knows how a row is stored and read; it does not know how rows are made from logits (`probs`) or drawn
from (`draws`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headstart import _core
from headstart.errors import OptionError

__all__ = ["FloatArray", "IntArray", "Row", "as_row", "as_rows"]

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]

# A row given by a user may be off by this much in total before it is refused; it is then used as given.
_SUM_TOLERANCE = 1e-4
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
_ALL = np.ones(1)  # the probabilities of every point mass
_ALL.flags.writeable = False


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Probability `probs[j]` on token `ids[j]`, zero elsewhere; `ids` is None when every token is listed in order.

    `Row(...)` itself trusts its arguments; `Row.dense`, `Row.point` and `as_row` check them.
    """

    probs: FloatArray  # [support]
    ids: IntArray | None  # [support], strictly increasing; None: 0 … vocab_size − 1
    vocab_size: int

    @staticmethod
    def point(token: int, vocab_size: int) -> Row:
        """All mass on one token. Raises IndexError outside the vocabulary."""
        if not 0 <= token < vocab_size:
            raise IndexError(f"token {token} is outside the vocabulary of {vocab_size}")
        return Row(_ALL, np.array([token], dtype=np.int64), vocab_size)

    @staticmethod
    def dense(probs: ArrayLike) -> Row:
        """A row from [vocab] probabilities. Raises OptionError unless they are finite, not negative and sum to 1."""
        values = np.asarray(probs)
        if not np.issubdtype(values.dtype, np.floating):
            values = values.astype(np.float64)
        if values.ndim != 1 or values.size == 0:
            raise OptionError(f"`row` must be a vector of probabilities, got shape {values.shape}")
        if not np.isfinite(values).all() or (values < 0).any():
            raise OptionError(f"`row` must hold finite probabilities of 0 or more, got a smallest entry of {values.min()}")
        total = float(values.sum(dtype=np.float64))
        if abs(total - 1.0) > _SUM_TOLERANCE:
            raise OptionError(f"`row` must sum to 1, got {total:.6g}; normalise it first")
        return Row(values, None, values.size)

    def prob(self, token: int) -> float:
        """Probability of one token; 0 for a token the row does not list."""
        if self.ids is None:
            return float(self.probs[token])
        if self.ids.size == 1:
            return float(self.probs[0]) if self.ids[0] == token else 0.0
        place = int(np.searchsorted(self.ids, token))
        return float(self.probs[place]) if place < self.ids.size and self.ids[place] == token else 0.0

    @property
    def is_point(self) -> bool:
        """Whether one token has all the mass: nothing was left to chance."""
        return self.probs.size == 1 or _num_alive(self.probs) == 1

    def without(self, token: int) -> Row | None:
        """The row given that it is not `token`, renormalised; None where no other token has mass."""
        if self.ids is None:
            probs, ids = self.probs.copy(), None
            probs[token] = 0
        else:
            others = self.ids != token
            probs, ids = self.probs[others], self.ids[others]
        left = float(probs.sum(dtype=np.float64))
        return Row(probs / probs.dtype.type(left), ids, self.vocab_size) if left > 0 else None

    def compact(self) -> Row:
        """The row without tokens of probability zero, where that makes it much smaller; else itself."""
        if _num_alive(self.probs) * 4 > self.probs.size:
            return self  # told without listing them, which costs ten times as much
        alive = np.flatnonzero(self.probs)
        return Row(self.probs[alive], alive if self.ids is None else self.ids[alive], self.vocab_size)

    def at(self, ids: IntArray | None) -> FloatArray:
        """Probabilities of the tokens `ids` [n]; None means every token of the vocabulary."""
        if ids is None:
            return self.to_array()
        if self.ids is None:
            return self.probs[ids]
        places = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return np.where(self.ids[places] == ids, self.probs[places], self.probs.dtype.type(0))

    def to_array(self) -> FloatArray:
        """The row as [vocab] probabilities."""
        if self.ids is None:
            return self.probs
        full = np.zeros(self.vocab_size, dtype=self.probs.dtype)
        full[self.ids] = self.probs
        return full

    def token(self, place: int) -> int:
        """The token id at index `place` of `probs`."""
        return place if self.ids is None else int(self.ids[place])


def _num_alive(probs: FloatArray) -> int:
    """How many are not zero."""
    if probs.dtype == np.float32:
        return _core.at_least(np.ascontiguousarray(probs), _SMALLEST)[0]
    return int(np.count_nonzero(probs))


def as_row(row: Row | ArrayLike) -> Row:
    """`row` itself, or a checked `Row` from [vocab] probabilities."""
    return row if isinstance(row, Row) else Row.dense(row)


def as_rows(rows: Sequence[Row] | ArrayLike) -> tuple[Row, ...]:
    """A tuple of rows from rows or from a [n, vocab] array of probabilities."""
    return tuple(as_row(row) for row in rows)  # type: ignore[union-attr]
