"""Between vocabularies: shared tokens, and a text rewritten as it grows: the same whatever the pieces and the script."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.text import Crossing, Tokenizer

TEXTS = (
    "the cat sat on the mat, the end.",
    "def f(x):\n    return x  # twice:\n\n\n        x * 2\n",
    "naïve über 東京 😀 और हिन्दी, mixed with words that follow one another for a while until pieces close, and on it goes",
    "一二三四五六七八九十" * 60,
    "a" * 700,
    "   leading and  double   spaces \t and tabs\n",
    "END END. the then there ends\n" * 30,
)


@pytest.fixture(params=["byte-level to fallback", "fallback to byte-level", "smollm2 to byte-level", "byte-level to smollm2"])
def crossing(request, byte_level: Tokenizer, byte_fallback: Tokenizer, smollm2: Tokenizer) -> Crossing:
    """Each pair, both ways."""
    named = {"byte-level": byte_level, "fallback": byte_fallback, "smollm2": smollm2}
    target, drafter = request.param.split(" to ")
    return Crossing(named[target], named[drafter])


def test_shared_tokens_are_those_of_the_same_bytes(crossing: Crossing) -> None:
    """Each pair spells the same, none is special, none comes twice, and none that could be one is missing."""
    target, drafter = crossing.target, crossing.drafter
    pairs = list(zip(crossing.target_ids.tolist(), crossing.drafter_ids.tolist(), strict=True))
    assert len(pairs) >= 256 - 128
    assert np.all(np.diff(crossing.target_ids) > 0)
    assert len(set(crossing.drafter_ids.tolist())) == len(pairs)
    for ours, theirs in pairs:
        assert target.token_bytes(ours) == drafter.token_bytes(theirs) != b""
        assert ours not in target.special_ids
        assert theirs not in drafter.special_ids
    texts = [{t.token_bytes(i) for i in range(t.vocab_size) if i not in t.special_ids} - {b""} for t in (target, drafter)]
    assert len(pairs) == len(texts[0] & texts[1])


def test_a_letter_is_shared_as_a_letter_not_as_a_byte(byte_fallback: Tokenizer, byte_level: Tokenizer) -> None:
    """Where a vocabulary spells 'a' as a letter and as a byte, it is the letter that text is made of."""
    crossing = Crossing(byte_fallback, byte_level)
    (letter,) = byte_fallback.encode_more("xa", begun=True)[-1:]
    assert byte_fallback.token_text(letter) == "a"
    assert letter in crossing.target_ids.tolist()


@pytest.mark.parametrize("text", TEXTS)
def test_however_it_comes_it_is_the_tokens_of_the_text(crossing: Crossing, text: str) -> None:
    """After every token the drafter's tokens spell the whole characters so far; closed ones stay; at once it is the same."""
    ids, so_far, closed = crossing.target.encode(text), crossing.open(), []
    spelt = b""
    for token in ids:
        so_far.push(token)
        spelt += crossing.target.token_bytes(token)
        tokens = so_far.tokens
        assert tokens[: len(closed)] == closed
        closed = tokens[: so_far.num_closed]
        whole = spelt.decode("utf-8", "ignore")
        assert so_far.whole == (whole.encode() == spelt)
        assert crossing.drafter.decode(tokens).lstrip() == crossing.drafter.decode(crossing.drafter.encode(whole)).lstrip()
    again = crossing.open()
    for token in ids:
        again.push(token)
    assert again.tokens == so_far.tokens
    # Pieces keep what is encoded again each time short.
    assert len(so_far._open) <= 256


@pytest.mark.parametrize("text", TEXTS[:3])
def test_the_pieces_are_nearly_the_whole_texts_own_tokens(smollm2: Tokenizer, byte_level: Tokenizer, text: str) -> None:
    """Words are where these vocabularies divide too: cut into pieces, ordinary text has the tokens it has as a whole."""
    crossing = Crossing(byte_level, smollm2)
    so_far = crossing.open()
    for token in crossing.target.encode(text):
        so_far.push(token)
    assert so_far.tokens == smollm2.encode(text)


