"""`gamma="auto"` in the loop: the law of plain decoding, whatever the schedule learns; off is the plain path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import CombinedDrafter, ModelDrafter, NGramDrafter, NoDrafter
from headstart.records import Draft, Round
from headstart.schedule import AdaptiveSchedule, Curve, RoundCosts, RunningAcceptance, RunningCosts, TreeChoice
from headstart.schedule.trees import judged_children
from headstart.shapes import Shape
from headstart.verify import RULES
from tests.decode.loops import finished, loop_law, plain_law, random_model, request
from tests.exact import TOLERANCE, Script, SharedScript, distance

COSTS = {  # what a round costs → the schedule's lengths rise, fall, turn off and on again within five tokens
    "cheap": (0.02, 0.1),
    "dear": (0.3, 0.25),
    "hardly": (0.55, 0.05),
    "free": (0.1, 0.01),  # where scoring costs next to nothing, trees are worth it
    "wide": (0.4, 0.01),  # and where drafting is dear, wide ones
}


def schedule(kind: str, *, walks: bool = False, longest: int = 3, trees: bool = False, parts: int = 1) -> AdaptiveSchedule:
    """With several parts those in front draft for nothing."""
    draft, token = COSTS[kind]
    measured = [
        RoundCosts(
            score=Curve(tokens=(1, 2), seconds=(1.0, 1.0 + token)),
            draft=Curve(tokens=(0, 1), seconds=(0.0, draft if part == parts - 1 else 0.0)),
            overhead=Curve(tokens=(0,), seconds=(0.0,)),
        )
        for part in range(parts)
    ]
    costs = RunningCosts(*measured, learns=False)
    choice = TreeChoice(costs, longest, most_nodes=3, looks_after=1) if trees else None
    names = [f"part {part}" for part in range(parts)]
    return AdaptiveSchedule(costs, names=names, longest=longest, walks=walks, trees=choice, tries_cost=1.0, shortest_pause=1)


class Noting:
    """A drafter that notes every call that is made of it, and the budgets it is given."""

    def __init__(self, inner) -> None:
        self._inner, self.name = inner, inner.name
        self.calls: list[str] = []
        self.budgets: list[int] = []
        self.shapes: list[Shape] = []

    def open(self, contexts):
        self.calls.append("open")
        return self._inner.open(contexts)

    def propose(self, states, contexts, budgets, draws):
        self.calls.append("propose")
        self.budgets += budgets
        return self._inner.propose(states, contexts, budgets, draws)

    def propose_trees(self, states, contexts, shapes, draws):
        self.calls.append("propose")
        self.shapes += shapes
        return self._inner.propose_trees(states, contexts, shapes, draws)

    def commit(self, state, tokens, features):
        self.calls.append("commit")
        self._inner.commit(state, tokens, features)


def law_of(rule: str, kind: str, model, drafter, decoder=Decoder, trees: bool = False, parts: int = 1, **options):
    keyed = RULES[rule].keyed

    def script(choices, before):
        return SharedScript(choices, getattr(before, "known", None)) if keyed else Script(choices)

    chosen = schedule(kind, walks=RULES[rule].walks, trees=trees, parts=parts)
    start = request(rule=rule, vocab=model.vocab_size, schedule=chosen, **options)
    return loop_law(decoder(model, drafter, clock=lambda: 0.0), start, script)


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("guesser", ["model", "ngram"])
def test_the_law_is_plain_decodings(rule, kind, guesser) -> None:
    """All sequences of five tokens, lengths chosen by the schedule from what earlier rounds showed."""
    model = random_model(1)
    drafter = Noting(ModelDrafter(random_model(51)) if guesser == "model" else NGramDrafter(3, min_match=1))
    law = law_of(rule, kind, model, drafter, max_tokens=5, end_ids=(2,))
    assert distance(law, plain_law(model, request(max_tokens=5, end_ids=(2,)))) <= TOLERANCE
    assert max(drafter.budgets) > 0


def test_the_schedules_above_really_change_their_lengths() -> None:
    """Over the enumerated loops every length from 1 to 3 is used, and drafting is turned off and on again."""
    model, drafter = random_model(1), Noting(ModelDrafter(random_model(51)))
    for kind in COSTS:
        law_of("token", kind, model, drafter, max_tokens=5)
    assert set(drafter.budgets) >= {1, 2, 3}
    one = request(rule="token", schedule=schedule("dear"), max_tokens=40, seed=3)
    finished(Decoder(model, ModelDrafter(random_model(51)), clock=lambda: 0.0), one)
    drafted = [bool(each.draft) for each in one.rounds]
    assert any(drafted[i : i + 3] == [True, False, True] for i in range(len(drafted)))


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("kind", ["cheap", "hardly"])
def test_the_law_is_plain_decodings_with_a_length_for_each_drafter(rule, kind) -> None:
    """A look-up before a model, each with its own length, which turn off and on one by one, in a text that repeats."""
    model = random_model(1, order=2)
    drafter = CombinedDrafter(NGramDrafter(3, min_match=1), ModelDrafter(random_model(51, order=2)), least=1)
    options = {"prompt": (1, 0, 2, 1, 0), "max_tokens": 4}
    law = law_of(rule, kind, model, drafter, parts=2, **options)
    assert distance(law, plain_law(model, request(**options))) <= TOLERANCE


@pytest.mark.parametrize("kind", ["cheap", "free"])
def test_the_law_is_plain_decodings_with_trees_and_chains_of_drafters_in_a_row(kind) -> None:
    """Where trees are chosen too, the drafters in a row are one to the schedule, whichever of them drafts."""
    model = random_model(1, order=2)
    drafter = CombinedDrafter(NGramDrafter(3, min_match=5), ModelDrafter(random_model(51, order=2)), least=1)
    options = {"prompt": (1, 0, 2, 1, 0), "max_tokens": 4}
    law = law_of("token", kind, model, drafter, trees=True, **options)
    assert distance(law, plain_law(model, request(**options))) <= TOLERANCE
    one = request((1, 0, 2, 1, 0), rule="token", schedule=schedule(kind, trees=True), max_tokens=60, seed=1)
    finished(Decoder(random_model(1), drafter, clock=lambda: 0.0), one)
    assert any(done.draft and done.parents is None and done.part == 1 for done in one.rounds)


def test_each_drafter_in_a_row_keeps_to_its_own_length() -> None:
    """The schedule's limits reach the drafters, rounds say whose a draft was, and one that is off is neither opened nor asked."""
    lookup, dear = Noting(NGramDrafter(3, min_match=5)), Noting(ModelDrafter(random_model(2)))
    one = request((1, 0, 2, 1, 0), schedule=schedule("dear", parts=2), max_tokens=60, seed=1)
    finished(Decoder(random_model(1), CombinedDrafter(lookup, dear, least=1), clock=lambda: 0.0), one)
    assert {done.part for done in one.rounds if done.draft} == {0, 1}
    assert max(len(done.draft) for done in one.rounds if done.part == 0) > max(dear.budgets)
    never = Noting(ModelDrafter(random_model(2)))
    costs = RoundCosts(
        score=Curve(tokens=(1, 2), seconds=(1.0, 1.1)),
        draft=Curve(tokens=(0, 1), seconds=(0.0, 1.0)),
        overhead=Curve(tokens=(0,), seconds=(0.0,)),
    )
    free = replace(costs, draft=Curve(tokens=(0,), seconds=(0.0,)))
    running = RunningCosts(free, costs, learns=False)
    one = request((1, 0, 2, 1, 0), schedule=AdaptiveSchedule(running, names=["a", "b"]), max_tokens=60, seed=1)
    finished(Decoder(random_model(1), CombinedDrafter(NGramDrafter(3, min_match=1), never, least=1)), one)
    assert never.calls == []
    assert any(done.draft for done in one.rounds)


