"""Processors against their definitions: `process` and `tests.slow` agree on everything hypothesis can think of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headstart.errors import OptionError, RowError
from headstart.probs import SamplingProcessor, biased_logits, log_softmax, process, softmax
from headstart.records import Sampling
from tests.slow import NoRowError, slow_logits, slow_logprobs, slow_row

# A coarse grid makes ties common; irregular thresholds keep sums of ties away from them.
LOGIT = st.one_of(st.integers(-16, 16).map(lambda n: n / 4), st.just(-math.inf))
MASS = st.sampled_from([1.0, 0.9371, 0.7113, 0.5003, 0.2377, 0.0101])
VOCAB = 7


@st.composite
def cases(draw):
    """(logits, sampling, history, num_prompt)."""
    vocab = draw(st.integers(1, VOCAB))
    token = st.integers(0, vocab - 1)
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5, 1e-300, 1e300, 1e-5])),
        top_k=draw(st.integers(0, VOCAB + 2)),
        top_p=draw(MASS),
        min_p=draw(st.sampled_from([0.0, 0.0317, 0.2003, 0.77, 1.0])),
        typical_p=draw(MASS),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -0.25])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.25, -0.5])),
        logit_bias=draw(st.dictionaries(token, st.sampled_from([-100.0, -0.5, 2.0]), max_size=2)),
        ban=tuple(draw(st.sets(token, max_size=2))),
        min_tokens=draw(st.integers(0, 3)),
    )
    history = draw(st.lists(token, max_size=8))
    num_prompt = draw(st.integers(0, len(history)))
    logits = draw(st.lists(LOGIT, min_size=vocab, max_size=vocab))
    return logits, sampling, history, num_prompt


def close_calls(logits, sampling, history, num_prompt, end_ids=()) -> bool:
    """Whether rounding alone could move a truncation: thresholds and masses within 1e-6 of a tie, not at one."""
    for change in (1 - 1e-6, 1 + 1e-6):
        moved = {name: getattr(sampling, name) for name in ("top_p", "typical_p", "min_p")}
        for name, value in moved.items():
            nudged = value * change
            if 0 < nudged < 1 and value < 1:
                other = Sampling(**{**vars(sampling), name: nudged})
                a = slow_row(logits, sampling, history, num_prompt, end_ids)
                b = slow_row(logits, other, history, num_prompt, end_ids)
                if [x > 0 for x in a] != [x > 0 for x in b]:
                    return True
    return False


@settings(max_examples=600, deadline=None)
@given(case=cases(), ends=st.sets(st.integers(0, 0), max_size=1), single=st.booleans())
def test_processing_is_its_definition(case, ends, single) -> None:
    """Every option at once, ties to the lower id, in float64 to 1e-12 and in float32 to 1e-5; the logits are not changed."""
    logits, sampling, history, num_prompt = case
    array = np.array(logits, dtype=np.float32 if single else np.float64)
    before = array.copy()
    try:
        wanted = slow_row(logits, sampling, history, num_prompt, ends)
    except NoRowError:
        with pytest.raises(RowError):
            process(array, sampling, history, num_prompt=num_prompt, end_ids=ends)
        return
    assume(not close_calls(logits, sampling, history, num_prompt, ends))
    assume(not single or sampling.temperature not in (1e-5, 1e-300) or sampling.repetition_penalty == 1.0)
    row = process(array, sampling, history, num_prompt=num_prompt, end_ids=ends)
    assert row.to_array() == pytest.approx(wanted, abs=1e-5 if single else 1e-12)
    assert np.array_equal(array, before)
    assert row.to_array().dtype == array.dtype or sampling.temperature == 0
    assert row.probs.sum() == pytest.approx(1, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(case=cases(), ends=st.sets(st.integers(0, 0), max_size=1))
def test_reported_logprobs_are_their_definition(case, ends) -> None:
    """After bias, bans, minimum length and penalties; before temperature and truncation. `law` is the same as a row."""
    logits, sampling, history, num_prompt = case
    wanted = slow_logits(logits, sampling, history, num_prompt, ends)
    got = biased_logits(np.array(logits), sampling, history, num_prompt=num_prompt, end_ids=ends)
    assert got == pytest.approx(wanted, abs=1e-12)
    assume(max(wanted) > -math.inf)
    processor = SamplingProcessor(sampling, num_prompt=num_prompt, vocab_size=len(logits), end_ids=ends)
    assert processor.logprobs(history, np.array(logits)) == pytest.approx(
        slow_logprobs(logits, sampling, history, num_prompt, ends), abs=1e-12
    )
    law = processor.law(history, np.array(logits)).to_array()
    assert law == pytest.approx(np.exp(processor.logprobs(history, np.array(logits))), abs=1e-12)


def test_ties_go_to_the_lower_id() -> None:
    """Greedy, top-k, top-p and typical-p on a flat row keep the first ids."""
    flat = np.zeros(5)
    assert process(flat, Sampling(temperature=0.0)).to_array().tolist() == [1, 0, 0, 0, 0]
    assert process(flat, Sampling(temperature=1.0, top_k=2)).to_array().tolist() == [0.5, 0.5, 0, 0, 0]
    assert process(flat, Sampling(temperature=1.0, top_p=0.41)).to_array() == pytest.approx([1 / 3] * 3 + [0, 0])
    assert process(flat, Sampling(temperature=1.0, typical_p=0.4)).to_array() == pytest.approx([1 / 2] * 2 + [0] * 3)
    assert process(flat, Sampling(temperature=1.0, min_p=1.0)).to_array() == pytest.approx([1 / 5] * 5)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e-40, 1e-7, 1e7, 1e39, 1e300])
def test_extreme_temperatures(kind, temperature) -> None:
    """The limits of the law, in either precision: even over ties at the top, or over everything that is not banned."""
    logits = np.array([3.0, -np.inf, 3.0, 1.0, -80.0], dtype=kind)
    row = process(logits, Sampling(temperature=temperature)).to_array()
    limit = [0.5, 0, 0.5, 0, 0] if temperature < 1 else [0.25, 0, 0.25, 0.25, 0.25]
    assert row == pytest.approx(limit, abs=1e-5)
    assert row.dtype == kind


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_large_flat_rows(kind) -> None:
    """150,000 equal logits: sums do not overflow or lose mass in any precision."""
    row = process(np.zeros(150_000, dtype=kind), Sampling(temperature=1.0))
    assert row.probs.sum(dtype=np.float64) == pytest.approx(1, abs=1e-3)
    assert (row.probs > 0).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e300])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([0.0, np.nan, 1.0], "logit of token 1 is NaN"),
        ([0.0, np.inf, np.nan], "NaN"),
        ([np.inf, 1.0], r"logit of token 0 is \+inf"),
        ([-np.inf, -np.inf], "every logit is −inf"),
        ([np.nan], "NaN"),
    ],
)
def test_odd_logits_are_errors(logits, message, temperature) -> None:
    """NaN, +inf and rows without a token say which; never a NaN row."""
    with pytest.raises(RowError, match=message):
        process(np.array(logits), Sampling(temperature=temperature))


def test_everything_banned() -> None:
    """By bans, or by a minimum length where the end token is all there is."""
    with pytest.raises(RowError, match="everything banned"):
        process(np.zeros(2), Sampling(ban=(0, 1)))
    with pytest.raises(RowError, match="everything banned"):
        process(np.array([0.0, -np.inf]), Sampling(min_tokens=1), end_ids=(0,))


def test_a_banned_nan_is_harmless() -> None:
    """Bans come first: an odd logit that is banned is not there."""
    assert process(np.array([np.nan, 1.0, 0.0]), Sampling(ban=(0,))).token(0) == 1


def test_a_vocabulary_of_one() -> None:
    """One token is always drawn, whatever the options."""
    for options in ({"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.1}, {"min_p": 1.0}, {"typical_p": 0.1}):
        assert process(np.array([-7.0]), Sampling(**{"temperature": 1.0, **options})).to_array().tolist() == [1.0]


def test_order_is_penalties_then_temperature_then_truncations() -> None:
    """A penalty acts on logits, so a higher temperature weakens it; top-k sees what temperature left; top-p renormalises."""
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    halved = process(logits, Sampling(temperature=2.0, presence_penalty=1.0), [0]).to_array()
    by_hand = np.exp((logits - [1.0, 0, 0, 0]) / 2)
    assert halved == pytest.approx(by_hand / by_hand.sum(), abs=1e-12)
    # After top-k 2 the row is (5/8, 3/8): 0.6 of it is held by the first token alone, not so of the whole row.
    assert process(logits, Sampling(temperature=1.0, top_k=2, top_p=0.6)).to_array().tolist() == [1, 0, 0, 0]
    assert (process(logits, Sampling(temperature=1.0, top_p=0.6)).to_array() > 0).sum() == 2
    # After top-p (0.5, 0.3) → (5/8, 3/8): 0.65 of the largest is over 3/8 = 0.6 of it.
    assert (process(logits, Sampling(temperature=1.0, top_p=0.8, min_p=0.65)).to_array() > 0).sum() == 1


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options", [{"top_p": 0.9003}, {"top_p": 0.2003}, {"typical_p": 0.7003}, {"top_p": 0.97, "typical_p": 0.8}]
)
def test_large_vocabularies_take_a_short_cut_to_the_same_row(kind, options) -> None:
    """Over 1,024 tokens only a head is sorted: the same row as sorting everything, ties across the head's edge included."""
    rng = np.random.default_rng(1)
    rows = [
        rng.normal(size=3000) * 3,
        np.round(rng.normal(size=3000) * 2),  # hundreds of ties at every level
        np.zeros(3000),
        np.concatenate([np.full(400, 9.0), np.full(300, 8.0), rng.normal(size=2300)]),
        np.where(rng.random(3000) < 0.5, -np.inf, np.round(rng.normal(size=3000))),
    ]
    for logits in rows:
        sampling = Sampling(temperature=1.0, **options)
        got = process(logits.astype(kind), sampling).to_array()
        wanted = np.array(slow_row(logits.astype(kind), sampling))
        if kind is np.float64:
            assert np.array_equal(got > 0, wanted > 0)
        # Where rounding decides the last token, it is one token of many.
        assert np.abs(got - wanted).sum() < 5e-3


