"""Combined drafters: who is asked, who wins, and that everybody is kept up to date."""

from __future__ import annotations

import pytest

from headstart.decode import Decoder
from headstart.drafters import CombinedDrafter, ModelDrafter, NGramDrafter, NoDrafter
from headstart.draws import StreamDraws
from headstart.errors import OptionError
from headstart.records import Draft
from tests.decode.loops import finished, random_model, request
from tests.drafters.test_contract import context

VOCAB = 4


class Told:
    """Proposes a given draft for texts of the given lengths; remembers whom it was asked about and what was committed."""

    def __init__(self, name: str, token: int, lengths: set[int]) -> None:
        self.name, self._token, self._lengths = name, token, lengths
        self.asked: list[list[tuple[list[int], int]]] = []
        self.committed: list[list[int]] = []

    def open(self, contexts):
        return [None for _ in contexts]

    def propose(self, states, contexts, budgets, draws):
        self.asked.append([(list(one.tokens), budget) for one, budget in zip(contexts, budgets, strict=True)])
        return [
            Draft.points([self._token] * budget, VOCAB) if len(one.tokens) in self._lengths else Draft()
            for one, budget in zip(contexts, budgets, strict=True)
        ]

    def commit(self, state, tokens, features):
        self.committed.append(list(tokens))


def test_the_first_that_proposes_wins_for_each_sequence() -> None:
    """Texts of 1, 2, 3 tokens: the first drafter knows 1, the second 1 and 2; each is asked only about what is left."""
    first, second, third = Told("a", 1, {1}), Told("b", 2, {1, 2}), Told("c", 3, {9})
    drafter = CombinedDrafter(first, second, third)
    many = [context([0]), context([0, 0]), context([0, 0, 0]), context([0])]
    drafts = drafter.propose(drafter.open(many), many, [2, 3, 1, 0], [StreamDraws(0)] * 4)
    assert [draft.tokens for draft in drafts] == [(1, 1), (2, 2, 2), (), ()]
    assert first.asked == [[([0], 2), ([0, 0], 3), ([0, 0, 0], 1)]]
    assert second.asked == [[([0, 0], 3), ([0, 0, 0], 1)]]
    assert third.asked == [[([0, 0, 0], 1)]]


def test_nobody_is_asked_once_everybody_has_a_draft() -> None:
    """The drafters behind a winner do not run."""
    first, second = Told("a", 1, {1}), Told("b", 2, {1})
    drafter = CombinedDrafter(first, second)
    drafter.propose(drafter.open([context([0])]), [context([0])], [2], [StreamDraws(0)])
    assert second.asked == []


class Short(Told):
    """Proposes at most so many tokens."""

    def __init__(self, name: str, token: int, most: int) -> None:
        super().__init__(name, token, {1})
        self._most = most

    def propose(self, states, contexts, budgets, draws):
        return super().propose(states, contexts, [min(budget, self._most) for budget in budgets], draws)


@pytest.mark.parametrize(
    ("first", "second", "least", "budget", "want"),
    [
        (2, 9, 3, 5, [2] * 5),  # too little: the second has more
        (3, 9, 3, 5, [1] * 3),  # enough
        (2, 9, 3, 2, [1] * 2),  # all there is room for
        (2, 0, 3, 5, [1] * 2),  # too little, but nobody has more
        (2, 2, 3, 5, [2] * 2),  # of equals the one behind
        (2, 1, 3, 5, [1] * 2),  # too little, but nobody has more
        (1, 9, 1, 5, [1]),
        (0, 2, 1, 5, [2] * 2),
    ],
)
def test_little_is_not_enough(first: int, second: int, least: int, budget: int, want: list[int]) -> None:
    """A short draft stands only where nobody behind it has a longer one."""
    drafter = CombinedDrafter(Short("a", 1, first), Short("b", 2, second), least=least)
    (draft,) = drafter.propose(drafter.open([context([0])]), [context([0])], [budget], [StreamDraws(0)])
    assert list(draft.tokens) == want


class Lookup(Short):
    """Finds so many tokens, whatever it is asked for."""

    looks_up = True


