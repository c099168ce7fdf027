"""The loop with drafted trees, enumerated: budgets, stops, caches, histories and limits leave the law of plain decoding."""

from __future__ import annotations

import re

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import CombinedDrafter, ModelDrafter, NGramDrafter, NoDrafter
from headstart.draws import StreamDraws
from headstart.errors import ModelError, OptionError
from headstart.models.table import TableCache, TableModel
from headstart.probs import SamplingProcessor
from headstart.records import Draft, Sampling
from headstart.rows import Row
from headstart.shapes import Shape
from headstart.verify import RULES
from tests.decode.loops import AS_IS, finished, loop_law, plain_law, random_model, request
from tests.decode.test_exact_loop import DRAFTERS, SAMPLINGS, fresh, off
from tests.drafters.test_contract import context as context_of
from tests.exact import TOLERANCE, Script, distance, every

UNKEYED = [name for name, rule in RULES.items() if rule.trees and not rule.keyed]
ON_TREES = [name for name, rule in RULES.items() if rule.trees]
SHAPES = {
    "two wide": Shape.parse("2x1"),
    "two by two": Shape.parse("2x2"),
    "first goes on": Shape.of_paths([[0], [1], [0, 0], [0, 0, 0]]),
    "second goes on": Shape.of_paths([[0], [1], [1, 0]]),
}
TREE_DRAFTERS = [name for name in DRAFTERS if name != "none"]
rules = pytest.mark.parametrize("rule", UNKEYED)
shapes = pytest.mark.parametrize("shape", SHAPES)


@rules
@shapes
@pytest.mark.parametrize("drafter", TREE_DRAFTERS)
def test_the_loop_with_trees_has_the_law_of_plain_decoding(rule, shape, drafter) -> None:
    """Sequences of length 3, token 2 ends them, tables with and without zeros: law of the text and of its finish reason."""
    for seed, zeros in ((1, 0.0), (2, 0.4)):
        model = random_model(seed, zeros=zeros)
        options = {"tree": SHAPES[shape], "end_ids": (2,), "max_tokens": 3}
        assert off(rule, DRAFTERS[drafter](seed, 3), model, **options) <= TOLERANCE


@rules
def test_histories_of_two_tokens(rule) -> None:
    """Order 2 for target and drafter, a prompt to look up: rows deep in a tree see their own path."""
    for made in (NGramDrafter(3, min_match=1), ModelDrafter(random_model(55, order=2))):
        options = {"tree": "2x2", "prompt": (1, 0, 2, 1, 0), "max_tokens": 3}
        assert off(rule, made, random_model(4, order=2), **options) <= TOLERANCE


@rules
@pytest.mark.parametrize("least", [1, 2, 3])
def test_combined_drafters_grow_trees(rule, least) -> None:
    """A look-up before a model, a drafter without trees before one that grows them, and two that draw: the first with a deep
    enough tree, in a text that repeats; sums over every draw of both."""

    class Chains:
        name = "chains"

        def __init__(self) -> None:
            inner = NGramDrafter(3, min_match=1)
            self.open, self.propose, self.commit = inner.open, inner.propose, inner.commit

    for first in (NGramDrafter(3, min_match=1), Chains(), ModelDrafter(random_model(8, context_limit=6))):
        drafter = CombinedDrafter(first, ModelDrafter(random_model(55, order=2)), least=least)
        options = {"tree": "2x2", "prompt": (1, 0, 2, 1, 0), "max_tokens": 3}
        assert off(rule, drafter, random_model(4, order=2), **options) <= TOLERANCE


