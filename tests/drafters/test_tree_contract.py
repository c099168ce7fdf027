"""The contract of drafters that grow trees. Every drafter of the contract suite that can, joins by itself."""

from __future__ import annotations

import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter
from headstart.draws import KeyedDraws, StreamDraws
from headstart.interfaces import TreeDrafter
from headstart.records import Sampling
from headstart.shapes import Shape
from tests.decode.loops import finished, loop_law, plain_law, random_model, request
from tests.drafters.test_contract import DRAFTERS, VOCAB, Recorded, context, texts
from tests.drafters.test_model import Counted
from tests.exact import TOLERANCE, Script, distance

TREES = {name: make for name, make in DRAFTERS.items() if isinstance(make(), TreeDrafter)}
SHAPES = [Shape.parse("1x3"), Shape.parse("3x2"), Shape.full([2, 2]), Shape.of_paths([[0], [1], [0, 0], [0, 0, 0]])]
every_drafter = pytest.mark.parametrize("make", TREES.values(), ids=TREES)


def proposed(drafter, states, contexts, shapes, draws):
    made = drafter.propose_trees(states, contexts, shapes, draws)
    return [(tree.tokens, tree.parents, [row.to_array().tolist() for row in tree.rows]) for tree in made]


def test_who_grows_trees() -> None:
    """Small models and n-grams do."""
    assert {"ngram", "ngram of two", "model", "model with zeros", "model with a short context"} <= set(TREES)


@every_drafter
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_keep_to_their_shape_and_their_rows(make, temperature) -> None:
    """No more nodes, no deeper than the shape; a drawn node has the very row it was drawn from, at its own position, and no
    draw is thrown away; the others are points."""
    for seed, tokens in enumerate(texts(40)):
        shape, drafter, draws = SHAPES[seed % 4], make(), Recorded(seed)
        one = context(tokens, Sampling(temperature=temperature))
        (tree,) = drafter.propose_trees(drafter.open([one]), [one], [shape], [draws])
        assert len(tree) <= shape.nodes
        assert tree.depth <= shape.depth
        drawn = [node for node in range(1, len(tree) + 1) if any(tree.rows[node - 1] is row for row, _, _ in draws.asked)]
        assert [tree.rows[node - 1] for node in drawn] == [row for row, _, _ in draws.asked]
        assert [tree.tokens[node - 1] for node in drawn] == [token for _, _, token in draws.asked]
        assert [len(tokens) + len(tree.path(node)) - 1 for node in drawn] == [position for _, position, _ in draws.asked]
        assert all(tree.rows[node - 1].is_point for node in set(range(1, len(tree) + 1)) - set(drawn))


@every_drafter
def test_a_batch_equals_its_parts(make) -> None:
    """Trees for many sequences, of several shapes, are those for each alone."""
    many, shapes = [context(tokens) for tokens in texts(12, seed=3)], [SHAPES[place % 4] for place in range(12)]
    drafter = make()
    together = proposed(drafter, drafter.open(many), many, shapes, [StreamDraws(place) for place in range(12)])
    for place, one in enumerate(many):
        drafter = make()
        assert proposed(drafter, drafter.open([one]), [one], [shapes[place]], [StreamDraws(place)]) == [together[place]]


@every_drafter
def test_after_any_path_it_is_as_if_fresh(make) -> None:
    """Propose a tree, keep any node of it and another token, commit, propose, chains in between: as a drafter opened anew."""
    for seed, tokens in enumerate(texts(12, seed=5)):
        for choice in range(3):
            drafter, text = make(), list(tokens)
            (state,) = drafter.open([context(text)])
            for turn in range(4):
                if turn == 2:
                    (tree,) = drafter.propose([state], [context(text)], [2], [KeyedDraws(turn)])
                else:
                    (tree,) = drafter.propose_trees([state], [context(text)], [SHAPES[seed % 4]], [KeyedDraws(turn)])
                node = (choice * 3 + turn) % (len(tree) + 1)
                text += [*tree.path_tokens(node), (turn + choice) % VOCAB]
                drafter.commit(state, text, None)
            again = make()
            want = proposed(again, again.open([context(text)]), [context(text)], [SHAPES[1]], [KeyedDraws(9)])
            assert proposed(drafter, [state], [context(text)], [SHAPES[1]], [KeyedDraws(9)]) == want


