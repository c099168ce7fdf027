"""Several drafters in order: the first with enough to propose wins the round (`suffix+model:REF`).

Cheap lookups come first, models behind them; a model is not run in rounds that a lookup has won, and catches up when it is its
turn. Enough is `least` tokens, or as many as the round has room for: a lookup that found less has found little, and whoever
comes after it guesses better. Of a tree its depth counts. Only a draft without chance can be too short: where tokens were drawn,
how many there are may depend on them, and to drop some drafts for what was drawn would change the law of those that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from headstart.drafts import NOTHING
from headstart.errors import OptionError
from headstart.interfaces import Context, Drafter, Draws, FeatureDrafter, Remembering, TreeDrafter
from headstart.records import Draft
from headstart.rows import FloatArray
from headstart.shapes import Shape

__all__ = ["CombinedDrafter"]


class CombinedDrafter:
    """Asks `drafters` one after the other, each only for the sequences nobody before it had enough for.

    It grows trees if the last of them does."""

    def __new__(cls, *drafters: Drafter, least: int = 3) -> CombinedDrafter:
        """Of the kind that grows trees where the last drafter is."""
        return object.__new__(_CombinedTreeDrafter if drafters and isinstance(drafters[-1], TreeDrafter) else cls)

    def __init__(self, *drafters: Drafter, least: int = 3) -> None:
        if len(drafters) < 2:
            raise OptionError(f"`drafters` must be two or more to be combined, got {len(drafters)}")
        if least < 1:
            raise OptionError(f"`least` must be 1 or more, got {least}")
        self._drafters, self._least = drafters, least
        # Hidden states come side by side; each drafter that reads some gets its own.
        self._layers = [tuple(d.feature_layers) if isinstance(d, FeatureDrafter) else () for d in drafters]
        self.feature_layers = tuple(layer for layers in self._layers for layer in layers)
        self.name = "+".join(drafter.name for drafter in drafters)

    @property
    def last(self) -> Drafter:
        """The one that drafts where nobody before it has enough."""
        return self._drafters[-1]

    def afresh(self) -> CombinedDrafter:
        """The same drafters, those that remember each with an empty memory."""
        return CombinedDrafter(*(d.afresh() if isinstance(d, Remembering) else d for d in self._drafters))

    def open(self, contexts: Sequence[Context]) -> list[tuple[Any, ...]]:
        """For each sequence one state of every drafter."""
        opened = [drafter.open(contexts) for drafter in self._drafters]
        return list(zip(*opened, strict=True))

    def propose(
        self, states: Sequence[tuple[Any, ...]], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """For each sequence the first draft that was drawn or is long enough; where there is none, the longest, of equals the
        first."""

        def ask(drafter: Drafter, own: list[Any], waiting: list[int]) -> list[Draft]:
            return drafter.propose(
                own, [contexts[i] for i in waiting], [budgets[i] for i in waiting], [draws[i] for i in waiting]
            )

        return self._first_with_enough(states, budgets, ask)

    def _first_with_enough(
        self,
        states: Sequence[tuple[Any, ...]],
        depths: Sequence[int],  # there is room for
        ask: Callable[[Drafter, list[Any], list[int]], list[Draft]],  # a drafter, its states, the sequences
    ) -> list[Draft]:
        drafts = [NOTHING] * len(states)
        for place, drafter in enumerate(self._drafters):
            waiting = [i for i, depth in enumerate(depths) if drafts[i].depth < min(depth, self._least) and not _drawn(drafts[i])]
            if not waiting:
                break
            for i, draft in zip(waiting, ask(drafter, [states[i][place] for i in waiting], waiting), strict=True):
                if draft.depth > drafts[i].depth or _drawn(draft):
                    drafts[i] = draft
        return drafts

    def commit(self, state: tuple[Any, ...], tokens: Sequence[int], features: FloatArray | None) -> None:
        """Bring every drafter to the emitted tokens."""
        first = 0
        for drafter, own, layers in zip(self._drafters, state, self._layers, strict=True):
            hidden = 0 if features is None or not layers else features.shape[1] // len(self.feature_layers)
            seen = features[:, first * hidden : (first + len(layers)) * hidden] if features is not None and layers else None
            drafter.commit(own, tokens, seen)
            first += len(layers)


@final
class _CombinedTreeDrafter(CombinedDrafter):
    def propose_trees(
        self, states: Sequence[tuple[Any, ...]], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """As `propose`; a drafter that grows no trees drafts chains as deep."""

        def ask(drafter: Drafter, own: list[Any], waiting: list[int]) -> list[Draft]:
            asked, chance = [contexts[i] for i in waiting], [draws[i] for i in waiting]
            if isinstance(drafter, TreeDrafter):
                return drafter.propose_trees(own, asked, [shapes[i] for i in waiting], chance)
            return drafter.propose(own, asked, [min(shapes[i].depth, shapes[i].nodes) for i in waiting], chance)

        return self._first_with_enough(states, [shape.depth for shape in shapes], ask)


def _drawn(draft: Draft) -> bool:
    """Whether chance had a part in it."""
    return any(row.probs.size > 1 for row in draft.rows)
