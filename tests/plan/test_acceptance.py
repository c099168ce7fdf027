"""Estimators of acceptance, by enumeration: their mean over every draft, and over every text, is the exact law's."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter
from headstart.errors import OptionError
from headstart.plan.acceptance import Watched, kept_given_draft, kept_given_text
from headstart.plan.yields import RoundSample, TextSample, accepted_by_position
from headstart.records import Draft
from headstart.rows import Row
from headstart.verify import RULES
from tests.decode.loops import finished, random_model, request
from tests.exact import TOLERANCE, Script, SharedScript, drafts, every, random_table, sequence_law, support, table

GAMMA = 3
PAIRS = {
    "unlike": (random_table(np.random.default_rng(1), 3, 1), random_table(np.random.default_rng(2), 3, 1)),
    "with zeros": (random_table(np.random.default_rng(3), 3, 2, 0.4), random_table(np.random.default_rng(4), 3, 1, 0.4)),
    "the same": (random_table(np.random.default_rng(5), 3, 1),) * 2,
    "two tokens": (random_table(np.random.default_rng(6), 2, 2), random_table(np.random.default_rng(7), 2, 1)),
}
pairs = pytest.mark.parametrize("pair", PAIRS)
rules = pytest.mark.parametrize("rule", RULES)


def exact(rule: str, target, draft, gamma: int) -> np.ndarray:
    """[gamma]: P(accepted ≥ j), summed over every draft and the rule's stated law."""
    total = np.zeros(gamma)
    for weight, drawn in drafts(draft, gamma):
        rows = [target(drawn.tokens[:place]) for place in range(gamma + 1)]
        outcomes = RULES[rule].outcome_probs(rows, drawn)
        total += weight * outcomes[::-1].cumsum()[::-1][1:]
    return total


def mean_given_draft(rule: str, target, draft, gamma: int, estimator=kept_given_draft) -> np.ndarray:
    """[gamma]: the estimator's mean over every draft."""
    total = np.zeros(gamma)
    for weight, drawn in drafts(draft, gamma):
        total += weight * estimator(rule, [target(drawn.tokens[:place]) for place in range(gamma)], drawn)
    return total


def mean_given_text(rule: str, target, draft, gamma: int, estimator=kept_given_text) -> np.ndarray:
    """[gamma]: the estimator's mean over every text."""
    total = np.zeros(gamma)
    for text, weight in sequence_law(target, gamma).items():
        prefixes = [text[:place] for place in range(gamma)]
        total += weight * estimator(rule, [target(t) for t in prefixes], [draft(t) for t in prefixes], text)
    return total


@pairs
@rules
@pytest.mark.parametrize("mean", [mean_given_draft, mean_given_text])
def test_the_mean_is_the_exact_acceptance(pair, rule, mean) -> None:
    """Both roads, every rule, γ 3; with zeros and with a draft equal to the target."""
    target, draft = map(table, PAIRS[pair])
    assert mean(rule, target, draft, GAMMA) == pytest.approx(exact(rule, target, draft, GAMMA), abs=TOLERANCE)


@pytest.mark.parametrize("mean", [mean_given_draft, mean_given_text])
def test_twin_the_formula_of_another_rule(mean) -> None:
    """Every rule's estimator is caught when it is taken for another rule's."""
    target, draft = map(table, PAIRS["unlike"])
    for rule in RULES:
        for other in set(RULES) - {rule}:
            off = np.abs(mean(other, target, draft, GAMMA) - exact(rule, target, draft, GAMMA)).max()
            assert off > 1e-3, (rule, other)


def test_twin_the_overlap_without_what_came_before() -> None:
    """The plain mean overlap, raised to powers of position, is not P(accepted ≥ j)."""

    def powers(rule, rows, drawn):
        first = kept_given_draft("token", rows, Draft(tokens=drawn.tokens[:1], rows=drawn.rows[:1]))[0]
        return first ** np.arange(1, len(drawn) + 1)

    target, draft = map(table, PAIRS["unlike"])
    assert np.abs(mean_given_draft("token", target, draft, GAMMA, powers) - exact("token", target, draft, GAMMA)).max() > 1e-3


def test_twin_the_ratio_upside_down() -> None:
    """min(1, p/q) along the text, where the chance given the text is min(1, q/p)."""

    def wrong(rule, target_rows, draft_rows, tokens):
        return np.cumprod([min(1.0, p.prob(x) / q.prob(x)) for p, q, x in zip(target_rows, draft_rows, tokens, strict=True)])

    target, draft = map(table, PAIRS["unlike"])
    assert np.abs(mean_given_text("token", target, draft, GAMMA, wrong) - exact("token", target, draft, GAMMA)).max() > 0.01


