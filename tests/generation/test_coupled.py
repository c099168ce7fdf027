"""Under `coupled`, the same seed gives the same text with or without speculation, whatever drafts, alone or in a batch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import headstart
from headstart.draws import KeyedDraws
from headstart.generation import LLM
from headstart.probs import softmax
from headstart.rows import Row

from .conftest import with_drafter
from .near_ties import NEAR_TIE, logits_after
from .prompts import PROMPTS

ASKED: dict[str, Any] = {"temperature": 1.0, "max_tokens": 24, "rule": "coupled"}
PROMPT = PROMPTS[3]
SEED = 20250101


@pytest.fixture(scope="module")
def plain(smollm2: LLM) -> Any:
    """Plain decoding with the seed."""
    return smollm2.generate(PROMPT, seed=SEED, **ASKED)


def check(llm: LLM, prompt: str, seed: int, expected: list[int], got: list[int]) -> None:
    """Same tokens, or a race that two passes of different width decide differently by less than a near tie."""
    place = next((i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b), None)
    if place is None:
        return
    prefix = [*llm.prompt_ids(prompt), *expected[:place]]
    winners = set()
    for together in (1, 2, 5, 9):
        logits = logits_after(llm, prefix, together)
        for nudge in (-NEAR_TIE, 0.0, NEAR_TIE):
            moved = logits.copy()
            moved[got[place]] += nudge
            winners.add(KeyedDraws(seed).draw(Row.dense(softmax(moved)), len(prefix)))
    assert {expected[place], got[place]} <= winners, f"not a near tie: output {place}, {expected[place]} and {got[place]}"
    warnings.warn(f"near tie at output {place} of {prompt!r}", stacklevel=2)


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_ngram_changes_nothing(ngram: LLM, plain: Any, gamma: int) -> None:
    """Prompt lookup at any length emits plain decoding's tokens."""
    out = ngram.generate(PROMPT, seed=SEED, gamma=gamma, **ASKED)
    check(ngram, PROMPT, SEED, plain.token_ids, out.token_ids)


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_a_small_model_changes_nothing(smollm2: LLM, half_model: Any, plain: Any, gamma: int) -> None:
    """A drafter model that shares the noise emits plain decoding's tokens, and is often accepted."""
    llm = with_drafter(smollm2, headstart.ModelDrafter(half_model))
    out = llm.generate(PROMPT, seed=SEED, gamma=gamma, **ASKED)
    check(llm, PROMPT, SEED, plain.token_ids, out.token_ids)
    assert out.stats.num_accepted > 0
    assert out.stats.num_rejections > 0, "the drafter is never wrong: this proves nothing"


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
def test_a_batch_changes_nothing(smollm2: LLM, half_model: Any, kind: str) -> None:
    """Each prompt of a list, decoded side by side, emits what it emits alone under the seed reported for it."""
    drafters: dict[str, Any] = {
        "none": headstart.NoDrafter(),
        "ngram": headstart.NGramDrafter(smollm2.vocab_size),
        "model": headstart.ModelDrafter(half_model),
    }
    prompts = [PROMPTS[3], PROMPTS[2]]
    together = with_drafter(smollm2, drafters[kind]).generate(prompts, seed=SEED, gamma=3, **ASKED)
    assert len({out.seed for out in together}) == len(prompts)
    for prompt, out in zip(prompts, together, strict=True):
        alone = smollm2.generate(prompt, seed=out.seed, **ASKED)
        check(smollm2, prompt, out.seed, alone.token_ids, out.token_ids)


def test_another_seed_is_another_text(smollm2: LLM, plain: Any) -> None:
    """The comparison above can fail: another seed does not give the same tokens."""
    other = smollm2.generate(PROMPT, seed=SEED + 1, **ASKED)
    with pytest.raises(AssertionError):
        check(smollm2, PROMPT, SEED, plain.token_ids, other.token_ids)
