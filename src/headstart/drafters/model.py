"""A small model as drafter: any `Model` over the target's vocabulary, run token by token, or depth by depth, ahead of the target.

It may answer for a part of the vocabulary only (`interfaces.Divisible.part`): its rows are then zero elsewhere. Invariant: after
`commit` its cache holds a prefix of prompt + output; `propose` first catches up on the rest, so no token is ever missed or
counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from headstart.drafters.growth import Growth, source
from headstart.drafters.rollout import extend, roll_out
from headstart.drafts import NOTHING
from headstart.interfaces import Ask, Cache, Context, Draws, Model, Scores
from headstart.records import Draft
from headstart.rows import FloatArray
from headstart.shapes import Shape

__all__ = ["ModelDrafter"]


@dataclass
class _State:
    cache: Cache
    held: list[int]  # the tokens in the cache
    agreed: int = 0  # of them, so many were in the text at the last commit; a text only ever grows


@final
class ModelDrafter:
    """Drafts with `model`; several sequences share each of its passes."""

    def __init__(self, model: Model, name: str = "model") -> None:
        self.name = name
        self._model = model

    def open(self, contexts: Sequence[Context]) -> list[_State]:
        """Caches that hold each prompt but its last token (prompts longer than the drafter's context are left out)."""
        states = [_State(self._model.open(), []) for _ in contexts]
        fits = [len(context.tokens) <= self._model.context_limit for context in contexts]
        extend(
            self._model,
            [state for state, fit in zip(states, fits, strict=True) if fit],
            [list(context.tokens[:-1]) for context, fit in zip(contexts, fits, strict=True) if fit],
            num_logits=0,
        )
        return states

    def propose(
        self, states: Sequence[_State], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Autoregressive drafts. A row nothing can be drawn from ends that draft; so does the drafter's own context limit."""
        limit = self._model.context_limit
        # The last drafted token is never fed back, so a draft of n needs room for n − 1 of its tokens.
        rooms = [min(b, limit - len(c.tokens) + 1) for b, c in zip(budgets, contexts, strict=True)]

        def last_rows(active: Sequence[int], drafts: Sequence[Draft]) -> list[Scores]:
            feeds = [[*contexts[i].tokens, *drafts[i].tokens][len(states[i].held) :] for i in active]
            return extend(self._model, [states[i] for i in active], feeds, num_logits=1)

        return roll_out(contexts, rooms, draws, last_rows)

    def propose_trees(
        self, states: Sequence[_State], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Trees grown a depth a pass: children drawn without replacement, or the likeliest where the law is a point (greedy).

        A cache holds one tree at a time, so each pass scores the tree so far again, after the text; that costs about one pass."""
        fitted = [self._fitted(shape, context) for shape, context in zip(shapes, contexts, strict=True)]
        active = [i for i, shape in enumerate(fitted) if shape is not None]
        growths = {i: Growth(shape, draws[i], len(contexts[i].tokens)) for i, shape in enumerate(fitted) if shape is not None}
        feeds = [list(contexts[i].tokens[len(states[i].held) :]) for i in active]
        scores = extend(self._model, [states[i] for i in active], feeds, num_logits=1)
        while active:
            for i, scored in zip(active, scores, strict=True):
                growth, context = growths[i], contexts[i]
                histories = [[*context.tokens, *growth.path_tokens(node)] for node in growth.frontier]
                pairs = zip(histories, scored.logits, strict=True)
                growth.grow([source(context.processor, history, logits, scored.ids) for history, logits in pairs])
            active = [i for i in active if growths[i].frontier]
            scores = self._score_trees([states[i] for i in active], [growths[i] for i in active])
        return [growths[i].draft() if i in growths else NOTHING for i in range(len(states))]

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Drop from the cache whatever was drafted and not kept."""
        same = state.agreed
        while same < min(len(state.held), len(tokens)) and state.held[same] == tokens[same]:
            same += 1
        # The next round needs at least one token to score.
        same = min(same, len(tokens) - 1)
        state.cache.rewind(same)
        del state.held[same:]
        state.agreed = same

    def _fitted(self, shape: Shape, context: Context) -> Shape | None:
        """`shape` cut to the model's own context; its last depth is never scored."""
        depth = (self._model.context_limit - len(context.tokens)) // shape.width + 1
        return shape.fitted(min(depth, shape.depth), shape.nodes)

    def _score_trees(self, states: Sequence[_State], growths: Sequence[Growth]) -> list[Scores]:
        """Logits at the frontier of each tree; the caches hold the texts alone, before and after."""
        if not states:
            return []
        asks = []
        for state, growth in zip(states, growths, strict=True):
            tokens, parents = growth.above_frontier()
            asks.append(Ask(cache=state.cache, tokens=tokens, parents=parents, num_logits=len(growth.frontier)))
        scores = self._model.score(asks)
        for state in states:
            state.cache.rewind(len(state.held))
        return scores