@every_drafter
def test_a_tree_that_was_given_up_is_forgotten(make) -> None:
    """A commit of the old text after a proposal takes it back."""
    for tokens in texts(10, seed=8):
        drafter = make()
        (state,) = drafter.open([context(tokens)])
        first = proposed(drafter, [state], [context(tokens)], [SHAPES[1]], [KeyedDraws(1)])
        drafter.commit(state, tokens, None)
        assert proposed(drafter, [state], [context(tokens)], [SHAPES[1]], [KeyedDraws(1)]) == first


@every_drafter
@pytest.mark.parametrize("rule", ["token", "match"])
def test_the_loop_with_its_trees_keeps_the_law(make, rule) -> None:
    """Enumerated: the drafter inside the loop, sequences of length 2 after a prompt with a repeat in it."""
    options = {"prompt": (0, 1, 0), "rule": rule, "vocab": VOCAB, "tree": "2x2", "max_tokens": 2, "end_ids": (3,)}
    model = random_model(5, VOCAB)
    law = loop_law(Decoder(model, make()), request(**options), lambda choices, before: Script(choices))
    assert distance(law, plain_law(model, request(**options))) <= TOLERANCE


# Single drafters


def test_an_ngram_tree_starts_with_the_chain() -> None:
    """The first branch is what the chain would be; other places where the text ended like this add branches, in their order."""
    drafter, text = NGramDrafter(9, min_match=1), [5, 1, 2, 5, 3, 4, 5, 1, 7, 5]
    (state,) = drafter.open([context(text)])
    (tree,) = drafter.propose_trees([state], [context(text)], [Shape.parse("2x3")], [StreamDraws(0)])
    (chain,) = drafter.propose([state], [context(text)], [3], [StreamDraws(0)])
    # 5 was followed by 1 7 5, by 3 4 5 and by 1 2 5; of two nodes a depth the third finds no room.
    assert (chain.tokens, tree.tokens, tree.parents) == ((1, 7, 5), (1, 7, 5, 3, 4, 5), (-1, 0, 1, -1, 3, 4))
    (wide,) = drafter.propose_trees([state], [context(text)], [Shape.parse("3x2")], [StreamDraws(0)])
    assert (wide.tokens, wide.parents) == ((1, 7, 3, 4, 2), (-1, 0, -1, 2, 0))


def test_a_model_tree_costs_one_pass_a_depth() -> None:
    """Depth d is one pass over the tree so far, shared by all sequences; the cache holds the text alone, before and after."""
    model = Counted(random_model(1, VOCAB))
    drafter, many = ModelDrafter(model), [context([0, 1, 2]), context([3])]
    states = drafter.open(many)
    trees = drafter.propose_trees(states, many, [Shape.full([2, 2, 2]), Shape.full([2])], [StreamDraws(0)] * 2)
    assert model.passes == [[2], [1, 1], [2], [6]]
    assert [len(tree) for tree in trees] == [14, 2]
    assert [list(state.cache.tokens) for state in states] == [[0, 1, 2], [3]] == [state.held for state in states]


def test_a_greedy_model_tree_holds_the_likeliest_tokens() -> None:
    """At temperature 0 the first branch is the chain's draft, and its siblings are the next likeliest tokens."""
    drafter = ModelDrafter(random_model(1, VOCAB, order=2))
    for tokens in texts(20, seed=2):
        one = context(tokens, Sampling(temperature=0.0))
        (tree,) = drafter.propose_trees(drafter.open([one]), [one], [Shape.full([2, 1, 1])], [StreamDraws(0)])
        (chain,) = drafter.propose(drafter.open([one]), [one], [3], [StreamDraws(0)])
        first = tree.children(0)[0]
        while tree.children(first):
            first = tree.children(first)[0]
        assert tree.path_tokens(first) == chain.tokens


def test_trees_keep_more_than_chains_of_their_depth() -> None:
    """Over the same text, a tree's rounds keep more tokens than a chain of equal depth, greedy and sampled."""
    model, drafter = random_model(1, 8, order=2), ModelDrafter(random_model(2, 8, order=1))
    for temperature in (0.0, 1.0):
        kept = {}
        for name, options in (("tree", {"tree": "3x3"}), ("chain", {"gamma": 3})):
            many = [
                request(
                    (seed % 8,),
                    rule="token",
                    vocab=8,
                    seed=seed,
                    max_tokens=24,
                    sampling=Sampling(temperature=temperature, presence_penalty=0.2),
                    **options,
                )
                for seed in range(12)
            ]
            rounds = [each for one in finished(Decoder(model, drafter), *many) for each in one.rounds]
            kept[name] = sum(each.num_accepted for each in rounds) / len(rounds)
        assert kept["tree"] > 1.2 * kept["chain"]
