"""Known ways to be wrong on a tree, each made on purpose and caught by summing."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from headstart.errors import OptionError
from headstart.records import Decision, Draft
from headstart.rows import Row
from headstart.verify import RULES, decide
from tests.exact import (
    TOLERANCE,
    Law,
    completed,
    distance,
    emitted_law,
    every,
    random_table,
    sequence_law,
    support,
    table,
    target_rows,
)
from tests.trees import COUNTS, KINDS, grown, trees
from tests.verify.cases import PAIRS

P, Q = PAIRS["ordinary"]
TARGET = table(random_table(np.random.default_rng(5), 3, 1))
TOKEN, MATCH = RULES["token"], RULES["match"]
both_rules = pytest.mark.parametrize("rule", [TOKEN, MATCH], ids=["token", "match"])


def bias(rule, target, weighted, length: int = 3) -> float:
    """Distance between the target's law and what a round emits on the given trees."""
    return distance(completed(emitted_law(rule, target, weighted), target, length), sequence_law(target, length))


def law_of(judge, shape: str, kind: str, target) -> Law:
    """The law of what one round emits if `judge(rows, tree, draws)` decides it."""
    law: Law = defaultdict(float)

    def run(draws):
        tree = grown(Q, COUNTS[shape], draws, kind)
        decision = judge(target_rows(target, tree), tree, draws)
        return (*tree.path_tokens(decision.node), decision.token)

    for weight, out in every(run):
        law[out] += weight
    return completed(law, target, 3)


def per_path(rows, tree: Draft, draws) -> Decision:
    """Every path is tried with draws of its own; the longest agreement wins."""
    best = None
    for leaf in (node for node in range(len(tree) + 1) if not tree.children(node)):
        path = (0, *tree.path(leaf))
        for kept, node in enumerate(path):
            token = draws.draw(rows[node], kept)
            if kept == len(path) - 1 or token != tree.tokens[path[kept + 1] - 1]:
                break
        if best is None or kept > best.num_accepted:
            best = Decision(node=node, num_accepted=kept, token=token)
    assert best is not None
    return best


@pytest.mark.parametrize(("shape", "kind"), [("pair", "chosen"), ("pair", "drawn"), ("two by two", "chosen")])
def test_one_draw_a_path_instead_of_one_a_node(shape, kind) -> None:
    """Two children, each tried with a draw of its own, get two chances; one draw a node keeps the law."""
    for target in (P, TARGET):
        want = sequence_law(target, 3)
        assert distance(law_of(lambda *judged: decide(MATCH, *judged), shape, kind, target), want) <= TOLERANCE
        off = distance(law_of(per_path, shape, kind, target), want)
        assert off > (0.05 if kind == "chosen" else 5e-4), "drawn children lose less: their order evens out"


def pruned_by_hand(kind: str):
    """Two children, of which the one less likely under the draft is dropped after it is drawn."""
    for weight, tree in trees(Q, COUNTS["pair"], kind):
        best = max((0, 1), key=lambda place: Q(()).prob(tree.tokens[place]))
        yield weight, Draft(tokens=(tree.tokens[best],), rows=(tree.rows[best],))


def test_drawn_children_pruned_after_drawing() -> None:
    """Dropping a drawn child for what it is loses the law under token; chosen ones may go, and `match` never minds."""
    assert bias(TOKEN, P, pruned_by_hand("chosen")) <= TOLERANCE
    assert bias(MATCH, P, pruned_by_hand("drawn")) <= TOLERANCE
    assert bias(TOKEN, P, pruned_by_hand("drawn")) > 0.03


def test_pruning_refuses_what_was_drawn() -> None:
    """`Draft.pruned` drops chosen nodes with all below them, and never a drawn one, nor one with a drawn one below."""
    for kind in KINDS:
        for _, tree in trees(Q, COUNTS["two by two"], kind):
            drawn = {node for node in range(1, len(tree) + 1) if not tree.rows[node - 1].is_point}
            needed = {above for node in drawn for above in tree.path(node)}
            for gone in range(1, len(tree) + 1):
                keep = [node for node in range(1, len(tree) + 1) if gone not in tree.path(node)]
                if drawn - set(keep):
                    with pytest.raises(OptionError, match="`keep` must hold every token that was drawn"):
                        tree.pruned(keep)
                    continue
                assert gone not in needed
                assert len(tree.pruned(keep)) == len(keep)