def test_coupled_over_all_shared_noise() -> None:
    """`coupled`, two tokens, where drafts of changing length share their noise with later rounds."""
    for kind in COSTS:
        model = random_model(2, vocab=2)
        law = law_of("coupled", kind, model, ModelDrafter(random_model(52, vocab=2)), max_tokens=5)
        assert distance(law, plain_law(model, request(vocab=2, max_tokens=5))) <= TOLERANCE


class Peeking(Decoder):
    """Lets a schedule look at the tokens that were drawn: a draft ends before the first 1."""

    def _drafts(self, live, budgets, parts):
        made = super()._drafts(live, budgets, parts)
        cut = [draft.tokens.index(1) if 1 in draft.tokens else len(draft) for draft in made]
        return [Draft(tokens=d.tokens[:n], rows=d.rows[:n]) for d, n in zip(made, cut, strict=True)]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_twin_a_schedule_that_peeks(rule) -> None:
    """A length that depends on the drafted token itself loses the law under token and block."""
    model, drafter = random_model(1), ModelDrafter(random_model(51))
    law = law_of(rule, "cheap", model, drafter, Peeking, max_tokens=4)
    assert distance(law, plain_law(model, request(max_tokens=4))) > 0.01


@pytest.mark.parametrize("kind", COSTS)
def test_one_seed_one_text_under_coupled(kind) -> None:
    """With a seed the text is plain decoding's, whatever the schedule does, alone and side by side."""
    model, drafter = random_model(1, 6, order=2), ModelDrafter(random_model(2, 6))

    def coupled(seed, **options):
        return request((seed % 6,), rule="coupled", seed=seed, vocab=6, max_tokens=24, end_ids=(5,), **options)

    plain = [finished(Decoder(model, NoDrafter()), coupled(seed))[0].output for seed in range(40)]
    decoder = Decoder(model, drafter)
    alone = [finished(decoder, coupled(seed, schedule=schedule(kind, walks=True)))[0].output for seed in range(40)]
    together = finished(decoder, *[coupled(seed, schedule=schedule(kind, walks=True)) for seed in range(40)])
    assert alone == plain == [one.output for one in together]


