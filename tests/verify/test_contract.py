"""The contract every rule keeps. A new rule joins by being in `RULES`."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.errors import OptionError
from headstart.records import Draft
from headstart.rows import Row
from headstart.verify import RULES, decide, rule_named
from headstart.verify.coupled import coupled_agreement
from tests.exact import TOLERANCE, SharedScript, distance, drafts, every, judged, round_law, sequence_law
from tests.verify.cases import ENDS, PAIRS, random_pairs

rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
gammas = pytest.mark.parametrize("gamma", [0, 1, 2, 3])


@rules
@gammas
@pytest.mark.parametrize("pair", PAIRS)
def test_a_round_keeps_the_targets_law(rule, gamma, pair) -> None:
    """Summed over every draft and outcome, a round's tokens completed by the target follow the target's law: i.i.d. rows."""
    target, draft = PAIRS[pair]
    assert distance(round_law(rule, target, draft, gamma), sequence_law(target, gamma + 1)) <= TOLERANCE


@rules
@gammas
def test_a_round_keeps_the_targets_law_in_context(rule, gamma) -> None:
    """The same where rows depend on one or two tokens, on random tables with and without zeros."""
    for target, draft in random_pairs(40, seed=gamma):
        assert distance(round_law(rule, target, draft, gamma), sequence_law(target, gamma + 1)) <= TOLERANCE


@rules
@pytest.mark.parametrize("ends", ENDS)
def test_a_draft_may_end_early_at_a_stopping_time(rule, ends) -> None:
    """The law is kept where a draft's length depends on earlier tokens and on the next row, though not on its token."""
    for target, draft in [*random_pairs(6, seed=7), PAIRS["ordinary"]]:
        law = round_law(rule, target, draft, 3, ENDS[ends])
        assert distance(law, sequence_law(target, 4)) <= TOLERANCE


@rules
@pytest.mark.parametrize("token", [0, 1, 2])
def test_a_deterministic_draft_keeps_the_law(rule, token) -> None:
    """A point-mass draft whose token depends on the context: what an n-gram drafter hands over."""
    for target, _ in random_pairs(6, seed=11):
        law = round_law(rule, target, lambda tokens: Row.point((token + sum(tokens)) % 3, 3), 3)
        assert distance(law, sequence_law(target, 4)) <= TOLERANCE


@rules
def test_the_draft_may_be_the_target(rule) -> None:
    """Draft = target keeps the law; every rule but `match`, which draws apart, keeps every drafted token."""
    for target, _ in random_pairs(6, seed=3):
        assert distance(round_law(rule, target, target, 2), sequence_law(target, 3)) <= TOLERANCE
        for _, draft in drafts(target, 3):
            rows = [target(draft.tokens[:place]) for place in range(4)]
            if rule.name != "match":
                assert rule.outcome_probs(rows, draft)[-1] == pytest.approx(1, abs=TOLERANCE)


@rules
def test_outcomes_are_a_law(rule) -> None:
    """outcome_probs is gamma + 1 numbers of 0 or more that sum to 1; so is next_probs wherever it can be asked."""
    for target, draft_chain in [*random_pairs(8, seed=5), *PAIRS.values()]:
        for _, draft in drafts(draft_chain, 2):
            rows = [target(draft.tokens[:place]) for place in range(3)]
            outcomes = rule.outcome_probs(rows, draft)
            assert outcomes.shape == (3,)
            assert (outcomes >= 0).all()
            assert outcomes.sum() == pytest.approx(1, abs=TOLERANCE)
            for node in range(3):
                probs = rule.next_probs(rows, draft, node).to_array()
                assert (probs >= 0).all(), "also for a node of probability zero: never NaN"
                assert probs.sum() == pytest.approx(1, abs=1e-9)


@rules
def test_a_kept_token_has_probability(rule) -> None:
    """No outcome of positive probability keeps, or emits, a token to which the target gives none."""
    for target, draft_chain in [*random_pairs(9, seed=9), PAIRS["zero in p"], PAIRS["zeros in both"], PAIRS["disjoint"]]:
        for _, draft in drafts(draft_chain, 3):
            for _, kept, token in judged(rule, target, draft):
                emitted = (*draft.tokens[:kept], token)
                for place, each in enumerate(emitted):
                    assert target(emitted[:place]).prob(each) > 0