def test_pruning_chosen_children_keeps_the_law() -> None:
    """Whatever chosen nodes go, for whatever reason."""
    for rule in (TOKEN, MATCH):
        for keep in ([1], [2, 5], [1, 2, 3], [6], []):
            weighted = ((weight, tree.pruned(keep)) for weight, tree in trees(Q, COUNTS["two by two"], "chosen"))
            assert bias(rule, TARGET, weighted) <= TOLERANCE


def with_replacement(claim):
    """Two children drawn from the whole row, a repeat giving way to the likeliest other; the second claims `claim(first)`."""

    def run(draws) -> Draft:
        q = Q(())
        first, second = draws.draw(q, 0), draws.draw(q, 0)
        if second == first:
            second = int(q.without(first).to_array().argmax())
        return Draft(tokens=(first, second), rows=(q, claim(first)), parents=(-1, -1))

    return every(run)


def test_children_drawn_with_replacement_judged_as_without() -> None:
    """The rows handed over must be the rows drawn from, for the second child too."""
    assert bias(TOKEN, P, trees(Q, COUNTS["pair"])) <= TOLERANCE
    assert bias(TOKEN, P, with_replacement(lambda first: Q(()).without(first))) > 0.01


def test_rows_that_still_hold_a_sibling_are_refused() -> None:
    """A draft whose second child may repeat the first cannot be made; nor can one token be drafted twice at a node."""
    with pytest.raises(OptionError, match=r"comes from a row that still holds its sibling 0; draw siblings without replacement"):
        list(with_replacement(lambda first: Q(())))
    with pytest.raises(OptionError, match="at index 1 comes from a row that still holds its sibling 1"):
        Draft.points([1, 1], 3, [-1, -1])


def test_children_in_another_order_than_drawn() -> None:
    """Sorted by likelihood after drawing, rows made to fit: biased. The order drawn is part of the draft."""

    def by_likelihood():
        q = Q(())
        for weight, tree in trees(Q, COUNTS["pair"]):
            first, second = sorted(tree.tokens, key=q.prob, reverse=True)
            yield weight, Draft(tokens=(first, second), rows=(q, q.without(first)), parents=(-1, -1))

    assert bias(TOKEN, P, by_likelihood()) > 0.03


@both_rules
@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_the_wrong_history_at_a_node(rule, kind) -> None:
    """A node's row made from the tokens that stand before it in the draft, as if it were a chain."""
    law: Law = defaultdict(float)
    target = table(random_table(np.random.default_rng(6), 3, 2))
    for weight, tree in trees(Q, COUNTS["two by two"], kind):
        rows = [target(tree.tokens[:node]) for node in range(len(tree) + 1)]
        for node, chance in enumerate(rule.outcome_probs(rows, tree)):
            for token, share in support(rule.next_probs(rows, tree, node)) if chance else ():
                law[(*tree.path_tokens(node), token)] += weight * chance * share
    assert distance(completed(law, target, 3), sequence_law(target, 3)) > 0.02
    assert bias(rule, target, trees(Q, COUNTS["two by two"], kind)) <= TOLERANCE


class ForgetsSiblings:
    """Recursive rejection that tries every child against the whole target row."""

    name, walks, keyed, trees = "forgets", False, False, True
    next_probs = staticmethod(TOKEN.next_probs)

    def outcome_probs(self, rows, draft: Draft) -> np.ndarray:
        law, left = [], 1.0
        for token, row in zip(draft.tokens, draft.rows, strict=True):
            keep = min(1.0, rows[0].prob(token) / row.prob(token))
            law.append(left * keep)
            left *= 1.0 - keep
        return np.array([left, *law])


class WholeResidual:
    """After all children fail, the correction is drawn from the residual of the first alone."""

    name, walks, keyed, trees = "whole", False, False, True
    outcome_probs = staticmethod(TOKEN.outcome_probs)

    def next_probs(self, rows, draft: Draft, node: int) -> Row:
        return TOKEN.next_probs(rows[:2], Draft(tokens=draft.tokens[:1], rows=draft.rows[:1]), 0) if node == 0 else rows[node]


@pytest.mark.parametrize("twin", [ForgetsSiblings(), WholeResidual()], ids=["forgets siblings", "first residual"])
def test_recursive_rejection_that_does_not_recurse(twin) -> None:
    """Each child must be judged against what the ones before have left."""
    one_level = lambda: trees(Q, COUNTS["pair"])  # noqa: E731 - twice the same iterator
    assert bias(TOKEN, P, one_level()) <= TOLERANCE
    assert bias(twin, P, one_level()) > 0.015
