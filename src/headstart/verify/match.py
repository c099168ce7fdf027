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
        chain = zip(draft.tokens, target_rows, strict=False)
        return stops(np.array([min(1.0, p.prob(token)) for token, p in chain]))

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """The target's row without the drafted token it missed, or whole after the whole draft."""
        row = target_rows[node]
        if node == len(draft):
            return row
        probs = row.to_array().copy()
        probs[draft.tokens[node]] = 0.0
        left = probs.sum()
        return Row(probs / left, None, row.vocab_size) if left > 0 else row  # nothing left: the token cannot be missed
