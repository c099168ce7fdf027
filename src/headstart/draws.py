"""Where chance comes from: a request's own stream, or noise keyed by (seed, position).

`StreamDraws` is an ordinary generator: each draw is fresh. `KeyedDraws` gives every (position, token) one exponential clock,
the same for whoever asks; drawing a row is the race argmin clock/probability, that is argmax(log row + Gumbel noise). Drafter
and target that race the same clocks tend to agree, and what the target draws at a position never depends on the drafter.

It does not know what the rows mean. Nothing here is shared between requests.
"""

from __future__ import annotations

import secrets

import numpy as np

from headstart import _core
from headstart.rows import FloatArray, Row

__all__ = ["KeyedDraws", "StreamDraws", "derived_seed", "fresh_seed", "inverse_cdf"]


def fresh_seed() -> int:
    """A seed from the operating system, between 0 and 2**63 − 1."""
    return secrets.randbits(63)


def derived_seed(seed: int, index: int) -> int:
    """The seed of sequence `index` of a list: `seed` itself for the first, a hash of both for the others."""
    if index == 0:
        return seed
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def inverse_cdf(probs: FloatArray, uniform: float) -> int:
    """The place in `probs` [n] where the running sum first exceeds uniform · total; its entry is never zero.

    `uniform` is in [0, 1). The comparison is strict, so a zero draw cannot land on a leading entry of probability 0."""
    if probs.dtype == np.float32:
        return _core.pick(np.ascontiguousarray(probs), uniform)
    cumulative = np.cumsum(probs, dtype=np.float64)
    place = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    if place == cumulative.size:  # uniform · total rounded up to the total
        place = int(np.flatnonzero(probs)[-1])
    return place


class StreamDraws:
    """Fresh draws from one stream (PCG64), in the order they are asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def draw(self, row: Row, position: int) -> int:
        """A token distributed as `row`; one uniform is spent, also on a point mass. `position` plays no part."""
        uniform = self._generator.random()
        return row.token(0 if row.probs.size == 1 else inverse_cdf(row.probs, uniform))


class KeyedDraws:
    """Gumbel-max draws from counter-based noise: the clock of token i at a position is −log u(seed, position, i).

    u is 32 bits of an upper word, the upper 20 of a lower word, plus a half, over 2**52. The words come from blocks of
    Philox4x32-10 (Salmon et al. 2011) with key `seed` and counter (block, 0 or 1, position), 64-bit numbers as two words with the
    lower one first: word (i // 16) mod 4 of block 16 · (i // 64) + i mod 16. The logarithm is made from arithmetic in a fixed
    order, so the token drawn is the same on every machine."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def draw(self, row: Row, position: int) -> int:
        """argmin over the row's support of clock/probability; ties go to the lower id."""
        if row.probs.size == 1:
            return row.token(0)
        return row.token(_core.race(self._seed, position, np.ascontiguousarray(row.probs), row.ids))