@rules
def test_a_point_mass_is_kept_while_it_is_the_text(rule) -> None:
    """A deterministic draft, like an n-gram's: given the text every rule keeps exactly what agrees."""
    target, guess = table(PAIRS["unlike"][0]), (0, 2, 1)

    def draft(tokens):
        return Row.point(guess[len(tokens)], 3)

    assert mean_given_text(rule, target, draft, GAMMA) == pytest.approx(exact(rule, target, draft, GAMMA), abs=TOLERANCE)
    rows = [target(()), target((0,)), target((0, 2))]
    text = (0, 2, 2)
    assert kept_given_text(rule, rows, [draft(text[:i]) for i in range(3)], text).tolist() == [1, 1, 0]


def test_known_values() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), γ = 2: E[accepted] is 10/9 token-wise and 11/9 by block."""
    target, draft = (lambda tokens: Row.dense([1 / 3, 2 / 3])), (lambda tokens: Row.dense([2 / 3, 1 / 3]))
    for mean in (mean_given_draft, mean_given_text):
        assert mean("token", target, draft, 2).sum() == pytest.approx(10 / 9, abs=TOLERANCE)
        assert mean("block", target, draft, 2).sum() == pytest.approx(11 / 9, abs=TOLERANCE)


def rounds_of_loop(rule: str, model, drafter, gamma: int, length: int) -> tuple[float, np.ndarray]:
    """Exact E[rounds] of the loop for `length` tokens, and E[rounds] by number drafted, over every draw."""
    total, by_drafted = 0.0, np.zeros(gamma + 1)

    def run(draws):
        (one,) = finished(
            Decoder(model, drafter), request(rule=rule, vocab=model.vocab_size, draws=draws, gamma=gamma, max_tokens=length)
        )
        return one.rounds

    for weight, rounds in every(run, SharedScript if RULES[rule].keyed else Script):
        total += weight * len(rounds)
        for each in rounds:
            by_drafted[each.num_drafted] += weight
    return total, by_drafted


def replayed(rule: str, model, draft_at, gamma: int, length: int) -> np.ndarray:
    """E over texts of the replay's expected rounds by number drafted; `draft_at(text, start)` gives drafted and kept there."""
    target = table(np.exp(model._logits))
    law = sequence_law(lambda tokens: target((0, *tokens)), length)
    total = np.zeros(gamma + 1)
    for text, weight in law.items():
        places = [draft_at(target, text, start) for start in range(length)]
        kept = np.zeros((length, gamma))
        for start, (_, chances) in enumerate(places):
            kept[start, : len(chances)] = chances[:gamma]
        drafted = np.array([number for number, _ in places])
        total += weight * TextSample(category="x", max_tokens=length, drafted=drafted, kept={rule: kept}).at(rule, gamma).rounds
    return total


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_replaying_texts_counts_the_rounds_of_the_loop(rule, gamma) -> None:
    """Expected rounds of every draft length over all texts of four tokens equal the loop's, cut at max tokens and all."""
    model, small, length = random_model(1, vocab=2), random_model(51, vocab=2), 4
    chain = table(np.exp(small._logits))

    def draft_at(target, text, start):
        prefixes = [(0, *text[:place]) for place in range(start, length)]
        return gamma, kept_given_text(rule, [target(t) for t in prefixes], [chain(t) for t in prefixes], text[start:])

    _, loop = rounds_of_loop(rule, model, ModelDrafter(small), gamma, length)
    assert replayed(rule, model, draft_at, gamma, length) == pytest.approx(loop, abs=TOLERANCE)


def test_replaying_coupled_texts() -> None:
    """The same over shared noise, two tokens, where each pair of rows agrees as the Gumbel race does."""
    model, small, length = random_model(2, vocab=2), random_model(52, vocab=2), 3
    chain = table(np.exp(small._logits))

    def draft_at(target, text, start):
        prefixes = [(0, *text[:place]) for place in range(start, length)]
        return 2, kept_given_text("coupled", [target(t) for t in prefixes], [chain(t) for t in prefixes], text[start:])

    _, loop = rounds_of_loop("coupled", model, ModelDrafter(small), 2, length)
    assert replayed("coupled", model, draft_at, 2, length) == pytest.approx(loop, abs=TOLERANCE)


