"""Sampled text has the target's law: the first two tokens against the model's own rows, at temperature 1.

Each test counts pairs (token 1, token 2) over many seeded runs and compares them with p(token 1)·p(token 2 | token 1) from the
model's rows by a χ² test over cells of at least five expected counts. False-alarm rate 1e-6 a test; seeds are fixed. A twin with
a broken rule must fail the same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headstart.decode import Decoder, Request
from headstart.drafters import ModelDrafter, NGramDrafter
from headstart.draws import StreamDraws
from headstart.generation import LLM
from headstart.interfaces import Ask, Scores
from headstart.probs import SamplingProcessor
from headstart.records import Draft, Options, Sampling
from headstart.rows import Row
from headstart.verify import RULES, TokenRule

FALSE_ALARM = 1e-6
RUNS = 2000
PROMPT = "cat dog cat dog bird cat dog cat dog bird cat dog"


class Remembering:
    """A model that answers from memory what it has scored before: many short runs of one prompt become cheap."""

    def __init__(self, model: Any) -> None:
        self.vocab_size, self.context_limit = model.vocab_size, model.context_limit
        self._model, self._rows = model, {}
        self._cache = model.open()
        self._held: list[int] = []

    def open(self) -> _Tokens:
        return _Tokens()

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        return [self._answer(ask) for ask in asks]

    def _answer(self, ask: Ask) -> Scores:
        held: Any = ask.cache
        wanted = len(ask.tokens) if ask.num_logits is None else ask.num_logits
        rows = []
        for place, token in enumerate(ask.tokens):
            held.tokens.append(token)
            if place >= len(ask.tokens) - wanted:
                rows.append(self._row(tuple(held.tokens)))
        return Scores(logits=np.array(rows).reshape(wanted, self.vocab_size))

    def _row(self, tokens: tuple[int, ...]) -> np.ndarray:
        if tokens not in self._rows:
            pairs = zip(self._held, tokens[:-1], strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self._held), len(tokens) - 1))
            self._cache.rewind(same)
            (scores,) = self._model.score([Ask(cache=self._cache, tokens=tokens[same:], num_logits=1)])
            self._held, self._rows[tokens] = list(tokens), scores.logits[-1]
        return self._rows[tokens]


class _Tokens:
    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rewind(self, length: int) -> None:
        del self.tokens[length:]


class SoftmaxResidual:
    """A broken rule: the correction is a softmax of the clamped difference instead of the difference normalised."""

    name, walks, keyed, trees, lossless = "broken", False, False, False, True

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> Any:
        return TokenRule().outcome_probs(target_rows, draft)

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        if node == len(draft):
            return target_rows[node]
        excess = np.maximum(target_rows[node].to_array() - draft.rows[node].to_array(), 0)
        weights = np.exp(excess) * (excess > 0)
        return Row.dense(weights / weights.sum())


@pytest.fixture(scope="module")
def models(smollm2: LLM, half_model: Any) -> tuple[Remembering, Remembering]:
    """Target and drafter with memory."""
    return Remembering(smollm2.model), Remembering(half_model)


def p_value(llm: LLM, target: Remembering, drafter: Any, rule: Any, sampling: Sampling) -> float:
    """χ² p-value of the first two tokens of RUNS runs."""
    prompt = tuple(llm.prompt_ids(PROMPT, Options.of(chat=False)))
    decoder = Decoder(target, drafter)

    def processor() -> SamplingProcessor:
        return SamplingProcessor(sampling, num_prompt=len(prompt), vocab_size=llm.vocab_size)

    pairs: Counter[tuple[int, int]] = Counter()
    for seed in range(RUNS):
        request = Request(prompt, rule=rule, draws=StreamDraws(seed), processor=processor(), max_tokens=2, gamma=2)
        for _ in decoder.run([request]):
            pass
        pairs[tuple(request.output)] += 1  # type: ignore[index]

    expected: dict[tuple[int, int], float] = {}
    first = processor().row(prompt, target._row(prompt)).to_array()
    for a in np.flatnonzero(first * RUNS >= 5):
        second = processor().row((*prompt, int(a)), target._row((*prompt, int(a)))).to_array()
        for b in np.flatnonzero(first[a] * second * RUNS >= 5):
            expected[int(a), int(b)] = float(first[a] * second[b]) * RUNS
    rest = RUNS - sum(expected.values())
    counts = [pairs[cell] for cell in expected] + [RUNS - sum(pairs[cell] for cell in expected)]
    wanted = [*expected.values(), rest]
    assert len(wanted) > 8, "too few cells to test anything"
    chi = sum((n - e) ** 2 / e for n, e in zip(counts, wanted, strict=True) if e > 0)
    return float(stats.chi2.sf(chi, len(wanted) - 1))


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_two_tokens_at_temperature_1_with_ngram(smollm2: LLM, models: Any, rule: str) -> None:
    """Whole vocabulary, temperature 1, prompt lookup: a repeating prompt makes sure that drafts are made and judged."""
    target, _ = models
    drafter = NGramDrafter(smollm2.vocab_size, min_match=1)
    assert p_value(smollm2, target, drafter, RULES[rule], Sampling(temperature=1.0)) > FALSE_ALARM


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_two_tokens_with_a_sampled_draft(smollm2: LLM, models: Any, rule: str) -> None:
    """Temperature 1 among the 12 likeliest tokens, drafts sampled from a smaller model."""
    target, drafter = models
    sampling = Sampling(temperature=1.0, top_k=12)
    assert p_value(smollm2, target, ModelDrafter(drafter), RULES[rule], sampling) > FALSE_ALARM


def test_twin_a_softmax_residual_is_caught(smollm2: LLM, models: Any) -> None:
    """The same test with a biased correction fails by a wide margin."""
    target, drafter = models
    sampling = Sampling(temperature=1.0, top_k=12)
    assert p_value(smollm2, target, ModelDrafter(drafter), SoftmaxResidual(), sampling) < FALSE_ALARM
