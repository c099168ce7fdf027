"""Numbers the rules must give: the published vector, the order of the rules, and the coupling against integration."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from scipy import integrate, stats

from headstart.pairs import overlap, total_variation
from headstart.records import Draft
from headstart.rows import Row
from headstart.verify import BlockRule, CoupledRule, MatchRule, TokenRule
from headstart.verify.block import joint_ratios
from headstart.verify.coupled import coupled_agreement
from tests.exact import TOLERANCE, drafts, iid, mean_accepted, random_table, sequence_law, table
from tests.verify.cases import PAIRS, random_pairs

TOKEN, BLOCK, MATCH, COUPLED = TokenRule(), BlockRule(), MatchRule(), CoupledRule()
EXPERIMENT_1 = (0.30, 0.25, 0.20, 0.15, 0.07, 0.03), (0.10, 0.10, 0.30, 0.30, 0.15, 0.05)


def test_block_accepts_eleven_ninths() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), γ = 2: token-wise keeps 10/9 tokens on average, block 11/9."""
    target, draft = PAIRS["two tokens"]
    assert mean_accepted(TOKEN, target, draft, 2) == pytest.approx(float(Fraction(10, 9)), abs=TOLERANCE)
    assert mean_accepted(BLOCK, target, draft, 2) == pytest.approx(float(Fraction(11, 9)), abs=TOLERANCE)


def test_no_rule_keeps_more_than_twelve_ninths() -> None:
    """The bound Σ_i Σ_{x^i} min(P(x^i), Q(x^i)) is 12/9 on that vector; every rule stays under it."""
    target, draft = PAIRS["two tokens"]
    bound = 0.0
    for length in (1, 2):
        likely, drafted = sequence_law(target, length), sequence_law(draft, length)
        bound += sum(min(likely[tokens], drafted[tokens]) for tokens in likely)
    assert bound == pytest.approx(12 / 9, abs=TOLERANCE)
    for rule in (TOKEN, BLOCK, MATCH, COUPLED):
        assert mean_accepted(rule, target, draft, 2) <= 12 / 9 + TOLERANCE


def test_block_by_hand() -> None:
    """On that vector X_1 = 0 gives p_1 = 1/2, S_1 = 0, h_1 = 0: a draft 0… is kept whole or not at all."""
    p, q = Row.dense([1 / 3, 2 / 3]), Row.dense([2 / 3, 1 / 3])
    draft = Draft(tokens=(0, 1), rows=(q, q))
    assert joint_ratios([p, p, p], draft) == pytest.approx([1, 1 / 2, 1])
    assert BLOCK.outcome_probs([p, p, p], draft) == pytest.approx([0, 0, 1])
    draft = Draft(tokens=(0, 0), rows=(q, q))
    assert BLOCK.outcome_probs([p, p, p], draft) == pytest.approx([3 / 4, 0, 1 / 4])


def test_block_never_keeps_less_than_token() -> None:
    """E[kept] under block is at least that under token, exactly, on 200 random pairs and γ = 1, 2, 3."""
    for gamma in (1, 2, 3):
        for target, draft in random_pairs(200, seed=100 + gamma, vocab=2 if gamma == 3 else 3):
            less, more = mean_accepted(TOKEN, target, draft, gamma), mean_accepted(BLOCK, target, draft, gamma)
            assert more >= less - TOLERANCE
            if gamma == 1:
                assert more == pytest.approx(less, abs=TOLERANCE)


def test_at_least_i_are_kept_with_the_joint_ratio() -> None:
    """Under block P(kept ≥ i | X^i) = p_i, summed over how the draft goes on."""
    for target, chain in random_pairs(30, seed=8):
        reached: dict[tuple[int, ...], float] = {}
        drafted: dict[tuple[int, ...], float] = {}
        ratios = {}
        for weight, draft in drafts(chain, 3):
            rows = [target(draft.tokens[:place]) for place in range(4)]
            outcomes = BLOCK.outcome_probs(rows, draft)
            for i in (1, 2, 3):
                head = draft.tokens[:i]
                reached[head] = reached.get(head, 0.0) + weight * float(outcomes[i:].sum())
                drafted[head] = drafted.get(head, 0.0) + weight
                ratios[head] = joint_ratios(rows, draft)[i]
        for head, ratio in ratios.items():
            assert reached[head] / drafted[head] == pytest.approx(ratio, abs=1e-11)


