"""Medusa heads as drafter: head i guesses the token i + 2 after the hidden state it reads, all at once (Cai et al. 2024).

After a round the newest hidden state of the target is that of the token before the last one, so head 0 speaks of the first
token to be drafted, head 1 of the second. No head sees what is drafted before it, which only lowers acceptance: in a tree all
nodes of one depth have children from one head, and all heads are computed together. Rows are processed as the target's, and each
token is drawn from the very row that is handed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints import MedusaHead
from headstart.drafters.growth import Growth, source
from headstart.drafters.medusa_forward import MedusaForward
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

    def __init__(
        self,
        head: MedusaHead,
        target: object = None,
        *,
        num_layers: int,
        quantize: str | None = None,
        name: str = "medusa",
    ) -> None:
        """`num_layers` is the target's number of layers; `target` lends its engine where that multiplies by matrices of others,
        which makes them 8-bit unless `quantize` says q4_0.

        Raises ModelError for heads that its engine cannot run."""
        self.name = name
        self.feature_layers = (num_layers,)
        self._forward = MedusaForward(head, target, quantize=quantize)
        self.longest = self._forward.num_heads
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
        for i, scored in self._scored(states, active, max((budgets[i] for i in active), default=0)):
            history = list(contexts[i].tokens)
            for logits in scored[: budgets[i]]:
                try:
                    row = self._vocabulary.row(contexts[i].processor, history, logits)
                except RowError:
                    break  # the draft ends before this row
                drafts[i] = drafts[i].then(row, draws[i].draw(row, len(history)))
                history.append(drafts[i].tokens[-1])
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
        for i, scored in self._scored(states, list(trees), max((shapes[i].depth for i in trees), default=0)):
            for depth in scored:
                if not trees[i].frontier:
                    break
                logits, ids = self._vocabulary.ordered(depth), self._vocabulary.ids
                texts = [[*contexts[i].tokens, *trees[i].path_tokens(node)] for node in trees[i].frontier]
                trees[i].grow([source(contexts[i].processor, text, logits, ids) for text in texts])
        for i, tree in trees.items():
            drafts[i] = tree.draft()
        return drafts

    def commit(self, state: _State, tokens: Sequence[int], features: FloatArray | None) -> None:
        """Keep the hidden state of the newest token that was scored."""
        if features is not None and len(features):
            state.hidden, state.length = features[-1:].astype(np.float32, copy=False), len(tokens)

    def _scored(self, states: Sequence[_State], active: Sequence[int], deepest: int) -> Iterator[tuple[int, Floats]]:
        """Each of the active with its logits by head [heads, draft vocab], of as many heads as are wanted and there are."""
        heads = min(deepest, self._forward.num_heads)
        if not active or not heads:
            return iter(())
        hidden = [state.hidden for i in active if (state := states[i]).hidden is not None]
        return zip(active, self._forward.logits(np.concatenate(hidden), heads).swapaxes(0, 1), strict=True)


def _ready(state: _State, context: Context) -> bool:
    """Whether the hidden state is that of the text at hand."""
    return 0 < state.length == len(context.tokens)
