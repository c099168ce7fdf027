"""What drafters are given in tests: parts of table models, and vocabularies that spell alike but count differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headstart.interfaces import Ask, Scores
from headstart.models.asks import Tail
from headstart.models.table import TableCache, TableModel


class Cut:
    """A table model that answers for the tokens `ids` alone."""

    def __init__(self, model: TableModel, ids: Sequence[int]) -> None:
        self._model, self._ids = model, np.array(ids)
        self.vocab_size, self.context_limit, self.open = model.vocab_size, model.context_limit, model.open

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        return [Scores(logits=scored.logits[:, self._ids], ids=self._ids) for scored in self._model.score(asks)]


class Early:
    """The first layers of any table model: another table, which scores on that model's caches."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self.vocab_size, self.context_limit = model.vocab_size, model.context_limit

    def open(self) -> TableCache:
        return self._model.open()

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        scores = []
        for ask in asks:
            cache, start = ask.cache, ask.cache.length
            assert isinstance(cache, TableCache)
            wanted = len(ask.tokens) if ask.num_logits is None else ask.num_logits
            text = [*cache.tokens, *ask.tokens]
            scores += self._model.score([Ask(cache=self._model.open(), tokens=text, num_logits=wanted)])
            cache.tokens, cache.tail = tuple(text), Tail(start, len(text))
        return scores


@dataclass
class Spelled:
    """A text, and the drafter's tokens of it: always the longest that fits."""

    target_texts: Sequence[str]
    drafter_texts: Sequence[str]
    text: str = ""
    whole: bool = True
    num_closed: int = 0

    def push(self, token: int) -> None:
        self.text += self.target_texts[token]

    @property
    def tokens(self) -> list[int]:
        tokens, rest = [], self.text
        while rest:
            fits = [token for token, text in enumerate(self.drafter_texts) if rest.startswith(text)]
            token = max(fits, key=lambda fit: len(self.drafter_texts[fit]))
            tokens.append(token)
            rest = rest[len(self.drafter_texts[token]) :]
        return tokens


@dataclass
class Spelling:
    """Two vocabularies by the texts of their tokens. Every letter of the target's must be a token of the drafter's."""

    target_texts: Sequence[str]
    drafter_texts: Sequence[str]
    target_ids: np.ndarray = field(init=False)
    drafter_ids: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        pairs = [(t, self.drafter_texts.index(text)) for t, text in enumerate(self.target_texts) if text in self.drafter_texts]
        self.target_ids = np.array([pair[0] for pair in pairs])
        self.drafter_ids = np.array([pair[1] for pair in pairs])

    def open(self) -> Spelled:
        return Spelled(self.target_texts, self.drafter_texts)


# Three of the target's four tokens are the drafter's too, by other numbers; 'bc' is one token to the drafter alone.
SPELLING = Spelling(["a", "b", "ab", "c"], ["c", "b", "a", "bc", "d"])
