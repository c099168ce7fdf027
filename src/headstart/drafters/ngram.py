"""Prompt lookup: what followed the last time the text ended like this (Saxena 2023; Yang et al. 2023).

The longest suffix of the context that was seen before, in prompt or output, is looked up; of equally long ones the most recent
wins. The draft is what followed it, a point mass at each position; a tree holds what followed the other places as well. It does
not look past one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, final

from headstart.errors import OptionError
from headstart.interfaces import Context, Draws
from headstart.records import Draft
from headstart.rows import FloatArray
from headstart.shapes import Shape

__all__ = ["NGramDrafter"]

_LOOKED_AT = 16  # places looked at for each branch there is room for


@dataclass
class _Index:
    """Where each short n-gram of the tokens so far ends; extended by what a round adds."""

    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # n-gram → indices just after it, increasing


@final
class NGramDrafter:
    """Looks up suffixes of at least `min_match` tokens; compares at most `max_match` tokens back to rank the places found."""

    name = "ngram"
    looks_up: Literal[True] = True

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

    def propose_trees(
        self, states: Sequence[_Index], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """What followed each earlier match, the best first, as branches of one tree. `draws` are not used."""
        return [self._branches(state, shape) for state, shape in zip(states, shapes, strict=True)]

    def commit(self, state: _Index, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Index the tokens that came since the last commit (a sequence only ever grows)."""
        for token in tokens[len(state.tokens) :]:
            state.tokens.append(token)
            if len(state.tokens) >= self._min:
                state.ends.setdefault(tuple(state.tokens[-self._min :]), []).append(len(state.tokens))

    def _branches(self, state: _Index, shape: Shape) -> Draft:
        """Continuations merged into a tree, each as far as the shape has room."""
        ends = self._earlier(state)
        lengths = {end: self._match_length(state.tokens, end) for end in ends}
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[tuple[int, int], int] = {}  # (index of the parent, token) → index
        counts = [0] * shape.depth
        # Of equal matches the most recent first, as for chains; far down the list nothing new is to be expected.
        for end in sorted(ends, key=lambda end: (-lengths[end], -end))[: _LOOKED_AT * shape.width]:
            parent = -1
            for depth, token in enumerate(self._followed(state.tokens, end, shape.depth)):
                if (parent, token) not in known:
                    if counts[depth] == shape.width or len(tokens) == shape.nodes:
                        break
                    known[parent, token] = len(tokens)
                    tokens.append(token)
                    parents.append(parent)
                    counts[depth] += 1
                parent = known[parent, token]
        return Draft.points(tokens, self._vocab_size, parents)

    def _earlier(self, state: _Index) -> list[int]:
        """Where the text ended like this before, oldest first."""
        return state.ends.get(tuple(state.tokens[-self._min :]), [])[:-1]

    def _continuation(self, state: _Index, budget: int) -> list[int]:
        tokens = state.tokens
        best, best_length = 0, 0
        for end in reversed(self._earlier(state) if budget > 0 else []):
            length = self._match_length(tokens, end)
            if length > best_length:
                best, best_length = end, length
                if length == self._max:
                    break
        return self._followed(tokens, best, budget) if best_length else []

    def _followed(self, tokens: list[int], end: int, count: int) -> list[int]:
        """The `count` tokens after `end`. Past the last one the match repeats itself: it overlaps the suffix it continues."""
        period = len(tokens) - end
        return [tokens[end + step % period] for step in range(count)]

    def _match_length(self, tokens: list[int], end: int) -> int:
        length = self._min
        last = len(tokens)
        while length < self._max and length < end and tokens[end - 1 - length] == tokens[last - 1 - length]:
            length += 1
        return length
