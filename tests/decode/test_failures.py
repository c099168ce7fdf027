"""Rounds that break in the middle, and runs that are left: caches end at a committed length and the law is unharmed."""

from __future__ import annotations

import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.errors import ModelError
from headstart.records import Draft
from headstart.verify import RULES
from tests.decode.loops import finished, plain_law, random_model, request
from tests.exact import TOLERANCE, Script, distance, every

TARGET, DRAFT = random_model(1, order=2), random_model(2)
rules = pytest.mark.parametrize("rule", RULES)


class Failing:
    """A model whose calls of the given numbers (from 0) raise: before the pass, after it, or after half of its tokens."""

    def __init__(self, model, calls, when: str, error: BaseException) -> None:
        self._model, self._calls, self._when, self._error = model, set(calls), when, error
        self.vocab_size, self.context_limit, self.open = model.vocab_size, model.context_limit, model.open
        self.num_calls = 0

    def score(self, asks):
        fails = self.num_calls in self._calls
        self.num_calls += 1
        if fails and self._when == "before":
            raise self._error
        if fails and self._when == "half":
            for ask in asks:
                self._model.score([type(ask)(cache=ask.cache, tokens=ask.tokens[: (len(ask.tokens) + 1) // 2])])
            raise self._error
        scores = self._model.score(asks)
        if fails:
            raise self._error
        return scores


ERRORS = [RuntimeError("out of memory"), KeyboardInterrupt()]


def persist(decoder: Decoder, one) -> int:
    """Rounds until done, going on after every failure; returns the number of failures."""
    failures = 0
    while not one.done:
        try:
            decoder.round([one])
        except (RuntimeError, KeyboardInterrupt):
            failures += 1
        assert list(one.cache.tokens) == one.tokens[:-1], "a committed length, after failures too"
        assert one.stats.completion_tokens == len(one.output)
        if isinstance(decoder.drafter, ModelDrafter):
            held = one.draft_state.held
            assert list(one.draft_state.cache.tokens) == held == one.tokens[: len(held)]
    return failures


@rules
@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("error", ERRORS, ids=["RuntimeError", "KeyboardInterrupt"])
@pytest.mark.parametrize("where", ["target", "draft"])
def test_a_failed_pass_is_taken_back(rule, when, error, where) -> None:
    """A pass of target or drafter that raises moves nothing; the round can be run again and the sequence ends as it should."""
    calls = [2, 5, 6, 11]
    target = Failing(TARGET, calls, when, error) if where == "target" else TARGET
    draft = Failing(DRAFT, calls, when, error) if where == "draft" else DRAFT
    decoder = Decoder(target, ModelDrafter(draft))
    one = request((0, 1), rule=rule, gamma=3, max_tokens=40, seed=5)
    decoder.begin([one])
    assert persist(decoder, one) >= 3
    assert len(one.output) == 40


@pytest.mark.parametrize("where", ["target", "draft"])
def test_failures_do_not_change_a_coupled_text(where) -> None:
    """100 seeds under `coupled`: interrupted and resumed, the text is the one plain decoding gives."""
    for seed in range(100):
        failing = [
            Failing(model, {seed % 7, 4, 9}, ("before", "half", "after")[seed % 3], ERRORS[0]) for model in (TARGET, DRAFT)
        ]
        decoder = Decoder(*((failing[0], ModelDrafter(DRAFT)) if where == "target" else (TARGET, ModelDrafter(failing[1]))))
        one, plain = (request((0,), rule="coupled", seed=seed, max_tokens=15) for _ in range(2))
        decoder.begin([one])
        persist(decoder, one)
        finished(Decoder(TARGET, NoDrafter()), plain)
        assert one.output == plain.output


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_failures_do_not_change_the_law(rule) -> None:
    """Enumerated: a target's pass that fails after scoring, then goes on, leaves the law of the sequence exact."""

    def run(draws: Script):
        decoder = Decoder(Failing(TARGET, {1}, "after", ERRORS[0]), ModelDrafter(DRAFT))
        one = request((0,), rule=rule, draws=draws, gamma=2, max_tokens=3, end_ids=(2,))
        decoder.begin([one])
        persist(decoder, one)
        return tuple(one.output), one.finish_reason

    law: dict = {}
    for weight, outcome in every(run):
        law[outcome] = law.get(outcome, 0.0) + weight
    assert distance(law, plain_law(TARGET, request((0,), gamma=2, max_tokens=3, end_ids=(2,)))) <= TOLERANCE


def test_an_abandoned_run_frees_its_caches() -> None:
    """Closing the iterator mid-way lets go of caches and drafter state; what is out stays and is a prefix of the whole."""
    for made in (ModelDrafter(DRAFT), NGramDrafter(3, min_match=1)):
        decoder = Decoder(TARGET, made)
        left, whole = (request((0, 1), rule="coupled", seed=3, max_tokens=30) for _ in range(2))
        running = decoder.run([left])
        next(running)
        next(running)
        running.close()
        assert left.cache is None
        assert left.draft_state is None
        finished(decoder, whole)
        assert whole.output[: len(left.output)] == left.output
        assert 2 <= len(left.output) < 30


@pytest.mark.parametrize("prompt", [(0,), (0, 1)])
def test_an_interrupted_run_can_begin_again(prompt) -> None:
    """After an exception out of `run` the caches are gone; `begin` rebuilds them from what is out, and the text goes on."""
    failing = Failing(TARGET, {4}, "after", KeyboardInterrupt())
    decoder = Decoder(failing, ModelDrafter(DRAFT))
    one, plain = (request(prompt, rule="coupled", seed=2, max_tokens=20) for _ in range(2))
    with pytest.raises(KeyboardInterrupt):
        finished(decoder, one)
    assert one.cache is None
    assert one.output, "what was out stays"
    finished(decoder, one)
    finished(Decoder(TARGET, NoDrafter()), plain)
    assert one.output == plain.output


class Overlong:
    """A drafter that proposes one token more than it may, or over another vocabulary."""

    name = "overlong"

    def __init__(self, more: int, vocab: int) -> None:
        self._more, self._vocab = more, vocab

    def open(self, contexts):
        return [None] * len(contexts)

    def propose(self, states, contexts, budgets, draws):
        return [Draft.points([0] * (budget + self._more), self._vocab) for budget in budgets]

    def commit(self, state, tokens, features):
        pass


@pytest.mark.parametrize(("more", "vocab", "message"), [(1, 3, "proposed 4 tokens where 3 were allowed"), (0, 5, "rows over 5")])
def test_a_drafter_that_breaks_its_contract_is_named(more, vocab, message) -> None:
    """Nothing is scored or emitted, and the target's cache is where it was."""
    decoder, one = Decoder(TARGET, Overlong(more, vocab)), request((0, 1), gamma=3, max_tokens=9)
    decoder.begin([one])
    with pytest.raises(ModelError, match=f"drafter 'overlong' .*{message}"):
        decoder.round([one])
    assert one.cache.tokens == (0,)
    assert one.output == []


def test_a_failed_prefill_frees_too() -> None:
    """A prefill that raises leaves nothing behind, and the request can be run afterwards."""
    failing = Failing(TARGET, {0}, "after", RuntimeError("out of memory"))
    decoder = Decoder(failing, ModelDrafter(DRAFT))
    one = request((0, 1, 2), max_tokens=5)
    with pytest.raises(RuntimeError, match="out of memory"):
        finished(decoder, one)
    assert one.cache is None
    finished(decoder, one)
    assert len(one.output) == 5
