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
from headstart.drafters.eagle_forward import Branches, EagleForward, HeadCache
from headstart.drafters.growth import Growth, Source, source
from headstart.drafters.own_vocabulary import OwnVocabulary
from headstart.errors import RowError
from headstart.interfaces import Context, Draws, VocabularyRows
from headstart.records import Draft
from headstart.rows import FloatArray
from headstart.shapes import Shape

__all__ = ["EagleDrafter"]

Floats = NDArray[np.float32]


@dataclass
class _State:
    cache: HeadCache
    features: list[Floats] = field(default_factory=list)  # the target's, for entries not yet in the cache
    waiting: int = 0  # rows in them
    last: Floats | None = None  # [1, hidden]: the head's output at the newest entry
    whole: bool = True  # False: hidden states of some tokens were never handed over


class _Tree:
    """A tree under way, and where its nodes lie in the head's cache."""

    def __init__(self, growth: Growth, state: _State) -> None:
        assert state.last is not None
        self.growth, self.cache, self.held = growth, state.cache, state.cache.length
        self.hidden = {0: state.last}  # node → [1, hidden]: the head's output at it
        self._slots: dict[int, int] = {}  # node → its entry in the cache

    def inputs(self) -> Floats:
        """[frontier, hidden]: what the head put out at the parent of each node of the frontier."""
        return np.concatenate([self.hidden[([0, *self.growth.path(node)])[-2]] for node in self.growth.frontier])

    def branches(self) -> Branches:
        """Each node of the frontier sees the text, the nodes above it and itself; they get the cache's next entries."""
        nodes, first = self.growth.frontier, self.cache.length
        self._slots |= {node: first + i for i, node in enumerate(nodes)}
        sees = np.zeros((len(nodes), first + len(nodes)), dtype=np.bool_)
        sees[:, : self.held] = True
        positions = np.zeros(len(nodes), dtype=np.int64)
        for i, node in enumerate(nodes):
            path = self.growth.path(node)
            sees[i, [self._slots[each] for each in path]] = True
            positions[i] = self.held + len(path) - 1
        return Branches(positions, sees)


@final
class EagleDrafter:
    """Drafts with an EAGLE head; several sequences share each of its products."""

    def __init__(self, head: EagleHead, target: VocabularyRows, *, num_layers: int, name: str = "eagle") -> None:
        """`target` lends its vocabulary matrices; `num_layers` is its number of layers."""
        self.name = name
        self.feature_layers = head.config.layers_of(num_layers)
        self._forward = EagleForward(head, target)
        self._vocabulary = OwnVocabulary(head.token_ids, head.config.draft_vocab_size)

    def open(self, contexts: Sequence[Context]) -> list[_State]:
        """Empty states; the prompt's hidden states come with the first commit."""
        return [_State(HeadCache(self._forward.config)) for _ in contexts]

    def propose(
        self, states: Sequence[_State], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Autoregressive drafts. Nothing for a sequence whose hidden states are not known, such as a prompt of one token."""
        drafts = [Draft() for _ in states]
        active = [i for i, budget in enumerate(budgets) if budget > 0 and self._ready(states[i], contexts[i])]
        self._catch_up([states[i] for i in active], [contexts[i] for i in active])
        held = [state.cache.length for state in states]
        hidden = {i: states[i].last for i in active}
        while active:
            logits = self._forward.logits(np.concatenate([hidden[i] for i in active]))
            going = []
            for i, scored in zip(active, logits, strict=True):
                history = [*contexts[i].tokens, *drafts[i].tokens]
                try:
                    row = self._vocabulary.row(contexts[i].processor, history, scored)
                except RowError:
                    continue  # the draft ends before this row, whatever would have been drawn from it
                drafts[i] = drafts[i].then(row, draws[i].draw(row, len(history)))
                if len(drafts[i]) < budgets[i]:
                    going.append(i)
            active = going
            if active:
                embedded = np.split(self._forward.embeddings([drafts[i].tokens[-1] for i in active]), len(active))
                inputs = [hidden[i] for i in active]
                outputs = self._forward.run([states[i].cache for i in active], embedded, inputs)  # type: ignore[arg-type]
                hidden = dict(zip(active, outputs, strict=True))
        for state, length in zip(states, held, strict=True):
            state.cache.rewind(length)
        return drafts

    def propose_trees(
        self, states: Sequence[_State], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Trees grown a depth at a time, by a fixed shape or by each node's chance of being reached (EAGLE-2).

        Nothing for a sequence whose hidden states are not known."""
        active = [i for i, state in enumerate(states) if self._ready(state, contexts[i])]
        self._catch_up([states[i] for i in active], [contexts[i] for i in active])
        drafts = [Draft() for _ in states]
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
        logits = self._forward.logits(np.concatenate([tree.hidden[node] for node in tree.growth.frontier]))
        processor = context.processor
        return [
            source(
                processor,
                [*context.tokens, *tree.growth.path_tokens(node)],
                self._vocabulary.widened(scored, processor.vocab_size),
            )
            for node, scored in zip(tree.growth.frontier, logits, strict=True)
        ]

    def _deepen(self, trees: Sequence[_Tree]) -> None:
        """Run the head on every node of each frontier; siblings do not see one another."""
        tokens = [[tree.growth.path_tokens(node)[-1] for node in tree.growth.frontier] for tree in trees]
        outputs = self._forward.run(
            [tree.cache for tree in trees],
            [self._forward.embeddings(each) for each in tokens],
            [tree.inputs() for tree in trees],
            [tree.branches() for tree in trees],
        )
        for tree, output in zip(trees, outputs, strict=True):
            tree.hidden |= {node: output[i : i + 1] for i, node in enumerate(tree.growth.frontier)}

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Keep the hidden states of the tokens that were scored since the last commit: `tokens[-1 - n : -1]`."""
        if features is not None and len(features):
            state.features.append(features.astype(np.float32, copy=False))
            state.waiting += len(features)
        state.whole = state.whole and state.cache.length + state.waiting == len(tokens) - 1

    def _ready(self, state: _State, context: Context) -> bool:
        return state.whole and state.cache.length + state.waiting == len(context.tokens) - 1 > 0

    def _catch_up(self, states: Sequence[_State], contexts: Sequence[Context]) -> None:
        """Run the entries that wait, of all sequences in one pass."""
        pairs = [(state, context) for state, context in zip(states, contexts, strict=True) if state.waiting]
        if not pairs:
            return
        embedded, hidden = [], []
        for state, context in pairs:
            hidden.append(self._forward.projected(np.concatenate(state.features)))
            embedded.append(self._forward.embeddings(context.tokens[-state.waiting :]))
        outputs = self._forward.run([state.cache for state, _ in pairs], embedded, hidden)
        for (state, _), output in zip(pairs, outputs, strict=True):
            state.last = output[-1:]
            state.features, state.waiting = [], 0
