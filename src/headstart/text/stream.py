"""Tokens into text, one at a time, and where the text stops.

    transcript = Transcript(tokenizer, stop=("END",))
    for token in tokens:
        piece = transcript.push(token)      # piece.text may be shown at once, and is never taken back
        if piece.stopped: break
    rest = transcript.finish()

The pieces joined are always the whole text, however the tokens arrive. Every push costs time in the length of the token and
the stop strings, not in what came before.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from headstart.text.tokenizer import Tokenizer

__all__ = ["Piece", "StopStrings", "TextStream", "Transcript"]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one token added: text that is now certain, and whether a stop string was completed."""

    text: str
    stopped: bool


@final
class TextStream:
    """Incremental decoding: an unfinished character is held until it is whole, or certain to be broken."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False

    def push(self, token: int) -> str:
        """The text that this token makes certain; may be empty."""
        return self._begin(self._utf8.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> str:
        """What was still held: U+FFFD for a character that never became whole."""
        return self._begin(self._utf8.decode(b"", final=True))

    def _begin(self, text: str) -> str:
        if self._begun or not text:
            return text
        self._begun = True
        return self._tokenizer.strip_start(text)


@final
class StopStrings:
    """Finds the first stop string of a text that arrives in pieces.

    First means: complete first; of several that end at the same character, the longest. That does not depend on where the
    pieces are cut. Text that may be the beginning of a stop string is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""

    def push(self, text: str) -> Piece:
        """The text before a stop string, once one is complete; else what can no longer belong to one."""
        if not self._stop:
            return Piece(text=text, stopped=False)
        text = self._held + text
        found = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return Piece(text=text[: min(found)[1]], stopped=True)
        certain = len(text) - self._possible(text)
        self._held = text[certain:]
        return Piece(text=text[:certain], stopped=False)

    def finish(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0


@final
class Transcript:
    """The text of one answer, token by token, up to the first of the `stop` strings."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._stream = TextStream(tokenizer)
        self._stop = StopStrings(stop)
        self._pieces: list[str] = []
        self._stopped = False

    @property
    def text(self) -> str:
        """Everything released so far."""
        return "".join(self._pieces)

    def push(self, token: int) -> Piece:
        """What this token released; once a piece says `stopped`, its token is the last one."""
        assert not self._stopped, "a token after the stop"
        piece = self._stop.push(self._stream.push(token))
        self._stopped = piece.stopped
        self._pieces.append(piece.text)
        return piece

    def finish(self) -> str:
        """What was held and is now certain, since no token follows. Empty after a stop."""
        if self._stopped:
            return ""
        last = self._stop.push(self._stream.finish())
        self._stopped = True
        rest = last.text if last.stopped else last.text + self._stop.finish()
        self._pieces.append(rest)
        return rest
