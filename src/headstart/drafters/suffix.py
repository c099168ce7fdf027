"""Suffix decoding: what usually followed where the text ended like this before (Oliaro et al. 2024).

Each suffix of the context that was met before, of m tokens, proposes at most ⌊m·factor + offset⌋ tokens: the token that
followed most often, then what most often followed that, as long as the product of the shares stays at `least` or above. A
proposal scores the sum of these products, the tokens it may hope for; the best score wins, of equals the longer match, then the
sequence's own text. Point masses. With `memory`, outputs of earlier requests are looked through as well.

A tree holds other tokens that followed as well: always the node whose product of shares is the largest, as long as there is room.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

from headstart.drafters.automaton import Automaton, Place, Writer
from headstart.errors import OptionError
from headstart.interfaces import Context, Draws
from headstart.records import Draft
from headstart.rows import FloatArray
from headstart.shapes import Shape

__all__ = ["SuffixDrafter"]


class _Proposal(NamedTuple):
    score: float = 0.0
    match: int = 0
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None  # None: a chain


@dataclass
class _Recall:
    """One sequence's places in the memory. A generation is a set of automata; places of an older one mean nothing."""

    writer: Writer = field(default_factory=Writer)
    writes_in: int = 0  # generation
    places: list[Place] = field(default_factory=list)  # one an automaton
    reads_in: int = -1  # generation


@dataclass
class _State:
    automaton: Automaton  # over this sequence
    writer: Writer = field(default_factory=Writer)
    recall: _Recall = field(default_factory=_Recall)


class _Memory:
    """Outputs of all requests, the latest `limit` tokens at most: two automata, the older dropped when the newer is half full."""

    def __init__(self, limit: int, depth: int) -> None:
        self._half, self._depth = limit // 2, depth
        self.automata = [Automaton(depth)] if limit else []
        self._generation = 0

    def write(self, recall: _Recall, token: int) -> None:
        """Append a token of a sequence's output."""
        newest = self.automata[0]
        if newest.num_tokens >= self._half:
            self.automata = [Automaton(self._depth), newest]
            self._generation += 1
        if recall.writes_in != self._generation:
            recall.writer, recall.writes_in = Writer(), self._generation
        self.automata[0].write(recall.writer, token)

    def follow(self, recall: _Recall, tokens: Sequence[int], new: int) -> None:
        """Bring the places of a sequence to the end of `tokens`, whose last `new` it has not followed yet."""
        if recall.reads_in != self._generation:
            recall.reads_in, recall.places, new = self._generation, [Place() for _ in self.automata], self._depth
        for automaton, place in zip(self.automata, recall.places, strict=True):
            for token in tokens[max(0, len(tokens) - new) :]:
                automaton.read(place, token)


