"""An EAGLE head as drafter: it continues the target's own hidden states, one cheap layer a token (Li et al. 2024, 2025).

The head's entry at index t joins the embedding of token t + 1 with the target's hidden states at t. Invariant: after `commit`
a sequence's head cache holds entries made from the target's hidden states only, the others are waiting in `features`;
`propose` first runs what waits, then drafts on the head's own output and takes those entries back. Rows are over the head's own
vocabulary, processed as the target's, and every token is drawn from the very row that is handed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints.heads import EagleHead
from headstart.drafters.eagle_forward import EagleForward
from headstart.drafters.growth import Growth, Source, source
from headstart.drafters.own_vocabulary import OwnVocabulary
from headstart.drafts import NOTHING
from headstart.errors import RowError
from headstart.interfaces import Context, Draws, HeadAsk, HeadCache, HeadEngine, HeadRunner, Scores, VocabularyRows
from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.shapes import Shape

__all__ = ["EagleDrafter"]

Floats = NDArray[np.float32]


@dataclass
class _State:
    cache: HeadCache
    features: list[Floats] = field(default_factory=list)  # the target's, for entries not yet in the cache
    waiting: int = 0  # rows in them
    newest: Scores | None = None  # the head's output and logits at the newest entry, last in both
    whole: bool = True  # False: hidden states of some tokens were never handed over


class _Tree:
    """A tree under way, and where its nodes lie in the head's cache."""

    def __init__(self, growth: Growth, state: _State) -> None:
        assert state.newest is not None
        self.growth, self.cache, self.held = growth, state.cache, state.cache.length
        self.newest = {0: _end(state.newest)}  # node → [1, hidden] and [1, draft vocab]: the head's output and logits at it
        self._places: dict[int, int] = {0: -1}  # node → its index among the tree's entries in the cache

    def ask(self) -> HeadAsk:
        """The frontier as the next entries: each sees the text, the nodes above it and itself, and reads its parent's output."""
        nodes = self.growth.frontier
        above = [[0, *self.growth.path(node)][-2] for node in nodes]
        first = len(self._places) - 1
        self._places |= {node: first + i for i, node in enumerate(nodes)}
        return HeadAsk(
            cache=self.cache,
            tokens=[self.growth.path_tokens(node)[-1] for node in nodes],
            hidden=np.concatenate([self.newest[parent][0] for parent in above]),
            parents=[self._places[parent] for parent in above],
            grows=first > 0,
            num_logits=len(nodes),
        )

    def saw(self, scores: Scores) -> None:
        """What came of `ask`."""
        out, logits = scores.features, scores.logits
        assert out is not None
        self.newest |= {node: (out[i : i + 1], logits[i : i + 1]) for i, node in enumerate(self.growth.frontier)}


