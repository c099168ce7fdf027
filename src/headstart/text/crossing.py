"""Between two vocabularies: which tokens are the same text in both, and the tokens of one as tokens of the other.

The second is done over and over while a text grows, so it is done in pieces: a piece is closed at a place that depends on the
text alone, mostly before a space, and its tokens then stay; only the piece still open is encoded again. However the text arrives,
the tokens are those of the whole text. It knows bytes and tokenizers; it does not know who drafts from them.
"""

from __future__ import annotations

import codecs
from typing import final

import numpy as np

from headstart.rows import IntArray
from headstart.text.tokenizer import Tokenizer

__all__ = ["Crossing", "Rewriting"]

_CLOSES = 32  # characters after which a piece ends before the next space …
_FULL = 256  # … and after which it ends anyway


@final
class Crossing:
    """From the tokens of `target` to those of `drafter`, and which of them are one text. Immutable; threads may share one."""

    def __init__(self, target: Tokenizer, drafter: Tokenizer) -> None:
        self.target, self.drafter = target, drafter
        ours, theirs = _by_bytes(target), _by_bytes(drafter)
        pairs = sorted((ours[text], theirs[text]) for text in ours.keys() & theirs.keys())
        self.target_ids: IntArray = np.array([pair[0] for pair in pairs], dtype=np.int64)  # [shared], increasing
        self.drafter_ids: IntArray = np.array([pair[1] for pair in pairs], dtype=np.int64)  # [shared]: the same texts
        named = {drafter.token_text(token): token for token in drafter.special_ids}
        self.specials = {token: named.get(target.token_text(token)) for token in target.special_ids}

    def open(self) -> Rewriting:
        """A text that is still empty."""
        return Rewriting(self)


@final
class Rewriting:
    """A text that grows by tokens of the target, as tokens of the drafter."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._closed = list(crossing.drafter.start_ids)
        self._open = ""
        self._begun = False

    @property
    def num_closed(self) -> int:
        """So many of `tokens`, the first ones, will never change."""
        return len(self._closed)

    @property
    def whole(self) -> bool:
        """Whether the text ends with a whole character. Of one that is not whole, `tokens` show nothing."""
        return not self._utf8.getstate()[0]

    @property
    def tokens(self) -> list[int]:
        """The drafter's tokens of the text so far."""
        return [*self._closed, *self._encoded()]

    def push(self, token: int) -> None:
        """One more token of the target. A special token is the drafter's of the same name, or else its name as text."""
        if token in self._crossing.specials:
            self._special(token)
        else:
            self._add(self._utf8.decode(self._crossing.target.token_bytes(token)))

    def _special(self, token: int) -> None:
        self._add(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        known = self._crossing.specials[token]
        if known is not None:
            if self._begun or known not in self._closed:  # the drafter's own start token is there already
                self._close()
                self._closed.append(known)
        elif self._begun or token not in self._crossing.target.start_ids:
            self._add(self._crossing.target.token_text(token))
        self._begun = True

    def _add(self, text: str) -> None:
        for character in text:
            size = len(self._open)
            if size >= _FULL or (size >= _CLOSES and character == " " and not self._open[-1].isspace()):
                self._close()
            self._open += character
        self._begun = self._begun or bool(text)

    def _close(self) -> None:
        self._closed += self._encoded()
        self._open = ""

    def _encoded(self) -> list[int]:
        if not self._open:
            return []
        return self._crossing.drafter.encode_more(self._open, begun=len(self._closed) > len(self._crossing.drafter.start_ids))


def _by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The token for each text that a token stands for; of several, the one that is not a spelt-out byte, then the lowest."""
    tokens = tokenizer.tokens()
    found: dict[bytes, int] = {}
    for spelt_out in (False, True):
        for token, name in enumerate(tokens):
            if name is None or token in tokenizer.special_ids or (name.startswith("<0x") and name.endswith(">")) != spelt_out:
                continue
            text = tokenizer.token_bytes(token)
            if text:
                found.setdefault(text, token)
    return found
