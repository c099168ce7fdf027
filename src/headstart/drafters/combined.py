"""Several drafters in order: the first with enough to propose wins the round (`suffix+model:REF`).

Cheap lookups come first, models behind them; a model is not run in rounds that a lookup has won, and catches up when it is its
turn. Enough is `least` tokens, also where there is room for fewer: a lookup that found less has found little, and whoever comes
after it guesses better. A draft of anybody else is enough with as many tokens as it had room for. Of a tree its depth counts.
Only a draft without chance can be too short: where tokens were drawn, how many there are may depend on them, and to drop some
drafts for what was drawn would change the law of those that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from headstart.drafts import NOTHING
from headstart.errors import OptionError
from headstart.interfaces import Context, Drafter, Draws, FeatureDrafter, LookupDrafter, Remembering, TreeDrafter
from headstart.records import Draft
from headstart.rows import FloatArray
from headstart.shapes import Shape

__all__ = ["CombinedDrafter"]

_State = list[Any]  # one of every drafter, in order


class _NotOpen:
    """Stands, as a class, for the state of a drafter that is not open: copies of it are itself."""


class CombinedDrafter:
    """Asks `parts` one after the other, each only for the sequences nobody before it had enough for.

    It grows trees if the last of them does."""

    def __new__(cls, *parts: Drafter, least: int = 3) -> CombinedDrafter:
        """Of the kind that grows trees where the last drafter is."""
        return object.__new__(_CombinedTreeDrafter if parts and isinstance(parts[-1], TreeDrafter) else cls)

    def __init__(self, *parts: Drafter, least: int = 3) -> None:
        if len(parts) < 2:
            raise OptionError(f"`drafters` must be two or more to be combined, got {len(parts)}")
        if least < 1:
            raise OptionError(f"`least` must be 1 or more, got {least}")
        self.parts, self._least = parts, least
        # Hidden states come side by side; each drafter that reads some gets its own.
        self._layers = [tuple(d.feature_layers) if isinstance(d, FeatureDrafter) else () for d in parts]
        self.feature_layers = tuple(layer for layers in self._layers for layer in layers)
        self.name = "+".join(drafter.name for drafter in parts)
        # What a lookup must find, whatever there is room for.
        self._needed = [least if isinstance(drafter, LookupDrafter) else 0 for drafter in parts]

    def afresh(self) -> CombinedDrafter:
        """The same drafters, those that remember each with an empty memory."""
        return CombinedDrafter(*(d.afresh() if isinstance(d, Remembering) else d for d in self.parts), least=self._least)

    def open(self, contexts: Sequence[Context]) -> list[_State]:
        """For each sequence one state of every drafter."""
        opened = [drafter.open(contexts) for drafter in self.parts]
        return [list(states) for states in zip(*opened, strict=True)]

    def open_parts(self, state: _State | None, context: Context, limits: Sequence[int]) -> _State:
        """The state of one sequence with those open that `limits` lets draft."""
        found = [_NotOpen] * len(self.parts) if state is None else state
        for place, (drafter, limit) in enumerate(zip(self.parts, limits, strict=True)):
            if limit > 0 and found[place] is _NotOpen:
                (found[place],) = drafter.open([context])
        return found

    def propose(
        self, states: Sequence[_State], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """As `propose_parts` with one limit for all."""
        limits = [(budget,) * len(self.parts) for budget in budgets]
        return [draft for _, draft in self.propose_parts(states, contexts, limits, draws)]

    def propose_parts(
        self, states: Sequence[_State], contexts: Sequence[Context], limits: Sequence[Sequence[int]], draws: Sequence[Draws]
    ) -> list[tuple[int, Draft]]:
        """For each sequence the first draft that was drawn or is long enough, and whose it is; where there is none, the last one
        that is as long as it was allowed to be, or no shorter than those before it."""

        def ask(place: int, own: list[Any], waiting: list[int]) -> list[Draft]:
            budgets = [max(limits[i][place], self._needed[place]) for i in waiting]
            return self.parts[place].propose(own, [contexts[i] for i in waiting], budgets, [draws[i] for i in waiting])

        return self._first_with_enough(states, limits, self._needed, ask)

    def _first_with_enough(
        self,
        states: Sequence[_State],
        limits: Sequence[Sequence[int]],  # [sequences][parts]: how deep a draft may be; 0: do not ask
        needed: Sequence[int],  # [parts]: how deep it must be to be enough; 0: as deep as it may be, or `least`
        ask: Callable[[int, list[Any], list[int]], list[Draft]],  # whom, their states, the sequences
    ) -> list[tuple[int, Draft]]:
        found = [(0, NOTHING)] * len(states)
        settled = [False] * len(states)
        for place, enough in enumerate(needed):
            waiting = [i for i, limit in enumerate(limits) if limit[place] > 0 and not settled[i]]
            if not waiting:
                continue
            for i, draft in zip(waiting, ask(place, [states[i][place] for i in waiting], waiting), strict=True):
                limit = limits[i][place]
                settled[i] = _drawn(draft) or draft.depth >= (enough or min(limit, self._least))
                if draft.parents is None and len(draft) > limit:
                    draft = Draft.points(draft.tokens[:limit], draft.rows[0].vocab_size)
                if settled[i] or draft.depth >= min(limit, max(1, found[i][1].depth)):
                    found[i] = (place, draft)
        return found

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Bring every drafter that is open to the emitted tokens."""
        first = 0
        for drafter, own, layers in zip(self.parts, state, self._layers, strict=True):
            hidden = 0 if features is None or not layers else features.shape[1] // len(self.feature_layers)
            seen = features[:, first * hidden : (first + len(layers)) * hidden] if features is not None and layers else None
            if own is not _NotOpen:
                drafter.commit(own, tokens, seen)
            first += len(layers)


@final
class _CombinedTreeDrafter(CombinedDrafter):
    def propose_trees(
        self, states: Sequence[_State], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """As `propose`, but there enough is never more than a shape has room for; a drafter that grows no trees drafts chains."""

        def ask(place: int, own: list[Any], waiting: list[int]) -> list[Draft]:
            drafter, asked, chance = self.parts[place], [contexts[i] for i in waiting], [draws[i] for i in waiting]
            if isinstance(drafter, TreeDrafter):
                return drafter.propose_trees(own, asked, [shapes[i] for i in waiting], chance)
            return drafter.propose(own, asked, [min(shapes[i].depth, shapes[i].nodes) for i in waiting], chance)

        limits = [(shape.depth,) * len(self.parts) for shape in shapes]
        return [draft for _, draft in self._first_with_enough(states, limits, [0] * len(self.parts), ask)]


def _drawn(draft: Draft) -> bool:
    """Whether chance had a part in it."""
    return any(row.probs.size > 1 for row in draft.rows)
