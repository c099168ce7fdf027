"""The small model as drafter: its passes, its catching up, its context limit, and rows it cannot draw from."""

from __future__ import annotations

import numpy as np

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter
from headstart.draws import KeyedDraws, StreamDraws
from headstart.models.table import TableModel
from headstart.records import Sampling
from tests.decode.loops import random_model, request
from tests.drafters.test_contract import context

VOCAB = 4


class Counted:
    """A model that counts its passes and the tokens in each."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self.vocab_size, self.context_limit, self.open = model.vocab_size, model.context_limit, model.open
        self.passes: list[list[int]] = []

    def score(self, asks):
        self.passes.append([len(ask.tokens) for ask in asks])
        return self._model.score(asks)


def test_sequences_share_passes() -> None:
    """Three sequences with budgets 1, 3, 2: three passes, of three, two and one sequence; prefill is one."""
    model = Counted(random_model(1, VOCAB))
    drafter, many = ModelDrafter(model), [context([0, 1, 2]), context([3]), context([1, 1])]
    states = drafter.open(many)
    assert model.passes == [[2, 1]]
    drafter.propose(states, many, [1, 3, 2], [StreamDraws(0)] * 3)
    assert model.passes[1:] == [[1, 1, 1], [1, 1], [1]]


def test_full_acceptance_is_caught_up_in_one_pass() -> None:
    """The last drafted token was never fed: after full acceptance the next draft feeds it with the bonus token, two at once."""
    model = Counted(random_model(1, VOCAB))
    drafter = ModelDrafter(model)
    (state,) = drafter.open([context([0, 1])])
    text = [0, 1]
    for turn in range(5):
        (draft,) = drafter.propose([state], [context(text)], [3], [KeyedDraws(turn)])
        text += [*draft.tokens, 2]
        drafter.commit(state, text, None)
        assert len(text) - state.cache.length == 2
    assert model.passes[1:] == [[1], [1], [1], *[[2], [1], [1]] * 4]


def test_rejection_feeds_only_the_correction() -> None:
    """After a rejection the cache holds all but the correction."""
    model = Counted(random_model(1, VOCAB))
    drafter = ModelDrafter(model)
    (state,) = drafter.open([context([0, 1])])
    (draft,) = drafter.propose([state], [context([0, 1])], [4], [KeyedDraws(0)])
    text = [0, 1, draft.tokens[0], (draft.tokens[1] + 1) % VOCAB]
    drafter.commit(state, text, None)
    assert list(state.cache.tokens) == state.held == text[:-1]


def test_its_context_limit() -> None:
    """The last drafted token needs no room: a text of 6 in a context of 8 is drafted 3 tokens, one of 9 none."""
    model = random_model(1, VOCAB, context_limit=8)
    drafter = ModelDrafter(model)
    for length, room in ((6, 3), (7, 2), (8, 1), (9, 0), (20, 0)):
        one = context([0] * length)
        (draft,) = drafter.propose(drafter.open([one]), [one], [5], [StreamDraws(0)])
        assert len(draft) == room


def test_an_odd_row_ends_the_draft() -> None:
    """NaN after token 2: drafts end with it, and none raises; other sequences of the batch go on."""
    logits = np.where(np.roll(np.eye(VOCAB), 1, axis=1) == 1, 0.0, -np.inf)
    logits[2] = np.nan
    drafter = ModelDrafter(TableModel.from_logits(logits))
    many = [context([0]), context([3]), context([2])]
    drafts = drafter.propose(drafter.open(many), many, [6, 6, 6], [StreamDraws(0)] * 3)
    assert [draft.tokens for draft in drafts] == [(1, 2), (0, 1, 2), ()]


def test_its_rows_are_processed_like_the_targets() -> None:
    """Bans, truncation and penalties reach the drafter's rows, with the drafted tokens in the history."""
    flat = TableModel(np.full(VOCAB, 0.25))
    sampling = Sampling(temperature=0.0, ban=(0,), presence_penalty=1.0)
    one = context([0], sampling)
    drafter = ModelDrafter(flat)
    (draft,) = drafter.propose(drafter.open([one]), [one], [4], [StreamDraws(0)])
    assert draft.tokens == (1, 2, 3, 1), "each is penalised once drafted"
    assert all(row.probs.size == 1 for row in draft.rows)


def test_after_a_pause_it_catches_up() -> None:
    """Rounds with no budget leave the cache behind; the next proposal feeds what is missing, once."""
    model = Counted(random_model(1, VOCAB, order=2))
    drafter = ModelDrafter(model)
    one = request((0, 1), vocab=VOCAB, gamma=0, max_tokens=20)
    decoder = Decoder(random_model(2, VOCAB), drafter)
    decoder.begin([one])
    for _ in range(5):
        decoder.round([one])
    assert one.draft_state.cache.length == 1
    one.gamma = 3
    decoder.round([one])
    assert model.passes[1] == [6]
    assert one.draft_state.held == one.tokens[: len(one.draft_state.held)]