def test_off_is_the_plain_path() -> None:
    """A draft that cannot pay even if all of it were kept is never opened, asked or told."""
    drafter = Noting(ModelDrafter(random_model(1)))
    costs = RoundCosts(
        score=Curve(tokens=(1, 2), seconds=(1.0, 1.1)),
        draft=Curve(tokens=(0, 1), seconds=(0.0, 1.0)),
        overhead=Curve(tokens=(0,), seconds=(0.0,)),
    )
    one = request(schedule=AdaptiveSchedule(RunningCosts(costs)), max_tokens=30)
    finished(Decoder(random_model(1), drafter), one)
    assert drafter.calls == []
    assert len(one.rounds) == one.stats.completion_tokens == 30


def test_the_drafter_is_opened_when_first_used_and_rests_while_off() -> None:
    """Opened once; not called in plain rounds; brought up to date before it drafts again, with nothing missed."""
    model, drafter = random_model(1, 4), Noting(ModelDrafter(random_model(51, 4)))
    decoder = Decoder(model, drafter, clock=lambda: 0.0)
    one = request(rule="token", vocab=4, schedule=schedule("dear"), max_tokens=60, seed=5)
    decoder.begin([one])
    assert drafter.calls == []
    while not one.done:
        before = len(drafter.calls)
        decoder.round([one])
        called = drafter.calls[before:]
        if not one.rounds[-1].draft:
            assert called == []
        assert called.count("propose") <= 1
        held = one.draft_state.held if one.drafter_opened else []
        assert held == one.tokens[: len(held)]
    assert drafter.calls.count("open") == 1
    assert {bool(each.draft) for each in one.rounds} == {True, False}


