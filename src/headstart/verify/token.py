"""Token-wise acceptance (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from headstart.probs import residual
from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify.chain import stops

__all__ = ["TokenRule"]


@final
class TokenRule:
    """Left to right, keep X_i with probability min(1, p(X_i)/q(X_i)); at the first rejection draw from norm((p − q)+)."""

    name = "token"
    walks = False
    keyed = False

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[gamma + 1]: Π_{j≤i} a_j · (1 − a_{i+1}), a the acceptance probabilities."""
        chain = zip(draft.tokens, draft.rows, target_rows, strict=False)
        return stops(np.array([min(1.0, p.prob(token) / q.prob(token)) for token, q, p in chain]))

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """The residual at the rejected token, or the target's row after the whole draft."""
        if node == len(draft):
            return target_rows[node]
        return residual(target_rows[node], draft.rows[node])
