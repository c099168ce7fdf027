"""Where chance comes from: a request's own stream, or noise keyed by (seed, position).

`StreamDraws` is an ordinary generator: each draw is fresh. `KeyedDraws` gives every (position, token) one exponential clock,
the same for whoever asks; drawing a row is the race argmin clock/probability, that is argmax(log row + Gumbel noise). Drafter
and target that race the same clocks tend to agree, and what the target draws at a position never depends on the drafter.

It does not know what the rows mean. Nothing here is shared between requests.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

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
        return row.token(inverse_cdf(row.probs, self._generator.random()))


_KEPT_POSITIONS = 10  # a draft of 8, its bonus token and one more; each costs 8 bytes a token of the vocabulary


class KeyedDraws:
    """Gumbel-max draws from counter-based noise: the clock of token i at a position is −log u(seed, position, i).

    u comes from word i mod 4 of the Philox4x64-10 block (Salmon et al. 2011) with key (seed, 0) and counter
    (1 + i // 4, 0, position, 0): the top 52 bits, plus a half, over 2**52. Any implementation that follows this sentence and
    `_log` draws the same tokens."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._clocks: dict[int, NDArray[np.float64]] = {}

    def draw(self, row: Row, position: int) -> int:
        """argmin over the row's support of clock/probability; ties go to the lower id."""
        if row.probs.size == 1:
            return row.token(0)
        clocks = self._noise(position, row.vocab_size)
        if row.ids is not None:
            clocks = clocks[row.ids]
        probs = row.probs.astype(np.float64)
        with np.errstate(divide="ignore", over="ignore"):
            finish = clocks / probs
        # The library's log may differ by a rounding between machines. It picks the few that could win; a log of fixed
        # arithmetic decides among them, so the token is the same everywhere.
        close = np.flatnonzero(finish <= finish.min() * (1 + 1e-9))
        if close.size == 1:
            return row.token(int(close[0]))
        tokens = close if row.ids is None else row.ids[close]
        uniforms = self._uniforms(position, row.vocab_size)[tokens]
        return row.token(int(close[np.argmin(-_log(uniforms) / probs[close])]))

    def _noise(self, position: int, vocab_size: int) -> NDArray[np.float64]:
        """[vocab] clocks of a position; those of the last few positions are kept, since drafter and target both ask."""
        known = self._clocks.get(position)
        if known is None or known.size < vocab_size:
            known = -np.log(self._uniforms(position, vocab_size))
            while len(self._clocks) >= _KEPT_POSITIONS:
                del self._clocks[next(iter(self._clocks))]
            self._clocks[position] = known
        return known[:vocab_size]

    def _uniforms(self, position: int, vocab_size: int) -> NDArray[np.float64]:
        """[vocab] uniforms in (0, 1)."""
        words = np.random.Philox(key=self._seed, counter=position << 128).random_raw(vocab_size)
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _log(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural log from additions, multiplications and divisions in a fixed order: the same bits on every IEEE machine.

    u = m·2^e with m in [√½, √2); log m = 2·artanh(s), s = (m − 1)/(m + 1), by its series to s^23 (error under 2e-16)."""
    mantissa, exponent = np.frexp(u)
    small = mantissa < 0.7071067811865476
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = np.where(small, exponent - 1, exponent).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.zeros_like(s)
    for odd in range(23, 0, -2):
        series = series * square + 1.0 / odd
    return exponent * 0.6931471805599453 + 2.0 * (s * series)
