"""Layer-skip: it drafts from the part it was given, on the target's cache, and leaves that cache as it was."""

from __future__ import annotations

import contextlib

import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, SkipDrafter
from headstart.draws import KeyedDraws, StreamDraws
from headstart.errors import ModelError
from headstart.interfaces import Ask, Context
from headstart.models.table import TableModel
from tests.decode.loops import finished, random_model, request
from tests.drafters.parts import Early
from tests.drafters.test_contract import context

VOCAB = 4


def test_it_drafts_what_a_model_with_a_cache_of_its_own_drafts() -> None:
    """The same rows, the same tokens: only the cache is shared."""
    table = random_model(2, VOCAB, order=2)
    own, skip = ModelDrafter(table), SkipDrafter(Early(table))
    for seed, tokens in enumerate([[0], [1, 2], [3, 0, 1, 1, 2]]):
        one = context(tokens)
        (want,) = own.propose(own.open([one]), [one], [4], [KeyedDraws(seed)])
        (draft,) = skip.propose(skip.open([one]), [one], [4], [KeyedDraws(seed)])
        assert draft.tokens == want.tokens
        assert [row.to_array().tolist() for row in draft.rows] == [row.to_array().tolist() for row in want.rows]


def test_the_cache_is_left_as_it_was() -> None:
    """After drafting, and after a pass that failed in the middle of a draft."""
    one = context([0, 1, 2])
    drafter = SkipDrafter(Early(random_model(2, VOCAB)))
    drafter.propose(drafter.open([one]), [one], [5], [StreamDraws(0)])
    assert one.cache.tokens == (0, 1)

    class Failing(Early):
        def score(self, asks):
            if asks[0].cache.length == 4:
                raise RuntimeError("out of memory")
            return super().score(asks)

    failing = SkipDrafter(Failing(random_model(2, VOCAB)))
    with pytest.raises(RuntimeError):
        failing.propose(failing.open([one]), [one], [5], [StreamDraws(0)])
    assert one.cache.tokens == (0, 1)


def test_its_passes_are_shared() -> None:
    """Three sequences with budgets 1, 3, 2: three passes, of three, two and one sequence, one token each."""
    passes = []

    class Counted(Early):
        def score(self, asks):
            passes.append([len(ask.tokens) for ask in asks])
            return super().score(asks)

    drafter, many = SkipDrafter(Counted(random_model(1, VOCAB))), [context([0, 1, 2]), context([3]), context([1, 1])]
    drafter.propose(drafter.open(many), many, [1, 3, 2], [StreamDraws(0)] * 3)
    assert passes == [[1, 1, 1], [1, 1], [1]]


def test_a_context_without_a_cache_is_refused() -> None:
    """It could only guess what the text so far is to the target."""
    bare = Context(tokens=[0], num_prompt=1, processor=context([0]).processor)
    drafter = SkipDrafter(Early(random_model(1, VOCAB)))
    with pytest.raises(ModelError, match=r"set Context\.cache"):
        drafter.propose([None], [bare], [1], [StreamDraws(0)])


class Forgetful:
    """Layer-skip that never rewinds the target's cache."""

    name = "skip"

    def __init__(self, part: TableModel) -> None:
        self._inner = SkipDrafter(part)
        self.open, self.commit = self._inner.open, self._inner.commit

    def propose(self, states, contexts, budgets, draws):
        drafts = self._inner.propose(states, contexts, budgets, draws)
        for one, draft in zip(contexts, drafts, strict=True):
            if len(draft):
                one.cache.model.score([Ask(cache=one.cache, tokens=[one.tokens[-1], *draft.tokens[:-1]])])
        return drafts


def test_twin_that_does_not_rewind_is_caught() -> None:
    """The target then scores after the wrong text: greedy output changes, or the caches no longer fit."""
    target, guess = random_model(5, VOCAB, order=2), Early(random_model(1, VOCAB))

    def output(drafter, gamma: int) -> list[int]:
        one = request((0, 1), vocab=VOCAB, max_tokens=40, seed=1, rule="coupled", gamma=gamma)
        return finished(Decoder(target, drafter), one)[0].output

    plain = output(SkipDrafter(guess), 0)
    assert output(SkipDrafter(guess), 3) == plain
    with contextlib.suppress(ValueError):
        assert output(Forgetful(guess), 3) != plain
