"""The closed forms of speculative decoding and their simulations, on plain numpy arrays.

    tokens_per_round(0.8, 4)            3.3616    expected tokens of a round
    best_gamma(0.8, cost_ratio=0.1)     (6, 2.47) the draft length that pays most, and what it pays
    break_even_alpha(cost_ratio=0.1)    0.1       below it, no draft length pays

`step` one position · `yields` one round · `walltime` what a round costs · `sequence` contexts that differ, exactly ·
`sequence_simulation` the same, played. The article is *Speculative Decoding From Scratch*. Nothing here knows a model.
"""

from __future__ import annotations

from headstart.theory.sequence import (
    article_tables,
    expected_rounds,
    iid_yield,
    last_token_law,
    long_run_yield,
    stationary_alpha,
    stationary_law,
)
from headstart.theory.sequence_simulation import SequenceResult, simulate_sequences
from headstart.theory.step import ARTICLE_DRAFT, ARTICLE_TARGET, StepResult, overlap, simulate_step, total_variation
from headstart.theory.walltime import (
    ScoreCost,
    WalltimePoint,
    best_gamma,
    break_even_alpha,
    walltime_improvement,
    walltime_point,
)
from headstart.theory.yields import YieldPoint, ceiling, simulate_yield, tokens_per_round

__all__ = [
    "ARTICLE_DRAFT",
    "ARTICLE_TARGET",
    "ScoreCost",
    "SequenceResult",
    "StepResult",
    "WalltimePoint",
    "YieldPoint",
    "article_tables",
    "best_gamma",
    "break_even_alpha",
    "ceiling",
    "expected_rounds",
    "iid_yield",
    "last_token_law",
    "long_run_yield",
    "overlap",
    "simulate_sequences",
    "simulate_step",
    "simulate_yield",
    "stationary_alpha",
    "stationary_law",
    "tokens_per_round",
    "total_variation",
    "walltime_improvement",
    "walltime_point",
]
