"""Whole sequences from last-token tables, played many at a time with and without speculation (token rule).

Tokens of one sequence are not independent, so every standard error here is by sequence: the spread of whole-sequence counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headstart.rows import FloatArray
from headstart.theory.arrays import Advance, check_whole, correction_rows, cumulative, draw_many, pieces
from headstart.theory.sequence import (
    article_tables,
    check_tables,
    expected_rounds,
    iid_yield,
    last_token_law,
    long_run_yield,
    stationary_alpha,
)

__all__ = ["SequenceResult", "simulate_sequences"]


@dataclass(frozen=True, kw_only=True)
class SequenceResult:
    """Frequencies and tokens per target call, played and exact, side by side."""

    target_only: tuple[float, ...]  # [vocab] share of each token, plain decoding, played
    speculative: tuple[float, ...]  # [vocab] the same with speculation, played
    exact: tuple[float, ...]  # [vocab] expected share, the same for both
    max_difference: float  # max |speculative − target_only|
    standard_error: tuple[float, ...]  # [vocab] of one entry of `speculative`, by sequence
    block_efficiency: float  # tokens per target call, played
    block_efficiency_exact: float  # length / E[rounds]
    block_efficiency_long_run: float  # exact, for an endless sequence
    block_efficiency_iid: float  # the formula at alpha_stationary
    alpha_stationary: float  # mean overlap over the target's long-run contexts
    target_calls_saved: float  # 1 − rounds / tokens, played
    block_efficiency_error: float  # standard error of `block_efficiency`, by sequence
    gamma: int
    length: int
    trials: int
    seed: int


def simulate_sequences(
    target_table: ArrayLike | None = None,
    draft_table: ArrayLike | None = None,
    *,
    gamma: int = 4,
    length: int = 64,
    trials: int = 60_000,
    seed: int = 0,
    start: int = 0,
    advance: Advance | None = None,
) -> SequenceResult:
    """Play `trials` sequences of `length` tokens after `start`, plain and speculative, beside the exact expectations.

    Tables [vocab, vocab] default to `article_tables()`. `advance` is called with the number of sequences done. Raises OptionError
    for tables that cannot be, `gamma` or `length` below 1 and fewer than 2 `trials`."""
    given = article_tables()
    target, draft = check_tables(
        given[0] if target_table is None else target_table, given[1] if draft_table is None else draft_table
    )
    check_whole("gamma", gamma, 1, "; plain decoding is played anyway, as the baseline")
    check_whole("trials", trials, 2, "; a standard error needs two sequences")
    exact = last_token_law(target, length, start).mean(axis=0)
    exact_rounds = expected_rounds(target, draft, gamma, length, start)
    rng = np.random.default_rng(check_whole("seed", seed, 0))
    tables = Tables(target=target, draft=draft, correction=correction_rows(target, draft))
    plain, spoken, rounds = _Tally(target.shape[0]), _Tally(target.shape[0]), _Tally(1)
    for size in pieces(trials, width=4 * target.shape[0]):
        plain.add(play_plain(tables, size, length, start, rng))
        counts, calls = play_speculative(tables, size, length, start, gamma, rng)
        spoken.add(counts)
        rounds.add(calls[:, None])
        if advance:
            advance(size)
    calls_each, calls_error = float(rounds.mean()[0]), float(rounds.error()[0])
    target_only, speculative = plain.mean() / length, spoken.mean() / length
    return SequenceResult(
        target_only=tuple(target_only.tolist()),
        speculative=tuple(speculative.tolist()),
        exact=tuple(exact.tolist()),
        max_difference=float(np.abs(speculative - target_only).max()),
        standard_error=tuple((spoken.error() / length).tolist()),
        block_efficiency=length / calls_each,
        block_efficiency_exact=length / exact_rounds,
        block_efficiency_long_run=long_run_yield(target, draft, gamma),
        block_efficiency_iid=iid_yield(target, draft, gamma),
        alpha_stationary=stationary_alpha(target, draft),
        target_calls_saved=1 - calls_each / length,
        block_efficiency_error=length / calls_each**2 * calls_error,  # delta method
        gamma=int(gamma),
        length=int(length),
        trials=int(trials),
        seed=int(seed),
    )


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The three laws a round draws from, each [vocab, vocab] by last token."""

    target: FloatArray
    draft: FloatArray
    correction: FloatArray  # norm((p − q)+)


def play_plain(tables: Tables, size: int, length: int, start: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[size, vocab]: how often each token occurs in each of `size` plain sequences."""
    ends = cumulative(tables.target)
    everyone = np.arange(size)
    counts = np.zeros((size, len(ends)), dtype=np.int64)
    last = np.full(size, start)
    for _ in range(length):
        last = draw_many(ends[last], rng)
        counts[everyone, last] += 1
    return counts


def play_speculative(
    tables: Tables, size: int, length: int, start: int, gamma: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[size, vocab] token counts and [size] rounds of `size` speculative sequences, all playing a round at the same time."""
    target_ends, draft_ends, correction_ends = map(cumulative, (tables.target, tables.draft, tables.correction))
    counts = np.zeros((size, len(target_ends)), dtype=np.int64)
    rounds = np.zeros(size, dtype=np.int64)
    last = np.full(size, start)
    to_go = np.full(size, length)

    def emit(who: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        last[who] = tokens
        to_go[who] -= 1
        counts[who, tokens] += 1  # a sequence occurs once in `who`, so nothing is added twice or lost

    while (going := np.flatnonzero(to_go)).size:
        rounds[going] += 1
        budgets = np.minimum(gamma, to_go - 1)  # a round always emits one token more than it keeps
        complete = []  # sequences that kept their whole draft
        for kept in range(gamma + 1):
            full = budgets[going] == kept
            complete.append(going[full])
            going = going[~full]
            if not going.size:
                break
            context = last[going]
            guess = draw_many(draft_ends[context], rng)
            accepted = rng.random(going.size) * tables.draft[context, guess] < tables.target[context, guess]
            missed = going[~accepted]
            emit(missed, draw_many(correction_ends[last[missed]], rng))
            going = going[accepted]
            emit(going, guess[accepted])
        bonus = np.concatenate(complete)
        emit(bonus, draw_many(target_ends[last[bonus]], rng))
    return counts, rounds


class _Tally:
    """Mean of whole-sequence counts and its standard error, from running sums: memory does not grow with sequences."""

    def __init__(self, width: int) -> None:
        self.number = 0
        self.sums = np.zeros(width)
        self.squares = np.zeros(width)

    def add(self, counts: NDArray[np.int64]) -> None:  # [sequences, width]
        self.number += len(counts)
        self.sums += counts.sum(axis=0)
        self.squares += (counts.astype(np.float64) ** 2).sum(axis=0)

    def mean(self) -> FloatArray:
        return self.sums / self.number

    def error(self) -> FloatArray:
        """Sums of whole numbers are exact in float64, so the difference loses only its last rounding."""
        spread: FloatArray = np.maximum(self.squares / self.number - self.mean() ** 2, 0.0)
        return np.sqrt(spread / (self.number - 1))
