"""`coupled`: same seed, same tokens, whatever drafts, however long, alone, batched or joining late."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.records import Sampling
from tests.decode.loops import finished, random_model, request

VOCAB, LENGTH = 6, 24
MODEL = random_model(1, VOCAB, order=2)
DRAFTERS = {
    "none": NoDrafter(),
    "ngram": NGramDrafter(VOCAB, min_match=1),
    "model": ModelDrafter(random_model(2, VOCAB)),
    "zeros": ModelDrafter(random_model(3, VOCAB, zeros=0.5)),
    "itself": ModelDrafter(MODEL),
}
SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=3),
    Sampling(temperature=1.5, top_p=0.9, repetition_penalty=1.3, min_tokens=5),
]


def coupled(seed: int, **options):
    options = {"sampling": SAMPLINGS[seed % 3], "gamma": 1 + seed % 8, "end_ids": (5,), **options}
    return request((seed % VOCAB,), rule="coupled", seed=seed, vocab=VOCAB, max_tokens=LENGTH, **options)


def plain(seed: int):
    (one,) = finished(Decoder(MODEL, NoDrafter()), coupled(seed))
    return one.output, one.finish_reason


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_same_seed_same_tokens(drafter) -> None:
    """200 seeds, γ 1 to 8, three samplings: the tokens and finish reasons of plain decoding."""
    decoder = Decoder(MODEL, DRAFTERS[drafter])
    for seed in range(200):
        (one,) = finished(decoder, coupled(seed))
        assert (one.output, one.finish_reason) == plain(seed)


def test_every_draft_length_gives_one_text() -> None:
    """γ = 1, 2, …, 8 on the same seeds."""
    for seed in range(20):
        for gamma in range(1, 9):
            (one,) = finished(Decoder(MODEL, DRAFTERS["model"]), coupled(seed, gamma=gamma))
            assert one.output == plain(seed)[0]


@pytest.mark.parametrize("drafter", ["ngram", "model"])
def test_batched_or_joining_late(drafter) -> None:
    """Thirty requests, one joining each round while others leave: each as alone and undrafted."""
    decoder, waiting, live, done = Decoder(MODEL, DRAFTERS[drafter]), [coupled(seed) for seed in range(30)], [], []
    while waiting or live:
        if waiting:
            decoder.begin([waiting[0]])
            live.append(waiting.pop(0))
        decoder.round(live)
        done += [one for one in live if one.done]
        live = [one for one in live if not one.done]
    for one in done:
        assert (one.output, one.finish_reason) == plain(one.draws._seed)


def test_a_draft_drawn_from_the_target_is_kept_whole() -> None:
    """Drafter and target that race the same clocks on the same rows always agree."""
    for seed in range(50):
        (one,) = finished(Decoder(MODEL, DRAFTERS["itself"]), coupled(seed))
        assert one.stats.acceptance_rate in (1.0, None)


def test_twin_fresh_draws_do_not_give_one_text() -> None:
    """The same seeds under `match`, whose draws are a stream: texts differ between drafters for most seeds."""
    same = 0
    for seed in range(50):
        outputs = [
            finished(Decoder(MODEL, DRAFTERS[name]), request((0,), rule="match", seed=seed, vocab=VOCAB, max_tokens=24))[0].output
            for name in ("none", "model")
        ]
        same += outputs[0] == outputs[1]
    assert same < 10


def test_seeds_give_different_texts() -> None:
    """One hundred seeds, one prompt, one hundred texts."""
    many = [
        request((0,), rule="coupled", seed=seed, vocab=VOCAB, max_tokens=LENGTH, sampling=SAMPLINGS[0]) for seed in range(100)
    ]
    assert len({tuple(one.output) for one in finished(Decoder(MODEL, NoDrafter()), *many)}) == 100


def test_acceptance_beats_independent_draws() -> None:
    """On a close pair the shared noise keeps far more than Σ p·q would."""
    near = np.exp(MODEL._logits) * 0.9 + 0.1 / VOCAB
    decoder = Decoder(MODEL, ModelDrafter(type(MODEL)(near)))
    kept = {}
    for rule in ("coupled", "match"):
        many = [request((0,), rule=rule, seed=seed, vocab=VOCAB, max_tokens=40) for seed in range(40)]
        rounds = [each for one in finished(decoder, *many) for each in one.rounds]
        kept[rule] = sum(each.num_accepted for each in rounds) / len(rounds)
    assert kept["coupled"] > 1.5 * kept["match"]
