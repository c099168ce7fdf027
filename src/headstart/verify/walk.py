"""What rules share: walking down a draft a node at a time, and refusing trees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headstart.errors import OptionError
from headstart.records import Draft
from headstart.rows import FloatArray

__all__ = ["only_chains", "stops"]


def stops(draft: Draft, step: Callable[[int], FloatArray]) -> FloatArray:
    """[nodes + 1]: probability of stopping at each node.

    `step(node)` is asked for nodes with children: [children + 1] probabilities of going on to each child, and of stopping."""
    outcomes = np.zeros(len(draft) + 1)
    outcomes[0] = 1.0
    for node in range(len(draft)):
        children = draft.children(node)
        if children and outcomes[node] > 0.0:  # until here, the probability of coming this way
            outcomes[[*children, node]] = outcomes[node] * step(node)
    return outcomes


def only_chains(rule: str, draft: Draft) -> None:
    """Raise OptionError for a tree."""
    if draft.parents is not None:
        raise OptionError(f"`rule` {rule} judges chains only, got a tree of {len(draft)} tokens; use token, match or coupled")
