"""`gamma="auto"` in the loop: the law of plain decoding, whatever the schedule learns; off is the plain path."""

from __future__ import annotations

import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.records import Draft
from headstart.schedule import AdaptiveSchedule, Curve, RoundCosts, RunningCosts
from headstart.verify import RULES
from tests.decode.loops import finished, loop_law, plain_law, random_model, request
from tests.exact import TOLERANCE, Script, SharedScript, distance

COSTS = {  # what a round costs → the schedule's lengths rise, fall, turn off and on again within five tokens
    "cheap": (0.02, 0.1),
    "dear": (0.3, 0.25),
    "hardly": (0.55, 0.05),
}


def schedule(kind: str, *, counts: bool = False, longest: int = 3) -> AdaptiveSchedule:
    draft, token = COSTS[kind]
    measured = RoundCosts(
        score=Curve(tokens=(1, 2), seconds=(1.0, 1.0 + token)),
        draft=Curve(tokens=(0, 1), seconds=(0.0, draft)),
        overhead=Curve(tokens=(0,), seconds=(0.0,)),
    )
    costs = RunningCosts(measured, learns=False)
    return AdaptiveSchedule(costs, longest=longest, counts=counts, tries_cost=1.0, shortest_pause=1)


class Noting:
    """A drafter that notes every call that is made of it, and the budgets it is given."""

    def __init__(self, inner) -> None:
        self._inner, self.name = inner, inner.name
        self.calls: list[str] = []
        self.budgets: list[int] = []

    def open(self, contexts):
        self.calls.append("open")
        return self._inner.open(contexts)

    def propose(self, states, contexts, budgets, draws):
        self.calls.append("propose")
        self.budgets += budgets
        return self._inner.propose(states, contexts, budgets, draws)

    def commit(self, state, tokens, features):
        self.calls.append("commit")
        self._inner.commit(state, tokens, features)


def law_of(rule: str, kind: str, model, drafter, decoder=Decoder, **options):
    keyed = RULES[rule].keyed

    def script(choices, before):
        return SharedScript(choices, getattr(before, "known", None)) if keyed else Script(choices)

    start = request(rule=rule, vocab=model.vocab_size, schedule=schedule(kind, counts=RULES[rule].walks), **options)
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


def test_coupled_over_all_shared_noise() -> None:
    """`coupled`, two tokens, where drafts of changing length share their noise with later rounds."""
    for kind in COSTS:
        model = random_model(2, vocab=2)
        law = law_of("coupled", kind, model, ModelDrafter(random_model(52, vocab=2)), max_tokens=5)
        assert distance(law, plain_law(model, request(vocab=2, max_tokens=5))) <= TOLERANCE


class Peeking(Decoder):
    """Lets a schedule look at the tokens that were drawn: a draft ends before the first 1."""

    def _drafts(self, live, budgets):
        made = super()._drafts(live, budgets)
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
    alone = [finished(decoder, coupled(seed, schedule=schedule(kind, counts=True)))[0].output for seed in range(40)]
    together = finished(decoder, *[coupled(seed, schedule=schedule(kind, counts=True)) for seed in range(40)])
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