@pytest.fixture(scope="module")
def to_smollm2(byte_level: Tokenizer, smollm2: Tokenizer) -> Crossing:
    """Made once."""
    return Crossing(byte_level, smollm2)


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(0, 399), max_size=60), cut=st.integers(0, 60))
def test_any_tokens_at_all(to_smollm2: Crossing, smollm2: Tokenizer, tokens: list[int], cut: int) -> None:
    """Broken characters, special tokens, anything: never an error, and a function of the tokens alone."""
    crossing = to_smollm2
    one, other = crossing.open(), crossing.open()
    for token in tokens:
        one.push(token)
    for token in tokens[:cut]:
        other.push(token)
    before = other.tokens
    for token in tokens[cut:]:
        other.push(token)
    assert one.tokens == other.tokens
    assert before[: other.num_closed] == other.tokens[: min(len(before), other.num_closed)] or len(before) > other.num_closed
    assert all(0 <= token < smollm2.vocab_size for token in one.tokens)


def test_special_tokens(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    """One that the drafter has by the same name is that one; others are their names; a start token is not repeated."""
    crossing = Crossing(byte_level, byte_fallback)
    start = next(token for token in byte_level.special_ids if byte_level.token_text(token) == "<s>")
    turn = next(token for token in byte_level.special_ids if byte_level.token_text(token) == "<|turn|>")
    theirs = next(token for token in byte_fallback.special_ids if byte_fallback.token_text(token) == "<s>")
    so_far = crossing.open()
    for token in (start, *byte_level.encode("the")[len(byte_level.start_ids) :], turn, start):
        so_far.push(token)
    assert so_far.tokens.count(theirs) == 2
    assert so_far.tokens[-1] == theirs
    assert "<|turn|>" in byte_fallback.decode(so_far.tokens)
    assert so_far.num_closed == len(so_far.tokens)


def test_a_character_cut_short_by_a_special_token_is_replaced(byte_level: Tokenizer, smollm2: Tokenizer) -> None:
    """Its bytes can never become whole."""
    crossing = Crossing(byte_level, smollm2)
    half = next(t for t in range(byte_level.vocab_size) if byte_level.token_bytes(t) == b"\xe6")
    turn = next(token for token in byte_level.special_ids if byte_level.token_text(token) == "<|turn|>")
    so_far = crossing.open()
    so_far.push(half)
    assert not so_far.whole
    assert so_far.tokens == list(smollm2.start_ids)
    so_far.push(turn)
    assert so_far.whole
    assert smollm2.decode(so_far.tokens).startswith("\ufffd<|turn|>")


def test_frequent_tokens(byte_level: Tokenizer, byte_fallback: Tokenizer, smollm2: Tokenizer) -> None:
    """Single bytes and letters first, then by id; special tokens always; increasing; never more than there are."""
    for tokenizer in (byte_level, byte_fallback, smollm2):
        every = tokenizer.frequent(10**9)
        assert every == [token for token, name in enumerate(tokenizer.tokens()) if name is not None]
        few = tokenizer.frequent(5)
        assert few == sorted(few)
        assert set(few) >= tokenizer.special_ids
        assert len(few) == 5 + len(tokenizer.special_ids)
        some = set(tokenizer.frequent(300)) - tokenizer.special_ids
        singles = {t for t in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(t)) == 1}
        assert len(some) == min(300, len(every) - len(tokenizer.special_ids))
        assert singles <= some or some <= singles
        rest = [t for t in every if t not in singles and t not in tokenizer.special_ids]
        assert some - singles == set(rest[: max(0, len(some) - len(singles))])


def test_frequent_tokens_are_frequent(smollm2: Tokenizer) -> None:
    """A third of SmolLM2's tokens is most of a text: here of these tests' own source, nine tenths."""
    from pathlib import Path

    kept = set(smollm2.frequent(16_384))
    ids = smollm2.encode("".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))))
    assert sum(token in kept for token in ids) > 0.87 * len(ids)
