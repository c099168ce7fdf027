"""From rounds to text: stops, limits and streams, on a model whose text is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headstart.drafters import ModelDrafter
from headstart.errors import RowError
from headstart.generation import LLM
from headstart.text import Tokenizer
from headstart.text.folder import parts_from_folder

from .scripted import PROMPT, Scripted, byte_ids, saying
from .tiny import folder, tiny

TEXT = "naïve 東京 😀 the END. über 1234 ENDING the END!"
DRAFTS: list[dict[str, Any]] = [{"draft": False}, {}, {"wrong_at": range(2, 200, 3)}, {"wrong_at": range(200)}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(folder("target"))


def scripts(tokenizer: Tokenizer, text: str = TEXT) -> Iterator[list[int]]:
    """The text as its own tokens, and one byte a token."""
    yield tokenizer.encode(text)[len(tokenizer.start_ids) :]
    yield byte_ids(tokenizer, text)


def runs(tokenizer: Tokenizer, text: str = TEXT) -> Iterator[tuple[LLM, list[int], int]]:
    """Every way of cutting and drafting: (model, script, gamma)."""
    for script in scripts(tokenizer, text):
        for how in DRAFTS:
            for gamma in (1, 2, 5):
                yield saying(tokenizer, script, **how), script, gamma


def test_streamed_text_is_generated_text_and_no_character_is_broken(tokenizer: Tokenizer) -> None:
    """Whatever the tokens and the blocks are, pieces are whole characters and join to the text."""
    for llm, script, gamma in runs(tokenizer):
        pieces = list(llm.stream(PROMPT, max_tokens=len(script), gamma=gamma))
        assert "".join(pieces) == TEXT == llm.generate(PROMPT, max_tokens=len(script), gamma=gamma).text
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_block_streams_as_one_event_with_a_piece_a_token(tokenizer: Tokenizer) -> None:
    """`steps()` gives each round once; its pieces are the round's tokens and say why they are there."""
    script = next(scripts(tokenizer))
    stream = saying(tokenizer, script, wrong_at=[2, 6]).stream(PROMPT, max_tokens=len(script), gamma=4)
    steps = list(stream.steps())
    assert [[piece.token for piece in step] for step in steps] == [list(done.emitted) for done in stream.output.rounds]
    assert [piece.kind for piece in steps[0]] == ["accepted", "accepted", "correction"]
    assert [piece.kind for piece in steps[1]] == ["accepted"] * 3 + ["correction"]
    assert [piece.kind for piece in steps[2]] == ["accepted"] * 4 + ["bonus"]


@pytest.mark.parametrize("stop", [["END"], ["the END."], ["ENDING", "NG"], ["é", "東京"], ["😀"], ["END!", "über"], ["never"]])
def test_stop_texts_across_tokens_and_rounds(tokenizer: Tokenizer, stop: list[str]) -> None:
    """The text ends before the stop text that is complete first; the ids end with the token that completed it."""
    places = [(place + len(text), place) for text in stop if (place := TEXT.find(text)) >= 0]
    end, begin = min(places) if places else (len(TEXT), len(TEXT))
    for llm, script, gamma in runs(tokenizer):
        out = llm.generate(PROMPT, max_tokens=len(script), gamma=gamma, stop=stop, logprobs=0)
        used = next((n for n in range(1, len(script)) if len(tokenizer.decode(script[:n]).rstrip("\ufffd")) >= end), len(script))
        assert (out.text, out.token_ids) == (TEXT[:begin], script[:used])
        assert out.finish_reason == ("stop" if places else "length")
        assert out.logprobs is not None
        assert [at.token for at in out.logprobs] == out.token_ids
        assert out.stats.completion_tokens == used
        assert "".join(llm.stream(PROMPT, max_tokens=len(script), gamma=gamma, stop=stop)) == out.text


def test_text_held_for_a_stop_that_does_not_come_is_given_at_the_end(tokenizer: Tokenizer) -> None:
    """Where the last token leaves the beginning of a stop text, it belongs to the text after all."""
    script = byte_ids(tokenizer, "the EN")
    for how in DRAFTS:
        llm = saying(tokenizer, script, **how)
        assert list(llm.stream(PROMPT, max_tokens=6, stop="END"))[-1] == "EN"
        assert llm.generate(PROMPT, max_tokens=6, stop="END").text == "the EN"


def test_end_token_inside_a_block(tokenizer: Tokenizer) -> None:
    """Text, ids, counts and logprobs stop at an end token, wherever in the block it is."""
    (end,) = tokenizer.end_ids
    words = next(scripts(tokenizer))
    for place in range(6):
        script = [*words[:place], end, *words[place:]]
        for how in DRAFTS:
            out = saying(tokenizer, script, **how).generate(PROMPT, max_tokens=20, gamma=5, logprobs=1)
            assert (out.token_ids, out.text) == (script[: place + 1], tokenizer.decode(words[:place]))
            assert out.finish_reason == "stop"
            assert len(out.logprobs or []) == out.stats.completion_tokens == place + 1
            assert sum(len(done.emitted) for done in out.rounds) == place + 1


