"""Shapes of trees: parsed, listed, cut to room; and the best tree, compared with every tree there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from headstart.errors import OptionError
from headstart.records import Options
from headstart.shapes import Shape, best_tree

MEDUSA = [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0]]


def test_width_by_depth() -> None:
    """4x3: at most 4 nodes at each of 3 depths, 12 in all; anything else is refused with an example."""
    shape = Shape.parse("4x3")
    assert (shape.width, shape.depth, shape.nodes, shape.paths, str(shape)) == (4, 3, 12, None, "4x3")
    limited = Shape.parse("4x6:8")
    assert (limited.width, limited.depth, limited.nodes, str(limited)) == (4, 6, 8, "4x6:8")
    for wrong in ("4x3:0", "4x3:", "4", "x3", "0x3", "4x0", "4X3", "4x3x2", "-1x2", " 4x3", "99999x1", ""):
        with pytest.raises(OptionError, match="`tree` must be WIDTHxDEPTH such as 4x3, WIDTHxDEPTH:NODES, auto or none, got"):
            Shape.parse(wrong)


def test_paths_in_any_order() -> None:
    """Medusa's choices become one tree: by depth, with parents and ranks."""
    shape = Shape.of_paths(MEDUSA)
    assert shape.paths == ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    assert (shape.width, shape.depth, shape.nodes) == (3, 3, 7)
    assert shape.parents == (-1, -1, -1, 0, 0, 1, 3)
    assert shape.ranks == {(): (0, 1, 2), (0,): (0, 1), (1,): (0,), (0, 0): (0,)}
    assert shape == Shape.of_paths(reversed(MEDUSA))
    assert shape.to_json() == [list(path) for path in shape.paths]


def test_full_trees() -> None:
    """SpecInfer's expansions: widths by depth."""
    assert Shape.full([2, 1]).paths == ((0,), (1,), (0, 0), (1, 0))
    assert Shape.full([1, 1, 1]).paths == ((0,), (0, 0), (0, 0, 0))
    assert Shape.full([3]).width == 3


@pytest.mark.parametrize("paths", [[], [[]], [[1, 0]], [[0], [-1]], [[0], [0, 1, 0]]])
def test_paths_that_are_no_tree(paths) -> None:
    """A path without what it hangs from, a rank below 0, no path at all."""
    with pytest.raises(OptionError, match="`paths` must"):
        Shape.of_paths(paths)
    with pytest.raises(OptionError, match=r"in order of depth; use Shape\.of_paths"):
        Shape(width=1, depth=2, nodes=2, paths=((0, 0), (0,)))
    with pytest.raises(OptionError, match="`nodes` of a tree must be a whole number, 1 or more, got 0"):
        Shape(width=1, depth=1, nodes=0)


def test_cut_to_room() -> None:
    """Fewer depths or nodes: the deepest and the last go first; no room is None; enough room changes nothing."""
    free, fixed = Shape.parse("4x3"), Shape.of_paths(MEDUSA)
    assert free.fitted(9, 99) is free
    assert fixed.fitted(3, 7) is fixed
    assert (free.fitted(2, 99).depth, free.fitted(3, 5).nodes) == (2, 5)
    assert fixed.fitted(1, 99).paths == ((0,), (1,), (2,))
    assert fixed.fitted(3, 4).paths == ((0,), (1,), (2,), (0, 0))
    for shape in (free, fixed):
        assert shape.fitted(0, 9) is None
        assert shape.fitted(9, 0) is None
        assert shape.fitted(-1, 9) is None


