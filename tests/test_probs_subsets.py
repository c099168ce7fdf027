"""Rows from logits of a few tokens: as if all the others stood at −inf, under every option."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import OptionError, RowError
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from tests.test_probs import cases


@settings(max_examples=500, deadline=None)
@given(case=cases(), data=st.data())
def test_a_subset_is_the_whole_with_the_rest_at_minus_infinity(case, data) -> None:
    """Any logits, options and history; ids beyond the vocabulary and holes among them; twice from one processor."""
    logits, sampling, history, num_prompt = case
    vocab = len(logits)
    inside = data.draw(st.sets(st.integers(0, vocab - 1)), label="inside")
    padding = data.draw(st.integers(0, 2), label="padding")
    ids = np.array([*sorted(inside), *range(vocab, vocab + padding)], dtype=np.int64)
    holes = data.draw(st.sets(st.integers(0, vocab - 1), max_size=2), label="holes")
    ends = data.draw(st.sets(st.integers(0, vocab - 1), max_size=2), label="ends")
    processor = SamplingProcessor(sampling, num_prompt=num_prompt, vocab_size=vocab, end_ids=ends, holes=holes)
    some = np.append(np.array(logits)[ids[: len(inside)]], np.full(padding, 3.0))
    whole = np.full(vocab, -np.inf)
    whole[ids[: len(inside)]] = some[: len(inside)]
    before = some.copy()
    if not ids.size:
        return
    for _ in range(2):
        try:
            want = processor.row(history, whole)
        except RowError:
            with pytest.raises(RowError):
                processor.row(history, some, ids)
            continue
        row = processor.row(history, some, ids)
        known = processor.row(history, some, ids, best=int(some.argmax()))
        np.testing.assert_array_equal(known.to_array(), row.to_array())
        assert row.vocab_size == vocab
        assert row.ids is None or (set(row.ids.tolist()) <= inside and np.all(np.diff(row.ids) > 0))
        np.testing.assert_allclose(row.to_array(), want.to_array(), atol=1e-12)
    np.testing.assert_array_equal(some, before)


def test_its_row_lists_the_subset_alone() -> None:
    """Three of a hundred thousand tokens: a row of three, whatever the options."""
    ids = np.array([5, 70_000, 99_999])
    for options in ({}, {"top_k": 3}, {"top_p": 0.99}, {"repetition_penalty": 1.2}, {"ban": (7,)}, {"logit_bias": {8: 9.0}}):
        processor = SamplingProcessor(Sampling(temperature=1.0, **options), num_prompt=1, vocab_size=100_000)
        row = processor.row([70_000, 3], np.log([0.5, 0.25, 0.25]).astype(np.float32), ids)
        assert row.probs.size == row.ids.size == 3
        assert row.probs.dtype == np.float32
    assert row.to_array()[ids] == pytest.approx([0.5, 0.25, 0.25])


def test_penalties_and_minimum_length_see_the_whole_history() -> None:
    """Tokens outside the subset count as length, and are penalised where nobody sees it."""
    ids = np.array([1, 3])
    sampling = Sampling(temperature=1.0, presence_penalty=math.log(4), min_tokens=2)
    processor = SamplingProcessor(sampling, num_prompt=1, vocab_size=5, end_ids=[3])
    logits = np.log([0.5, 0.5])
    assert processor.row([0, 2], logits, ids).to_array().tolist() == [0, 1, 0, 0, 0]
    assert processor.row([0, 2, 1], logits, ids).to_array() == pytest.approx([0, 0.2, 0, 0.8, 0])


def test_options_outside_the_vocabulary_are_still_refused() -> None:
    """A processor is made for the whole vocabulary."""
    with pytest.raises(OptionError, match="token 9"):
        SamplingProcessor(Sampling(ban=(9,)), num_prompt=1, vocab_size=5)