@pytest.mark.parametrize("mass", [0.3003, 0.9003, 0.9993])
def test_the_short_cut_grows_until_it_holds_the_mass(mass) -> None:
    """20,000 tokens on a nearly flat row: heads of 512 and 4,096 tokens, then the whole; one support for each."""
    logits = np.random.default_rng(2).normal(size=20_000) * 0.7
    probs = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-probs, kind="stable")
    wanted = np.sort(order[: int(np.searchsorted(np.cumsum(probs[order]), mass)) + 1])
    row = process(logits, Sampling(temperature=1.0, top_p=mass))
    assert np.flatnonzero(row.to_array()).tolist() == wanted.tolist()


def test_padding_and_holes() -> None:
    """Ids past the vocabulary, missing logits and holes are never possible; plain logits are passed on untouched."""
    processor = SamplingProcessor(Sampling(temperature=1.0), num_prompt=1, vocab_size=4, end_ids=(2, 9), holes=(1, 8))
    assert processor.end_ids == {2}
    row = processor.row([0], np.array([0.0, 9.0, 0.0, 0.0, 50.0, 50.0]))
    assert row.to_array() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert processor.row([0], np.array([0.0, 9.0, 0.0])).to_array() == pytest.approx([0.5, 0, 0.5, 0])
    assert processor.logprobs([0], np.zeros(6))[1] == -np.inf
    plain, logits = SamplingProcessor(Sampling(), num_prompt=1, vocab_size=3), np.zeros(3)
    assert plain.fitted(logits) is logits