def test_of_combined_drafters_the_deeper_tree_wins() -> None:
    """The look-up's where it is deep enough, else the model's, which is asked for no more than it may be."""
    first, second = NGramDrafter(4, min_match=2), ModelDrafter(random_model(1, 4))
    drafter = CombinedDrafter(first, second)
    found = context_of([0, 1, 2, 3, 0, 1]), context_of([3, 3, 1, 0])
    drafts = drafter.propose_trees(drafter.open(found), found, [Shape.parse("2x3")] * 2, [StreamDraws(0), StreamDraws(1)])
    alone = first.propose_trees(first.open(found), found, [Shape.parse("2x3")] * 2, [StreamDraws(0)] * 2)
    assert drafts[0].tokens == alone[0].tokens
    assert drafts[0].depth == 3
    assert not alone[1].tokens
    assert drafts[1].depth == 3
    assert len(drafts[1]) == 6


@rules
@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_processed_rows_keep_their_law_on_trees(rule, drafter, sampling) -> None:
    """Truncation, penalties along each path, bans, minimum length, greedy."""
    options = {"tree": "2x2", "end_ids": (2,), "max_tokens": 3, "sampling": SAMPLINGS[sampling]}
    assert off(rule, DRAFTERS[drafter](5, 3), random_model(5), **options) <= TOLERANCE


@rules
@pytest.mark.parametrize("room", [1, 2, 3])
def test_trees_shrink_to_the_room_there_is(rule, room) -> None:
    """A 2x2 tree into 1 to 3 tokens of room: by max_tokens, by the target's context, in which the whole tree must fit, by the
    drafter's."""
    model, drafter = random_model(6), ModelDrafter(random_model(7))
    assert off(rule, drafter, model, tree="2x2", max_tokens=room) <= TOLERANCE
    limited = random_model(6, context_limit=2 + room)
    assert off(rule, drafter, limited, tree="2x2", prompt=(0, 1), max_tokens=3) <= TOLERANCE
    short = ModelDrafter(random_model(7, context_limit=1 + room))
    assert off(rule, short, model, tree="2x2", prompt=(0, 1), max_tokens=3) <= TOLERANCE


@pytest.mark.parametrize("drafter", TREE_DRAFTERS)
@pytest.mark.parametrize("shape", ["two wide", "first goes on"])
def test_coupled_with_trees_over_all_shared_noise(drafter, shape) -> None:
    """Summed over noise keyed by position, asked again by later rounds: two tokens, where it is the Gumbel race."""
    for seed in (1, 2):
        model = random_model(seed, vocab=2)
        assert off("coupled", DRAFTERS[drafter](seed, 2), model, tree=SHAPES[shape], max_tokens=3) <= TOLERANCE


