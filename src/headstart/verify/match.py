"""Sample and match: the target draws its own token at every position; the draft only says how far one pass reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify.chain import stops

__all__ = ["MatchRule"]


@final
class MatchRule:
    """Draw y ~ p, emit it, go on while y = X_i. Exact for any draft; accepts Σ p·q for one drawn independently."""

    name = "match"
    walks = True
    keyed = False

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[gamma + 1]: Π_{j≤i} p_j(X_j) · (1 − p_{i+1}(X_{i+1}))."""
        return stops(np.array([p.prob(token) for token, p in zip(draft.tokens, target_rows, strict=False)]))

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """The target's row without the drafted token it missed, or whole after the whole draft."""
        row = target_rows[node]
        if node == len(draft):
            return row
        probs = row.to_array().copy()
        probs[draft.tokens[node]] = 0.0
        return Row(probs / probs.sum(), None, row.vocab_size)
