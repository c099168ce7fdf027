"""Prompt lookup: what followed the last time the text ended like this (Saxena 2023; Yang et al. 2023).

The longest suffix of the context that was seen before, in prompt or output, is looked up; of equally long ones the most recent
wins. The draft is what followed it, a point mass at each position. It does not look past one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from headstart.errors import OptionError
from headstart.interfaces import Context, Draws
from headstart.records import Draft
from headstart.rows import FloatArray

__all__ = ["NGramDrafter"]


@dataclass
class _Index:
    """Where each short n-gram of the tokens so far ends; extended by what a round adds."""

    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # n-gram → indices just after it, increasing


@final
class NGramDrafter:
    """Looks up suffixes of at least `min_match` tokens; compares at most `max_match` tokens back to rank the places found."""

    name = "ngram"

    def __init__(self, vocab_size: int, *, min_match: int = 2, max_match: int = 32) -> None:
        if min_match < 1:
            raise OptionError(f"`min_match` must be 1 or more, got {min_match}")
        if max_match < min_match:
            raise OptionError(f"`max_match` must be at least min_match ({min_match}), got {max_match}")
        self._vocab_size, self._min, self._max = vocab_size, min_match, max_match

    def open(self, contexts: Sequence[Context]) -> list[_Index]:
        """An index of each prompt."""
        states = [_Index() for _ in contexts]
        for state, context in zip(states, contexts, strict=True):
            self.commit(state, context.tokens, None)
        return states

    def propose(
        self, states: Sequence[_Index], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """What followed the best earlier match; an empty draft where nothing matches. `draws` are not used."""
        return [
            Draft.points(self._continuation(state, budget), self._vocab_size)
            for state, budget in zip(states, budgets, strict=True)
        ]

    def commit(self, state: _Index, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Index the tokens that came since the last commit (a sequence only ever grows)."""
        for token in tokens[len(state.tokens) :]:
            state.tokens.append(token)
            if len(state.tokens) >= self._min:
                state.ends.setdefault(tuple(state.tokens[-self._min :]), []).append(len(state.tokens))

    def _continuation(self, state: _Index, budget: int) -> list[int]:
        tokens = state.tokens
        earlier = state.ends.get(tuple(tokens[-self._min :]), [])[:-1] if budget > 0 else []
        best, best_length = 0, 0
        for end in reversed(earlier):
            length = self._match_length(tokens, end)
            if length > best_length:
                best, best_length = end, length
                if length == self._max:
                    break
        if best_length == 0:
            return []
        # Past the end of what is known the match repeats itself: it overlaps the suffix it continues.
        period = len(tokens) - best
        return [tokens[best + step % period] for step in range(budget)]

    def _match_length(self, tokens: list[int], end: int) -> int:
        length = self._min
        last = len(tokens)
        while length < self._max and length < end and tokens[end - 1 - length] == tokens[last - 1 - length]:
            length += 1
        return length
