"""One position: accept the guess or draw again, and the output follows the target.

A guess x ~ q is kept with probability min(1, p(x)/q(x)); otherwise the token is drawn from norm((p − q)+)
(Leviathan et al. 2023, section 2.3; Chen et al. 2023). This file simulates that many times over one pair of rows. It does not
know sequences, and it is not the rule that decoding uses: that is a law (`verify`), this is an experiment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headstart import pairs
from headstart.errors import OptionError
from headstart.rows import FloatArray
from headstart.theory.arrays import Advance, check_row, check_whole, correction_rows, cumulative, pieces

__all__ = ["ARTICLE_DRAFT", "ARTICLE_TARGET", "StepResult", "overlap", "simulate_step", "total_variation"]

# The pair of rows of the article *Speculative Decoding From Scratch*.
ARTICLE_TARGET = (0.30, 0.25, 0.20, 0.15, 0.07, 0.03)
ARTICLE_DRAFT = (0.10, 0.10, 0.30, 0.30, 0.15, 0.05)


def overlap(target: ArrayLike, draft: ArrayLike) -> float:
    """Σ min(p, q) of two [vocab] rows: the chance that a guess is accepted.

    Leviathan et al. 2023, Theorem 3.5 and Lemma 3.3. Raises OptionError for rows that are not probabilities of one length."""
    return pairs.overlap(*_pair(target, draft))


def total_variation(target: ArrayLike, draft: ArrayLike) -> float:
    """½ Σ |p − q| of two [vocab] rows = 1 − overlap: the chance that a guess is rejected. Raises OptionError as `overlap`."""
    return pairs.total_variation(*_pair(target, draft))


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What `simulate_step` saw, beside what theory says. Fields and order are those of `headstart theory step --json`."""

    target: tuple[float, ...]  # [vocab] p
    draft: tuple[float, ...]  # [vocab] q
    empirical: tuple[float, ...]  # [vocab] share of each token among the outputs
    max_error: float  # max |empirical − p|
    standard_error: float  # of the most uncertain entry of `empirical`: max √(p(1 − p)/draws)
    acceptance_rate: float  # accepted / draws
    overlap: float  # Σ min(p, q), what `acceptance_rate` estimates
    total_variation: float  # 1 − overlap
    draws: int
    seed: int


def simulate_step(
    target: ArrayLike = ARTICLE_TARGET,
    draft: ArrayLike = ARTICLE_DRAFT,
    *,
    draws: int = 2_000_000,
    seed: int = 0,
    advance: Advance | None = None,
) -> StepResult:
    """Accept or resample `draws` times over one pair of [vocab] rows; memory does not grow with `draws`.

    `advance` is called with the size of each piece of work done. Raises OptionError for rows that are not probabilities of one
    length, for `draws` below 1 and for a negative `seed`."""
    p, q = _pair(target, draft)
    rng = np.random.default_rng(check_whole("seed", seed, 0))
    correction = correction_rows(p, q)
    counts = np.zeros(p.size, dtype=np.int64)
    accepted = 0
    for size in pieces(check_whole("draws", draws, 1)):
        kept, tokens = _accept_or_resample(p, q, correction, size, rng)
        accepted += kept
        counts += np.bincount(tokens, minlength=p.size)
        if advance:
            advance(size)
    empirical = counts / draws
    return StepResult(
        target=tuple(p.tolist()),
        draft=tuple(q.tolist()),
        empirical=tuple(empirical.tolist()),
        max_error=float(np.abs(empirical - p).max()),
        standard_error=float(np.sqrt(np.maximum(p * (1 - p), 0) / draws).max()),
        acceptance_rate=accepted / draws,
        overlap=overlap(p, q),
        total_variation=total_variation(p, q),
        draws=int(draws),
        seed=int(seed),
    )


def _accept_or_resample(
    p: FloatArray,
    q: FloatArray,
    correction: FloatArray,
    size: int,
    rng: np.random.Generator,
) -> tuple[int, NDArray[np.int64]]:
    """How many of `size` guesses were accepted, and the [size] tokens that came out. All rows are [vocab]."""
    tokens = np.searchsorted(cumulative(q), rng.random(size), side="right")
    # u·q < p, not u < p/q: no division, and a token with p = 0 never passes, even when u is 0.
    rejected = np.flatnonzero(rng.random(size) * q[tokens] >= p[tokens])
    tokens[rejected] = np.searchsorted(cumulative(correction), rng.random(rejected.size), side="right")
    return size - rejected.size, tokens


def _pair(target: ArrayLike, draft: ArrayLike) -> tuple[FloatArray, FloatArray]:
    p, q = check_row("target", target), check_row("draft", draft)
    if p.size != q.size:
        raise OptionError(f"`draft` must have as many entries as `target` ({p.size}), got {q.size}; use 0 where it never guesses")
    return p, q
