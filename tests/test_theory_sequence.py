"""Last-token tables: the article's digits, and the recursions against sums over every outcome."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headstart import theory
from headstart.theory.sequence import _round_ends

TARGET, DRAFT = theory.article_tables()


def random_tables(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two unequal 3 × 3 tables; some entries of each are zero."""
    rng = np.random.default_rng(seed)
    tables = [rng.dirichlet(np.ones(3), size=3) for _ in range(2)]
    tables[0][0] = [0.0, 0.4, 0.6]
    tables[1][1] = [0.5, 0.5, 0.0]
    return tables[0], tables[1]


def test_the_articles_digits() -> None:
    """Exact frequencies, 3.5425 = 64 / E[rounds], 3.6456 in the long run, 3.6421 by the formula, 72 % of calls saved."""
    shares = theory.last_token_law(TARGET, 64).mean(axis=0)
    assert [f"{share:.4f}" for share in shares] == ["0.3024", "0.1298", "0.1286", "0.1208", "0.3184"]
    rounds = theory.expected_rounds(TARGET, DRAFT, 4, 64)
    assert f"{64 / rounds:.4f}" == "3.5425"
    assert f"{1 - rounds / 64:.0%}" == "72%"
    assert f"{theory.long_run_yield(TARGET, DRAFT, 4):.4f}" == "3.6456"
    assert f"{theory.iid_yield(TARGET, DRAFT, 4):.4f}" == "3.6421"


def outcomes(target: np.ndarray, draft: np.ndarray, gamma: int, last: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every way one round can go, by the rule's own words: (probability, tokens emitted)."""
    found = []
    for tokens in itertools.product(range(len(target)), repeat=gamma):
        contexts = (last, *tokens)
        reach = 1.0  # this draft was drawn and its first i tokens were kept
        for i, token in enumerate(tokens):
            p, q = target[contexts[i]], draft[contexts[i]]
            # What was drawn after the miss no longer matters, so a miss is counted for one such draft only.
            first = all(later == 0 for later in tokens[i + 1 :])
            accept = min(1.0, p[token] / q[token]) if q[token] > 0 else 0.0
            residual = np.maximum(p - q, 0)
            if first and q[token] > 0 and accept < 1:
                chance = reach * q[token] * (1 - accept)
                found += [(chance * r / residual.sum(), (*tokens[:i], y)) for y, r in enumerate(residual)]
            reach *= q[token] * accept
        found += [(reach * p, (*tokens, y)) for y, p in enumerate(target[contexts[gamma]])]
    return found


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_match_a_sum_over_every_outcome(gamma: int, seed: int) -> None:
    """How many guesses are kept and where the round ends, by enumeration of drafts and decisions, to 1e-12."""
    target, draft = random_tables(seed)
    ends = np.zeros((gamma + 1, 3, 3))
    for last in range(3):
        for chance, emitted in outcomes(target, draft, gamma, last):
            ends[len(emitted) - 1, last, emitted[-1]] += chance
    assert _round_ends(target, draft, gamma) == pytest.approx(ends, abs=1e-12)


@pytest.mark.parametrize("shorten", [False, True])
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_sequences_match_a_sum_over_every_outcome(gamma: int, shorten: bool) -> None:
    """Sequences of 4: the law by position is the target's and E[rounds] is the recursion's, to 1e-12; it makes no
    difference whether the last draft is cut or shortened beforehand."""
    target, draft = random_tables(2)
    length = 4
    law, rounds = np.zeros((length, 3)), 0.0
    open_ = [(1.0, (0,))]
    while open_:
        chance, tokens = open_.pop()
        left = length + 1 - len(tokens)
        if left == 0:
            law[np.arange(length), np.array(tokens[1:])] += chance
            continue
        rounds += chance
        ways = outcomes(target, draft, min(gamma, left - 1) if shorten else gamma, tokens[-1])
        open_ += [(chance * share, (*tokens, *emitted[:left])) for share, emitted in ways if share > 0]
    assert law == pytest.approx(theory.last_token_law(target, length), abs=1e-12)
    assert rounds == pytest.approx(theory.expected_rounds(target, draft, gamma, length), abs=1e-12)


def test_the_law_does_not_know_the_draft_but_the_speed_does() -> None:
    """Better drafts take fewer rounds; a perfect one takes ⌈L / (γ+1)⌉, plain decoding takes L."""
    rounds = [theory.expected_rounds(TARGET, mix * TARGET + (1 - mix) / 5, 4, 64) for mix in (0.0, 0.3, 0.6, 1.0)]
    assert (np.diff(rounds) < 0).all()
    assert rounds[-1] == pytest.approx(13)
    assert theory.expected_rounds(TARGET, DRAFT, 0, 64) == pytest.approx(64)


def test_long_run_is_the_limit_of_long_sequences() -> None:
    """Cutting costs a fixed number of rounds: doubling L halves the gap to the long run."""
    long_run = theory.long_run_yield(TARGET, DRAFT, 4)
    rounds = [theory.expected_rounds(TARGET, DRAFT, 4, length) for length in (1000, 2000)]
    assert 1000 / (rounds[1] - rounds[0]) == pytest.approx(long_run, abs=1e-9)


def test_correlation_moves_the_yield_either_way() -> None:
    """An easy and a hard context at one mean α: lingering in each drags the long run below the formula, alternating lifts it."""

    def gap(stay: float) -> float:
        target = np.array([[stay, 1 - stay], [1 - stay, stay]])
        draft = np.array([target[0], [0.5, 0.5]])
        return theory.long_run_yield(target, draft, 4) - theory.iid_yield(target, draft, 4)

    assert gap(0.8) == pytest.approx(-0.1422, abs=1e-4)
    assert gap(0.5) == pytest.approx(0, abs=1e-12)
    assert gap(0.2) == pytest.approx(+0.0874, abs=1e-4)


def test_stationary_law_is_stationary_also_for_a_periodic_table() -> None:
    """π = π·table, where plain powers of the table would never settle; transient tokens get nothing."""
    for table in (TARGET, np.roll(np.eye(4), 1, axis=1), np.array([[0.5, 0.5, 0], [0, 0.2, 0.8], [0, 1, 0]])):
        law = theory.stationary_law(table)
        assert law @ table == pytest.approx(law, abs=1e-14)
        assert law.sum() == pytest.approx(1, abs=1e-14)
    assert law[0] == pytest.approx(0, abs=1e-15)
