"""Which tokens of an output merely repeat it: a small greedy model falls into loops, and every drafter is good at loops."""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 8  # tokens that a repetition must have


def looping(tokens: Sequence[int]) -> list[bool]:
    """For each token, whether it lies in a span that repeats what stands immediately before it.

    Precisely: token k loops if some period d has a run of places around k with tokens[i] == tokens[i − d] throughout, as long as
    the period and at least SHORTEST. The first copy is not marked, the second and all that follow are; a text that returns after
    other words is not a loop."""
    marks = [False] * len(tokens)
    for period in range(1, len(tokens) // 2 + 1):
        start = period
        for place in range(period, len(tokens) + 1):
            if place < len(tokens) and tokens[place] == tokens[place - period]:
                continue
            if place - start >= max(period, SHORTEST):
                marks[start:place] = [True] * (place - start)
            start = place + 1
    return marks
