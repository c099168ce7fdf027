"""Layer-skip: the first layers of the target itself, with its own final norm and head (Zhang et al. 2024; Elhoushi et al. 2024).

No second weights and no second cache: drafted tokens are scored on the target's cache, by its first layers only, and rewound
before the target's own pass. How good the guesses are depends on the model; those trained for early exits guess best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from headstart.drafters.rollout import roll_out
from headstart.errors import ModelError
from headstart.interfaces import Ask, Cache, Context, Draws, Model, Scores
from headstart.records import Draft
from headstart.rows import FloatArray

__all__ = ["SkipDrafter"]


@final
class SkipDrafter:
    """Drafts with `part`, what `interfaces.Divisible.part` of the target gives. It remembers nothing."""

    def __init__(self, part: Model, name: str = "skip") -> None:
        self.name = name
        self._part = part

    def open(self, contexts: Sequence[Context]) -> list[None]:
        """The target's prefill is the drafter's."""
        return [None] * len(contexts)

    def propose(
        self, states: Sequence[None], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Autoregressive drafts. Raises ModelError where a context comes without the target's cache."""
        caches = [_cache(context) for context in contexts]
        before = [cache.length for cache in caches]

        def last_rows(active: Sequence[int], drafts: Sequence[Draft]) -> list[Scores]:
            asks = []
            for i in active:
                text = [*contexts[i].tokens, *drafts[i].tokens]
                asks.append(Ask(cache=caches[i], tokens=text[caches[i].length :], num_logits=1))
            return self._part.score(asks)

        try:
            return roll_out(contexts, budgets, draws, last_rows)
        finally:
            for cache, length in zip(caches, before, strict=True):
                cache.rewind(length)

    def commit(self, state: None, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Nothing to do: the cache is the target's."""


def _cache(context: Context) -> Cache:
    if context.cache is None:
        raise ModelError("layer-skip drafts on the target's cache, and this context has none; set Context.cache")
    return context.cache
