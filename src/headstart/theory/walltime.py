"""Is it worth it, and how long should a draft be? Speed against plain decoding from α, γ and two costs.

All times are in units of one plain decoding step of the target: c is one step of the drafter, v(k) is the target scoring k
tokens at once. Predictions only: measured times are the planner's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headstart.errors import OptionError
from headstart.rows import FloatArray
from headstart.theory.arrays import check_whole
from headstart.theory.yields import ceiling, tokens_per_round

__all__ = ["ScoreCost", "WalltimePoint", "best_gamma", "break_even_alpha", "walltime_improvement", "walltime_point"]


@dataclass(frozen=True, kw_only=True)
class ScoreCost:
    """v(k) = t(k)/t(1), the cost of scoring k tokens in one pass, from measured points; the default is v ≡ 1, the article's.

    Linear between points; beyond the last one its slope goes on (flat if that slope is negative or there is one point).
    Costs may be given in any unit: they are divided by the cost at k = 1."""

    tokens: tuple[int, ...] = (1,)  # [points] k, increasing, from 1
    costs: tuple[float, ...] = (1.0,)  # [points]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.costs) or not self.tokens:
            raise OptionError(
                f"`score_cost` must give one cost for each number of tokens, got {len(self.tokens)} and {len(self.costs)}"
            )
        object.__setattr__(self, "tokens", tuple(self.tokens))
        for k in self.tokens:
            check_whole("score_cost", k, 1, "; k is a number of tokens")
        if self.tokens[0] != 1 or any(a >= b for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            given = ", ".join(map(str, self.tokens))
            raise OptionError(f"`score_cost` must start at k = 1 and go up, got k = {given}; every cost is relative to v(1)")
        for cost in self.costs:
            if not (math.isfinite(cost) and cost > 0):
                raise OptionError(f"`score_cost` must be finite and over 0, got {cost:g}; scoring takes time")
        object.__setattr__(self, "costs", tuple(float(cost) / float(self.costs[0]) for cost in self.costs))

    def __call__(self, tokens: ArrayLike) -> FloatArray:
        """v at each number of tokens (1 or more), in the shape of `tokens`."""
        k = np.asarray(tokens, dtype=np.float64)
        inside: FloatArray = np.interp(k, self.tokens, self.costs)
        if len(self.tokens) < 2:
            return inside
        slope = max((self.costs[-1] - self.costs[-2]) / (self.tokens[-1] - self.tokens[-2]), 0.0)
        return inside + slope * np.maximum(k - self.tokens[-1], 0.0)


def walltime_improvement(
    alpha: ArrayLike, gamma: ArrayLike, cost_ratio: float = 0.1, score_cost: ScoreCost | None = None
) -> FloatArray:
    """S = E / (γc + v(γ+1)): predicted speed against plain decoding, which is 1.

    With v ≡ 1 this is Leviathan et al. 2023, Theorem 3.8. `alpha` and `gamma` broadcast. Raises OptionError as
    `tokens_per_round`, and for a `cost_ratio` that is negative or not finite."""
    lengths = np.asarray(gamma)
    expected = tokens_per_round(alpha, lengths)
    return expected / _round_cost(lengths, cost_ratio, score_cost)


def best_gamma(
    alpha: float, cost_ratio: float = 0.1, max_gamma: int = 20, score_cost: ScoreCost | None = None
) -> tuple[int, float]:
    """The draft length in 1..max_gamma with the largest S, and that S; ties go to the shorter.

    The S may be below 1: then plain decoding is faster. Raises OptionError as `walltime_improvement`, and for `max_gamma` < 1."""
    lengths = np.arange(1, check_whole("max_gamma", max_gamma, 1) + 1)
    curve = walltime_improvement(float(alpha), lengths, cost_ratio, score_cost)
    place = int(np.argmax(curve))
    return place + 1, float(curve[place])


def break_even_alpha(cost_ratio: float = 0.1, max_gamma: int = 20, score_cost: ScoreCost | None = None) -> float | None:
    """The α above which some draft length in 1..max_gamma beats plain decoding; None when none does even at α = 1.

    E(α, γ) grows with α, so each γ has one root of E = γc + v(γ+1), found by bisection to the last bit; the least root counts.
    With v ≡ 1 it is c, reached at γ = 1 (Leviathan et al. 2023, Corollary 3.9). Raises OptionError as `best_gamma`."""
    lengths = np.arange(1, check_whole("max_gamma", max_gamma, 1) + 1)
    needed = _round_cost(lengths, cost_ratio, score_cost)
    possible = needed < lengths + 1.0  # at α = 1 a round yields γ + 1 tokens
    if not possible.any():
        return None
    low, high = np.zeros(possible.sum()), np.ones(possible.sum())
    while True:
        middle = (low + high) / 2
        if ((middle <= low) | (middle >= high)).all():
            break
        pays = tokens_per_round(middle, lengths[possible]) > needed[possible]
        low, high = np.where(pays, low, middle), np.where(pays, middle, high)
    roots = high.tolist()
    if possible[0]:  # γ = 1 in closed form, so that v ≡ 1 gives c itself: 1 + α = c + v(2)
        roots[0] = cost_ratio + (float((score_cost or ScoreCost())(2)) - 1.0)
    # Rounding and costs below one plain step must not lead below the scale.
    return 0.0 if (needed <= 1.0).any() else float(max(min(roots), 0.0))


@dataclass(frozen=True, kw_only=True)
class WalltimePoint:
    """What one α allows. Fields and order are those of `headstart theory walltime --json`."""

    alpha: float
    best_gamma: int
    walltime_improvement: float  # at best_gamma
    ceiling: float | None  # 1/(1 − α)
    break_even_alpha: float | None  # a property of the costs alone, the same for every α
    curve: tuple[tuple[int, float], ...]  # (γ, S) for γ in 1..max_gamma


def walltime_point(
    alpha: float, cost_ratio: float = 0.1, max_gamma: int = 20, score_cost: ScoreCost | None = None
) -> WalltimePoint:
    """Curve, optimum, ceiling and break-even α in one value. Raises OptionError as `best_gamma`."""
    length, improvement = best_gamma(alpha, cost_ratio, max_gamma, score_cost)
    lengths = range(1, max_gamma + 1)
    curve = walltime_improvement(alpha, np.arange(1, max_gamma + 1), cost_ratio, score_cost).tolist()
    return WalltimePoint(
        alpha=float(alpha),
        best_gamma=length,
        walltime_improvement=improvement,
        ceiling=ceiling(alpha),
        break_even_alpha=break_even_alpha(cost_ratio, max_gamma, score_cost),
        curve=tuple(zip(lengths, curve, strict=True)),
    )


def _round_cost(gamma: ArrayLike, cost_ratio: float, score_cost: ScoreCost | None) -> FloatArray:
    """γc + v(γ+1): time of a round in plain decoding steps, in the shape of `gamma`."""
    if not (math.isfinite(cost_ratio) and cost_ratio >= 0):
        raise OptionError(f"`cost_ratio` must be a finite number, 0 or more, got {cost_ratio:g}; it is t_draft / t_target")
    lengths = np.asarray(gamma)
    return lengths * float(cost_ratio) + (score_cost or ScoreCost())(lengths + 1)
