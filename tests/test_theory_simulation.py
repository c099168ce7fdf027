"""Simulations against closed forms. Seeds are fixed, so a pass is a pass; the rates are for whoever changes a seed.

Tests at 5 standard errors: a right program fails one with probability 6e-7 a number. Each has a twin that must fail."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from headstart import theory
from headstart.theory.arrays import correction_rows, cumulative, draw_many
from headstart.theory.sequence_simulation import Tables, play_plain, play_speculative
from headstart.theory.step import _accept_or_resample

P, Q = np.array(theory.ARTICLE_TARGET), np.array(theory.ARTICLE_DRAFT)
TARGET, DRAFT = theory.article_tables()


def softmax_correction(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """The twin: a softmax of the clamped difference, which is not the residual."""
    weights = np.exp(np.maximum(target - draft, 0))
    return weights / weights.sum(axis=-1, keepdims=True)


def step_pvalue(correction: np.ndarray) -> float:
    """χ² of 300,000 outputs of one position against p."""
    _, tokens = _accept_or_resample(P, Q, correction, 300_000, np.random.default_rng(1))
    return float(stats.chisquare(np.bincount(tokens, minlength=6), P * tokens.size).pvalue)


def test_output_of_one_position_has_the_targets_law() -> None:
    """Goodness of fit; a right program fails with probability 1e-4. The twin's correction does fail."""
    assert step_pvalue(correction_rows(P, Q)) > 1e-4
    assert step_pvalue(softmax_correction(P, Q)) < 1e-12


def test_step_agrees_within_its_standard_error_and_in_time() -> None:
    """2,000,000 draws: law and acceptance within 5 standard errors (false alarms: 4e-6 for 7 numbers), in under a second."""
    begun = time.perf_counter()
    result = theory.simulate_step()
    assert time.perf_counter() - begun < 1.0
    errors = np.sqrt(P * (1 - P) / result.draws)
    assert (np.abs(np.array(result.empirical) - P) < 5 * errors).all()
    assert result.standard_error == pytest.approx(errors.max())
    assert f"{result.standard_error:.5f}" == "0.00032"
    assert abs(result.acceptance_rate - 0.65) < 5 * np.sqrt(0.65 * 0.35 / result.draws)
    assert result == theory.simulate_step(seed=0)
    assert result != theory.simulate_step(seed=1)


def test_step_edges() -> None:
    """Draft = target accepts everything; disjoint rows accept nothing; a token the target forbids never comes out."""
    assert theory.simulate_step(P, P, draws=10_000).acceptance_rate == 1
    apart = theory.simulate_step([1, 0], [0, 1], draws=10_000)
    assert (apart.acceptance_rate, apart.empirical) == (0, (1, 0))
    assert theory.simulate_step([0, 0.5, 0.5, 0], [0.4, 0.1, 0.1, 0.4], draws=100_000).empirical[::3] == (0, 0)
    assert theory.simulate_step([1], [1], draws=1).empirical == (1,)


def test_memory_does_not_grow_with_draws() -> None:
    """Five million draws, 40 MB an array in one piece, stay under 20 MB, and progress adds up."""
    done: list[int] = []
    tracemalloc.start()
    theory.simulate_step(draws=5_000_000, advance=done.append)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(done) == 5_000_000
    assert peak < 20e6


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_yield_agrees_within_its_standard_error(alpha: float, gamma: int) -> None:
    """Simulated tokens per round within 5 standard errors of the formula; the twin formula without the extra token is not."""
    point = theory.simulate_yield(alpha, gamma)
    assert abs(point.simulated - point.formula) < 5 * point.standard_error
    assert abs(point.simulated - (point.formula - 1)) > 5 * point.standard_error
    tokens = np.arange(1, gamma + 2)
    law = alpha ** (tokens - 1.0) * np.where(tokens <= gamma, 1 - alpha, 1)
    exact = np.sqrt((law @ tokens**2 - (law @ tokens) ** 2) / 300_000)
    assert point.standard_error == pytest.approx(exact, rel=0.02)


def test_yield_edges_and_streams() -> None:
    """α = 0 and 1 are certain; a point does not change with the company it is asked in, and differs from its neighbours."""
    assert theory.simulate_yield(0.0, 4, trials=100).simulated == 1
    assert theory.simulate_yield(1.0, 4, trials=100).simulated == 5
    assert theory.simulate_yield(0.5, 4) == theory.simulate_yield(0.5, 4)
    assert theory.simulate_yield(0.5, 4).simulated != theory.simulate_yield(0.5, 5).simulated