def test_coupled_gives_one_text_with_any_tree() -> None:
    """200 seeds, 6 tokens, penalties and truncation among them: the text of plain decoding, whatever tree is drafted."""
    model = random_model(1, 6, order=2)
    drafters = [ModelDrafter(random_model(2, 6)), ModelDrafter(model), NGramDrafter(6, min_match=1)]
    samplings = [AS_IS, Sampling(temperature=0.7, top_k=3), Sampling(temperature=1.5, top_p=0.9, repetition_penalty=1.3)]
    trees = [*SHAPES.values(), Shape.parse("3x3"), Shape.full([3, 2, 1])]
    for seed in range(200):
        options = {"rule": "coupled", "vocab": 6, "sampling": samplings[seed % 3], "end_ids": (5,), "max_tokens": 24}
        one, plain = (request((seed % 6,), seed=seed, tree=tree, **options) for tree in (trees[seed % 6], None))
        finished(Decoder(model, drafters[seed // 6 % 3]), one)
        finished(Decoder(model, NoDrafter()), plain)
        assert (one.output, one.finish_reason) == (plain.output, plain.finish_reason)


@pytest.mark.parametrize("rule", ON_TREES)
@pytest.mark.parametrize("tree", ["1x3", "2x2", "3x4"])
def test_counts_and_caches_with_trees(rule, tree) -> None:
    """After every round the target's cache is the text but its last token, the drafter's a prefix; the identities hold."""
    shape = Shape.parse(tree)
    for seed in range(20):
        decoder = Decoder(random_model(seed, 4, order=2), ModelDrafter(random_model(seed + 1, 4, order=2)))
        one = request((0, 1), rule=rule, vocab=4, tree=tree, seed=seed, max_tokens=30, end_ids=(3,), num_logprobs=1)
        decoder.begin([one])
        while not one.done:
            decoder.round([one])
            assert list(one.cache.tokens) == one.tokens[:-1]
            held = one.draft_state.held
            assert list(one.draft_state.cache.tokens) == held == one.tokens[: len(held)]
        stats = one.stats
        assert (
            stats.completion_tokens
            == len(one.output)
            == len(one.logprobs)
            == stats.num_accepted + stats.num_rounds - stats.num_cut
        )
        for each in one.rounds:
            path = each.path if each.parents is not None else tuple(range(each.num_accepted))
            parents = each.parents or tuple(range(-1, each.num_drafted - 1))
            assert each.num_drafted <= shape.nodes
            assert each.num_accepted == len(path) == len(each.branches) <= shape.depth
            assert [parents[place] for place in path] == [-1, *path][: len(path)]
            assert [each.draft[place] for place in path][: len(each.emitted)] == list(each.emitted[: each.num_accepted])
            assert each.rejected == ((path[-1] if path else -1) in parents)
            assert len(each.overlaps) == each.num_accepted + each.rejected
            assert all(0 <= overlap <= 1 for overlap in each.overlaps)
        for token, reported in zip(one.output, one.logprobs, strict=True):
            assert reported.token == token
            assert np.isfinite(reported.logprob), "from the row of its own node"


def test_logprobs_are_those_of_plain_decoding() -> None:
    """The same text under coupled: every reported log-probability is the one plain decoding reports."""
    model = random_model(3, 5, order=2)
    for seed in range(20):
        one, plain = (
            request((1,), rule="coupled", vocab=5, tree=tree, seed=seed, max_tokens=20, num_logprobs=2) for tree in ("3x3", None)
        )
        finished(Decoder(model, ModelDrafter(random_model(4, 5))), one)
        finished(Decoder(model, NoDrafter()), plain)
        assert one.logprobs == plain.logprobs


def test_trees_and_chains_side_by_side() -> None:
    """One pass for requests with trees, with chains and with none left to draft: each as alone."""
    model, drafter = random_model(1, 5, order=2), ModelDrafter(random_model(2, 5))
    asks = [{"tree": "3x3"}, {"gamma": 3}, {"tree": "2x1"}, {"gamma": 1}, {"tree": Shape.full([2, 2])}]

    def made():
        return [
            request((place,), rule="token", vocab=5, seed=place, max_tokens=10 + place, **ask) for place, ask in enumerate(asks)
        ]

    together = finished(Decoder(model, drafter), *made())
    for one, alone in zip(together, made(), strict=True):
        finished(Decoder(model, drafter), alone)
        assert (one.output, one.rounds) == (alone.output, alone.rounds)


class WithFeatures(TableModel):
    """Reports, as features of each token, the token and how many came before it."""

    def score(self, asks):
        starts = [ask.cache.length for ask in asks]
        scores = super().score(asks)
        for start, ask, each in zip(starts, asks, scores, strict=True):
            depths = []
            for place, parent in enumerate(ask.parents or range(-1, len(ask.tokens) - 1)):
                depths.append(start if parent < 0 else depths[parent] + 1)
                assert parent < place
            object.__setattr__(
                each, "features", np.array([list(pair) for pair in zip(ask.tokens, depths, strict=True)], dtype=float)
            )
        return scores


@pytest.mark.parametrize("options", [{"tree": "3x3"}, {"gamma": 3}])
def test_a_drafter_is_given_the_features_of_the_kept_path(options) -> None:
    """One row an emitted token: that of the token before it."""
    seen = []

    class Reading(ModelDrafterLike):
        def commit(self, state, tokens, features):
            seen.append((list(tokens), features.tolist()))
            super().commit(state, tokens, features)

    model = WithFeatures(np.exp(random_model(1, 4, order=1)._logits))
    (one,) = finished(
        Decoder(model, Reading(random_model(2, 4))), request((0, 1), rule="token", vocab=4, max_tokens=30, **options)
    )
    for each, (tokens, features) in zip(one.rounds, seen, strict=True):
        count = len(each.emitted)
        assert features == [[tokens[place], place] for place in range(len(tokens) - count - 1, len(tokens) - 1)]


class ModelDrafterLike:
    """A model drafter to be changed by subclasses."""

    name = "model"

    def __init__(self, model) -> None:
        self._inner = ModelDrafter(model)
        self.open, self.propose = self._inner.open, self._inner.propose

    def propose_trees(self, states, contexts, shapes, draws):
        made = self._inner.propose_trees(states, contexts, shapes, draws)
        return [self.altered(draft, context) for draft, context in zip(made, contexts, strict=True)]

    def altered(self, draft, context):
        return draft

    def commit(self, state, tokens, features):
        self._inner.commit(state, tokens, features)


# Refusals


def test_a_drafter_without_trees_is_refused_by_name() -> None:
    """Not silently a chain."""
    for drafter in (NoDrafter(), CombinedDrafter(NGramDrafter(3), NoDrafter())):
        with pytest.raises(OptionError, match=re.escape(f"`tree` needs a drafter that grows trees, got '{drafter.name}'")):
            finished(Decoder(random_model(1), drafter), request(rule="token", tree="2x2"))


def test_block_and_schedules_do_not_take_trees() -> None:
    """Refused before anything is kept: the request can go on with chains."""
    decoder = Decoder(random_model(1), ModelDrafter(random_model(2)))
    one = request((0,), rule="block", tree="2x2", max_tokens=9)
    decoder.begin([one])
    with pytest.raises(OptionError, match="`rule` block judges chains only"):
        decoder.round([one])
    assert (one.cache.length, one.output) == (0, [])
    one.tree = None
    while not one.done:
        decoder.round([one])
    assert len(one.output) == 9


def test_a_tree_beyond_its_room_is_refused() -> None:
    """Too many nodes, or too deep: the drafter is named."""

    class Growing(ModelDrafterLike):
        def altered(self, draft, context):
            return self.made

    for tokens, parents, message in (
        (
            [0, 1, 2, 0, 1],
            [-1, -1, -1, 0, 0],
            "a tree of 5 tokens, 2 deep, where 4 tokens, 2 deep, were allowed",
        ),
        ([0, 1, 0], [-1, 0, 1], "'model' proposed 3 tokens where 4 tokens, 2 deep, were allowed"),
    ):
        drafter = Growing(random_model(2))
        drafter.made = Draft.points(tokens, 3, parents)
        with pytest.raises(ModelError, match=message):
            finished(Decoder(random_model(1), drafter), request(rule="token", tree="2x2", max_tokens=9))


# Twins: faults built into the loop's parts, caught by summing it


def law_is_off(drafter, model, rule: str = "token", plain=None, **options) -> float:
    options = {"tree": "2x2", "max_tokens": 3, **options}
    law = loop_law(Decoder(model, drafter), request(rule=rule, **options), fresh)
    options.pop("processor", None)
    return distance(law, plain_law(plain or model, request(rule=rule, **options)))


class KeepsTooFar(TableCache):
    """keep(path) that is off by one: it keeps the token before each node."""

    def keep(self, path):
        start, tokens = self.tail.start, self.tokens
        super().keep(path)
        self.tokens = tokens[:start] + tuple(tokens[start + max(0, index - 1)] for index in path)

    def fork(self):
        other = KeepsTooFar(self.model)
        other.tokens, other.tail = self.tokens, self.tail
        return other


class KeepingTooFar(TableModel):
    def open(self):
        return KeepsTooFar(self)


@rules
def test_twin_keep_is_off_by_one(rule) -> None:
    """The wrong branch left in the target's cache is seen in the law."""
    table = np.exp(random_model(2, order=2)._logits)
    drafter = ModelDrafter(random_model(51))
    assert law_is_off(drafter, TableModel(table), rule) <= TOLERANCE
    assert law_is_off(drafter, KeepingTooFar(table), rule, plain=TableModel(table)) > 0.005


class ChainHistories(SamplingProcessor):
    """Reads a node's history off the draft as if it were a chain: the tokens drafted last, not the path."""

    def row(self, history, logits, ids=None, *, best=None):
        depth = len(history) - self.known
        return super().row([*history[: self.known], *self.drafted[:depth]], logits)


@rules
def test_twin_the_wrong_history_at_a_node(rule) -> None:
    """With penalties, rows made from tokens of another branch lose the law."""
    sampling = Sampling(temperature=1.0, repetition_penalty=2.5, presence_penalty=1.0)

    class Telling(ModelDrafterLike):
        def propose_trees(self, states, contexts, shapes, draws):
            for context in contexts:
                context.processor.known, context.processor.drafted = len(context.tokens), ()
            made = super().propose_trees(states, contexts, shapes, draws)
            for draft, context in zip(made, contexts, strict=True):
                context.processor.drafted = draft.tokens
            return made

    model, drafter = random_model(1), Telling(random_model(51))
    broken = ChainHistories(sampling, num_prompt=1, vocab_size=3)
    assert law_is_off(drafter, model, rule, processor=broken, sampling=sampling) > 0.002
    assert law_is_off(ModelDrafter(random_model(51)), model, rule, sampling=sampling) <= TOLERANCE


class Peeking(ModelDrafterLike):
    """Drops the last drawn node of the tree if it is token 1."""

    def altered(self, draft, context):
        if not draft.tokens or draft.tokens[-1] != 1:
            return draft
        parents = draft.parents if draft.parents is None else draft.parents[:-1]
        return Draft(tokens=draft.tokens[:-1], rows=draft.rows[:-1], parents=parents)


class Flattened(ModelDrafterLike):
    """Claims rows that were not sampled from."""

    def altered(self, draft, context):
        flat = [np.sqrt(row.to_array()) for row in draft.rows]
        return Draft(tokens=draft.tokens, rows=tuple(Row.dense(row / row.sum()) for row in flat), parents=draft.parents)


@pytest.mark.parametrize("twin", [Peeking, Flattened])
def test_twin_drafters_that_peek_or_misreport(twin) -> None:
    """A drawn node dropped for what it is, or other rows than were drawn from: lost under token, kept under match."""
    tree = SHAPES["first goes on"]
    assert law_is_off(ModelDrafterLike(random_model(51)), random_model(1), tree=tree) <= TOLERANCE
    assert law_is_off(twin(random_model(51)), random_model(1), tree=tree) > 0.005
    assert law_is_off(twin(random_model(51)), random_model(1), "match", tree=tree) <= TOLERANCE


@rules
def test_failures_do_not_change_the_law_of_trees(rule) -> None:
    """Enumerated: a target's pass of a tree that fails after scoring is taken back, and the law is unharmed."""
    target = random_model(1, order=2)

    class Failing:
        vocab_size, context_limit, open = 3, target.context_limit, target.open

        def __init__(self) -> None:
            self.num_calls = 0

        def score(self, asks):
            scores = target.score(asks)
            self.num_calls += 1
            if self.num_calls == 1:
                raise RuntimeError("out of memory")
            return scores

    def run(draws: Script):
        decoder = Decoder(Failing(), ModelDrafter(random_model(2)))
        one = request((0,), rule=rule, draws=draws, tree="2x1", max_tokens=2, end_ids=(2,))
        decoder.begin([one])
        while not one.done:
            try:
                decoder.round([one])
            except RuntimeError:
                assert one.cache.length == 0
        return tuple(one.output), one.finish_reason

    law: dict = {}
    for weight, outcome in every(run):
        law[outcome] = law.get(outcome, 0.0) + weight
    assert distance(law, plain_law(target, request((0,), tree="2x1", max_tokens=2, end_ids=(2,)))) <= TOLERANCE