@pytest.mark.parametrize(
    ("found", "limits", "want"),
    [
        (9, (1, 1), (0, [1])),  # enough was found, one token may be drafted
        (2, (1, 1), (1, [2])),  # one could be, but only two were found
        (3, (2, 1), (0, [1] * 2)),
        (2, (2, 2), (1, [2] * 2)),
        (2, (9, 0), (0, [1] * 2)),  # nobody else may
        (9, (0, 2), (1, [2] * 2)),
        (9, (0, 0), (0, [])),
    ],
)
def test_a_lookup_must_find_enough_whatever_there_is_room_for(found: int, limits: tuple[int, int], want) -> None:
    """Each drafter keeps to a limit of its own, and says whose the draft is."""
    first, second = Lookup("a", 1, found), Told("b", 2, {1})
    drafter = CombinedDrafter(first, second)
    ((part, draft),) = drafter.propose_parts(drafter.open([context([0])]), [context([0])], [limits], [StreamDraws(0)])
    assert (part, list(draft.tokens)) == want
    assert bool(first.asked) == (limits[0] > 0)
    assert bool(second.asked) == (limits[1] > 0 and want[0] == 1)


def test_drafters_are_opened_when_they_may_draft() -> None:
    """One after the other, each once, on the text as it is then; what is not open is told nothing."""

    class Opening(Told):
        def open(self, contexts):
            self.opened = [*getattr(self, "opened", []), *(list(one.tokens) for one in contexts)]
            return super().open(contexts)

    first, second = Opening("a", 1, {1}), Opening("b", 2, {1})
    drafter = CombinedDrafter(first, second)
    state = drafter.open_parts(None, context([0]), (3, 0))
    drafter.commit(state, [0, 1], None)
    for _ in range(2):
        state = drafter.open_parts(state, context([0, 1]), (3, 2))
    drafter.commit(state, [0, 1, 2], None)
    assert (first.opened, second.opened) == ([[0]], [[0, 1]])
    assert (first.committed, second.committed) == ([[0, 1], [0, 1, 2]], [[0, 1, 2]])


def test_what_was_drawn_stands_whatever_its_length() -> None:
    """How long a drawn draft is may depend on what was drawn: dropping short ones would favour some tokens."""
    drawn = ModelDrafter(random_model(1, VOCAB))
    one, long = [context([0])], Told("b", 2, {1})
    for drafters, budget in (((Shortened(drawn), long), 5), ((Short("a", 1, 2), Shortened(drawn)), 5)):
        drafter = CombinedDrafter(*drafters)
        (draft,) = drafter.propose(drafter.open(one), one, [budget], [StreamDraws(0)])
        assert (len(draft), draft.rows[0].probs.size) == (1, VOCAB)


class Shortened:
    """Another drafter, one token at a time."""

    name = "shortened"

    def __init__(self, drafter) -> None:
        self._drafter = drafter
        self.open, self.commit = drafter.open, drafter.commit

    def propose(self, states, contexts, budgets, draws):
        return self._drafter.propose(states, contexts, [min(1, budget) for budget in budgets], draws)


def test_everybody_sees_every_commit() -> None:
    """Also those who did not propose."""
    first, second = Told("a", 1, {1, 2, 3, 4}), Told("b", 2, set())
    finished(Decoder(random_model(1, VOCAB), CombinedDrafter(first, second)), request((0,), vocab=VOCAB, max_tokens=6))
    assert first.committed == second.committed
    assert len(first.committed[-1]) == 7


def test_a_model_behind_a_lookup_catches_up() -> None:
    """What is drafted when it is the model's turn is what the model alone drafts there."""
    model = random_model(2, VOCAB, order=2)
    one = request((0, 1), vocab=VOCAB, gamma=3, max_tokens=80, seed=3)
    decoder = Decoder(random_model(1, VOCAB), CombinedDrafter(NGramDrafter(VOCAB, min_match=3), ModelDrafter(model)))
    decoder.begin([one])
    turns = 0
    while not one.done:
        lookup, own = one.draft_state
        was_behind = len(own.held) < len(one.tokens) - 2
        decoder.round([one])
        assert list(own.cache.tokens) == own.held == one.tokens[: len(own.held)]
        assert lookup.tokens == one.tokens
        turns += was_behind and len(own.held) >= len(one.tokens) - 2
    assert turns > 3


def test_its_name_says_who_it_is() -> None:
    """`A+B`, as it is asked for."""
    assert CombinedDrafter(NGramDrafter(VOCAB), ModelDrafter(random_model(1), name="model:x")).name == "ngram+model:x"


@pytest.mark.parametrize("drafters", [(), (NoDrafter(),)])
def test_one_alone_is_refused(drafters) -> None:
    """There is nothing to combine."""
    with pytest.raises(OptionError, match="`drafters` must be two or more"):
        CombinedDrafter(*drafters)
