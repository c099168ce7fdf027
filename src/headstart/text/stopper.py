"""When a text ends: at an end token, or before a stop string; and what text each token released."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.errors import OptionError
from headstart.text.stream import Transcript
from headstart.text.tokenizer import Tokenizer

__all__ = ["TextStopper"]


class TextStopper:
    """Turns emitted tokens into text and says when an end token or a stop string is reached."""

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str], end_ids: frozenset[int]) -> None:
        if tokenizer is None and stop:
            raise OptionError(f"`stop` needs a tokenizer, got {list(stop)!r} for a model without one")
        self._transcript = Transcript(tokenizer, stop) if tokenizer else None
        self._end_ids = end_ids
        self._new: list[str] = []
        self._finished = False

    def stops(self, token: int) -> bool:
        """Whether the sequence ends with `token`; its text, if any, is kept for `taken`."""
        if token in self._end_ids or self._transcript is None:
            self._new.append("")
            return token in self._end_ids
        piece = self._transcript.push(token)
        self._new.append(piece.text)
        return piece.stopped

    def taken(self) -> list[str]:
        """The text each token since the last call released."""
        texts, self._new = self._new, []
        return texts

    def finish(self) -> str:
        """Text that was held back; to be called once no token follows."""
        if self._transcript is None or self._finished:
            return ""
        self._finished = True
        return self._transcript.finish()

    def so_far(self, final: bool) -> str:
        """The text released so far; all of it where no token follows."""
        if final:
            self.finish()
        return self._transcript.text if self._transcript else ""