def test_an_end_token_declared_afterwards() -> None:
    """A network's own greedy text, cut at a token it produced in the middle of a block once that token ends texts."""
    llm = tiny(drafter="drafter")
    whole = llm.generate("hi", max_tokens=40, gamma=5)
    block = next(done for done in whole.rounds if done.num_accepted >= 2)
    token = block.emitted[1]
    parts = replace(parts_from_folder(folder("target")), end_ids=frozenset({token}))
    cut = LLM(llm.model, llm.drafter, tokenizer=Tokenizer(parts)).generate("hi", max_tokens=40, gamma=5)
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    assert cut.finish_reason == "stop"
    assert whole.text.startswith(cut.text)


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_whatever_comes_first_names_the_finish(tokenizer: Tokenizer, gamma: int) -> None:
    """A block that reaches both a stop and the length cap finishes by the one that is first in the text."""
    (end,) = tokenizer.end_ids
    words = byte_ids(tokenizer, "abcdefgh")
    stopped = [*words[:4], end, *words[4:]]
    for how in DRAFTS:
        llm, other = saying(tokenizer, stopped, **how), saying(tokenizer, words, **how)
        for limit, reason in [(4, "length"), (5, "stop"), (6, "stop")]:
            by_token = llm.generate(PROMPT, max_tokens=limit, gamma=gamma)
            by_text = other.generate(PROMPT, max_tokens=limit, gamma=gamma, stop="e")
            assert by_token.finish_reason == by_text.finish_reason == reason
            assert by_token.text == by_text.text == "abcd"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_tokens_is_kept_to_the_token(tokenizer: Tokenizer, most: int) -> None:
    """1, 2 or 3 tokens asked for with γ = 5 are 1, 2 or 3 tokens."""
    for script in scripts(tokenizer):
        for how in DRAFTS:
            out = saying(tokenizer, script, **how).generate(PROMPT, max_tokens=most, gamma=5)
            assert (out.token_ids, out.finish_reason) == (script[:most], "length")
            assert all(done.num_drafted < most for done in out.rounds)


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_the_context_limit_ends_the_text(tokenizer: Tokenizer, gamma: int) -> None:
    """A prompt three tokens before the limit gets exactly three, whatever is drafted."""
    script = byte_ids(tokenizer, "abcdefgh")
    for how in DRAFTS:
        out = saying(tokenizer, script, context_limit=len(PROMPT) + 3, **how).generate(PROMPT, max_tokens=50, gamma=gamma)
        assert (out.text, out.finish_reason) == ("abc", "length")


def test_a_drafter_whose_context_ends_first(tokenizer: Tokenizer) -> None:
    """It drafts as long as it can; the text goes on to the target's own end."""
    script = byte_ids(tokenizer, "abcdefgh" * 10)
    llm = saying(tokenizer, script)
    guess = Scripted(script, tokenizer.vocab_size, context_limit=20)
    out = llm.with_drafter(ModelDrafter(guess)).generate(PROMPT, max_tokens=80, gamma=5)
    assert out.text == "abcdefgh" * 10
    assert [done.num_drafted for done in out.rounds][:3] == [5, 5, 5]
    assert out.rounds[-1].num_drafted == 0


@pytest.mark.parametrize("place", [0, 3, 4, 5])
def test_odd_logits_midway(tokenizer: Tokenizer, place: int) -> None:
    """The text before a NaN row is streamed; then one error names the output position; then the model works as before."""
    script = byte_ids(tokenizer, "abcdefgh")
    for how in DRAFTS:
        llm = saying(tokenizer, script, nan=[place], **how)
        stream, heard = llm.stream(PROMPT, max_tokens=8, gamma=4), []
        with pytest.raises(RowError, match=f"output position {place}: .*NaN"):
            heard.extend(stream)
        assert "".join(heard) == "abcdefgh"[:place] == stream.output.text
        assert (stream.output.finish_reason, stream.request.cache) == (None, None)
        if place:
            assert llm.generate(PROMPT, max_tokens=place).text == "abcdefgh"[:place]


def test_odd_logits_of_one_of_many(tokenizer: Tokenizer) -> None:
    """A call for a list says which prompt failed."""
    llm = saying(tokenizer, byte_ids(tokenizer, "abcd"), nan=[2])
    with pytest.raises(RowError, match="prompt 0: no token can be drawn at output position 2"):
        llm.generate([PROMPT, PROMPT], max_tokens=4)


def test_an_interrupt_keeps_what_was_said(tokenizer: Tokenizer) -> None:
    """Ctrl-C inside a pass: what the rounds before it said is the output, held-back text included, and caches are freed."""
    script = byte_ids(tokenizer, "the ENDx")
    for how in DRAFTS:
        llm = saying(tokenizer, script, raises={7: KeyboardInterrupt()}, **how)
        stream, heard = llm.stream(PROMPT, max_tokens=20, gamma=1, stop="ENDE"), []
        with pytest.raises(KeyboardInterrupt):
            heard.extend(stream)
        stream.close()
        out = stream.output
        assert (out.finish_reason, out.stats.completion_tokens) == (None, len(out.token_ids))
        assert out.text == "the ENDx"[: len(out.token_ids)]
        assert "".join(heard) == "the "
        assert (stream.request.cache, stream.request.draft_state) == (None, None)
        assert llm.generate(PROMPT, max_tokens=8).text == "the ENDx"
