"""Pairs of target and draft that every rule is summed over, and the laws of drafts."""

from __future__ import annotations

import numpy as np

from tests.exact import Chain, Ends, iid, random_table, table

PAIRS: dict[str, tuple[Chain, Chain]] = {
    "ordinary": (iid([0.5, 0.3, 0.2]), iid([0.2, 0.2, 0.6])),
    "close": (iid([0.5, 0.3, 0.2]), iid([0.5, 0.3 + 1e-9, 0.2 - 1e-9])),
    "equal": (iid([0.5, 0.3, 0.2]), iid([0.5, 0.3, 0.2])),
    "zero in p": (iid([0.0, 0.7, 0.3]), iid([0.5, 0.25, 0.25])),
    "zero in q": (iid([0.25, 0.25, 0.5]), iid([0.0, 0.1, 0.9])),
    "zeros in both": (iid([0.0, 0.7, 0.3]), iid([0.6, 0.4, 0.0])),
    "disjoint": (iid([0.4, 0.6, 0.0]), iid([0.0, 0.0, 1.0])),
    "point draft": (iid([0.5, 0.3, 0.2]), iid([0.0, 1.0, 0.0])),
    "point target": (iid([0.0, 0.0, 1.0]), iid([0.3, 0.3, 0.4])),
    "equal points": (iid([0.0, 1.0, 0.0]), iid([0.0, 1.0, 0.0])),
    "tiny": (iid([1 - 2e-12, 1e-12, 1e-12]), iid([1e-12, 1 - 2e-12, 1e-12])),
    "two tokens": (iid([1 / 3, 2 / 3]), iid([2 / 3, 1 / 3])),
}


def random_pairs(count: int, seed: int, vocab: int = 3) -> list[tuple[Chain, Chain]]:
    """Tables of orders 0 to 2, a third of them with zeros, as target and draft."""
    rng = np.random.default_rng(seed)
    pairs = []
    for index in range(count):
        zeros = 0.4 if index % 3 == 0 else 0.0
        orders = rng.integers(0, 3, size=2)
        pairs.append(tuple(table(random_table(rng, vocab, int(order), zeros)) for order in orders))
    return pairs


# Legal ends of a draft: they look at past tokens and at the next row, never at the token drawn from it.
ENDS: dict[str, Ends | None] = {
    "fixed": None,
    "unsure": lambda drafted, row: float(row.to_array().max()) < 0.55,
    "after a 0": lambda drafted, row: bool(drafted) and drafted[-1] == 0,
    "unlikely path": lambda drafted, row: len(drafted) > 0 and (sum(drafted) + float(row.to_array()[0]) > 1.3),
}
