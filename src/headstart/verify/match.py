"""Sample and match: the target draws its own token at every position; the draft only says how far one pass reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify.walk import stops

__all__ = ["MatchRule", "missed"]


@final
class MatchRule:
    """Draw y ~ p, emit it, go on while y is drafted. Exact for any draft; accepts Σ p·q for a chain drawn independently."""

    name = "match"
    walks = True
    keyed = False
    trees = True
    lossless = True

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[nodes + 1]: Π p(X) down the path, times 1 − Σ p(child) at its end."""

        def step(node: int) -> FloatArray:
            keeps = [target_rows[node].prob(draft.tokens[child - 1]) for child in draft.children(node)]
            return np.array([*keeps, max(0.0, 1.0 - sum(keeps))])

        return stops(draft, step)

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """The target's row without the drafted tokens it missed; whole where there are none."""
        return missed(target_rows[node], draft, node)


def missed(row: Row, draft: Draft, node: int) -> Row:
    """`row` given that it is none of the children of `node`; `row` itself where nothing else has mass."""
    left: Row | None = row
    for child in draft.children(node):
        left = left and left.without(draft.tokens[child - 1])
    return left or row  # nothing left: a child cannot be missed