@final
class SuffixDrafter:
    """Looks at the last `max_match` tokens. `memory`: tokens of earlier outputs kept, 0 for none."""

    name = "suffix"
    looks_up: Literal[True] = True

    def __init__(
        self,
        vocab_size: int,
        *,
        factor: float = 1.0,
        offset: float = 0.0,
        least: float = 0.1,
        max_match: int = 32,
        memory: int = 0,
    ) -> None:
        for name, value in (("factor", factor), ("offset", offset)):
            if not (math.isfinite(value) and value >= 0):
                raise OptionError(f"`{name}` must be 0 or more, got {value}")
        if not 0 < least <= 1:
            raise OptionError(f"`least` must be over 0 and at most 1, got {least}")
        if max_match < 1:
            raise OptionError(f"`max_match` must be 1 or more, got {max_match}")
        if memory < 0 or memory == 1:
            raise OptionError(f"`memory` must be a number of tokens, 2 or more, or 0 for none, got {memory}")
        self._vocab_size, self._factor, self._offset, self._least, self._depth = vocab_size, factor, offset, least, max_match
        self._limit, self._memory = memory, _Memory(memory, max_match)

    def afresh(self) -> SuffixDrafter:
        """The same drafter with an empty memory of its own."""
        return SuffixDrafter(
            self._vocab_size,
            factor=self._factor,
            offset=self._offset,
            least=self._least,
            max_match=self._depth,
            memory=self._limit,
        )

    def open(self, contexts: Sequence[Context]) -> list[_State]:
        """An automaton of each prompt."""
        states = [_State(Automaton(self._depth)) for _ in contexts]
        for state, context in zip(states, contexts, strict=True):
            for token in context.tokens:
                state.automaton.write(state.writer, token)
            self._memory.follow(state.recall, context.tokens, self._depth)
        return states

    def propose(
        self, states: Sequence[_State], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """The best proposal of each sequence; an empty draft where nothing matches. `draws` are not used."""
        rooms = [Shape(width=1, depth=budget, nodes=budget) if budget > 0 else None for budget in budgets]
        return self._drafts(states, contexts, rooms)

    def propose_trees(
        self, states: Sequence[_State], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """The best proposal of each sequence as a tree; an empty draft where nothing matches. `draws` are not used."""
        return self._drafts(states, contexts, shapes)

    def _drafts(self, states: Sequence[_State], contexts: Sequence[Context], rooms: Sequence[Shape | None]) -> list[Draft]:
        drafts = []
        for state, context, room in zip(states, contexts, rooms, strict=True):
            best = _Proposal()
            if room is not None:
                self._memory.follow(state.recall, context.tokens, 0)
                best = self._proposal(state.automaton, state.writer.tail, room)
                for automaton, place in zip(self._memory.automata, state.recall.places, strict=True):
                    other = self._proposal(automaton, place, room)
                    if other[:2] > best[:2]:
                        best = other
            drafts.append(Draft.points(best.tokens, self._vocab_size, best.parents))
        return drafts

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Write down the tokens that came since the last commit (a sequence only ever grows)."""
        new = tokens[state.automaton.num_tokens :]
        for token in new:
            state.automaton.write(state.writer, token)
            if self._memory.automata:
                self._memory.write(state.recall, token)
        self._memory.follow(state.recall, tokens, len(new))

    def _proposal(self, automaton: Automaton, place: Place, room: Shape) -> _Proposal:
        """The best of what the suffixes at `place`, the longest first, propose."""
        automaton.settle(place)
        node, match, best = place.node, place.length, _Proposal()
        while match > 0:
            allowed = min(room.nodes, math.floor(match * self._factor + self._offset))
            if allowed <= best.score:
                break  # a token scores at most 1, and shorter matches are allowed no more
            if room.width == 1:
                found = self._walk(automaton, node, match, min(allowed, room.depth))
            else:
                found = self._grow(automaton, node, match, allowed, room)
            if found.score > best.score:
                best = found
            node = automaton.link[node]
            match = automaton.longest[node]
        return best

    def _walk(self, automaton: Automaton, node: int, match: int, allowed: int) -> _Proposal:
        """What followed most often, and so on."""
        prob, score = 1.0, 0.0
        tokens: list[int] = []
        while len(tokens) < allowed and (token := automaton.best[node]) >= 0:
            after = automaton.next[node][token]
            prob *= automaton.count[after] / automaton.followed[node]
            if prob < self._least:
                break
            tokens.append(token)
            score += prob
            node = self._counted(automaton, after)
        return _Proposal(score, match, tuple(tokens))

    def _grow(self, automaton: Automaton, node: int, match: int, allowed: int, room: Shape) -> _Proposal:
        """All that followed, the likeliest first, each node after its parent."""
        score = 0.0
        tokens: list[int] = []
        parents: list[int] = []
        counts = [0] * room.depth
        # (−product of shares, depth, whether another token comes first among equals, token, its node, its parent)
        waiting: list[tuple[float, int, bool, int, int, int]] = []

        def offer(node: int, prob: float, depth: int, parent: int) -> None:
            total = automaton.followed[node]
            for token, after in automaton.next[node].items() if depth < room.depth and total else ():
                share = prob * automaton.count[after] / total
                if share >= self._least:
                    heapq.heappush(waiting, (-share, depth, token != automaton.best[node], token, after, parent))

        offer(node, 1.0, 0, -1)
        while waiting and len(tokens) < allowed:
            negative, depth, _, token, after, parent = heapq.heappop(waiting)
            if counts[depth] < room.width:
                counts[depth] += 1
                tokens.append(token)
                parents.append(parent)
                score -= negative
                offer(self._counted(automaton, after), -negative, depth + 1, len(tokens) - 1)
        return _Proposal(score, match, tuple(tokens), tuple(parents))

    def _counted(self, automaton: Automaton, node: int) -> int:
        """Where counts go on from: they are of substrings of `depth` tokens, so what lies further back is left out."""
        while automaton.longest[automaton.link[node]] >= self._depth:
            node = automaton.link[node]
        return node
