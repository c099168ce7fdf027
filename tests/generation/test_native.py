"""On the native engine speculation changes no token at all: no near ties, no tolerance."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import headstart
from headstart.generation import LLM

from .prompts import PROMPTS

FIFTY = [
    *PROMPTS,
    *(f"{p} Answer like {w}." for p, w in itertools.islice(itertools.product(PROMPTS, ("a pirate", "a poet")), 30)),
]


@pytest.fixture(scope="module")
def native() -> LLM:
    """SmolLM2 on the native engine without a drafter."""
    return headstart.load("smollm2", drafter="none", engine="native", offline=True)


@pytest.fixture(scope="module")
def drafters(native: LLM) -> dict[str, Any]:
    """Drafters over the same model; its own weights draft well, looking two tokens back drafts badly."""
    return {
        "ngram": headstart.NGramDrafter(native.vocab_size),
        "eager": headstart.NGramDrafter(native.vocab_size, min_match=1),
        "self": headstart.ModelDrafter(native.model),
        "suffix": headstart.SuffixDrafter(native.vocab_size, memory=4000),
        "suffix+self": headstart.CombinedDrafter(
            headstart.SuffixDrafter(native.vocab_size), headstart.ModelDrafter(native.model)
        ),
    }


def test_greedy_is_plain_greedy_on_fifty_prompts(native: LLM, drafters: dict[str, Any]) -> None:
    """50 prompts × 128 tokens: prompt lookup emits exactly plain decoding's tokens, batched or alone."""
    assert len(set(FIFTY)) == 50
    ask: dict[str, Any] = {"temperature": 0, "max_tokens": 128}
    plain = native.generate(FIFTY, **ask)
    accepted = 0
    for prompt, expected in zip(FIFTY, plain, strict=True):
        out = native.with_drafter(drafters["eager"]).generate(prompt, gamma=4, **ask)
        assert out.token_ids == expected.token_ids, prompt
        accepted += out.stats.num_accepted
    assert accepted > 500, "too little was drafted to prove anything"


@pytest.mark.parametrize(("kind", "least"), [("suffix", 20), ("suffix+self", 100)])
def test_lookups_and_combinations_are_plain_greedy(native: LLM, drafters: dict[str, Any], kind: str, least: int) -> None:
    """Suffix decoding, with a memory that other prompts write, and a lookup before a model: plain decoding's tokens."""
    ask: dict[str, Any] = {"temperature": 0, "max_tokens": 64}
    accepted = 0
    for prompt in PROMPTS[::3]:
        out = native.with_drafter(drafters[kind]).generate(prompt, gamma=6, **ask)
        assert out.token_ids == native.generate(prompt, **ask).token_ids, prompt
        accepted += out.stats.num_accepted
    assert accepted > least, "too little was drafted to prove anything"


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_a_model_draft_is_plain_greedy(native: LLM, drafters: dict[str, Any], gamma: int) -> None:
    """The model drafting for itself: the same tokens, and every single draft accepted."""
    for prompt in PROMPTS[:4]:
        plain = native.generate(prompt, temperature=0, max_tokens=96)
        out = native.with_drafter(drafters["self"]).generate(prompt, temperature=0, max_tokens=96, gamma=gamma)
        assert out.token_ids == plain.token_ids
        assert out.stats.num_rejections == 0


@pytest.mark.parametrize("kind", ["ngram", "eager", "self", "suffix"])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 40, "repetition_penalty": 1.2}, {"min_p": 0.05}])
def test_coupled_text_does_not_depend_on_the_drafter(
    native: LLM, drafters: dict[str, Any], kind: str, options: dict[str, Any]
) -> None:
    """Temperature 1 with a seed, sampling helpers included: none, prompt lookup and a model emit the same tokens."""
    ask: dict[str, Any] = {"temperature": 1.0, "max_tokens": 64, "seed": 11, **options}
    for prompt in PROMPTS[:4]:
        plain = native.generate(prompt, **ask)
        out = native.with_drafter(drafters[kind]).generate(prompt, gamma=4, **ask)
        assert out.token_ids == plain.token_ids


def test_coupled_batches_are_single_runs(native: LLM, drafters: dict[str, Any]) -> None:
    """A list decoded side by side with drafts emits what each prompt emits alone without, under the reported seeds."""
    llm = native.with_drafter(drafters["eager"])
    for prompt, out in zip(PROMPTS, llm.generate(PROMPTS, temperature=1.0, max_tokens=48, seed=5), strict=True):
        assert native.generate(prompt, temperature=1.0, max_tokens=48, seed=out.seed).token_ids == out.token_ids


def test_twin_another_seed_differs(native: LLM) -> None:
    """The comparisons above can fail."""
    one, other = (native.generate(PROMPTS[3], temperature=1.0, max_tokens=48, seed=seed).token_ids for seed in (1, 2))
    assert one != other
