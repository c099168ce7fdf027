"""Pieces joined are the whole text, and it stops where the definition says, however the tokens arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.text import Piece, StopStrings, TextStream, Tokenizer, Transcript

TEXTS = st.text("the END.é😀東\n", max_size=20)
STOPS = st.lists(st.text("theEND.é ", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stop: list[str]) -> int | None:
    """Definition: where the stop string begins that is complete first (the longest of those that end together)."""
    ends = [(end, end - len(one)) for end in range(len(text) + 1) for one in stop if text[:end].endswith(one)]
    return min(ends)[1] if ends else None


@pytest.fixture(params=["byte_level", "byte_fallback"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def anything(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids of real texts, and ids at random: broken characters, special tokens, ids without a token."""
    return TEXTS.map(tokenizer.encode) | st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=20)


def test_streamed_text_is_the_decoded_text(tokenizer: Tokenizer) -> None:
    @settings(max_examples=300, deadline=None)
    @given(anything(tokenizer))
    def check(ids: list[int]) -> None:
        stream = TextStream(tokenizer)
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)

    check()


def test_no_broken_character_is_ever_shown_for_a_whole_one(tokenizer: Tokenizer) -> None:
    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        stream = TextStream(tokenizer)
        for token in tokenizer.encode(text):
            assert "\ufffd" not in stream.push(token)
        assert stream.finish() == ""

    check()


def test_an_unfinished_character_is_held_and_then_given_up(byte_fallback: Tokenizer) -> None:
    bytes_ = [byte_fallback.tokens().index(f"<0x{byte:02X}>") for byte in "😀".encode()]
    stream = TextStream(byte_fallback)
    assert [stream.push(token) for token in bytes_] == ["", "", "", "😀"]
    assert [stream.push(token) for token in bytes_[:2]] == ["", ""]
    assert stream.push(byte_fallback.tokens().index("a")) == "\ufffda"
    assert stream.push(bytes_[0]) == ""
    assert stream.finish() == "\ufffd"


def test_a_valid_character_survives_broken_neighbours(byte_fallback: Tokenizer) -> None:
    bytes_ = [byte_fallback.tokens().index(f"<0x{byte:02X}>") for byte in "é".encode() + b"\xff"]
    assert byte_fallback.decode(bytes_) == "é\ufffd"


def test_the_leading_space_goes_once(byte_fallback: Tokenizer) -> None:
    the, start = byte_fallback.tokens().index("▁the"), byte_fallback.tokens().index("<s>")
    assert byte_fallback.decode([start, the, the]) == "the the"
    space = byte_fallback.tokens().index("▁")
    stream = TextStream(byte_fallback)
    assert [stream.push(token) for token in (start, space, space, the)] == ["", "", " ", " the"]


def test_transcript_equals_its_definition(tokenizer: Tokenizer) -> None:
    """Brute force: decode the whole, find the first stop; the last token is the first one whose prefix contains a stop."""

    @settings(max_examples=400, deadline=None)
    @given(TEXTS.map(tokenizer.encode), STOPS)
    def check(ids: list[int], stop: list[str]) -> None:
        whole = tokenizer.decode(ids)
        place = first_stop(whole, stop)
        transcript = Transcript(tokenizer, stop)
        shown, used = "", 0
        for token in ids:
            piece = transcript.push(token)
            used += 1
            shown += piece.text
            assert transcript.text == shown
            assert whole.startswith(shown)
            if piece.stopped:
                break
        shown += transcript.finish()
        assert transcript.text == shown == (whole if place is None else whole[:place])
        if place is not None:
            complete = [length for length in range(len(ids) + 1) if any(one in tokenizer.decode(ids[:length]) for one in stop)]
            assert used == min(complete)

    check()


@settings(max_examples=400, deadline=None)
@given(st.text("abc", max_size=12), st.lists(st.integers(0, 12)), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_stop_strings_do_not_depend_on_the_cutting(text: str, cuts: list[int], stop: list[str]) -> None:
    stops = StopStrings(stop)
    shown, edges = "", sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for begin, end in pairwise(edges):
        piece = stops.push(text[begin:end])
        shown += piece.text
        if piece.stopped:
            break
    shown += stops.finish()
    assert shown == text[: first_stop(text, stop)]


def test_a_stop_string_across_tokens_and_the_earliest_of_several() -> None:
    stops = StopStrings(["END", "ND."])
    assert stops.push("the E") == Piece(text="the ", stopped=False)
    assert stops.push("N") == Piece(text="", stopped=False)
    assert stops.push("D.") == Piece(text="", stopped=True)
    assert stops.finish() == ""
    assert StopStrings(["b", "a"]).push("xab") == Piece(text="x", stopped=True)


def test_what_is_held_is_released_at_the_end(byte_level: Tokenizer) -> None:
    transcript = Transcript(byte_level, ["END!"])
    pieces = [transcript.push(token).text for token in byte_level.encode("the END")[1:]]
    assert "".join(pieces) == "the "
    assert transcript.finish() == "END"
    assert transcript.text == "the END"
    assert transcript.finish() == ""


def test_special_tokens_have_no_text(byte_level: Tokenizer) -> None:
    special = min(byte_level.special_ids)
    assert Transcript(byte_level).push(special) == Piece(text="", stopped=False)
    (left,) = byte_level.encode("E")[1:]
    (right,) = byte_level.encode("e")[1:]
    transcript = Transcript(byte_level, ["Ee"])
    assert [transcript.push(token).stopped for token in (left, special, right)] == [False, False, True]
