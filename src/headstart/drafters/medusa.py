"""Medusa heads as drafter: head i guesses the token i + 2 after the hidden state it reads, all at once (Cai et al. 2024).

After a round the newest hidden state of the target is that of the token before the last one, so head 0 speaks of the first
token to be drafted, head 1 of the second. No head sees what is drafted before it, which only lowers acceptance: in a tree all
nodes of one depth have children from one head. Rows are processed as the target's, and each token is drawn from the very row
that is handed on. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints import MedusaHead
from headstart.drafters.growth import Growth, source
from headstart.drafters.own_vocabulary import OwnVocabulary
from headstart.drafts import NOTHING
from headstart.errors import RowError
from headstart.interfaces import Context, Draws
from headstart.records import Draft
from headstart.rows import FloatArray
from headstart.shapes import Shape

__all__ = ["MedusaDrafter"]

Floats = NDArray[np.float32]


@dataclass
class _State:
    hidden: Floats | None = None  # the target's final hidden state at the token before the last
    length: int = 0  # tokens of the text it belongs to


@final
class MedusaDrafter:
    """Drafts with Medusa heads, at most one token a head."""

    def __init__(self, head: MedusaHead, *, num_layers: int, name: str = "medusa") -> None:
        """`num_layers` is the target's number of layers."""
        self.name = name
        self.feature_layers = (num_layers,)
        w = {key: tensor.floats() for key, tensor in head.weights.items()}
        self._blocks = [
            [(w[f"{i}.{layer}.linear.weight"], w[f"{i}.{layer}.linear.bias"]) for layer in range(head.num_layers)]
            for i in range(head.num_heads)
        ]
        self._rows = [w[f"{i}.{head.num_layers}.weight"] for i in range(head.num_heads)]
        self._vocabulary = OwnVocabulary(head.token_ids, head.draft_vocab_size)

    def open(self, contexts: Sequence[Context]) -> list[_State]:
        """Empty states; the prompt's hidden state comes with the first commit."""
        return [_State() for _ in contexts]

    def propose(
        self, states: Sequence[_State], contexts: Sequence[Context], budgets: Sequence[int], draws: Sequence[Draws]
    ) -> list[Draft]:
        """A token from each head in turn. Nothing where the newest hidden state is not known."""
        drafts = [NOTHING] * len(states)
        active = [i for i, budget in enumerate(budgets) if budget > 0 and _ready(states[i], contexts[i])]
        for head in range(len(self._rows)):
            active = [i for i in active if len(drafts[i]) == head < budgets[i]]
            if not active:
                break
            hidden = np.concatenate([states[i].hidden for i in active])
            for i, scored in zip(active, self._logits(head, hidden), strict=True):
                history = [*contexts[i].tokens, *drafts[i].tokens]
                try:
                    row = self._vocabulary.row(contexts[i].processor, history, scored)
                except RowError:
                    continue  # the draft ends before this row
                drafts[i] = drafts[i].then(row, draws[i].draw(row, len(history)))
        return drafts

    def propose_trees(
        self, states: Sequence[_State], contexts: Sequence[Context], shapes: Sequence[Shape], draws: Sequence[Draws]
    ) -> list[Draft]:
        """Trees of a fixed shape, as the paper's, or of the likeliest paths; a head for each depth.

        Nothing where the newest hidden state is not known."""
        drafts = [NOTHING] * len(states)
        trees = {
            i: Growth(shapes[i], draws[i], len(contexts[i].tokens))
            for i, state in enumerate(states)
            if _ready(state, contexts[i])
        }
        for head in range(len(self._rows)):
            growing = [i for i, tree in trees.items() if tree.frontier]
            if not growing:
                break
            hidden = np.concatenate([states[i].hidden for i in growing])
            for i, scored in zip(growing, self._logits(head, hidden), strict=True):
                logits, ids = self._vocabulary.ordered(scored), self._vocabulary.ids
                texts = [[*contexts[i].tokens, *trees[i].path_tokens(node)] for node in trees[i].frontier]
                trees[i].grow([source(contexts[i].processor, text, logits, ids) for text in texts])
        for i, tree in trees.items():
            drafts[i] = tree.draft()
        return drafts

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Keep the hidden state of the newest token that was scored."""
        if features is not None and len(features):
            state.hidden, state.length = features[-1:].astype(np.float32, copy=False), len(tokens)

    def _logits(self, head: int, hidden: Floats) -> Floats:
        """[n, draft vocab] of one head: x + SiLU(Wx + b), then its vocabulary projection."""
        x = hidden
        for weight, bias in self._blocks[head]:
            inner = x @ weight.T + bias
            x = x + inner / (1 + np.exp(-np.maximum(inner, -80)))
        out: Floats = x @ self._rows[head].T
        return out


def _ready(state: _State, context: Context) -> bool:
    """Whether the hidden state is that of the text at hand."""
    return 0 < state.length == len(context.tokens)
