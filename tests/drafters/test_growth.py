"""Trees grown from rows: chosen children against the best tree there is, drawn ones against drawing without replacement."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from headstart.drafters.growth import Growth, Source, drawn_children, likeliest, source
from headstart.draws import StreamDraws
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from headstart.rows import Row
from headstart.shapes import Shape
from tests.exact import TOLERANCE, distance, every, random_table, table


def grown(chain, shape: Shape, draws=None, drawn: bool = False):
    """A tree over a chain of rows."""
    growth = Growth(shape, draws or StreamDraws(0), 5)
    while growth.frontier:
        growth.grow([Source(chain(tuple(growth.path_tokens(node))), drawn) for node in growth.frontier])
    return growth.draft()


def chains(count: int, vocab: int = 4, zeros: float = 0.0):
    rng = np.random.default_rng(count)
    return [table(random_table(rng, vocab, 2, zeros)) for _ in range(count)]


def test_likeliest_tokens() -> None:
    """In order, ties to the lower id, nothing without mass; of truncated rows too."""
    row = Row.dense([0.1, 0.3, 0.3, 0.0, 0.3])
    assert [token for token, _ in likeliest(row, 3)] == [1, 2, 4]
    assert [token for token, _ in likeliest(row, 9)] == [1, 2, 4, 0]
    assert likeliest(Row(np.array([0.25, 0.75]), np.array([3, 7]), 9), 1) == [(7, pytest.approx(np.log(0.75)))]
    assert likeliest(Row.point(2, 3), 2) == [(2, 0.0)]


def test_drawn_children_are_drawn_without_replacement() -> None:
    """Summed over the draws: the law of ordered draws without replacement; each row is what the ones before left."""
    row = Row.dense([0.5, 0.0, 0.2, 0.3])
    law: dict = {}
    for weight, children in every(lambda draws: drawn_children(row, 2, draws, 0)):
        assert children[0][0] is row
        assert children[1][0].prob(children[0][1]) == 0
        key = tuple(token for _, token in children)
        law[key] = law.get(key, 0.0) + weight
    want = {(a, b): row.prob(a) * row.prob(b) / (1 - row.prob(a)) for a, b in product((0, 2, 3), repeat=2) if a != b}
    assert distance(law, want) <= TOLERANCE
    assert len(drawn_children(row, 9, StreamDraws(0), 0)) == 3, "no more than have mass"
    assert drawn_children(row, 0, StreamDraws(0), 0) == []


def best_nodes(chain, shape: Shape) -> float:
    """The most probability that `shape.nodes` nodes of width-limited expansions can hold: EAGLE-2 written from its definition."""
    layers, frontier = [], [((), 1.0)]
    for _ in range(shape.depth):
        layer = []
        for path, score in frontier:
            order = np.argsort(-chain(path).to_array(), kind="stable")[: shape.width]
            layer += [((*path, int(token)), score * chain(path).prob(int(token))) for token in order]
        layers += layer
        frontier = sorted(layer, key=lambda each: -each[1])[: shape.width]
    return sum(sorted((score for _, score in layers if score > 0), reverse=True)[: shape.nodes])


@pytest.mark.parametrize("size", ["1x3", "2x2", "3x2", "2x4", "4x1", "3x4:4", "2x5:6", "4x2:12"])
def test_chosen_children_are_eagle_2s(size) -> None:
    """The tree holds the best nodes of all that were expanded: as much probability as the definition gives, in as many nodes."""
    for chain in [*chains(20), *chains(6, zeros=0.4)]:
        shape = Shape.parse(size)
        tree = grown(chain, shape)
        held = [
            float(np.prod([chain(path[:place]).prob(token) for place, token in enumerate(path)]))
            for path in (tree.path_tokens(node) for node in range(1, len(tree) + 1))
        ]
        assert len(tree) <= shape.nodes
        assert tree.depth <= shape.depth
        assert sum(held) == pytest.approx(best_nodes(chain, shape), abs=1e-12)
        assert all(row.is_point for row in tree.rows)


def test_ties_go_to_parents() -> None:
    """Certain tokens all the way down: equal scores, and the chain from the top is kept."""
    tree = grown(lambda path: Row.dense([0.0, 1.0, 0.0]), Shape(width=2, depth=4, nodes=3))
    assert (tree.tokens, tree.parents) == ((1, 1, 1), None)
    even = grown(lambda path: Row.dense([0.5, 0.5]), Shape(width=2, depth=3, nodes=4))
    assert all(even.parent(node) < node for node in range(1, 5)), "built at all: whatever a node hangs from is there"


@pytest.mark.parametrize("size", ["1x3", "2x2", "3x2", "4x3", "3x4:4", "3x6:7"])
def test_drawn_trees_keep_to_their_shape(size) -> None:
    """At most so many nodes at each depth and in all; every row is the one drawn from; siblings come from one row."""
    shape = Shape.parse(size)
    for seed, chain in enumerate([*chains(20), *chains(6, zeros=0.4)]):
        tree = grown(chain, shape, StreamDraws(seed), drawn=True)
        depths = [len(tree.path(node)) for node in range(1, len(tree) + 1)]
        assert len(tree) <= shape.nodes
        assert max(depths.count(depth) for depth in set(depths)) <= shape.width
        assert max(depths) <= shape.depth
        assert len(tree) == shape.nodes or min(chain(tree.path_tokens(node)).to_array().min() for node in range(len(tree))) == 0
        for node in range(len(tree) + 1):
            left = chain(tree.path_tokens(node))
            for child in tree.children(node):
                assert tree.rows[child - 1].to_array() == pytest.approx(left.to_array(), abs=1e-12)
                left = left.without(tree.tokens[child - 1])


def test_the_shape_of_a_drawn_tree_does_not_hang_on_its_newest_tokens() -> None:
    """The same rows everywhere: whatever is drawn, the parents are the same. A shape that looked would fail here."""
    row = Row.dense([0.7, 0.2, 0.1])
    shapes = {grown(lambda path: row, Shape.parse("3x3"), StreamDraws(seed), drawn=True).parents for seed in range(40)}
    assert len(shapes) == 1


def test_an_unsure_draft_branches_and_a_sure_one_goes_deep() -> None:
    """Nodes go where they may be reached: two first children for a flat row, one for a peaked one followed by a flat one."""
    flat, sure = Row.dense([0.25] * 4), Row.dense([0.97, 0.01, 0.01, 0.01])
    assert grown(lambda path: sure, Shape(width=3, depth=4, nodes=4), drawn=True).parents is None
    assert len(grown(lambda path: flat, Shape(width=3, depth=4, nodes=4), drawn=True).children(0)) > 1
    two = grown(lambda path: flat, Shape(width=2, depth=2, nodes=4), drawn=True)
    assert len(two.children(0)) == 2
    deep = grown(lambda path: sure, Shape(width=2, depth=2, nodes=4), drawn=True)
    assert len(deep.children(1)) == 2, "the second child of a sure row is hardly reached"


@pytest.mark.parametrize("drawn", [False, True])
def test_fixed_shapes(drawn) -> None:
    """The very tree of the paths; chosen children are the ones of those ranks."""
    shape = Shape.of_paths([[0], [2], [0, 1], [0, 0], [0, 1, 0]])
    for chain in chains(8):
        tree = grown(chain, shape, StreamDraws(1), drawn)
        assert tree.parents == shape.parents
        if not drawn:
            for node, path in enumerate(shape.paths, start=1):
                ranked = np.argsort(-chain(tree.path_tokens(tree.parent(node))).to_array(), kind="stable")
                assert tree.tokens[node - 1] == ranked[path[-1]]


def test_nodes_without_a_source_get_no_children() -> None:
    """A row nothing can be drawn from ends its branch alone."""
    growth = Growth(Shape.full([2, 1]), StreamDraws(0), 0)
    growth.grow([Source(Row.dense([0.6, 0.4]), False)])
    growth.grow([None, Source(Row.dense([0.6, 0.4]), False)])
    assert growth.draft().parents == (-1, -1, 1)
    nothing = Growth(Shape.parse("2x2"), StreamDraws(0), 0)
    nothing.grow([None])
    assert (nothing.frontier, len(nothing.draft())) == ([], 0)


def test_what_a_model_scores() -> None:
    """The part of the tree above the frontier, its nodes last, numbered anew."""
    growth = Growth(Shape.parse("2x3"), StreamDraws(0), 0)
    rows = {(): [0.6, 0.3, 0.1], (0,): [0.1, 0.1, 0.8], (1,): [0.4, 0.3, 0.3]}
    growth.grow([Source(Row.dense(rows[()]), False)])
    assert growth.above_frontier() == ([0, 1], [-1, -1])
    growth.grow([Source(Row.dense(rows[tuple(growth.path_tokens(node))]), False) for node in growth.frontier])
    # 0 → 2 (.48) and 1 → 0 (.12) are the best two of depth 2.
    assert growth.above_frontier() == ([0, 1, 2, 0], [-1, -1, 0, 1])
    assert [a < b for a, b in pairwise(growth.frontier)] == [True]


def test_greedy_children_come_from_the_law_before_temperature() -> None:
    """A point leaves nothing to draw: the likeliest tokens after bans and penalties are chosen. Sampled rows are drawn from."""
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    greedy = SamplingProcessor(Sampling(temperature=0.0, ban=(0,)), num_prompt=1, vocab_size=4)
    chosen = source(greedy, [1], logits)
    assert not chosen.drawn
    assert [token for token, _ in likeliest(chosen.row, 4)] == [1, 2, 3]
    sampled = source(SamplingProcessor(Sampling(temperature=2.0, top_k=2), num_prompt=1, vocab_size=4), [1], logits)
    assert sampled.drawn
    assert sampled.row.to_array()[2:].tolist() == [0, 0]
    assert source(greedy, [1], np.full(4, np.nan)) is None


def test_rows_of_some_tokens_are_sources_too() -> None:
    """Logits of tokens 1 and 3 alone, and of padding: nothing else is drawn or chosen."""
    ids, logits = np.array([1, 3, 4]), np.log(np.array([0.2, 0.6, 0.2]))
    greedy = SamplingProcessor(Sampling(temperature=0.0), num_prompt=1, vocab_size=4)
    chosen = source(greedy, [1], logits, ids)
    assert [token for token, _ in likeliest(chosen.row, 4)] == [3, 1]
    sampled = source(SamplingProcessor(Sampling(temperature=1.0), num_prompt=1, vocab_size=4), [1], logits, ids)
    assert sampled.row.to_array() == pytest.approx([0, 0.25, 0, 0.75])
