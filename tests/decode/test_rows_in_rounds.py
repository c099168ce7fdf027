"""Processing inside a block, token by token: penalties, bans, truncation, and the log-probabilities that are reported."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.models.table import TableModel
from headstart.records import Sampling
from headstart.verify import RULES
from tests.decode.loops import finished, random_model, request
from tests.slow import slow_logprobs, slow_row

rules = pytest.mark.parametrize("rule", RULES)
MODEL = random_model(1, vocab=5)


@rules
def test_a_penalty_inside_the_block(rule) -> None:
    """Greedy with repetition penalty 1.3 and a draft that only repeats: the tokens of plain decoding, undrafted."""
    logits = np.array([2.0, 1.9, 1.7, 1.5, 1.2])
    model = TableModel.from_logits(logits)
    sampling = Sampling(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.05)
    outputs = []
    for drafter in (NoDrafter(), ModelDrafter(TableModel([1.0, 0, 0, 0, 0])), ModelDrafter(model), NGramDrafter(5, min_match=1)):
        one = request((4,), rule=rule, vocab=5, sampling=sampling, gamma=5, max_tokens=40)
        outputs.append(finished(Decoder(model, drafter), one)[0].output)
    assert all(output == outputs[0] for output in outputs)
    assert outputs[0][:4] == [0, 1, 2, 3], "each token is penalised once it is out"
    history = [4]
    for token in outputs[0]:
        assert slow_row(logits, sampling, history, 1)[token] == 1.0
        history.append(token)


@rules
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, logit_bias={0: -100.0}),
        Sampling(temperature=1.0, ban=(0,)),
        Sampling(temperature=1.0, min_p=0.2),
    ],
    ids=["bias -100", "ban", "min-p"],
)
def test_a_token_the_draft_loves(rule, sampling) -> None:
    """The draft would nearly always say 0; bias −100, a ban, or min-p (where 0 is unlikely) keep it out of 400 tokens."""
    model = TableModel([0.05, 0.35, 0.25, 0.2, 0.15])
    for drafter in (ModelDrafter(TableModel([0.96, 0.01, 0.01, 0.01, 0.01])), NGramDrafter(5, min_match=1)):
        one = request((0, 0, 0), rule=rule, vocab=5, sampling=sampling, gamma=4, max_tokens=400)
        finished(Decoder(model, drafter), one)
        assert 0 not in one.output
        if isinstance(drafter, ModelDrafter) and not sampling.min_p:
            assert all(0 not in each.draft for each in one.rounds), "the drafter's rows are processed too"


@rules
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_logprobs_are_the_targets_own(rule, drafter) -> None:
    """At every emitted token: log-softmax after bias, bans and penalties, before temperature and truncation."""
    sampling = Sampling(temperature=0.7, top_k=3, logit_bias={1: 0.5}, ban=(4,), repetition_penalty=1.2, presence_penalty=0.3)
    made = {"none": NoDrafter(), "ngram": NGramDrafter(5, min_match=1), "model": ModelDrafter(random_model(2, vocab=5))}[drafter]
    one = request((0, 1), rule=rule, vocab=5, sampling=sampling, max_tokens=40, num_logprobs=2, end_ids=(3,), seed=4)
    finished(Decoder(MODEL, made), one)
    assert len(one.logprobs) == len(one.output)
    history = [0, 1]
    for token, reported in zip(one.output, one.logprobs, strict=True):
        wanted = slow_logprobs(MODEL._logits[history[-1]], sampling, history, 2, (3,))
        assert reported.token == token
        assert reported.logprob == pytest.approx(wanted[token], abs=1e-12)
        best = sorted(range(5), key=lambda each: (-wanted[each], each))[:2]
        assert [each for each, _ in reported.top] == best
        assert [logprob for _, logprob in reported.top] == pytest.approx([wanted[each] for each in best], abs=1e-12)
        history.append(token)


def test_logprobs_with_and_without_speculation() -> None:
    """Under `coupled` the reported values are the same numbers, bit for bit, with and without a draft."""
    for seed in range(30):
        both = [
            finished(Decoder(MODEL, drafter), request((0,), rule="coupled", seed=seed, vocab=5, max_tokens=20, num_logprobs=3))[0]
            for drafter in (NoDrafter(), ModelDrafter(random_model(2, vocab=5)))
        ]
        assert both[0].logprobs == both[1].logprobs


def test_how_many_alternatives() -> None:
    """0 reports the token alone; more than the vocabulary reports what there is; impossible tokens are not alternatives."""
    for asked, given in ((0, 0), (1, 1), (5, 4), (9, 4)):
        sampling = Sampling(temperature=1.0, ban=(2,))
        (one,) = finished(Decoder(MODEL, NoDrafter()), request(vocab=5, sampling=sampling, num_logprobs=asked))
        for each in one.logprobs:
            assert len(each.top) == given
            assert all(math.isfinite(logprob) for _, logprob in each.top)
    (one,) = finished(Decoder(MODEL, NoDrafter()), request(vocab=5))
    assert one.logprobs == []
