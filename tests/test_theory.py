"""Closed forms: every digit the article prints, the edges, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart import theory
from headstart.errors import OptionError

YIELDS = [
    (0.5, 1, "1.5000"),
    (0.5, 4, "1.9375"),
    (0.5, 8, "1.9961"),
    (0.7, 1, "1.7000"),
    (0.7, 4, "2.7731"),
    (0.7, 8, "3.1988"),
    (0.9, 1, "1.9000"),
    (0.9, 4, "4.0951"),
    (0.9, 8, "6.1258"),
]
WALLTIMES = [
    (0.5, 2, "1.46", "2.0"),
    (0.6, 3, "1.67", "2.5"),
    (0.7, 4, "1.98", "3.3"),
    (0.8, 6, "2.47", "5.0"),
    (0.9, 10, "3.43", "10.0"),
]
GROWING = theory.ScoreCost(tokens=(1, 2, 4, 8), costs=(1, 1.1, 1.2, 1.4))


@pytest.mark.parametrize(("alpha", "gamma", "printed"), YIELDS)
def test_tokens_per_round_has_the_articles_digits(alpha: float, gamma: int, printed: str) -> None:
    """The table of tokens per round, to its last digit."""
    assert f"{theory.tokens_per_round(alpha, gamma):.4f}" == printed


@pytest.mark.parametrize(("alpha", "gamma", "improvement", "ceiling"), WALLTIMES)
def test_walltime_has_the_articles_digits(alpha: float, gamma: int, improvement: str, ceiling: str) -> None:
    """The table of best draft lengths at c = 0.1, to its last digit."""
    point = theory.walltime_point(alpha, 0.1, 20)
    assert point.best_gamma == gamma
    assert f"{point.walltime_improvement:.2f}" == improvement
    assert point.ceiling is not None
    assert f"{point.ceiling:.1f}" == ceiling
    assert point.break_even_alpha == 0.1


def test_one_position_has_the_articles_digits() -> None:
    """Overlap .6500 and 1 − TV are the same number."""
    overlap = theory.overlap(theory.ARTICLE_TARGET, theory.ARTICLE_DRAFT)
    assert f"{overlap:.4f}" == "0.6500"
    assert theory.total_variation(theory.ARTICLE_TARGET, theory.ARTICLE_DRAFT) == pytest.approx(1 - overlap, abs=1e-15)


@given(st.floats(0, 1), st.integers(0, 60))
def test_tokens_per_round_is_the_sum_of_powers(alpha: float, gamma: int) -> None:
    """E = Σ α^i for i from 0 to γ, to 13 digits, also where 1 − α^(γ+1) cancels, and at both ends."""
    assert float(theory.tokens_per_round(alpha, gamma)) == pytest.approx(math.fsum(alpha**i for i in range(gamma + 1)), rel=1e-13)


def test_the_edges_of_alpha() -> None:
    """α = 0 yields 1, α = 1 yields γ + 1, γ = 0 yields 1; arrays broadcast."""
    yields = theory.tokens_per_round(np.array([[0.0], [1.0], [1 - 1e-16]]), np.array([0, 1, 7]))
    assert yields.tolist()[0] == [1, 1, 1]
    assert yields.tolist()[1] == [1, 2, 8]
    assert yields[2] == pytest.approx([1, 2, 8], rel=1e-14)
    assert theory.ceiling(1) is None
    assert theory.ceiling(0) == 1


@given(st.floats(0, 1), st.floats(0, 3), st.integers(1, 40))
def test_best_gamma_is_the_best(alpha: float, cost_ratio: float, longest: int) -> None:
    """No other length in the range is better, and the first of equals is taken."""
    best, improvement = theory.best_gamma(alpha, cost_ratio, longest, GROWING)
    curve = [float(theory.walltime_improvement(alpha, gamma, cost_ratio, GROWING)) for gamma in range(1, longest + 1)]
    assert curve.index(max(curve)) + 1 == best
    assert improvement == max(curve)


@given(st.floats(1e-6, 0.999), st.integers(1, 30))
def test_break_even_is_c_where_scoring_is_free(cost_ratio: float, longest: int) -> None:
    """With v ≡ 1 speculation pays exactly above α = c, at any range of lengths."""
    assert theory.break_even_alpha(cost_ratio, longest) == cost_ratio


@given(st.floats(0, 1.5), st.integers(1, 30), st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_break_even_separates_gain_from_loss(cost_ratio: float, longest: int, steps: list[float]) -> None:
    """Just above it some length beats plain decoding, just below none does; None means not even α = 1."""
    cost = theory.ScoreCost(tokens=tuple(range(1, len(steps) + 2)), costs=(1.0, *(1 + np.cumsum(steps)).tolist()))
    even = theory.break_even_alpha(cost_ratio, longest, cost)
    if even is None:
        assert theory.best_gamma(1.0, cost_ratio, longest, cost)[1] <= 1
        return
    if even > 1e-6:
        assert theory.best_gamma(even - 1e-6, cost_ratio, longest, cost)[1] < 1
    if even < 1 - 1e-6:
        assert theory.best_gamma(even + 1e-6, cost_ratio, longest, cost)[1] > 1


def test_break_even_may_need_a_longer_draft() -> None:
    """A pass that costs the same for 2 and for 9 tokens favours long drafts: γ = 1 alone would say .55."""
    stepped = theory.ScoreCost(tokens=(1, 2, 9), costs=(1, 1.5, 1.5))
    even = theory.break_even_alpha(0.05, 8, stepped)
    assert theory.break_even_alpha(0.05, 1, stepped) == pytest.approx(0.55)
    assert even is not None
    assert even < 0.45
    assert theory.best_gamma(even + 1e-9, 0.05, 8, stepped)[0] > 1


def test_break_even_never_and_always() -> None:
    """A draft as dear as the target never pays; a free draft pays from the first guess that may pass."""
    assert theory.break_even_alpha(1.0) is None
    assert theory.break_even_alpha(0.0) == 0.0
    assert theory.break_even_alpha(0.0, 5, theory.ScoreCost(tokens=(1, 2), costs=(1, 0.9))) == 0.0


def test_optimum_grows_with_alpha_and_shrinks_with_cost() -> None:
    """The claim about the best draft length, over a grid; and too long a draft ends below parity."""
    alphas, costs = np.linspace(0.05, 0.95, 19), (0.02, 0.05, 0.1, 0.2, 0.4)
    best = np.array([[theory.best_gamma(alpha, cost, 200)[0] for alpha in alphas] for cost in costs])
    assert (np.diff(best, axis=1) >= 0).all()
    assert (np.diff(best, axis=0) <= 0).all()
    assert float(theory.walltime_improvement(0.5, 20, 0.1)) < 1


def test_score_cost_between_and_beyond_its_points() -> None:
    """Linear between points, the last slope beyond, relative to v(1), flat with one point, never falling beyond the last."""
    assert GROWING([1, 2, 3, 8, 10]) == pytest.approx([1, 1.1, 1.15, 1.4, 1.5])
    milliseconds = theory.ScoreCost(tokens=(1, 4), costs=(20, 26))
    assert milliseconds([1, 4, 7]) == pytest.approx([1, 1.3, 1.6])
    assert theory.ScoreCost()([1, 50]).tolist() == [1, 1]
    assert theory.ScoreCost(tokens=(1, 2, 4), costs=(1, 1.4, 1.2))([4, 9]) == pytest.approx([1.2, 1.2])


def test_general_form_of_the_walltime() -> None:
    """S = E / (γc + v(γ+1)) written out."""
    expected = theory.tokens_per_round(0.8, 3) / (3 * 0.2 + 1.2)
    assert float(theory.walltime_improvement(0.8, 3, 0.2, GROWING)) == pytest.approx(float(expected), rel=1e-15)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: theory.tokens_per_round(1.2, 4), "`alpha` must be between 0 and 1, got 1.2"),
        (lambda: theory.tokens_per_round(float("nan"), 4), "`alpha` must be between 0 and 1, got nan"),
        (lambda: theory.tokens_per_round(0.5, -1), "`gamma`"),
        (lambda: theory.tokens_per_round(0.5, 1.5), "`gamma`"),
        (lambda: theory.walltime_improvement(0.5, 4, -0.1), "`cost_ratio` must be a finite number, 0 or more, got -0.1"),
        (lambda: theory.walltime_improvement(0.5, 4, float("nan")), "`cost_ratio`"),
        (lambda: theory.best_gamma(0.5, 0.1, 0), "`max_gamma` must be 1 or more, got 0"),
        (lambda: theory.ScoreCost(tokens=(2, 4), costs=(1, 2)), "must start at k = 1"),
        (lambda: theory.ScoreCost(tokens=(1, 4, 4), costs=(1, 2, 3)), "go up"),
        (lambda: theory.ScoreCost(tokens=(1, 2), costs=(1, 0)), "over 0, got 0"),
        (lambda: theory.ScoreCost(tokens=(1, 2), costs=(1,)), "one cost for each"),
        (lambda: theory.simulate_step([0.5, 0.5], [1.0]), "as many entries as `target` (2), got 1"),
        (lambda: theory.simulate_step([0.5, 0.6], [0.5, 0.5]), "`target` must sum to 1, got 1.1"),
        (lambda: theory.simulate_step([0.5, 0.5], [1.5, -0.5]), "`draft` must hold finite probabilities of 0 or more, got -0.5"),
        (lambda: theory.simulate_step([0.5, float("nan")], [0.5, 0.5]), "`target` must hold finite"),
        (lambda: theory.simulate_step(draws=0), "`draws` must be 1 or more, got 0"),
        (lambda: theory.simulate_step(seed=-1), "`seed` must be 0 or more, got -1"),
        (lambda: theory.simulate_yield(0.5, 4, trials=1), "`trials` must be 2 or more, got 1"),
        (lambda: theory.simulate_sequences(gamma=0), "`gamma` must be 1 or more, got 0"),
        (lambda: theory.simulate_sequences(length=0), "`length` must be 1 or more, got 0"),
        (lambda: theory.simulate_sequences(start=5), "`start` must be at most 4, got 5"),
        (lambda: theory.simulate_sequences(draft_table=np.eye(3)), "must have the shape of `target_table`"),
        (lambda: theory.last_token_law([[0.5, 0.5]], 3), "must be a square table"),
        (lambda: theory.stationary_law(np.eye(2)), "one long-run law"),
    ],
)
def test_impossible_values_are_named(call: object, part: str) -> None:
    """Each refusal names the parameter and shows the value."""
    assert callable(call)
    with pytest.raises(OptionError) as caught:
        call()
    assert part in str(caught.value)