def test_the_option() -> None:
    """As text, shape or none; token is its rule; what it cannot be mixed with is refused, auto too."""
    assert Options.of(tree="4x3") == Options.of(tree=Shape.parse("4x3"))
    assert (Options.of(tree="4x3").resolved_rule, Options.of(tree="4x3").resolved_gamma) == ("token", 3)
    assert Options.of(tree="2x2", seed=1, temperature=1.0).resolved_rule == "coupled"
    assert Options.of(tree="none").tree is Options.of(tree=None).tree is None
    assert Options.of(tree="4x3").to_json()["tree"] == "4x3"
    auto = Options.of(tree="auto")
    assert auto == Options.of(tree="auto", gamma="auto").changed(gamma=None)
    assert (auto.resolved_rule, auto.resolved_gamma, auto.fixed_tree, auto.to_json()["tree"]) == ("token", "auto", None, "auto")
    for asked, message in (
        ({"tree": "auto", "rule": "block"}, "`rule` must be token, match or coupled on a tree, got 'block'"),
        ({"tree": "auto", "gamma": 3}, "`gamma` must be auto, or left out, with tree 'auto', got 3"),
        ({"tree": "auto", "seed": 1, "temperature": 1.0, "rule": "token"}, "`seed` with rule 'token' and tree 'auto' cannot"),
        ({"tree": 3}, "`tree` must be WIDTHxDEPTH such as 4x3, a Shape, auto or none, got 3"),
        ({"tree": "2x2", "rule": "block"}, "`rule` must be token, match or coupled on a tree, got 'block'"),
        ({"tree": "2x2", "gamma": 3}, "`gamma` must be left out with a tree, whose depth it is, got 3; drop --gamma or --tree"),
        ({"tree": "2x2", "gamma": "auto"}, "`gamma` must be left out with a tree"),
    ):
        with pytest.raises(OptionError, match=message):
            Options.of(**asked)


# The best tree


def every_tree(nodes: int, ranks: int, depth: int) -> set[frozenset]:
    """Every tree of so many nodes, as sets of paths, grown a node at a time; children are first ranks."""
    trees = {frozenset()}
    for _ in range(nodes):
        trees = {
            tree | {(*path, rank)}
            for tree in trees
            for path in ((), *tree)
            if len(path) < depth and (rank := sum(other[:-1] == path for other in tree)) < ranks
        }
    return trees


def worth(tree, accept) -> float:
    return 1 + sum(float(np.prod([accept[rank] for rank in path])) for path in tree)


@pytest.mark.parametrize("accept", [(0.6, 0.2, 0.1), (0.5, 0.5), (0.2, 0.5, 0.3), (0.9, 0.05), (0.0, 0.4), (0.7,)])
def test_the_best_tree_is_the_best_of_all(accept) -> None:
    """Under several cost curves, for every number of nodes up to 5 and depth up to 3: no tree gives more tokens per cost."""
    for cost, draft_cost, depth in product((lambda k: 1.0, lambda k: 0.9 + 0.1 * k, lambda k: float(k)), (0.0, 0.1), (1, 2, 3)):
        rate = 1 / cost(1)
        for nodes in range(1, 6):
            for tree in every_tree(nodes, len(accept), depth):
                rate = max(rate, worth(tree, accept) / (cost(nodes + 1) + max(map(len, tree)) * draft_cost))
        best = best_tree(accept, cost, draft_cost=draft_cost, max_nodes=5, max_depth=depth)
        if best is None:
            assert rate == pytest.approx(1 / cost(1), rel=1e-12)
            continue
        assert best.rate == pytest.approx(rate, rel=1e-12)
        paths = best.shape.paths
        assert best.tokens_per_round == pytest.approx(worth(paths, accept), rel=1e-12)
        assert best.rate >= worth(paths, accept) / (cost(len(paths) + 1) + best.shape.depth * draft_cost) - 1e-12


def test_one_rank_is_a_chain_and_dear_tokens_are_no_tree() -> None:
    """With one candidate a node the best tree is the article's best γ; where each token costs a whole pass there is none."""
    best = best_tree([0.8], lambda k: 1.0, draft_cost=0.1, max_nodes=20, max_depth=20)
    assert best.shape.paths == tuple((0,) * depth for depth in range(1, 7))
    assert best.tokens_per_round == pytest.approx((1 - 0.8**7) / (1 - 0.8))
    assert best_tree([0.8, 0.1], float) is None
    for wrong in ([], [0.7, 0.6], [-0.1]):
        with pytest.raises(OptionError, match="`acceptances` must be probabilities of exclusive events"):
            best_tree(wrong, float)
