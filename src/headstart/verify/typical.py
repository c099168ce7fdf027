"""Typical acceptance (Cai et al. 2024, *Medusa*, "Typical Acceptance", and the defaults of its code): not the target's law.

A drafted token stays if the target finds it likely enough, however it was drafted:
    p(x) > min(ε, δ·exp(−H(p))),    H(p) = −Σ p ln p,    ε = 0.09, δ = 0.3 = √ε.
The longest path of such tokens is kept, of equally long ones the likeliest, and the extra token is the target's likeliest (the
paper's greedy first token of the next round). So nothing is drawn: given the draft the round is certain. What is emitted then
follows the drafter as far as its tokens are typical, and greedy decoding elsewhere. At temperature 0 that is greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from headstart.records import Draft
from headstart.rows import FloatArray, Row

__all__ = ["TypicalRule", "typical_threshold"]

EPSILON, DELTA = 0.09, 0.3


def typical_threshold(row: Row) -> float:
    """min(ε, δ·exp(−H)): what a token's probability must exceed; H in natural units."""
    probs = row.probs[row.probs > 0].astype(np.float64)
    return min(EPSILON, DELTA * float(np.exp((probs * np.log(probs)).sum())))


@final
class TypicalRule:
    """Keep what is typical of the target's row; faster, and lossy. On trees the longest path wins, then the likeliest."""

    name = "typical"
    walks = False
    keyed = False
    trees = True
    lossless = False

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[nodes + 1]: 1 at the end of the path kept, 0 elsewhere."""
        best, node = (0, 0.0), 0
        reached = {0: (0, 0.0)}  # node → its depth and log-likelihood, for nodes whose whole path is typical
        for place in range(len(draft) + 1):
            if place not in reached or not (children := draft.children(place)):
                continue
            row = target_rows[place]
            depth, likelihood = reached[place]
            threshold = typical_threshold(row)
            for child in children:
                if (prob := row.prob(draft.tokens[child - 1])) > threshold:
                    reached[child] = depth + 1, likelihood + float(np.log(prob))
                    if reached[child] > best:
                        best, node = reached[child], child
        outcomes: FloatArray = np.zeros(len(draft) + 1)
        outcomes[node] = 1.0
        return outcomes

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """The likeliest token of the target's row after `node`, for certain; of equally likely ones the lower id."""
        row = target_rows[node]
        return Row.point(row.token(int(row.probs.argmax())), row.vocab_size)
