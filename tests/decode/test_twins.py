"""Faults built into the loop's parts, caught by summing the loop: drafters, processors and caches that are wrong on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter
from headstart.models.table import TableCache, TableModel
from headstart.probs import SamplingProcessor
from headstart.records import Draft, Sampling
from headstart.rows import Row
from tests.decode.loops import AS_IS, loop_law, plain_law, random_model, request
from tests.exact import TOLERANCE, Script, distance

MODEL, DRAFT_MODEL = random_model(1), random_model(51)
ratio_rules = pytest.mark.parametrize("rule", ["token", "block"])


class Honest:
    """A drafter around another; twins change what it hands over."""

    name = "honest"

    def __init__(self) -> None:
        self._inner = ModelDrafter(DRAFT_MODEL)

    def open(self, contexts):
        return self._inner.open(contexts)

    def propose(self, states, contexts, budgets, draws):
        made = self._inner.propose(states, contexts, budgets, draws)
        return [self.altered(draft, context) for draft, context in zip(made, contexts, strict=True)]

    def altered(self, draft, context):
        return draft

    def commit(self, state, tokens, features):
        self._inner.commit(state, tokens, features)


class FlattenedRows(Honest):
    """Claims rows that were not sampled from: those of another temperature."""

    def altered(self, draft, context):
        flat = [np.sqrt(row.to_array()) for row in draft.rows]
        return Draft(tokens=draft.tokens, rows=tuple(Row.dense(row / row.sum()) for row in flat))


class Peeking(Honest):
    """Ends the draft before a token because of that token."""

    def altered(self, draft, context):
        stop = draft.tokens.index(1) if 1 in draft.tokens else len(draft)
        return Draft(tokens=draft.tokens[:stop], rows=draft.rows[:stop])


def off(rule: str, drafter=None, model=MODEL, **options) -> float:
    start = request(rule=rule, **options)
    law = loop_law(Decoder(model, drafter or Honest()), start, lambda choices, before: Script(choices))
    return distance(law, plain_law(model, request(rule=rule, sampling=options.get("sampling", AS_IS))))


@ratio_rules
def test_rows_that_were_not_sampled_from(rule) -> None:
    """The honest drafter keeps the law; the same tokens with other rows lose it."""
    assert off(rule) <= TOLERANCE
    assert off(rule, FlattenedRows()) > 0.02


@ratio_rules
def test_a_drafter_that_peeks(rule) -> None:
    """Dropping a drawn token because of what it is loses the law under token and block, not under match."""
    assert off(rule, Peeking()) > 0.01
    assert off("match", Peeking()) <= TOLERANCE


class Forgetful(SamplingProcessor):
    """Processes every row of a round with the history before the round."""

    def row(self, history, logits, ids=None, *, best=None):
        return super().row(history[: self.known], logits)


class RawInside(SamplingProcessor):
    """Leaves rows inside the block unprocessed; only the first row of a round is right."""

    def row(self, history, logits, ids=None, *, best=None):
        if len(history) == self.known:
            return super().row(history, logits)
        return SamplingProcessor(AS_IS, num_prompt=self.num_prompt, vocab_size=self.vocab_size).row(history, logits)


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize("twin", [Forgetful, RawInside])
def test_penalties_that_do_not_see_the_block(rule, twin) -> None:
    """With a repetition penalty, rows made from the history before the round, or from none, lose the law."""
    sampling = Sampling(temperature=1.0, repetition_penalty=2.5, presence_penalty=1.0)

    class Telling(Honest):
        def propose(self, states, contexts, budgets, draws):
            for context in contexts:
                context.processor.known = len(context.tokens)
            return super().propose(states, contexts, budgets, draws)

    broken = twin(sampling, num_prompt=1, vocab_size=3)
    assert off(rule, Telling(), processor=broken, sampling=sampling) > 0.01
    assert off(rule, sampling=sampling) <= TOLERANCE


class Clinging(TableModel):
    """Its caches forget one token less than they are told to."""

    def open(self):
        return ClingingCache(self)


class ClingingCache(TableCache):
    def rewind(self, length: int) -> None:
        super().rewind(min(length + 1, self.length))

    def fork(self):
        other = ClingingCache(self.model)
        other.tokens, other.tail = self.tokens, self.tail
        return other


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_cache_that_rolls_back_too_little(rule) -> None:
    """One rejected token left in the target's cache is seen in the law."""
    table = np.exp(random_model(2, order=2)._logits)
    assert off(rule, model=TableModel(table)) <= TOLERANCE
    start = request(rule=rule)
    law = loop_law(Decoder(Clinging(table), Honest()), start, lambda choices, before: Script(choices))
    assert distance(law, plain_law(TableModel(table), request(rule=rule))) > 0.02
