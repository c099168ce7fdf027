"""What drafters are given in tests: parts of table models, and vocabularies that spell alike but count differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headstart.checkpoints import EagleConfig, EagleHead, MedusaHead
from headstart.drafters import EagleDrafter, MedusaDrafter
from headstart.drafters.eagle_forward import EagleForward
from headstart.interfaces import Ask, Scores
from headstart.models.asks import Tail
from headstart.models.table import TableCache, TableModel
from tests.checkpoints.heads import tensor


class Cut:
    """A table model that answers for the tokens `ids` alone."""

    def __init__(self, model: TableModel, ids: Sequence[int]) -> None:
        self._model, self._ids = model, np.array(ids)
        self.vocab_size, self.context_limit, self.open = model.vocab_size, model.context_limit, model.open

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        return [Scores(logits=scored.logits[:, self._ids], ids=self._ids) for scored in self._model.score(asks)]


class Early:
    """The first layers of any table model: another table, which scores on that model's caches."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self.vocab_size, self.context_limit = model.vocab_size, model.context_limit

    def open(self) -> TableCache:
        return self._model.open()

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        scores = []
        for ask in asks:
            cache, start = ask.cache, ask.cache.length
            assert isinstance(cache, TableCache)
            wanted = len(ask.tokens) if ask.num_logits is None else ask.num_logits
            text = [*cache.tokens, *ask.tokens]
            scores += self._model.score([Ask(cache=self._model.open(), tokens=text, num_logits=wanted)])
            cache.tokens, cache.tail = tuple(text), Tail(start, len(text))
        return scores


@dataclass
class Spelled:
    """A text, and the drafter's tokens of it: always the longest that fits."""

    target_texts: Sequence[str]
    drafter_texts: Sequence[str]
    text: str = ""
    whole: bool = True
    num_closed: int = 0

    def push(self, token: int) -> None:
        self.text += self.target_texts[token]

    @property
    def tokens(self) -> list[int]:
        tokens, rest = [], self.text
        while rest:
            fits = [token for token, text in enumerate(self.drafter_texts) if rest.startswith(text)]
            token = max(fits, key=lambda fit: len(self.drafter_texts[fit]))
            tokens.append(token)
            rest = rest[len(self.drafter_texts[token]) :]
        return tokens


@dataclass
class Spelling:
    """Two vocabularies by the texts of their tokens. Every letter of the target's must be a token of the drafter's."""

    target_texts: Sequence[str]
    drafter_texts: Sequence[str]
    target_ids: np.ndarray = field(init=False)
    drafter_ids: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        pairs = [(t, self.drafter_texts.index(text)) for t, text in enumerate(self.target_texts) if text in self.drafter_texts]
        self.target_ids = np.array([pair[0] for pair in pairs])
        self.drafter_ids = np.array([pair[1] for pair in pairs])

    def open(self) -> Spelled:
        return Spelled(self.target_texts, self.drafter_texts)


# Three of the target's four tokens are the drafter's too, by other numbers; 'bc' is one token to the drafter alone.
SPELLING = Spelling(["a", "b", "ab", "c"], ["c", "b", "a", "bc", "d"])


class _Target:
    """Vocabulary matrices of a target of four tokens, and its engine for heads: logits in float64, like the tables' own."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self._embed, self._head = (rng.normal(size=(4, 8)).astype(np.float32) for _ in range(2))

    def embeddings(self, tokens):
        return self._embed[np.asarray(tokens)]

    def head_rows(self, tokens):
        return self._head[np.asarray(tokens)]

    def head_runner(self, head: EagleHead) -> Any:
        runner = EagleForward(head, self)
        in_single = runner.run

        def run(asks, *, from_target: bool = False):
            found = in_single(asks, from_target=from_target)
            return [Scores(logits=each.logits.astype(np.float64), features=each.features) for each in found]

        runner.run = run
        return runner


@dataclass
class _Fed:
    inner: Any
    length: int = 0  # tokens whose hidden states were handed over


class Fed:
    """A head whose target always has hidden states: those of a token follow from the text up to it."""

    def __init__(self, inner: Any, width: int) -> None:
        self._inner, self._width = inner, width
        self.name = inner.name

    def open(self, contexts):
        states = [_Fed(inner) for inner in self._inner.open(contexts)]
        for state, one in zip(states, contexts, strict=True):
            self.commit(state, one.tokens, None)
        return states

    def propose(self, states, contexts, budgets, draws):
        return self._inner.propose([state.inner for state in states], contexts, budgets, draws)

    def commit(self, state, tokens, features) -> None:
        new = range(state.length, len(tokens) - 1)
        hidden = [np.random.default_rng(list(tokens[: place + 1])).normal(size=self._width) for place in new]
        self._inner.commit(state.inner, tokens, np.array(hidden, np.float32).reshape(len(hidden), self._width))
        state.length = max(state.length, len(tokens) - 1)


def eagle_for_four(generation: int) -> Fed:
    """An EAGLE head beside a target of four tokens, of generation 3 for three of them."""
    first = generation == 1
    config = EagleConfig(
        generation=1 if first else 3, hidden_size=8, target_hidden_size=8, intermediate_size=12, num_heads=2, num_kv_heads=1,
        head_dim=4, vocab_size=4, draft_vocab_size=4 if first else 3, num_features=1 if first else 3,
        feature_layers=(2,) if first else (0, 1, 2),
    )  # fmt: skip
    rng = np.random.default_rng(generation)
    weights = {name: tensor(rng, shape) for name, shape in config.shapes().items()}
    head = EagleHead(config=config, weights=weights, token_ids=None if first else np.array([0, 1, 3]))
    return Fed(EagleDrafter(head, _Target(), num_layers=2), 8 * config.num_features)


def medusa_for_four() -> Fed:
    """Three Medusa heads beside a target of four tokens."""
    rng = np.random.default_rng(7)
    shapes = {"0.linear.weight": (8, 8), "0.linear.bias": (8,), "1.weight": (4, 8)}
    weights = {f"{head}.{name}": tensor(rng, shape) for head in range(3) for name, shape in shapes.items()}
    head = MedusaHead(num_heads=3, num_layers=1, hidden_size=8, vocab_size=4, draft_vocab_size=4, weights=weights)
    drafter: Any = MedusaDrafter(head, num_layers=2)
    in_single = drafter._forward.logits
    drafter._forward.logits = lambda hidden, heads: in_single(hidden, heads).astype(np.float64)
    return Fed(drafter, 8)