def exact_errors(length: int, trials: int) -> np.ndarray:
    """[vocab] standard error of a frequency over whole sequences, from the exact covariance of every pair of positions."""
    law = theory.last_token_law(TARGET, length)
    powers = [np.linalg.matrix_power(TARGET, distance) for distance in range(length)]
    second = np.zeros(5)  # E[count²]
    for early in range(length):
        second += law[early]
        for late in range(early + 1, length):
            second += 2 * law[early] * np.diag(powers[late - early])
    return np.sqrt((second - law.sum(axis=0) ** 2) / trials) / length


def test_sequences_agree_within_their_standard_errors() -> None:
    """60,000 sequences: both frequencies and the yield within 5 standard errors of exact (false alarms: 7e-6 for 11 numbers)."""
    result = theory.simulate_sequences()
    errors = np.array(result.standard_error)
    for played in (result.target_only, result.speculative):
        assert (np.abs(np.array(played) - result.exact) < 5 * errors).all()
    assert abs(result.block_efficiency - result.block_efficiency_exact) < 5 * result.block_efficiency_error
    # 3.6421 is what the formula says for these tables: more than 50 standard errors away from what is played.
    assert abs(result.block_efficiency - result.block_efficiency_iid) > 50 * result.block_efficiency_error
    assert result.max_difference < 5 * np.sqrt(2) * errors.max()
    assert f"{result.target_calls_saved:.0%}" == "72%"


def test_standard_errors_are_by_sequence() -> None:
    """They equal the exact ones (by covariance of positions) within 2 %; the i.i.d. twin is off by up to 60 %, both ways."""
    result = theory.simulate_sequences(trials=40_000)
    exact = exact_errors(64, 40_000)
    assert np.array(result.standard_error) == pytest.approx(exact, rel=0.02)
    shares = np.array(result.exact)
    iid = np.sqrt(shares * (1 - shares) / (64 * 40_000))
    assert (np.abs(iid / exact - 1) > 0.05).all()
    assert (iid / exact).max() > 1.5
    assert (iid / exact).min() < 0.95
    assert [f"{error:.5f}"[1:] for error in (exact_errors(64, 60_000).min(), exact_errors(64, 60_000).max())] == [
        ".00014",
        ".00019",
    ]


def sequence_gap(correction: np.ndarray) -> float:
    """Largest distance, in exact standard errors, between the frequencies of 20,000 speculative sequences and the law."""
    tables = Tables(target=TARGET, draft=DRAFT, correction=correction)
    counts, _ = play_speculative(tables, 20_000, 64, 0, 4, np.random.default_rng(3))
    shares = counts.sum(axis=0) / counts.sum()
    return float((np.abs(shares - theory.last_token_law(TARGET, 64).mean(axis=0)) / exact_errors(64, 20_000)).max())


def test_a_wrong_correction_shows_in_sequences() -> None:
    """The right residual stays within 5 standard errors (false alarms: 3e-6); the softmax twin is over 50 away."""
    assert sequence_gap(correction_rows(TARGET, DRAFT)) < 5
    assert sequence_gap(softmax_correction(TARGET, DRAFT)) > 50


@pytest.mark.parametrize(("gamma", "length"), [(1, 1), (4, 1), (1, 7), (3, 4), (20, 7)])
def test_every_sequence_has_its_length(gamma: int, length: int) -> None:
    """Exactly `length` tokens each, in ⌈length / (γ+1)⌉ to `length` rounds, plain ones in any case."""
    tables = Tables(target=TARGET, draft=DRAFT, correction=correction_rows(TARGET, DRAFT))
    counts, rounds = play_speculative(tables, 500, length, 0, gamma, np.random.default_rng(0))
    assert (counts.sum(axis=1) == length).all()
    assert rounds.min() >= -(-length // (gamma + 1))
    assert rounds.max() <= length
    assert (play_plain(tables, 500, length, 0, np.random.default_rng(0)).sum(axis=1) == length).all()


def test_draws_never_have_probability_zero() -> None:
    """Leading, inner and trailing zeros are never drawn, even by a uniform of 0 or just below 1."""

    class Edge:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self, shape: tuple[int, ...]) -> np.ndarray:
            return np.full(shape, self.value)

    rows = cumulative(np.array([[0.0, 0.3, 0.0, 0.7, 0.0], [0.1, 0.2, 0.3, 0.3999999, 0.0]]))
    assert draw_many(rows, Edge(0.0)).tolist() == [1, 0]  # type: ignore[arg-type]
    assert draw_many(rows, Edge(np.nextafter(1, 0))).tolist() == [3, 3]  # type: ignore[arg-type]
