"""Tokens per round when every guess is accepted with the same probability, independently of all others.

Real contexts differ and follow one another; `sequence` says what that changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headstart.errors import OptionError
from headstart.rows import FloatArray
from headstart.theory.arrays import Advance, check_alpha, check_whole, pieces

__all__ = ["YieldPoint", "ceiling", "simulate_yield", "tokens_per_round"]


def tokens_per_round(alpha: ArrayLike, gamma: ArrayLike) -> FloatArray:
    """E = (1 − α^(γ+1)) / (1 − α): expected tokens of a round, the extra one included. Leviathan et al. 2023, Equation 1.

    `alpha` and `gamma` broadcast, and so the shape comes out. α = 0 gives 1, α = 1 gives γ + 1, γ = 0 (plain decoding) gives 1.
    Raises OptionError for α outside [0, 1] and for γ that is negative or not whole."""
    rates, lengths = np.broadcast_arrays(check_alpha(alpha), _check_gamma(gamma))
    certain = rates == 1
    misses = np.where(certain, 1.0, 1.0 - rates)
    with np.errstate(divide="ignore"):  # log 0 = −inf is the right answer at α = 0
        # expm1 of a logarithm keeps every digit near α = 1, where 1 − α^(γ+1) would cancel.
        sums = -np.expm1((lengths + 1) * np.log(rates)) / misses
    return np.where(certain, lengths + 1.0, sums)


def ceiling(alpha: float) -> float | None:
    """1/(1 − α): tokens per round, and so speedup, that no draft length can exceed; None for α = 1, where there is none."""
    rate = float(check_alpha(alpha))
    return None if rate == 1 else 1.0 / (1.0 - rate)


@dataclass(frozen=True, kw_only=True)
class YieldPoint:
    """Tokens per round at one α and γ. Fields and order are those of `headstart theory yield --json`."""

    alpha: float
    gamma: int
    formula: float
    simulated: float  # mean tokens of the simulated rounds
    standard_error: float  # of `simulated`


def simulate_yield(
    alpha: float, gamma: int, *, trials: int = 300_000, seed: int = 0, advance: Advance | None = None
) -> YieldPoint:
    """Play `trials` rounds: guesses are accepted with probability `alpha` until the first miss or until `gamma` are kept.

    A point's stream is keyed by (seed, α, γ), so that it does not depend on which other points are asked for. `advance` is
    called with the number of rounds done. Raises OptionError as `tokens_per_round`, and for fewer than 2 `trials`."""
    formula = float(tokens_per_round(alpha, gamma))
    check_whole("trials", trials, 2, "; a standard error needs two rounds")
    rng = np.random.default_rng([check_whole("seed", seed, 0), gamma, int(alpha * 2**53)])
    reached = np.zeros(gamma + 1, dtype=np.int64)  # rounds that kept at least i guesses
    for size in pieces(trials):
        alive = size
        for kept in range(gamma + 1):
            reached[kept] += alive
            if kept == gamma or alive == 0:
                break
            alive = int(np.count_nonzero(rng.random(alive) < alpha))
        if advance:
            advance(size)
    # With T the tokens of a round: T = Σ_i 1[kept ≥ i], and T² = Σ_i (2i + 1)·1[kept ≥ i].
    mean = float(reached.sum()) / trials
    square = float((reached * (2.0 * np.arange(gamma + 1) + 1.0)).sum()) / trials
    variance = max(square - mean**2, 0.0) / (trials - 1)
    return YieldPoint(alpha=float(alpha), gamma=int(gamma), formula=formula, simulated=mean, standard_error=variance**0.5)


def _check_gamma(gamma: ArrayLike) -> FloatArray:
    values = np.asarray(gamma)
    if not np.issubdtype(values.dtype, np.integer) or (values < 0).any():
        raise OptionError(f"`gamma` must be a whole number, 0 (no draft) or more, got {gamma!r}")
    return values.astype(np.float64)