def test_rules_agree_on_a_point_mass() -> None:
    """For a deterministic draft token, block, match and coupled have one law: of the outcome and of the extra token."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        target = table(random_table(rng, 3, 1, zeros=0.3))
        draft = Draft.points(rng.integers(3, size=3).tolist(), 3)
        rows = [target(draft.tokens[:place]) for place in range(4)]
        outcomes = TOKEN.outcome_probs(rows, draft)
        for rule in (BLOCK, MATCH, COUPLED):
            assert rule.outcome_probs(rows, draft) == pytest.approx(outcomes, abs=TOLERANCE)
            for node in np.flatnonzero(outcomes > 1e-12):
                want = TOKEN.next_probs(rows, draft, int(node)).to_array()
                assert rule.next_probs(rows, draft, int(node)).to_array() == pytest.approx(want, abs=1e-9)


def test_match_accepts_the_inner_product() -> None:
    """An independently drawn draft is kept with probability Σ p·q."""
    p, q = (np.array(row) for row in EXPERIMENT_1)
    assert mean_accepted(MATCH, iid(p), iid(q), 1) == pytest.approx(float((p * q).sum()), abs=TOLERANCE)


def test_coupled_on_the_first_experiment() -> None:
    """0.6305 against token-wise 0.65, and never under (1 − TV)/(1 + TV)."""
    p, q = (Row.dense(row) for row in EXPERIMENT_1)
    assert coupled_agreement(p, q) == pytest.approx(0.6305, abs=5e-5)
    assert overlap(p, q) == pytest.approx(0.65, abs=TOLERANCE)
    assert mean_accepted(COUPLED, lambda t: p, lambda t: q, 1) == pytest.approx(coupled_agreement(p, q), abs=TOLERANCE)


def test_coupled_is_its_formula() -> None:
    """P(X = y = i) = 1/Σ_j max(p_j/p_i, q_j/q_i), summed to a total of at least (1 − TV)/(1 + TV): 500 pairs with zeros."""
    rng = np.random.default_rng(3)
    for _ in range(500):
        p, q = random_table(rng, 5, 0, zeros=0.3), random_table(rng, 5, 0, zeros=0.3)
        rows = Row.dense(p), Row.dense(q)
        total = 0.0
        for token in range(5):
            if q[token] == 0:
                continue
            with np.errstate(divide="ignore"):
                both = 0.0 if p[token] == 0 else 1 / float(np.maximum(p / p[token], q / q[token]).sum())
            draft = Draft(tokens=(token,), rows=(rows[1],))
            kept = COUPLED.outcome_probs([rows[0], rows[0]], draft)[1]
            assert kept * q[token] == pytest.approx(both, abs=TOLERANCE)
            total += both
        distance = total_variation(*rows)
        assert coupled_agreement(*rows) == pytest.approx(total, abs=TOLERANCE)
        assert total >= (1 - distance) / (1 + distance) - TOLERANCE


def _joint(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """[vocab, vocab]: the joint law of (X, y) as the rule states it."""
    stated = np.zeros((p.size, p.size))
    rows = [Row.dense(p)] * 2
    for token in np.flatnonzero(q):
        draft = Draft(tokens=(int(token),), rows=(Row.dense(q),))
        missed, kept = COUPLED.outcome_probs(rows, draft)
        stated[token] = q[token] * missed * COUPLED.next_probs(rows, draft, 0).to_array()
        stated[token, token] += q[token] * kept
    return stated


def test_coupled_against_numeric_integration() -> None:
    """The stated law of (X, y), X ≠ y, equals the two-dimensional integral over the winning times, to 1e-7."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    stated = _joint(p, q)
    for i, j in permutations(range(3), 2):

        def density(b: float, a: float, i: int = i, j: int = j) -> float:
            return q[i] * p[j] * float(np.exp(-np.maximum(q * a, p * b).sum()))

        mass, slowest, fastest = 0.0, q[j] / p[j], q[i] / p[i]  # of b/a: token i must not win y, nor j win X
        if slowest < fastest:
            mass, _ = integrate.dblquad(density, 0, 60, partial(np.multiply, slowest), partial(np.multiply, fastest), epsabs=1e-9)
        assert stated[i, j] == pytest.approx(mass, abs=1e-7)


@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_coupled_against_racing_clocks(zeros: float) -> None:
    """400,000 races of shared exponential clocks: χ² of the counts of (X, y) against the stated law; false alarm 1e-6 a case.

    Twin that must fail: clocks that are not shared."""
    rng = np.random.default_rng(17)
    p, q = random_table(rng, 5, 0, zeros), random_table(rng, 5, 0, zeros)
    stated = _joint(p, q).ravel()
    likely = stated > 1e-5
    with np.errstate(divide="ignore"):
        clocks, others = rng.exponential(size=(2, 400_000, 5))
        drafted = (clocks / q).argmin(axis=1)
        for judged, holds in ((clocks, True), (others, False)):
            counts = np.bincount(drafted * 5 + (judged / p).argmin(axis=1), minlength=25)
            expected = stated[likely] * 400_000
            statistic = float(((counts[likely] - expected) ** 2 / expected).sum())
            threshold = stats.chi2.isf(1e-6, likely.sum())
            assert bool(statistic < threshold) is holds
