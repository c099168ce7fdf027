"""Drafts as trees: valid from birth, numbered alike everywhere, and chains where they do not branch."""

from __future__ import annotations

import pytest

from headstart.errors import OptionError
from headstart.records import Draft
from headstart.rows import Row

ROW = Row.dense([0.5, 0.3, 0.2])
TREE = Draft.points([5, 6, 7, 8, 9], 10, [-1, -1, 0, 1, 2])  # 5 → 7 → 9 and 6 → 8


def test_nodes_of_a_tree() -> None:
    """Node 0 is the text's end, node i the i-th token; children, parents, paths and depth agree."""
    assert [TREE.children(node) for node in range(6)] == [(1, 2), (3,), (4,), (5,), (), ()]
    assert [TREE.parent(node) for node in range(1, 6)] == [0, 0, 1, 2, 3]
    assert (TREE.path(5), TREE.path_tokens(5), TREE.path(0), TREE.path_tokens(0)) == ((1, 3, 5), (5, 7, 9), (), ())
    assert (TREE.child(0, 6), TREE.child(0, 7), TREE.child(3, 9)) == (2, None, 5)
    assert (TREE.depth, len(TREE)) == (3, 5)
    assert TREE.star(0) == Draft(tokens=(5, 6), rows=TREE.rows[:2], parents=(-1, -1))
    assert TREE.star(1) == Draft(tokens=(7,), rows=TREE.rows[2:3])
    assert len(TREE.star(4)) == 0


def test_a_chain_says_the_same_of_its_nodes() -> None:
    """Chains answer like the trees they are, and parents that do not branch are dropped."""
    chain = Draft.points([5, 6, 7], 10)
    assert Draft(tokens=chain.tokens, rows=chain.rows, parents=(-1, 0, 1)) == chain
    assert chain.parents is None
    assert [chain.children(node) for node in range(4)] == [(1,), (2,), (3,), ()]
    assert (chain.parent(3), chain.path(2), chain.path_tokens(2), chain.depth) == (2, (1, 2), (5, 6), 3)
    assert (chain.child(1, 6), chain.child(1, 5), chain.child(3, 5)) == (2, None, None)


def test_then_goes_on_from_the_last_token() -> None:
    """In a chain and in a tree."""
    assert Draft().then(ROW, 1).then(ROW, 1).parents is None
    assert TREE.then(Row.point(1, 10), 1).path_tokens(6) == (5, 7, 9, 1)


@pytest.mark.parametrize("parents", [(0, -1), (-1, 1), (-1, 2), (-2, 0), (-1,), (-1, 0, 1)])
def test_parents_that_are_none(parents) -> None:
    """A token hangs from an earlier one, or from the text's end."""
    with pytest.raises(OptionError, match="`parents` must name for each of 2 tokens an earlier one, or −1, got"):
        Draft.points([1, 2], 3, parents)


def test_siblings_without_replacement() -> None:
    """Each sibling's row holds nothing of those before it; cousins may repeat a token."""
    rest = ROW.without(0)
    assert Draft(tokens=(0, 2), rows=(ROW, rest), parents=(-1, -1)).children(0) == (1, 2)
    assert Draft(tokens=(0, 1, 1, 1), rows=(ROW, rest, ROW, ROW), parents=(-1, -1, 0, 1)).depth == 2
    with pytest.raises(OptionError, match=r"token 2 at index 1 comes from a row that still holds its sibling 0; draw siblings"):
        Draft(tokens=(0, 2), rows=(ROW, ROW), parents=(-1, -1))
    with pytest.raises(OptionError, match="token 0 at index 1 has no probability in its own row"):
        Draft(tokens=(0, 0), rows=(ROW, rest), parents=(-1, -1))


def test_pruning_keeps_what_is_above() -> None:
    """Kept nodes bring what they hang from; order and parents follow."""
    assert TREE.pruned([5]).tokens == (5, 7, 9)
    assert TREE.pruned([5]).parents is None
    assert (TREE.pruned([2, 3]).tokens, TREE.pruned([2, 3]).parents) == ((5, 6, 7), (-1, -1, 0))
    assert TREE.pruned([]) == Draft()
    assert TREE.pruned(range(6)) == TREE


def test_rows_without_a_token() -> None:
    """Renormalised, in either storage; None where nothing is left. Points are told from rows that leave something to chance."""
    assert ROW.without(0).to_array() == pytest.approx([0, 0.6, 0.4], abs=1e-15)
    assert Row(ROW.probs, ROW.ids, 3).without(2).to_array() == pytest.approx([0.625, 0.375, 0], abs=1e-15)
    assert Row.point(1, 3).without(1) is None
    assert Row.dense([0.0, 1.0, 0.0]).without(1) is None
    assert Row.point(1, 3).without(0).to_array().tolist() == [0, 1, 0]
    assert [row.is_point for row in (ROW, Row.point(0, 3), Row.dense([0.0, 1.0, 0.0]))] == [False, True, True]
