"""Many sequences in one round: each as it is alone, whoever else is there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.records import Sampling
from headstart.verify import RULES
from tests.decode.loops import finished, random_model, request

MODEL = random_model(1, vocab=4, order=2)
SAMPLINGS = [Sampling(temperature=1.0), Sampling(temperature=0.0), Sampling(temperature=1.4, top_k=3, presence_penalty=0.5)]


def drafter(name: str):
    return {"none": NoDrafter(), "ngram": NGramDrafter(4, min_match=1), "model": ModelDrafter(random_model(2, vocab=4))}[name]


def one_of_many(seed: int):
    """Requests that differ in everything a request can differ in."""
    return request(
        tuple((seed + place) % 4 for place in range(1 + seed % 7)),
        rule=list(RULES)[seed % 4],
        seed=seed,
        sampling=SAMPLINGS[seed % 3],
        vocab=4,
        gamma=1 + seed % 5,
        max_tokens=3 + seed * 7 % 40,
        end_ids=(3,) if seed % 2 else (),
        num_logprobs=2 if seed % 5 == 0 else None,
    )


def summary(one):
    return one.output, one.finish_reason, one.rounds, one.logprobs


def alone(name: str, seed: int):
    return summary(*finished(Decoder(MODEL, drafter(name)), one_of_many(seed)))


@pytest.mark.parametrize("name", ["none", "ngram", "model"])
def test_a_batch_equals_its_parts(name) -> None:
    """Twenty-four unlike requests run together: tokens, reasons, rounds and logprobs are those of each alone."""
    for seed, one in enumerate(finished(Decoder(MODEL, drafter(name)), *map(one_of_many, range(24)))):
        assert summary(one) == alone(name, seed)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["ngram", "model"]), joins=st.lists(st.integers(0, 6), min_size=2, max_size=8), first=st.integers(0, 50)
)
def test_requests_join_while_others_leave(name, joins, first) -> None:
    """Each joins after its own number of rounds; some leave before others come."""
    decoder, live = Decoder(MODEL, drafter(name)), []
    everyone = [one_of_many(first + place) for place in range(len(joins))]
    tick = 0
    while tick <= max(joins) or live:
        coming = [one for one, when in zip(everyone, joins, strict=True) if when == tick]
        if coming:
            decoder.begin(coming)
        live = [one for one in [*live, *coming] if not one.done]
        decoder.round(live)
        tick += 1
    for place, one in enumerate(everyone):
        assert summary(one) == alone(name, first + place)


def test_one_long_and_four_short() -> None:
    """The long one neither waits for nor is disturbed by the short ones; done requests cost no further pass."""
    calls = []

    class Counting:
        vocab_size, context_limit = MODEL.vocab_size, MODEL.context_limit
        open = staticmethod(MODEL.open)

        def score(self, asks):
            calls.append(len(asks))
            return MODEL.score(asks)

    long = request((0, 1), vocab=4, max_tokens=60, seed=1)
    short = [request((2, seed % 4), vocab=4, max_tokens=4, seed=seed) for seed in range(4)]
    decoder = Decoder(Counting(), drafter("ngram"))
    finished(decoder, long, *short)
    assert calls[0] == calls[1] == 5
    assert calls[-1] == 1
    (apart,) = finished(decoder, request((0, 1), vocab=4, max_tokens=60, seed=1))
    assert long.output == apart.output


def test_a_request_with_a_fault_leaves_the_others_alone() -> None:
    """One request whose rows are all banned ends with its error; its neighbours finish as alone."""
    bad = request((0,), vocab=4, sampling=Sampling(temperature=1.0, ban=(0, 1, 2, 3)))
    good = [one_of_many(seed) for seed in (3, 6)]
    finished(Decoder(MODEL, drafter("model")), good[0], bad, good[1])
    assert "no token can be drawn at output position 0" in str(bad.error)
    assert bad.output == []
    assert [summary(one) for one in good] == [alone("model", 3), alone("model", 6)]


@pytest.mark.parametrize("rule", RULES)
def test_same_seed_twice(rule) -> None:
    """Same seed, same everything; another seed, another text."""
    decoder = Decoder(MODEL, drafter("model"))
    first, again, other = (
        summary(*finished(decoder, request((0,), rule=rule, vocab=4, seed=seed, max_tokens=40))) for seed in (7, 7, 8)
    )
    assert first == again
    assert first[0] != other[0]
