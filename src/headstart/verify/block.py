"""Block verification (Sun et al. 2024, Algorithm 2): never accepts less than token-wise on average, and keeps the same law.

For chains only: on a tree no such rule is known, and one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from headstart.pairs import excess_mass, residual
from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify.walk import only_chains

__all__ = ["BlockRule", "joint_ratios"]


def joint_ratios(target_rows: Sequence[Row], draft: Draft) -> FloatArray:
    """[gamma + 1]: p_0 = 1, p_i = min(1, p_{i−1}·p(X_i)/q(X_i)); P(at least i are kept | X^i) = p_i."""
    ratios = [1.0]
    for token, q, p in zip(draft.tokens, draft.rows, target_rows, strict=False):
        ratios.append(min(1.0, ratios[-1] * p.prob(token) / q.prob(token)))
    return np.array(ratios)


@final
class BlockRule:
    """Keep the longest prefix whose own test passes; the tests are made so that P(kept ≥ i | X^i) = p_i exactly."""

    name = "block"
    walks = False
    keyed = False
    trees = False
    lossless = True

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[gamma + 1]: h_i·Π_{j>i}(1 − h_j) with h_i = S_i/(S_i + 1 − p_i), h_gamma = p_gamma, h_0 = 1.

        S_i = Σ_x (p_i·p(x|X^i) − q(x|X^i))+. The largest i whose test passes wins, not the last before the first failure."""
        only_chains(self.name, draft)
        gamma = len(draft)
        ratios = joint_ratios(target_rows, draft)
        passes: FloatArray = np.ones(gamma + 1)
        passes[gamma] = ratios[gamma]
        for i in range(1, gamma):
            left = excess_mass(target_rows[i], draft.rows[i], ratios[i]) if ratios[i] > 0 else 0.0
            whole = left + (1.0 - ratios[i])  # in this order: a pass never exceeds 1, and is 1 where ratios[i] is
            passes[i] = left / whole if whole > 0 else 1.0
        passes[0] = 1.0
        later_fail = np.concatenate([np.cumprod((1.0 - passes)[:0:-1])[::-1], [1.0]])
        outcomes: FloatArray = passes * later_fail
        return outcomes

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """∝ (p_node·p − q)+ after `node` < gamma tokens, or the target's row after the whole draft."""
        only_chains(self.name, draft)
        if node == len(draft):
            return target_rows[node]
        return residual(target_rows[node], draft.rows[node], scale=float(joint_ratios(target_rows, draft)[node]))