@rules
def test_deciding_draws_from_the_stated_law(rule) -> None:
    """`decide`, enumerated over its draws, has the law that outcome_probs and next_probs state.

    `coupled` states its law given the draft, over noise shared with it: two tokens, where `SharedScript` is the Gumbel race;
    the draft is drawn inside, with the same noise, and the joint law of draft and decision is compared."""
    vocab = 2 if rule.keyed else 3
    for target, draft_chain in random_pairs(6, seed=13, vocab=vocab):

        def run(draws, target=target, draft_chain=draft_chain):
            draft = Draft()
            while len(draft) < 2:
                row = draft_chain(draft.tokens)
                draft = draft.then(row, draws.draw(row, len(draft)))
            rows = [target(draft.tokens[:place]) for place in range(3)]
            decision = decide(rule, rows, draft, draws, 0)
            return draft.tokens, decision.num_accepted, decision.token

        drawn: dict = {}
        for weight, what in every(run, SharedScript) if rule.keyed else every(run):
            drawn[what] = drawn.get(what, 0.0) + weight
        stated: dict = {}
        for weight, draft in drafts(draft_chain, 2):
            for chance, kept, token in judged(rule, target, draft):
                what = (draft.tokens, kept, token)
                stated[what] = stated.get(what, 0.0) + weight * chance
        assert distance(drawn, stated) <= TOLERANCE


class NoChance:
    """Nothing may be drawn but what is certain."""

    def draw(self, row, position):
        """The only token of a row of one."""
        assert row.probs.size == 1
        return row.token(0)


@rules
def test_what_is_certain_is_decided_as_stated_and_without_chance(rule) -> None:
    """Target rows of one token each, as in greedy decoding: the decision is the outcome the rule gives probability one."""
    shapes = [None, (-1, -1), (-1, 0, 0, 1), (-1, -1, 0, 1, 1)] if rule.trees else [None]
    for text in np.ndindex(3, 3, 3, 3, 3):
        for parents in shapes:
            tokens = [1, 2, 0, 2] if parents is None else [(place * 2 + (parent < 0)) % 3 for place, parent in enumerate(parents)]
            draft = Draft.points(tokens, 3, parents)
            rows = [Row.point(text[len(draft.path(node))], 3) for node in range(len(draft) + 1)]
            got = decide(rule, rows, draft, NoChance())
            assert rule.outcome_probs(rows, draft)[got.node] == pytest.approx(1, abs=TOLERANCE)
            assert rule.next_probs(rows, draft, got.node).prob(got.token) == pytest.approx(1, abs=TOLERANCE)
            assert got.num_accepted == len(draft.path(got.node))
            assert draft.path_tokens(got.node) == text[: got.num_accepted]


@rules
def test_one_row_with_a_chance_is_left_to_the_rule(rule) -> None:
    """A row of two tokens among rows of one: the law of the tokens is still the target's."""
    for place in range(3):

        def target(tokens, place=place):
            return Row.dense([0.3, 0.0, 0.7]) if len(tokens) == place else Row.point(2 * (len(tokens) % 2), 3)

        draft_chain = random_pairs(1, seed=place)[0][1]
        assert distance(round_law(rule, target, draft_chain, 2), sequence_law(target, 3)) <= TOLERANCE


@rules
def test_rows_of_any_precision_and_shape_will_do(rule) -> None:
    """float32 rows and truncated rows, mixed: the law is kept to the rows' own precision."""
    rng = np.random.default_rng(2)
    for _ in range(4):
        p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(3))
        target = Row.dense(p.astype(np.float32))
        draft = Row(q.astype(np.float32), np.array([0, 1, 3]), 4)
        law = round_law(rule, lambda tokens, row=target: row, lambda tokens, row=draft: row, 2)
        assert distance(law, sequence_law(lambda tokens, row=target: row, 3)) <= 1e-6


@rules
def test_one_row_more_than_the_draft(rule) -> None:
    """A wrong number of target rows is refused by name."""
    row = Row.dense([0.5, 0.5])
    with pytest.raises(OptionError, match="`target_rows` must hold one row more than the draft, got 1 rows for 1"):
        decide(rule, [row], Draft(tokens=(0,), rows=(row,)), SharedScript())


@rules
def test_the_overlap_bounds_one_position(rule) -> None:
    """At one position no rule keeps more than Σ min(p, q); a keyed one keeps at least (1 − TV)/(1 + TV)."""
    for target, draft_chain in random_pairs(30, seed=21):
        p, q = target(()), draft_chain(())
        kept = sum(w * float(rule.outcome_probs([p, p], d)[1]) for w, d in drafts(draft_chain, 1))
        common = float(np.minimum(p.to_array(), q.to_array()).sum())
        assert kept <= common + TOLERANCE
        if rule.keyed:
            assert kept >= common / (2 - common) - TOLERANCE
            assert kept == pytest.approx(coupled_agreement(p, q), abs=TOLERANCE)


def test_names() -> None:
    """Rules are found by their names; another name is refused with a hint."""
    for name, rule in RULES.items():
        assert rule_named(name) is rule
        assert rule.name == name
    with pytest.raises(OptionError, match=r"`rule` must be one of .*got 'blok'; did you mean 'block'"):
        rule_named("blok")
