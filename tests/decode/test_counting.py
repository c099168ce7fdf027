"""The counting identities of every run: decisions before cutting, completion tokens after it, rates in [0, 1] or None."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.records import Round, Sampling, Seconds, Stats
from headstart.verify import RULES
from tests.decode.loops import finished, random_model, request

DRAFTERS = st.sampled_from(["none", "ngram", "model", "itself"])


def made(name: str, seed: int):
    match name:
        case "none":
            return NoDrafter()
        case "ngram":
            return NGramDrafter(3, min_match=1)
        case "model":
            return ModelDrafter(random_model(seed + 1, zeros=0.3))
        case _:
            return ModelDrafter(random_model(seed))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 30),
    drafter=DRAFTERS,
    rule=st.sampled_from(list(RULES)),
    gamma=st.integers(1, 7),
    max_tokens=st.integers(1, 20),
    ends=st.sets(st.integers(0, 2), max_size=2),
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
    context=st.sampled_from([4, 9, 1000]),
)
def test_the_identities_hold(seed, drafter, rule, gamma, max_tokens, ends, temperature, context) -> None:
    """completion = accepted + rounds − cut; the histogram sums to rounds and to accepted; only emitted tokens count."""
    decoder = Decoder(random_model(seed, context_limit=context), made(drafter, seed))
    (one,) = finished(
        decoder,
        request(
            (0, 1),
            rule=rule,
            seed=seed,
            gamma=gamma,
            max_tokens=max_tokens,
            end_ids=ends,
            sampling=Sampling(temperature=temperature),
            num_logprobs=1,
        ),
    )
    stats, rounds = one.stats, one.rounds
    assert stats.completion_tokens == len(one.output) == len(one.logprobs) == sum(len(each.emitted) for each in rounds)
    assert stats.completion_tokens == stats.num_accepted + stats.num_rounds - stats.num_cut
    assert stats.target_calls == stats.num_rounds == len(rounds) == sum(stats.accepted_histogram)
    assert stats.num_accepted == sum(kept * count for kept, count in enumerate(stats.accepted_histogram))
    assert stats.num_rejections == sum(each.num_accepted < each.num_drafted for each in rounds)
    assert [token for each in rounds for token in each.emitted] == one.output
    assert stats.num_cut == 0 or one.finish_reason == "stop"
    assert all(each.num_cut == 0 for each in rounds[:-1])
    for each in rounds:
        assert 0 <= each.num_accepted <= each.num_drafted <= gamma
        assert len(each.emitted) + each.num_cut == each.num_accepted + 1
        assert each.emitted[: each.num_accepted] == each.draft[: each.num_accepted][: len(each.emitted)]
        assert len(each.overlaps) == min(each.num_accepted + 1, each.num_drafted)
    for rate in (stats.acceptance_rate, stats.draft_utilization, stats.mean_overlap):
        assert rate is None or 0 <= rate <= 1
    assert (stats.acceptance_rate is None) == (stats.num_drafted == 0)
    assert stats.block_efficiency == len(one.output) / len(rounds)
    if drafter == "none":
        assert stats.block_efficiency == 1
    _seconds_add_up(stats.seconds)
    assert _has_no_nan(json.loads(json.dumps(stats.to_json(), allow_nan=False)))


def _seconds_add_up(seconds: Seconds) -> None:
    parts = [seconds.prefill, seconds.draft, seconds.score, seconds.verify, seconds.other]
    assert all(part >= 0 for part in parts)
    assert math.isclose(seconds.total, math.fsum(parts), rel_tol=1e-9)
    assert seconds.total > 0


def _has_no_nan(value) -> bool:
    return not any(isinstance(each, float) and math.isnan(each) for each in value.values())


def test_nothing_to_divide_is_none() -> None:
    """No rounds, or no drafted tokens: None, never a nan; plain decoding has a block efficiency of exactly 1."""
    empty = Stats.of([], Seconds())
    for rate in (empty.block_efficiency, empty.mean_accepted, empty.acceptance_rate, empty.draft_utilization):
        assert rate is None
    assert empty.mean_overlap is None
    assert empty.tokens_per_second is None
    assert empty.accepted_histogram == (0,)
    plain = Stats.of([Round(draft=(), num_accepted=0, emitted=(1,), num_cut=0)] * 3, Seconds(score=1.5))
    assert (plain.block_efficiency, plain.acceptance_rate, plain.draft_utilization) == (1.0, None, None)
    assert plain.tokens_per_second == 2.0


def test_counts_by_hand() -> None:
    """Three rounds: two of four kept, all three kept and two cut, an empty draft."""
    rounds = [
        Round(draft=(1, 2, 3, 4), num_accepted=2, emitted=(1, 2, 9), num_cut=0, overlaps=(0.5, 0.5, 0.2)),
        Round(draft=(), num_accepted=0, emitted=(7,), num_cut=0),
        Round(draft=(5, 6, 7), num_accepted=3, emitted=(5, 6), num_cut=2, overlaps=(1.0, 1.0, 1.0)),
    ]
    stats = Stats.of(rounds, Seconds(prefill=1, draft=1, score=2, verify=0.5, other=0.5))
    assert (stats.num_rounds, stats.num_drafted, stats.num_accepted, stats.num_rejections, stats.num_cut) == (3, 7, 5, 1, 2)
    assert stats.accepted_histogram == (1, 0, 1, 1)
    assert stats.completion_tokens == 6
    assert stats.block_efficiency == 2.0
    assert stats.acceptance_rate == 5 / 6
    assert stats.draft_utilization == 5 / 7
    assert stats.mean_overlap == 4.2 / 6
    assert stats.seconds.total == 5
    assert stats.tokens_per_second == 1.5


def test_seconds_are_counted_once() -> None:
    """Parts nest without being counted twice: their sum is within what the wall clock saw, for every request of a batch."""
    from time import perf_counter

    many = [request((0, 1), seed=seed, max_tokens=30) for seed in range(4)]
    start = perf_counter()
    finished(Decoder(random_model(1), ModelDrafter(random_model(2))), *many)
    wall = perf_counter() - start
    for one in many:
        assert 0 < one.stats.seconds.total <= wall
        assert one.stats.seconds.draft > 0
