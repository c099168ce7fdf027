"""What one pass of the target says of a draft: the row at each node, faults where they are met, shares and log-probabilities.

It knows logits, histories and processing. It does not know rules, caches or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from headstart.errors import RowError
from headstart.interfaces import Processor, Scores
from headstart.pairs import overlap
from headstart.probs import SamplingProcessor
from headstart.records import Draft, TokenLogprobs
from headstart.rows import FloatArray, Row

__all__ = ["Fault", "TargetRows", "covered", "token_logprobs"]


class Fault(NamedTuple):
    """A row no token can be drawn from."""

    place: int  # the accepted tokens before it
    error: RowError


class TargetRows(Sequence[Row]):
    """The target's rows of one draft, made when first looked at: a node's history is the text and the path down to it.

    A row nothing can be drawn from is a fault only if its node is really visited, which is known after deciding. Until then a
    stand-in takes its place; it cannot change the law anywhere else."""

    def __init__(self, text: Sequence[int], processor: Processor, draft: Draft, scores: Scores) -> None:
        self._text, self._processor, self._draft, self._scores = text, processor, draft, scores
        self._rows: dict[int, Row] = {}
        self._faults: dict[int, RowError] = {}

    def __len__(self) -> int:
        return len(self._draft) + 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        node = range(len(self))[index]
        if node not in self._rows:
            self._rows[node] = self._made(node)
        return self._rows[node]

    def _made(self, node: int) -> Row:
        try:
            return self._scores.row(node, self._processor, [*self._text, *self._draft.path_tokens(node)])
        except RowError as error:
            self._faults[node] = error
            children = self._draft.children(node)
            return self._draft.rows[children[0] - 1] if children else Row.point(0, self._processor.vocab_size)

    def fault(self, path: Sequence[int]) -> Fault | None:
        """The first fault among the rows that the nodes of `path` were left by, the extra token's included."""
        return next((Fault(place, self._faults[node]) for place, node in enumerate(path) if node in self._faults), None)


def covered(target: Row, draft: Draft, node: int) -> float:
    """The share of the target's row that the children of `node` can meet: Σ min(p, q), or Σ p over children that were chosen."""
    rows = [draft.rows[child - 1] for child in draft.children(node)]
    if target.probs.size == 1:
        token = target.token(0)
        return rows[0].prob(token) if not rows[0].is_point else float(draft.child(node, token) is not None)
    if not rows[0].is_point:
        return overlap(target, rows[0])
    return min(1.0, sum(overlap(target, row) for row in rows))


def token_logprobs(
    processor: SamplingProcessor, history: Sequence[int], token: int, logits: FloatArray, count: int
) -> TokenLogprobs:
    """What is reported of one emitted token, with the `count` likeliest alternatives."""
    logprobs = processor.logprobs(history, logits)
    count = min(count, logprobs.size)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        reach = np.partition(logprobs, logprobs.size - count)[logprobs.size - count]
        near = np.flatnonzero((logprobs >= reach) & np.isfinite(logprobs))
        likeliest = near[np.argsort(-logprobs[near], kind="stable")[:count]]
        top = tuple((int(i), float(logprobs[i])) for i in likeliest)
    return TokenLogprobs(token=token, logprob=float(logprobs[token]), top=top)
