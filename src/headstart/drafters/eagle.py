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
from headstart.drafters.eagle_forward import EagleForward, HeadCache
from headstart.drafters.own_vocabulary import OwnVocabulary
from headstart.errors import RowError
from headstart.interfaces import Context, Draws, VocabularyRows
from headstart.records import Draft
from headstart.rows import FloatArray

__all__ = ["EagleDrafter"]

Floats = NDArray[np.float32]


@dataclass
class _State:
    cache: HeadCache
    features: list[Floats] = field(default_factory=list)  # the target's, for entries not yet in the cache
    waiting: int = 0  # rows in them
    last: Floats | None = None  # [1, hidden]: the head's output at the newest entry
    whole: bool = True  # False: hidden states of some tokens were never handed over


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