def test_a_mixed_batch() -> None:
    """Fixed and scheduled requests share rounds; each has its own drafter state and its own plain law of counts."""
    model, drafter = random_model(1, 4), Noting(ModelDrafter(random_model(51, 4)))
    fixed = request(vocab=4, gamma=2, max_tokens=20, seed=1)
    free = request(vocab=4, schedule=schedule("dear"), max_tokens=20, seed=2)
    finished(Decoder(model, drafter, clock=lambda: 0.0), fixed, free)
    assert all(each.num_drafted == 2 for each in fixed.rounds[:-2])
    assert {each.num_drafted for each in free.rounds} - {2}


# Trees chosen round by round

TREES = ("free", "wide")


@pytest.mark.parametrize("rule", ["token", "match"])
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("guesser", ["model", "ngram"])
def test_the_law_with_trees_is_plain_decodings(rule, kind, guesser) -> None:
    """All sequences of four tokens, with trees, chains and plain rounds as the schedule chooses them."""
    model = random_model(1)
    drafter = Noting(ModelDrafter(random_model(51)) if guesser == "model" else NGramDrafter(3, min_match=1))
    law = law_of(rule, kind, model, drafter, max_tokens=4, end_ids=(2,), trees=True)
    assert distance(law, plain_law(model, request(max_tokens=4, end_ids=(2,)))) <= TOLERANCE
    assert drafter.shapes


def test_trees_and_chains_are_both_used() -> None:
    """Where scoring is nearly free trees of two shapes and more are drafted, and chains; where it is dear, chains alone."""
    model, found = random_model(1), {}
    for kind in ("free", "dear"):
        found[kind] = Noting(ModelDrafter(random_model(51)))
        law_of("token", kind, model, found[kind], max_tokens=4, trees=True)
    assert len(set(found["free"].shapes)) >= 2
    assert found["dear"].budgets
    assert not found["dear"].shapes


def test_coupled_with_trees_over_all_shared_noise() -> None:
    """`coupled`, two tokens: trees of changing shape share their noise with later rounds."""
    model, drafter = random_model(2, vocab=2), Noting(ModelDrafter(random_model(52, vocab=2)))
    law = law_of("coupled", "free", model, drafter, max_tokens=4, trees=True)
    assert distance(law, plain_law(model, request(vocab=2, max_tokens=4))) <= TOLERANCE
    assert drafter.shapes


class PeekingAtTrees(Decoder):
    """Lets a schedule look at the tokens that were drawn: the last drawn node is taken out of a tree where it is a 1."""

    def _drafts(self, live, budgets, parts):
        return [self._cut(draft) for draft in super()._drafts(live, budgets, parts)]

    def _cut(self, draft):
        if draft.parents is None or draft.tokens[-1] != 1:
            return draft
        return Draft(tokens=draft.tokens[:-1], rows=draft.rows[:-1], parents=draft.parents[:-1])


def test_twin_a_schedule_that_peeks_at_a_tree() -> None:
    """A shape that depends on a drawn token loses the law."""
    model, drafter = random_model(1), ModelDrafter(random_model(51))
    law = law_of("token", "free", model, drafter, PeekingAtTrees, max_tokens=4, trees=True)
    assert distance(law, plain_law(model, request(max_tokens=4))) > 0.005


def test_what_trees_teach() -> None:
    """Of each node reached: how many children it had and which was kept; a second is judged where the first was not kept."""
    done = Round(draft=(1, 2, 3, 4), num_accepted=2, emitted=(2, 4, 0), num_cut=0, parents=(-1, -1, 0, 1), path=(1, 3))
    assert judged_children(done) == [(2, 1), (1, 0)]
    none = Round(draft=(1, 2, 3), num_accepted=0, emitted=(0,), num_cut=0, parents=(-1, -1, 0), path=())
    assert judged_children(none) == [(2, None)]
    seen = RunningAcceptance(2, ranks=2, pull=3.0)
    for _ in range(300):
        seen.saw_children([(2, 1), (1, 0)])
    table = np.array(seen.by_rank())
    assert table[0] == pytest.approx([0.0, 1.0], abs=0.05)
    assert table[1][0] == pytest.approx(1.0, abs=0.1)
    assert (table.sum(axis=1) <= 1.0 + 1e-12).all()
