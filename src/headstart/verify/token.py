"""Token-wise acceptance (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2).

On trees it is recursive rejection (Miao et al. 2024, SpecInfer; Chen et al. 2024, Sequoia): the children of a node are tried in
the order drawn, each against what the ones before have left of the target's row. For chosen children, point masses, this has the
law of drawing the target's token once and descending iff it is a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from headstart.pairs import residual
from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify.walk import stops

__all__ = ["TokenRule"]


@final
class TokenRule:
    """Keep X with probability min(1, p(X)/q(X)); else p becomes norm((p − q)+), for the next sibling or for the extra token."""

    name = "token"
    walks = False
    keyed = False
    trees = True
    lossless = True

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[nodes + 1]: down the path the product of a·Π (1 − a) over the siblings before; at its end Π (1 − a) over children."""

        def step(node: int) -> FloatArray:
            law, left, p = [], 1.0, target_rows[node]
            children = draft.children(node)
            for child in children:
                q = draft.rows[child - 1]
                keep = min(1.0, p.prob(draft.tokens[child - 1]) / q.prob(draft.tokens[child - 1])) if left > 0.0 else 0.0
                law.append(left * keep)
                left *= 1.0 - keep
                if child != children[-1] and left > 0.0:
                    p = residual(p, q)
            return np.array([*law, left])

        return stops(draft, step)

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """What the rejected children have left of the target's row; all of it where there are none."""
        row = target_rows[node]
        for child in draft.children(node):
            row = residual(row, draft.rows[child - 1])
        return row
