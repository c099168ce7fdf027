"""A model that says a given text whatever happens: what the output must be is known before it is run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from headstart.drafters import ModelDrafter
from headstart.generation import LLM
from headstart.interfaces import Ask, Scores
from headstart.text import Tokenizer

PROMPT = [65, 66]  # what the script follows


class _Cache:
    def __init__(self, length: int = 0) -> None:
        self.length = length

    def rewind(self, length: int) -> None:
        assert length <= self.length
        self.length = length

    def keep(self, path: Sequence[int]) -> None:
        raise NotImplementedError

    def fork(self) -> _Cache:
        return _Cache(self.length)


class Scripted:
    """Certain of `script` after `PROMPT`, and of token 0 for ever after; at places in `nan` its logits are NaN, and a pass
    that reaches a place in `raises` raises that."""

    def __init__(
        self,
        script: Sequence[int],
        vocab_size: int,
        *,
        nan: Collection[int] = (),
        raises: dict[int, BaseException] | None = None,
        context_limit: int = 10_000,
    ) -> None:
        self.script, self.vocab_size, self.context_limit = list(script), vocab_size, context_limit
        self.nan, self.raises = nan, dict(raises or {})

    def open(self) -> _Cache:
        return _Cache()

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        scores = []
        for ask in asks:
            cache: Any = ask.cache
            places = [cache.length + i + 1 - len(PROMPT) for i in range(len(ask.tokens))]
            for place in places:
                if place in self.raises:
                    raise self.raises.pop(place)
            cache.length += len(ask.tokens)
            wanted = len(places) if ask.num_logits is None else ask.num_logits
            scores.append(Scores(logits=np.array([self._row(p) for p in places[len(places) - wanted :]])))
        return scores

    def _row(self, place: int) -> np.ndarray:
        row = np.zeros(self.vocab_size)
        row[self.script[place] if 0 <= place < len(self.script) else 0] = 30.0
        return row * np.nan if place in self.nan else row


def saying(
    tokenizer: Tokenizer, script: Sequence[int], *, wrong_at: Collection[int] = (), draft: bool = True, **more: Any
) -> LLM:
    """An LLM that says `script`, with a drafter that knows it but for the places `wrong_at`."""
    size = tokenizer.vocab_size
    guess = [(token + 1) % size if place in wrong_at else token for place, token in enumerate(script)]
    drafter = ModelDrafter(Scripted(guess, size)) if draft else None
    return LLM(Scripted(script, size, **more), drafter, tokenizer=tokenizer)


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """`text` one byte a token: every character beyond ASCII is split."""
    known = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size)) if len(tokenizer.token_bytes(i)) == 1}
    return [known[bytes([byte])] for byte in text.encode()]