@final
class EagleDrafter:
    """Drafts with an EAGLE head; several sequences share each of its products."""

    def __init__(self, head: EagleHead, target: VocabularyRows, *, num_layers: int, name: str = "eagle") -> None:
        """`target` lends its vocabulary matrices, and its engine where that runs heads; `num_layers` is its number of layers.

        Raises ModelError for a head that its engine cannot run."""
        self.name = name
        self.feature_layers = head.config.layers_of(num_layers)
        self._runner: HeadRunner = target.head_runner(head) if isinstance(target, HeadEngine) else EagleForward(head, target)
        self._vocabulary = OwnVocabulary(head.token_ids, head.config.draft_vocab_size)

    def open(self, contexts: Sequence[Context]) -> list[_State]:
        """Empty states; the prompt's hidden states come with the first commit."""
        return [_State(self._runner.open()) for _ in contexts]

    def propose(
        self, states: Sequence[_State], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Autoregressive drafts. Nothing for a sequence whose hidden states are not known, such as a prompt of one token."""
        active = [i for i, budget in enumerate(budgets) if budget > 0 and self._ready(states[i], contexts[i])]
        self._catch_up([states[i] for i in active], [contexts[i] for i in active])
        held = {i: states[i].cache.length for i in active}
        newest = {i: newest for i in active if (newest := states[i].newest) is not None}
        texts = {i: list(contexts[i].tokens) for i in active}
        rows: list[list[Row]] = [[] for _ in states]
        while active:
            going = []
            for i in active:
                try:
                    row = self._row(contexts[i], texts[i], newest[i])
                except RowError:
                    continue  # the draft ends before this row, whatever would have been drawn from it
                texts[i].append(draws[i].draw(row, len(texts[i])))
                rows[i].append(row)
                if len(rows[i]) < budgets[i]:
                    going.append(i)
            active = going
            if active:
                asks = [HeadAsk(cache=states[i].cache, tokens=texts[i][-1:], hidden=_end(newest[i])[0]) for i in active]
                newest = dict(zip(active, self._runner.run(asks), strict=True))
        for i, length in held.items():
            states[i].cache.rewind(length)
        return [Draft(tokens=tuple(texts[i][-len(own) :]), rows=tuple(own)) if own else NOTHING for i, own in enumerate(rows)]

    def propose_trees(
        self, states: Sequence[_State], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Trees grown a depth at a time, by a fixed shape or by each node's chance of being reached (EAGLE-2).

        Nothing for a sequence whose hidden states are not known."""
        active = [i for i, state in enumerate(states) if self._ready(state, contexts[i])]
        self._catch_up([states[i] for i in active], [contexts[i] for i in active])
        drafts = [NOTHING] * len(states)
        trees = {i: _Tree(Growth(shapes[i], draws[i], len(contexts[i].tokens)), states[i]) for i in active}
        growing = list(trees)
        while growing:
            for i in growing:
                trees[i].growth.grow(self._sources(trees[i], contexts[i]))
            growing = [i for i in growing if trees[i].growth.frontier]
            if growing:
                self._deepen([trees[i] for i in growing])
        for i, tree in trees.items():
            states[i].cache.rewind(tree.held)
            drafts[i] = tree.growth.draft()
        return drafts

    def _sources(self, tree: _Tree, context: Context) -> list[Source | None]:
        """What the children of each node of the frontier come from."""
        own = self._vocabulary
        return [
            source(
                context.processor,
                [*context.tokens, *tree.growth.path_tokens(node)],
                own.ordered(tree.newest[node][1][0]),
                own.ids,
            )
            for node in tree.growth.frontier
        ]

    def _deepen(self, trees: Sequence[_Tree]) -> None:
        """Run the head on every node of each frontier; siblings do not see one another."""
        for tree, answer in zip(trees, self._runner.run([tree.ask() for tree in trees]), strict=True):
            tree.saw(answer)

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Keep the hidden states of the tokens that were scored since the last commit: `tokens[-1 - n : -1]`."""
        if features is not None and len(features):
            state.features.append(features.astype(np.float32, copy=False))
            state.waiting += len(features)
        state.whole = state.whole and state.cache.length + state.waiting == len(tokens) - 1

    def _row(self, context: Context, text: Sequence[int], newest: Scores) -> Row:
        best = None if newest.best is None else newest.best[-1]
        return self._vocabulary.row(context.processor, text, newest.logits[-1], best)

    def _ready(self, state: _State, context: Context) -> bool:
        return state.whole and state.cache.length + state.waiting == len(context.tokens) - 1 > 0

    def _catch_up(self, states: Sequence[_State], contexts: Sequence[Context]) -> None:
        """Run the entries that wait, of all sequences in one pass."""
        pairs = [(state, context) for state, context in zip(states, contexts, strict=True) if state.waiting]
        if not pairs:
            return
        asks = [
            HeadAsk(cache=state.cache, tokens=context.tokens[-state.waiting :], hidden=_joined(state.features))
            for state, context in pairs
        ]
        for (state, _), scores in zip(pairs, self._runner.run(asks, from_target=True), strict=True):
            state.newest, state.features, state.waiting = scores, [], 0


def _end(newest: Scores) -> tuple[FloatArray, FloatArray]:
    """Output [1, hidden] and logits [1, draft vocab] of the last entry."""
    assert newest.features is not None
    return newest.features[-1:], newest.logits[-1:]


def _joined(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
