"""Rules on trees: every shape that exists, every kind of children, summed to 1e-12; and what is refused by name."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from headstart.draws import KeyedDraws, StreamDraws
from headstart.errors import OptionError
from headstart.records import Draft
from headstart.rows import Row
from headstart.verify import RULES, BlockRule, decide
from tests.exact import (
    TOLERANCE,
    Law,
    SharedScript,
    completed,
    distance,
    drafts,
    emitted_law,
    every,
    iid,
    judged,
    mean_depth,
    sequence_law,
    target_rows,
)
from tests.trees import COUNTS, KINDS, grown, trees
from tests.verify.cases import PAIRS, random_pairs

ON_TREES = {name: rule for name, rule in RULES.items() if rule.trees}
STATED = [name for name in ON_TREES if not RULES[name].keyed]  # coupled states no law for several drawn children
LENGTH = 4  # one more than the deepest shape
rules = pytest.mark.parametrize("rule", ON_TREES.values(), ids=ON_TREES)
stated = pytest.mark.parametrize("rule", [RULES[name] for name in STATED], ids=STATED)
shapes = pytest.mark.parametrize("shape", COUNTS)
kinds = pytest.mark.parametrize("kind", KINDS)


def off(rule, target, weighted) -> float:
    """Distance between the target's law and what a round on the given trees emits, completed by the target."""
    return distance(completed(emitted_law(rule, target, weighted), target, LENGTH), sequence_law(target, LENGTH))


@stated
@shapes
@kinds
def test_a_round_on_a_tree_keeps_the_targets_law(rule, shape, kind) -> None:
    """Summed over every tree and outcome: i.i.d. pairs with zeros, ties, disjoint supports, draft = target; and in context."""
    for target, draft in [*(PAIRS[name] for name in PAIRS if name != "two tokens"), *random_pairs(9, seed=31)]:
        assert off(rule, target, trees(draft, COUNTS[shape], kind)) <= TOLERANCE


@shapes
def test_chosen_children_have_one_law_under_every_rule(shape) -> None:
    """For chosen children token, match and coupled agree: on the node where the walk stops and on the extra token."""
    for target, draft in random_pairs(12, seed=32):
        for _, tree in trees(draft, COUNTS[shape], "chosen"):
            rows = target_rows(target, tree)
            outcomes = RULES["match"].outcome_probs(rows, tree)
            for rule in ON_TREES.values():
                assert rule.outcome_probs(rows, tree) == pytest.approx(outcomes, abs=TOLERANCE)
                for node in np.flatnonzero(outcomes > 1e-12):
                    want = RULES["match"].next_probs(rows, tree, int(node)).to_array()
                    assert rule.next_probs(rows, tree, int(node)).to_array() == pytest.approx(want, abs=1e-9)


@stated
@shapes
@kinds
def test_outcomes_on_a_tree_are_a_law(rule, shape, kind) -> None:
    """[nodes + 1] numbers of 0 or more that sum to 1; next_probs never has a NaN; a kept token has probability."""
    for target, draft in [*random_pairs(6, seed=33), PAIRS["zeros in both"], PAIRS["disjoint"]]:
        for _, tree in trees(draft, COUNTS[shape], kind):
            rows = target_rows(target, tree)
            outcomes = rule.outcome_probs(rows, tree)
            assert outcomes.shape == (len(tree) + 1,)
            assert (outcomes >= 0).all()
            assert outcomes.sum() == pytest.approx(1, abs=TOLERANCE)
            for node in range(len(tree) + 1):
                probs = rule.next_probs(rows, tree, node).to_array()
                assert (probs >= 0).all()
                assert probs.sum() == pytest.approx(1, abs=1e-9)
            for _, node, token in judged(rule, target, tree):
                emitted = (*tree.path_tokens(node), token)
                assert all(target(emitted[:place]).prob(each) > 0 for place, each in enumerate(emitted))


@stated
@pytest.mark.parametrize("shape", ["wide", "two by two", "by token"])
@kinds
def test_deciding_on_a_tree_draws_from_the_stated_law(rule, shape, kind) -> None:
    """`decide` walks a node at a time; enumerated over its draws it has the law that the rule states for the whole tree."""
    for target, draft in random_pairs(6, seed=34):
        for _, tree in list(trees(draft, COUNTS[shape], kind))[:12]:
            rows, drawn = target_rows(target, tree), defaultdict(float)
            for weight, what in every(lambda draws, rows=rows, tree=tree: decide(rule, rows, tree, draws, 0)):
                assert what.num_accepted == len(tree.path(what.node))
                drawn[what.node, what.token] += weight
            law: Law = defaultdict(float)
            for chance, node, token in judged(rule, target, tree):
                law[node, token] += chance
            assert distance(drawn, law) <= TOLERANCE


@shapes
@kinds
def test_coupled_on_a_tree_over_all_shared_noise(shape, kind) -> None:
    """All nodes of one depth share one noise, drafting and judging alike: the text keeps the target's law, summed.

    Two tokens, where `SharedScript` is the Gumbel race, and three, where it is another race with the same marginals."""
    three = [] if shape == "two by two" else random_pairs(3, seed=35)
    for target, draft in [*random_pairs(6, seed=35, vocab=2), *three]:

        def run(draws, target=target, draft=draft):
            tree = grown(draft, COUNTS[shape], draws, kind)
            decision = decide(RULES["coupled"], target_rows(target, tree), tree, draws, 0)
            return (*tree.path_tokens(decision.node), decision.token)

        law: Law = defaultdict(float)
        for weight, out in every(run, SharedScript):
            law[out] += weight
        assert distance(completed(law, target, LENGTH), sequence_law(target, LENGTH)) <= TOLERANCE