def test_replaying_a_lookup() -> None:
    """An n-gram drafter, whose drafts are empty at some places and full at others."""
    model, drafter, length, gamma = random_model(3, vocab=2), NGramDrafter(2, min_match=1), 4, 2

    def draft_at(target, text, start):
        tokens = [0, *text[:start]]
        (state,) = drafter.open([request(tokens).context])
        (made,) = drafter.propose([state], [], [gamma], [])
        agreed = np.cumprod([float(a == b) for a, b in zip(made.tokens, text[start:], strict=False)])
        return len(made), agreed

    _, loop = rounds_of_loop("block", model, drafter, gamma, length)
    assert replayed("block", model, draft_at, gamma, length) == pytest.approx(loop, abs=TOLERANCE)


def test_twin_a_mean_over_places_is_not_the_loop() -> None:
    """E/(mean kept + 1) over all places, instead of the rounds that really begin there, misses the loop's rounds."""
    model, small, length, gamma = random_model(1, vocab=2), random_model(51, vocab=2), 4, 2
    target, chain = table(np.exp(model._logits)), table(np.exp(small._logits))
    kept = 0.0
    for text, weight in sequence_law(lambda tokens: target((0, *tokens)), length).items():
        for start in range(length):
            prefixes = [(0, *text[:place]) for place in range(start, length)]
            chances = kept_given_text("block", [target(t) for t in prefixes], [chain(t) for t in prefixes], text[start:])
            kept += weight * chances[:gamma].sum() / length
    total, _ = rounds_of_loop("block", model, ModelDrafter(small), gamma, length)
    assert abs(length / (1 + kept) - total) > 0.05


def test_watched_rounds_are_unbiased_where_they_start() -> None:
    """First rounds of a watched run, over every draw: the mean of what each rule would keep is the exact acceptance."""
    model, small = random_model(1), random_model(51)
    total = {rule: np.zeros(2) for rule in RULES}

    def run(draws):
        watched = Watched(RULES["block"], tuple(RULES))
        one = request(draws=draws, gamma=2, max_tokens=3)
        one.rule = watched
        decoder = Decoder(model, ModelDrafter(small))
        decoder.begin([one])
        decoder.round([one])
        return watched.seen[0]

    for weight, seen in every(run):
        for rule in RULES:
            total[rule] += weight * seen[rule]
    target, draft = (table(np.exp(m._logits)) for m in (model, small))
    for rule in RULES:
        wanted = exact(rule, lambda tokens: target((0, *tokens)), lambda tokens: draft((0, *tokens)), 2)
        assert total[rule] == pytest.approx(wanted, abs=TOLERANCE)


def test_round_samples_count_as_they_are_cut() -> None:
    """Two rounds, one of them empty: tokens, rounds by length and acceptance by position."""
    rounds = [{"token": np.array([0.8, 0.4])}, {"token": np.array([])}]
    found = RoundSample(category="code", rounds=rounds).at("token", 2)
    assert found.tokens == pytest.approx(3.2)
    assert found.rounds.tolist() == [1, 0, 1]
    assert RoundSample(category="code", rounds=rounds).at("token", 1).rounds.tolist() == [1, 1]
    assert accepted_by_position([found, found]).tolist() == pytest.approx([0.8, 0.4])


def test_what_cannot_be_is_refused() -> None:
    """Unknown rules, rules that cannot be watched, lengths that were not sampled, shapes that do not fit."""
    with pytest.raises(OptionError, match="`rule` must be one of"):
        kept_given_draft("tokens", [], Draft())
    with pytest.raises(OptionError, match="`inner` must judge by an exact law"):
        Watched(RULES["match"], ("match",))
    sample = TextSample(category="x", max_tokens=2, drafted=np.array([1, 1]), kept={"token": np.zeros((2, 1))})
    for gamma in (0, 2):
        with pytest.raises(OptionError, match="`gamma` must be 1 or more and at most the 1"):
            sample.at("token", gamma)
    with pytest.raises(OptionError, match=r"`kept` must be \[2, gamma\]"):
        TextSample(category="x", max_tokens=2, drafted=np.array([1, 1]), kept={"token": np.zeros((3, 1))})
    with pytest.raises(OptionError, match="`drafted` must hold 1 to 1 places, got 2"):
        TextSample(category="x", max_tokens=1, drafted=np.array([1, 1]), kept={})
    assert support(Row.point(1, 3)) == [(1, 1.0)]
