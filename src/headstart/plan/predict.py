"""Tokens per second before they are measured: what a sample yields, over what its rounds cost.

goodput = E[tokens] / E[seconds], a ratio of sums over prompts; seconds are those of a round by what it drafted. Intervals come
from drawing prompts with replacement: they say how much the answer depends on the prompts, not how well costs were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headstart.errors import OptionError
from headstart.plan.yields import Sample, acceptance_rate
from headstart.rows import FloatArray
from headstart.schedule import RoundCosts, break_even
from headstart.theory import walltime_improvement

__all__ = ["Candidate", "break_even_of", "choose", "plain_candidate", "predict", "speed_of"]

_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to decode, with what it is predicted to give. Fields and order are those of `headstart plan --json`."""

    drafter: str
    gamma: int  # of a tree, its depth
    tree: str | None  # WIDTHxDEPTH[:NODES]; None: a chain
    rule: str | None  # None: plain decoding, which judges nothing
    predicted_tokens_per_second: float  # over all sequences of the batch
    interval: tuple[float, float]  # 95 %, by prompt
    walltime_improvement: float  # over plain decoding, with measured costs
    closed_form: float | None  # the article's E/(γc + 1) at the sampled acceptance rate; None where nothing was drafted
    break_even: float | None  # acceptance rate above which this length pays; None where it cannot

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"interval": list(self.interval)}


def plain_candidate(costs: RoundCosts) -> Candidate:
    """Plain decoding: one token a round and sequence."""
    speed = costs.batch / costs.plain
    return Candidate(
        drafter="none",
        gamma=0,
        tree=None,
        rule=None,
        predicted_tokens_per_second=speed,
        interval=(speed, speed),
        walltime_improvement=1.0,
        closed_form=1.0,
        break_even=None,
    )


def speed_of(tokens: FloatArray, seconds: FloatArray, batch: int, seed: int) -> tuple[float, tuple[float, float]]:
    """Tokens a second of `batch` sequences side by side, and a 95 % interval from drawing prompts with replacement.

    `tokens` and `seconds` are by prompt, [prompts]."""
    picks = np.random.default_rng(seed).integers(0, len(tokens), (_RESAMPLES, len(tokens)))
    drawn = batch * tokens[picks].sum(axis=1) / seconds[picks].sum(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return batch * float(tokens.sum() / seconds.sum()), (float(low), float(high))


def predict(
    drafter: str,
    samples: Sequence[Sample],
    costs: RoundCosts,
    plain: Candidate,
    *,
    rule: str,
    gamma: int,
    seed: int = 0,
) -> Candidate:
    """What drafts of `gamma` tokens by `drafter` are expected to give. Raises OptionError without a sample."""
    if not samples:
        raise OptionError("`samples` must hold at least one prompt's sample")
    yields = [sample.at(rule, gamma) for sample in samples]
    seconds_by_drafted = np.array([costs.round(n) for n in range(gamma + 1)])
    seconds_by_drafted[0] += costs.draft(1)  # where nothing was drafted, a guess was still looked for
    tokens = np.array([y.tokens for y in yields])
    seconds = np.array([float(y.rounds @ seconds_by_drafted) for y in yields])
    speed, interval = speed_of(tokens, seconds, costs.batch, seed)
    alpha, plain_seconds = acceptance_rate(yields), costs.batch / plain.predicted_tokens_per_second
    closed = None if alpha is None else float(walltime_improvement(min(1.0, alpha), gamma, costs.cost_ratio))
    needed = break_even_of(gamma, float(seconds_by_drafted[gamma]) / plain_seconds)
    return Candidate(
        drafter=drafter,
        gamma=gamma,
        tree=None,
        rule=rule,
        predicted_tokens_per_second=speed,
        interval=interval,
        walltime_improvement=speed / plain.predicted_tokens_per_second,
        closed_form=closed,
        break_even=needed,
    )


def break_even_of(gamma: int, cost: float) -> float | None:
    """The constant acceptance rate above which drafts of `gamma` tokens pay, a round costing `cost` plain ones."""
    # Lengths between must not count: they are made too dear to pay.
    return break_even([1.0, *(float(n + 1) for n in range(1, gamma)), cost])


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The fastest; ties go to the shorter draft, so to plain decoding where nothing is gained."""
    return max(candidates, key=lambda candidate: (candidate.predicted_tokens_per_second, -candidate.gamma))