def test_coupled_gives_one_text_whatever_the_tree() -> None:
    """500 seeds: what a tree emits is a beginning of what no draft at all emits, for every shape and kind."""
    for seed, (target, draft) in enumerate(random_pairs(500, seed=36)):
        draws, plain = KeyedDraws(seed), []
        for place in range(LENGTH):
            plain.append(draws.draw(target(tuple(plain)), place))
        tree = grown(draft, list(COUNTS.values())[seed % len(COUNTS)], KeyedDraws(seed), KINDS[seed % 3])
        decision = decide(RULES["coupled"], target_rows(target, tree), tree, KeyedDraws(seed), 0)
        assert [*tree.path_tokens(decision.node), decision.token] == plain[: decision.num_accepted + 1]


def test_a_tree_that_does_not_branch_is_the_chain() -> None:
    """Same draft, same laws, under every rule; so the empty tree."""
    for target, chain in random_pairs(6, seed=37):
        for (_, one), (_, other) in zip(trees(chain, COUNTS["deep"]), drafts(chain, 3), strict=True):
            assert (one.tokens, one.parents) == (other.tokens, None)
            rows = target_rows(target, other)
            for rule in RULES.values():
                assert (rule.outcome_probs(rows, one) == rule.outcome_probs(rows, other)).all()
    assert Draft(parents=()) == Draft()


def test_the_whole_vocabulary_is_always_kept() -> None:
    """Children that cover the target's support: some child is kept, whatever the draft's row."""
    target, draft = PAIRS["ordinary"]
    for kind in KINDS:
        for _, tree in trees(draft, COUNTS["wide"], kind):
            for name in ("token", "match"):
                assert RULES[name].outcome_probs(target_rows(target, tree), tree)[0] == pytest.approx(0, abs=TOLERANCE)


def test_more_children_keep_more() -> None:
    """E[path] grows with the children of a node, and recursive rejection of drawn ones beats matching them."""
    for target, draft in random_pairs(6, seed=38):
        for name in STATED:
            lengths = [mean_depth(RULES[name], target, trees(draft, COUNTS[shape])) for shape in ("single", "pair", "wide")]
            assert lengths == sorted(lengths)
        for shape in ("single", "pair", "two by two"):
            kept = {name: mean_depth(RULES[name], target, trees(draft, COUNTS[shape])) for name in STATED}
            assert kept["token"] >= kept["match"] - TOLERANCE


def test_two_drawn_children_by_hand() -> None:
    """p = (.5, .3, .2), q = (.2, .2, .6), children 2 and 0: 2 is kept with 1/3; then .3/.4·…, by fractions."""
    p, q = Row.dense([0.5, 0.3, 0.2]), Row.dense([0.2, 0.2, 0.6])
    tree = Draft(tokens=(2, 0), rows=(q, q.without(2)), parents=(-1, -1))
    # Residual after 2: ((.5 − .2), (.3 − .2), 0)/.4 = (3/4, 1/4, 0); q without 2 is (1/2, 1/2, 0), so child 0 is always kept.
    assert RULES["token"].outcome_probs([p] * 3, tree) == pytest.approx([0, 1 / 3, 2 / 3], abs=1e-15)
    tree = Draft(tokens=(2, 1), rows=(q, q.without(2)), parents=(-1, -1))
    # Child 1 is kept with (1/4)/(1/2); what is left is all on 0.
    assert RULES["token"].outcome_probs([p] * 3, tree) == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=1e-15)
    assert RULES["token"].next_probs([p] * 3, tree, 0).to_array() == pytest.approx([1, 0, 0], abs=1e-15)


def test_block_refuses_trees_by_name() -> None:
    """In `decide` and in both of its laws; a rule that says nothing of trees would be refused alike."""
    q = Row.dense([0.5, 0.5])
    tree = Draft(tokens=(0, 1), rows=(q, q.without(0)), parents=(-1, -1))
    for call in (
        lambda: decide(RULES["block"], [q] * 3, tree, StreamDraws(0)),
        lambda: BlockRule().outcome_probs([q] * 3, tree),
        lambda: BlockRule().next_probs([q] * 3, tree, 0),
    ):
        with pytest.raises(
            OptionError, match="`rule` block judges chains only, got a tree of 2 tokens; use token, match or coupled"
        ):
            call()


def test_coupled_states_no_law_for_several_drawn_children() -> None:
    """Refused by name, where chosen ones have a law and `decide` needs none."""
    q = Row.dense([0.5, 0.25, 0.25])
    tree = Draft(tokens=(0, 1), rows=(q, q.without(0)), parents=(-1, -1))
    with pytest.raises(OptionError, match="`rule` coupled states no law for several drawn children, got 2 at node 0"):
        RULES["coupled"].outcome_probs([q] * 3, tree)
    assert decide(RULES["coupled"], [q] * 3, tree, KeyedDraws(0)).num_accepted == 1


def test_rows_of_lower_precision_keep_the_law_on_trees() -> None:
    """float32 and truncated rows, mixed: exact to the rows' own precision."""
    rng = np.random.default_rng(39)
    for _ in range(4):
        target = iid(rng.dirichlet(np.ones(4)).astype(np.float32))
        row = Row(rng.dirichlet(np.ones(3)).astype(np.float32), np.array([0, 1, 3]), 4)
        for kind in KINDS:
            weighted = trees(lambda path, row=row: row, COUNTS["two by two"], kind)
            assert off(RULES["token"], target, weighted) <= 1e-6
