"""A model of another vocabulary as drafter, by token-level intersection (Timor et al. 2025, Alg. 4).

The text so far is rewritten as the drafter's tokens. Its rows are cut to tokens whose text is also one token of the target, and
renormalised before anything is drawn: what is drawn is a token of both, and the row that is handed on is over the target's
vocabulary. Drafts begin only where the text ends with a whole character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from headstart.drafters.rollout import extend, roll_out
from headstart.errors import VocabularyMismatchError
from headstart.interfaces import Cache, Context, Draws, Model, Scores
from headstart.records import Draft
from headstart.rows import FloatArray, IntArray

__all__ = ["Bridge", "CrossDrafter", "Rewritten"]


class Rewritten(Protocol):
    """A text that grows by tokens of the target, as tokens of the drafter."""

    @property
    def num_closed(self) -> int:
        """So many of `tokens`, the first ones, will never change."""

    @property
    def whole(self) -> bool:
        """Whether the text ends with a whole character."""

    @property
    def tokens(self) -> list[int]:
        """The drafter's tokens of the text so far: a function of the text, however it came."""

    def push(self, token: int) -> None:
        """One more token of the target."""


class Bridge(Protocol):
    """From one vocabulary to another (`text.Crossing` is one)."""

    target_ids: IntArray  # [shared], increasing: the target's tokens that are also tokens of the drafter …
    drafter_ids: IntArray  # [shared]: … and which

    def open(self) -> Rewritten:
        """A text that is still empty."""


@dataclass
class _State:
    cache: Cache
    held: list[int]  # the drafter's tokens in the cache
    text: Rewritten
    seen: int = 0  # the target's tokens in `text`
    agreed: int = 0  # so many of `held` are, for ever, the text's


@final
class CrossDrafter:
    """Drafts with `model`, whose vocabulary `bridge` leads to."""

    def __init__(self, model: Model, bridge: Bridge, name: str = "cross") -> None:
        if not len(bridge.target_ids):
            raise VocabularyMismatchError(f"`drafter` {name} has no token in common with the target; use --drafter ngram")
        self.name = name
        self._model, self._bridge = model, bridge
        self._drafter_token = dict(zip(bridge.target_ids.tolist(), bridge.drafter_ids.tolist(), strict=True))
        self._shared = _Shared(None, bridge.drafter_ids, bridge.target_ids)

    def open(self, contexts: Sequence[Context]) -> list[_State]:
        """Caches that hold each prompt but its last token (prompts longer than the drafter's context are left out)."""
        states = [_State(self._model.open(), [], self._bridge.open()) for _ in contexts]
        feeds = []
        for state, context in zip(states, contexts, strict=True):
            self._read(state, context.tokens)
            tokens = state.text.tokens
            feeds.append(tokens[:-1] if len(tokens) <= self._model.context_limit else [])
        extend(self._model, states, feeds, num_logits=0)
        return states

    def propose(
        self, states: Sequence[_State], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Autoregressive drafts over the tokens both have; none inside a character, none past the drafter's own context."""
        limit = self._model.context_limit
        for state, context in zip(states, contexts, strict=True):
            self._read(state, context.tokens)
        texts = [state.text.tokens for state in states]
        rooms = [
            min(budget, limit - len(text) + 1) if text and state.text.whole else 0
            for state, text, budget in zip(states, texts, budgets, strict=True)
        ]

        def last_rows(active: Sequence[int], drafts: Sequence[Draft]) -> list[Scores]:
            feeds = []
            for i in active:
                drafted = [self._drafter_token[token] for token in drafts[i].tokens]
                feeds.append([*texts[i], *drafted][len(states[i].held) :])
            scores = extend(self._model, [states[i] for i in active], feeds, num_logits=1)
            return [self._common(scored) for scored in scores]

        for i, room in enumerate(rooms):
            if room > 0:
                self._keep(states[i], texts[i])
        return roll_out(contexts, rooms, draws, last_rows)

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Rewrite what came since the last commit, and drop from the cache whatever is not part of the text."""
        self._read(state, tokens)
        self._keep(state, state.text.tokens)

    def _read(self, state: _State, tokens: Sequence[int]) -> None:
        for token in tokens[state.seen :]:
            state.text.push(token)
        state.seen = len(tokens)

    def _keep(self, state: _State, text: Sequence[int]) -> None:
        """Rewind the cache to where it agrees with `text`, less one token to score next."""
        same = state.agreed
        while same < min(len(state.held), len(text)) and state.held[same] == text[same]:
            same += 1
        same = min(same, max(0, len(text) - 1))
        state.cache.rewind(same)
        del state.held[same:]
        state.agreed = min(same, state.text.num_closed)

    def _common(self, scored: Scores) -> Scores:
        """The last row, of shared tokens under their ids of the target."""
        if scored.ids is not self._shared.given:
            self._shared = _Shared(scored.ids, self._bridge.drafter_ids, self._bridge.target_ids)
        return Scores(logits=scored.logits[-1:, self._shared.columns], ids=self._shared.target_ids)


class _Shared:
    """Where shared tokens stand in rows over the drafter's tokens `given` (None: all of them)."""

    def __init__(self, given: IntArray | None, drafter_ids: IntArray, target_ids: IntArray) -> None:
        self.given, self.columns, self.target_ids = given, drafter_ids, target_ids
        if given is not None:
            places = np.minimum(np.searchsorted(given, drafter_ids), len(given) - 1)
            there = given[places] == drafter_ids
            self.columns, self.target_ids = places[there], target_ids[there]
