"""Caches after every round, drafts from their own rows, and an acceptance that does not fade with length."""

from __future__ import annotations

import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter
from headstart.verify import RULES
from tests.decode.loops import finished, random_model, request

rules = pytest.mark.parametrize("rule", RULES)


@rules
@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("pair", [(1, 2), (1, 1)], ids=["a pair", "draft = target"])
def test_caches_hold_a_prefix_after_every_round(rule, gamma, pair) -> None:
    """Target: prompt + output − 1 tokens. Drafter: a prefix of prompt + output, at most two behind, also when all is kept."""
    decoder = Decoder(random_model(pair[0], order=2), ModelDrafter(random_model(pair[1], order=2)))
    one = request((0, 1, 2), rule=rule, gamma=gamma, max_tokens=60, seed=gamma)
    decoder.begin([one])
    assert one.cache.tokens == (0, 1)
    while not one.done:
        decoder.round([one])
        assert list(one.cache.tokens) == one.tokens[:-1]
        held = one.draft_state.held
        assert list(one.draft_state.cache.tokens) == held == one.tokens[: len(held)]
        budget_was_spent = one.rounds[-1].num_drafted > 0
        assert not budget_was_spent or len(one.tokens) - len(held) <= 2


class Watched:
    """A drafter that checks each row it hands over against a fresh look at the model's table."""

    name = "watched"

    def __init__(self, model) -> None:
        self._model, self._inner = model, ModelDrafter(model)
        self.open, self.commit = self._inner.open, self._inner.commit
        self.num_checked = 0

    def propose(self, states, contexts, budgets, draws):
        made = self._inner.propose(states, contexts, budgets, draws)
        for draft, context in zip(made, contexts, strict=True):
            for place, row in enumerate(draft.rows):
                history = [*context.tokens, *draft.tokens[:place]]
                logits = self._model._logits[tuple(history[-2:])]
                assert row.to_array() == pytest.approx(context.processor.row(history, logits).to_array(), abs=0)
                self.num_checked += 1
        return made


@rules
def test_drafted_rows_are_those_of_the_true_context(rule) -> None:
    """After rejections and full acceptances alike, each kept row is the drafter's row after prefix + X_1 … X_{i−1}."""
    drafter = Watched(random_model(2, order=2))
    finished(Decoder(random_model(1, order=2), drafter), request((0, 1), rule=rule, max_tokens=150))
    assert drafter.num_checked > 100


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_a_target_drafting_for_itself_never_fades(rule) -> None:
    """2,000 tokens: every drafted token is kept, at token 10 and at token 2,000."""
    model = random_model(1, order=2)
    (one,) = finished(Decoder(model, ModelDrafter(model)), request((0,), rule=rule, gamma=4, max_tokens=2000))
    assert len(one.output) == 2000
    assert all(each.num_accepted == each.num_drafted for each in one.rounds)
    assert one.stats.acceptance_rate == 1.0
    assert one.stats.num_rounds == 400
    assert one.stats.mean_overlap == pytest.approx(1.0, abs=1e-12)


def test_a_second_request_starts_fresh() -> None:
    """One drafter object, request after request: outputs and rounds are those of a new drafter."""
    for kind in (lambda: ModelDrafter(random_model(2)), lambda: NGramDrafter(3, min_match=1)):
        used = Decoder(random_model(1), kind())
        for seed in range(10):
            again, fresh = request((0, 1), seed=seed, max_tokens=15), request((0, 1), seed=seed, max_tokens=15)
            finished(used, again)
            finished(Decoder(random_model(1), kind()), fresh)
            assert (again.output, again.rounds) == (fresh.output, fresh.rounds)
