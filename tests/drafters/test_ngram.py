"""Prompt lookup against its definition: the longest suffix seen before, the most recent of equals, and what followed it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.drafters import NGramDrafter
from headstart.draws import StreamDraws
from headstart.errors import OptionError
from tests.drafters.test_contract import context

VOCAB = 4
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def lookup(tokens: list[int], shortest: int, longest: int, budget: int) -> list[int]:
    """By trying every length, longest first, and every earlier place, latest first."""
    size = len(tokens)
    for length in range(min(longest, size - 1), shortest - 1, -1):
        for end in range(size - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[size - length :]:
                followed = list(tokens)
                for step in range(budget):  # what followed may run into the draft itself
                    followed.append(followed[end + step])
                return followed[size:]
    return []


def draft_of(tokens: list[int], budget: int = 6, **options) -> list[int]:
    drafter = NGramDrafter(VOCAB, **options)
    (draft,) = drafter.propose(drafter.open([context(tokens)]), [context(tokens)], [budget], [StreamDraws(0)])
    return list(draft.tokens)


@settings(max_examples=500)
@given(tokens=TEXT, shortest=st.integers(1, 3), more=st.integers(0, 4), budget=st.integers(0, 7))
def test_it_is_the_longest_suffix_seen_before(tokens, shortest, more, budget) -> None:
    """Any text, any match lengths, any budget: what the definition says."""
    want = lookup(tokens, shortest, shortest + more, budget)
    assert draft_of(tokens, budget, min_match=shortest, max_match=shortest + more) == want


@settings(max_examples=100)
@given(tokens=TEXT, cuts=st.lists(st.integers(1, 5), max_size=20))
def test_text_that_comes_in_pieces_is_text(tokens, cuts) -> None:
    """Committed a few tokens at a time, the index is that of the whole text."""
    drafter = NGramDrafter(VOCAB)
    (state,) = drafter.open([context(tokens[:1])])
    done = 1
    for cut in [*cuts, len(tokens)]:
        done = min(len(tokens), done + cut)
        drafter.commit(state, tokens[:done], None)
        (draft,) = drafter.propose([state], [context(tokens[:done])], [4], [StreamDraws(0)])
        assert list(draft.tokens) == lookup(tokens[:done], 2, 32, 4)


def test_by_hand() -> None:
    """The longer match wins over the later one, the later over the earlier, and a period goes on."""
    assert draft_of([0, 1, 2, 3, 1, 2, 0, 0, 1, 2], 3) == [3, 1, 2]
    assert draft_of([1, 2, 3, 1, 2, 0, 1, 2], 2) == [0, 1]
    assert draft_of([3, 0, 1, 0, 1], 5) == [0, 1, 0, 1, 0]
    assert draft_of([2, 2, 2], 4) == [2, 2, 2, 2]


@pytest.mark.parametrize("tokens", [[0], [0, 1], [0, 1, 2, 3], [1, 0]])
def test_nothing_to_find(tokens) -> None:
    """A prompt shorter than the match, or without a repeat: an empty draft."""
    assert draft_of(tokens) == []


def test_its_rows_are_points() -> None:
    """Each drafted token has all the mass of its row."""
    drafter, tokens = NGramDrafter(VOCAB), [0, 1, 2, 0, 1]
    (draft,) = drafter.propose(drafter.open([context(tokens)]), [context(tokens)], [3], [StreamDraws(0)])
    assert [row.prob(token) for token, row in zip(draft.tokens, draft.rows, strict=True)] == [1.0] * 3
    assert all(row.probs.size == 1 for row in draft.rows)


def test_bad_lengths_are_refused() -> None:
    """By name."""
    with pytest.raises(OptionError, match="`min_match` must be 1 or more, got 0"):
        NGramDrafter(VOCAB, min_match=0)
    with pytest.raises(OptionError, match=r"`max_match` must be at least min_match \(3\), got 2"):
        NGramDrafter(VOCAB, min_match=3, max_match=2)


def test_a_long_repetitive_text_is_quick() -> None:
    """20,000 tokens of few kinds: a proposal looks at its matches, not at the text."""
    from time import perf_counter

    tokens = [0, 1, 2, 1] * 5000
    drafter = NGramDrafter(VOCAB)
    one = context(tokens)
    states = drafter.open([one])
    start = perf_counter()
    for _ in range(50):
        drafter.propose(states, [one], [8], [StreamDraws(0)])
    assert perf_counter() - start < 1
