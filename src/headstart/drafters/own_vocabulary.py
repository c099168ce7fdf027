"""Rows of a drafter that knows only part of the target's vocabulary: zero elsewhere, processed as the target's rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.interfaces import Processor
from headstart.rows import FloatArray, Row

__all__ = ["OwnVocabulary"]


class OwnVocabulary:
    """The target's ids of the drafter's tokens. Tokens beyond the processor's vocabulary are never drafted."""

    def __init__(self, token_ids: NDArray[np.int64] | None, size: int) -> None:
        """`token_ids` [size], all different; None: 0 … size − 1."""
        ids = np.arange(size) if token_ids is None else token_ids
        self._order: NDArray[Any] | None = None if bool((np.diff(ids) > 0).all()) else np.argsort(ids)
        self.ids = ids if self._order is None else ids[self._order]  # increasing; the target's

    def row(self, processor: Processor, history: Sequence[int], logits: FloatArray, best: int | None = None) -> Row:
        """The row after `history` from logits [size] in the drafter's order, the largest at `best`. Raises RowError."""
        return processor.row(history, self.ordered(logits), self.ids, best=best if self._order is None else None)

    def ordered(self, logits: FloatArray) -> FloatArray:
        """Logits [size] in the order of `ids`."""
        return logits if self._order is None else logits[self._order]