def test_options_outside_the_vocabulary() -> None:
    """A bias or ban on a token that is not there is refused by name before anything is drawn."""
    for name, options in (("ban", {"ban": (5,)}), ("logit_bias", {"logit_bias": {5: 1.0}})):
        with pytest.raises(OptionError, match=f"`{name}` names token 5, outside the vocabulary; ids go from 0 to 4"):
            SamplingProcessor(Sampling(**options), num_prompt=1, vocab_size=5)
        with pytest.raises(OptionError, match=f"`{name}` names token 5"):
            process(np.zeros(5), Sampling(**options))


def test_a_history_outside_the_vocabulary_is_not_penalised() -> None:
    """A prompt may hold ids whose rows were cut off as padding."""
    sampling = Sampling(temperature=1.0, repetition_penalty=2.0, presence_penalty=1.0)
    processor = SamplingProcessor(sampling, num_prompt=2, vocab_size=2)
    assert processor.row([5, 0], np.array([1.0, 1.0, 1.0])).to_array() == pytest.approx(softmax([0.5, 1.0]))


def test_softmax_helpers() -> None:
    """Along the last axis, of lists too; temperature 0 is a point mass; log_softmax is its logarithm."""
    logits = np.array([[[0.0, 1.0], [2.0, 2.0]]])
    assert softmax(logits).shape == (1, 2, 2)
    assert softmax(logits)[0, 0] == pytest.approx(np.exp([0, 1]) / np.exp([0, 1]).sum())
    assert softmax([[1, 3]], temperature=0).tolist() == [[0.0, 1.0]]
    assert np.exp(log_softmax(logits[0, 0])) == pytest.approx(softmax(logits[0, 0]))
    with pytest.raises(OptionError, match="`temperature`"):
        softmax([0.0], temperature=-1)


@settings(max_examples=500, deadline=None)
@given(case=cases(), data=st.data())
def test_knowing_the_largest_logit_changes_no_row(case, data) -> None:
    """Whatever the options, padding, holes and broken rows: the same row, or the same error."""
    logits, sampling, history, num_prompt = case
    vocab = len(logits)
    padded = np.array([*logits, *data.draw(st.lists(LOGIT, max_size=2), label="padding")])
    for place in data.draw(st.lists(st.integers(0, len(padded) - 1), max_size=2), label="broken"):
        padded[place] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]), label="value")
    holes = data.draw(st.sets(st.integers(0, vocab - 1), max_size=2), label="holes")
    ends = data.draw(st.sets(st.integers(0, vocab - 1), max_size=2), label="ends")
    processor = SamplingProcessor(sampling, num_prompt=num_prompt, vocab_size=vocab, end_ids=ends, holes=holes)

    def outcome(**known):
        try:
            row = processor.row(history, padded, **known)
        except RowError as error:
            return str(error)
        return row.vocab_size, row.to_array().tolist()

    assert outcome(best=int(padded.argmax())) == outcome()
