"""The contract every drafter keeps. A new drafter joins with a line in `DRAFTERS`."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import (
    CombinedDrafter,
    CrossDrafter,
    ModelDrafter,
    NGramDrafter,
    NoDrafter,
    SkipDrafter,
    SuffixDrafter,
)
from headstart.draws import KeyedDraws, StreamDraws
from headstart.interfaces import Ask, Context
from headstart.probs import SamplingProcessor
from headstart.records import Draft, Sampling
from headstart.rows import Row
from tests.decode.loops import finished, loop_law, plain_law, random_model, request
from tests.drafters.parts import SPELLING, Cut, Early, eagle_for_four, medusa_for_four
from tests.exact import TOLERANCE, Script, distance

VOCAB = 4
DRAFTERS = {
    "none": lambda: NoDrafter(),
    "ngram": lambda: NGramDrafter(VOCAB, min_match=1),
    "ngram of two": lambda: NGramDrafter(VOCAB, min_match=2, max_match=4),
    "model": lambda: ModelDrafter(random_model(1, VOCAB, order=2)),
    "model with zeros": lambda: ModelDrafter(random_model(2, VOCAB, zeros=0.4)),
    "model with a short context": lambda: ModelDrafter(random_model(3, VOCAB, context_limit=9)),
    "model of two tokens": lambda: ModelDrafter(Cut(random_model(1, VOCAB, order=2), [0, 2])),
    "skip": lambda: SkipDrafter(Early(random_model(1, VOCAB, order=2))),
    "skip of three tokens": lambda: SkipDrafter(Cut(Early(random_model(1, VOCAB)), [1, 2, 3])),
    "cross": lambda: CrossDrafter(random_model(1, 5, order=2), SPELLING),
    "cross of some tokens": lambda: CrossDrafter(Cut(random_model(1, 5), [0, 1, 4]), SPELLING),
    "cross with a short context": lambda: CrossDrafter(random_model(1, 5, context_limit=9), SPELLING),
    "ngram+skip": lambda: CombinedDrafter(NGramDrafter(VOCAB), SkipDrafter(Early(random_model(1, VOCAB)))),
    "suffix": lambda: SuffixDrafter(VOCAB),
    "suffix that looks two back": lambda: SuffixDrafter(VOCAB, factor=0.5, offset=2.5, max_match=2),
    "ngram+model": lambda: CombinedDrafter(NGramDrafter(VOCAB), ModelDrafter(random_model(1, VOCAB, order=2))),
    "suffix+none": lambda: CombinedDrafter(SuffixDrafter(VOCAB), NoDrafter()),
    "eagle": lambda: eagle_for_four(3),
    "eagle of generation 1": lambda: eagle_for_four(1),
    "medusa": medusa_for_four,
    "ngram+eagle": lambda: CombinedDrafter(NGramDrafter(VOCAB), eagle_for_four(3)),
    "short model+ngram+model": lambda: CombinedDrafter(
        ModelDrafter(random_model(3, VOCAB, context_limit=5)), NGramDrafter(VOCAB), ModelDrafter(random_model(1, VOCAB))
    ),
}
every_drafter = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)


def context(tokens, sampling: Sampling | None = None) -> Context:
    sampling = sampling or Sampling(temperature=1.0)
    processor = SamplingProcessor(sampling, num_prompt=1, vocab_size=VOCAB)
    cache = random_model(5, VOCAB).open()
    if len(tokens) > 1 and max(tokens) < VOCAB:
        cache.model.score([Ask(cache=cache, tokens=tokens[:-1])])
    return Context(tokens=tokens, num_prompt=1, processor=processor, cache=cache)


def texts(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(VOCAB, size=rng.integers(1, 14)).tolist() for _ in range(count)]


class Rounded(list):
    """Numbers that equal others within `near`."""

    def __init__(self, numbers: np.ndarray, near: float) -> None:
        super().__init__(numbers.tolist())
        self.near = near

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and len(self) == len(other) and bool(np.all(np.abs(np.subtract(self, other)) <= self.near))

    __hash__ = None  # type: ignore[assignment]


def proposed(drafter, states, contexts, budgets, draws):
    """Tokens and rows of each draft; rows of heads, which compute in single precision, but for their last digits."""
    made = drafter.propose(states, contexts, budgets, draws)
    near = 1e-5 if {"eagle", "medusa"} & set(drafter.name.split("+")) else 0.0
    return [(draft.tokens, [Rounded(row.to_array(), near) for row in draft.rows]) for draft in made]


class Recorded:
    """Draws that remember each row they were asked for, and where."""

    def __init__(self, seed: int) -> None:
        self._inner = StreamDraws(seed)
        self.asked: list[tuple[Row, int, int]] = []

    def draw(self, row: Row, position: int) -> int:
        token = self._inner.draw(row, position)
        self.asked.append((row, position, token))
        return token


@every_drafter
def test_rows_kept_are_the_rows_drawn_from(make) -> None:
    """Each drafted token was drawn from the very row that comes with it, at its own position; a row not drawn from is a point.

    No draw is thrown away: a draft that drops a token it has drawn has peeked."""
    for seed, tokens in enumerate(texts(40)):
        drafter, draws = make(), Recorded(seed)
        (state,) = drafter.open([context(tokens)])
        (draft,) = drafter.propose([state], [context(tokens)], [5], [draws])
        if draws.asked:
            assert [row for row, _, _ in draws.asked] == list(draft.rows)
            assert [token for _, _, token in draws.asked] == list(draft.tokens)
            assert [position for _, position, _ in draws.asked] == [len(tokens) + place for place in range(len(draft))]
        else:
            for token, row in zip(draft.tokens, draft.rows, strict=True):
                assert row.to_array().tolist() == np.eye(VOCAB)[token].tolist()


@every_drafter
@pytest.mark.parametrize("budget", [0, 1, 2, 7])
def test_budgets_are_kept(make, budget) -> None:
    """Never more than asked, in a batch with other budgets too; nothing for a budget of 0."""
    many = [context(tokens) for tokens in texts(20, seed=budget)]
    drafter = make()
    budgets = [budget if place % 2 else 3 for place in range(20)]
    drafts = drafter.propose(drafter.open(many), many, budgets, [StreamDraws(place) for place in range(20)])
    assert len(drafts) == 20
    assert all(len(draft) <= allowed for draft, allowed in zip(drafts, budgets, strict=True))


@every_drafter
def test_a_batch_equals_its_parts(make) -> None:
    """Proposals for many sequences are those for each alone."""
    many = [context(tokens) for tokens in texts(15, seed=3)]
    budgets = [place % 6 for place in range(15)]
    drafter = make()
    together = proposed(drafter, drafter.open(many), many, budgets, [StreamDraws(place) for place in range(15)])
    for place, one in enumerate(many):
        drafter = make()
        assert proposed(drafter, drafter.open([one]), [one], [budgets[place]], [StreamDraws(place)]) == [together[place]]


@every_drafter
@pytest.mark.parametrize("budget", [1, 2, 5])
def test_after_any_number_kept_it_is_as_if_fresh(make, budget) -> None:
    """Propose, keep k tokens and another one, commit, propose: what a drafter opened on the same text proposes. Every k.

    Rounds without a proposal (budget 0), and commits of several tokens, change nothing either."""
    for tokens in texts(12, seed=budget):
        for kept in range(budget + 1):
            drafter, text = make(), list(tokens)
            (state,) = drafter.open([context(text)])
            for turn in range(4):
                asked = 0 if turn == 2 else budget
                (draft,) = drafter.propose([state], [context(text)], [asked], [KeyedDraws(turn)])
                text += [*draft.tokens[:kept], (turn + kept) % VOCAB]
                drafter.commit(state, text, None)
            again = make()
            want = proposed(again, again.open([context(text)]), [context(text)], [budget], [KeyedDraws(9)])
            assert proposed(drafter, [state], [context(text)], [budget], [KeyedDraws(9)]) == want


@every_drafter
def test_a_round_that_was_given_up_is_forgotten(make) -> None:
    """A commit of the old text after a proposal (the target's pass failed) takes the proposal back."""
    for tokens in texts(12, seed=8):
        drafter = make()
        (state,) = drafter.open([context(tokens)])
        first = proposed(drafter, [state], [context(tokens)], [4], [KeyedDraws(1)])
        drafter.commit(state, tokens, None)
        assert proposed(drafter, [state], [context(tokens)], [4], [KeyedDraws(1)]) == first


@every_drafter
def test_requests_leave_nothing_behind(make) -> None:
    """One drafter object serves many sequences, one after the other and at once: each as with a new object."""
    used = make()
    for tokens in texts(12, seed=4):
        one, fresh = context(tokens), make()
        got = proposed(used, used.open([one]), [one], [4], [KeyedDraws(2)])
        assert got == proposed(fresh, fresh.open([one]), [one], [4], [KeyedDraws(2)])


@every_drafter
@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_loop_with_it_keeps_the_law(make, rule) -> None:
    """Enumerated: the drafter inside the loop, sequences of length 3 after a prompt with a repeat in it."""
    model = random_model(5, VOCAB)
    options = {"prompt": (0, 1, 0), "rule": rule, "vocab": VOCAB, "gamma": 2, "max_tokens": 3, "end_ids": (3,)}
    law = loop_law(Decoder(model, make()), request(**options), lambda choices, before: Script(choices))
    assert distance(law, plain_law(model, request(**options))) <= TOLERANCE


@every_drafter
def test_it_drafts_at_all(make) -> None:
    """In a long text every drafter but `none` proposes tokens, and its name says who it is."""
    drafter = make()
    (one,) = finished(Decoder(random_model(5, VOCAB), drafter), request((0, 1), vocab=VOCAB, max_tokens=60))
    assert (one.stats.num_drafted > 0) == (drafter.name != "none")
    assert set(drafter.name.split("+")) <= {"none", "ngram", "model", "suffix", "skip", "cross", "eagle", "medusa"}


class _Around:
    """A model drafter with one method to be replaced."""

    name = "model"

    def __init__(self) -> None:
        self._inner = ModelDrafter(random_model(1, VOCAB, order=2))
        self.open, self.commit = self._inner.open, self._inner.commit

    def propose(self, *asked):
        return self._inner.propose(*asked)


class Peeking(_Around):
    """Drops the last token it has drawn if that token is 1."""

    def propose(self, *asked):
        drafts = self._inner.propose(*asked)
        return [
            Draft(tokens=draft.tokens[:-1], rows=draft.rows[:-1]) if draft.tokens and draft.tokens[-1] == 1 else draft
            for draft in drafts
        ]


class Clinging(_Around):
    """Never takes rejected tokens out of its cache."""

    def __init__(self) -> None:
        super().__init__()
        self.commit = lambda state, tokens, features: None

    def propose(self, states, contexts, budgets, draws):
        for state, one in zip(states, contexts, strict=True):
            state.held = list(one.tokens[: len(state.held)])  # believes its cache to hold the text
        return super().propose(states, contexts, budgets, draws)


def test_twins_that_the_contract_catches() -> None:
    """A drafter that peeks, and one that forgets to roll back, each fail the test meant for them."""
    test_rows_kept_are_the_rows_drawn_from(_Around)
    test_after_any_number_kept_it_is_as_if_fresh(_Around, 2)
    with pytest.raises(AssertionError):
        test_rows_kept_are_the_rows_drawn_from(Peeking)
    with pytest.raises((AssertionError, ValueError)):
        test_after_any_number_kept_it_is_as_if_fresh(Clinging, 2)
