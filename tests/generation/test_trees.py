"""Trees on real models: greedy and seeded texts are plain decoding's, bit for bit on the native engine."""

from __future__ import annotations

from typing import Any

import pytest

import headstart
from headstart.generation import LLM
from headstart.shapes import Shape

from .prompts import PROMPTS
from .tiny import folder, tiny


@pytest.fixture(scope="module")
def native() -> LLM:
    """SmolLM2 on the native engine without a drafter."""
    return headstart.load("smollm2", drafter="none", engine="native", offline=True, threads=1)


def drafters(llm: LLM) -> dict[str, Any]:
    return {"ngram": headstart.NGramDrafter(llm.vocab_size, min_match=1), "self": headstart.ModelDrafter(llm.model)}


@pytest.mark.parametrize(("kind", "tree"), [("ngram", "3x4"), ("ngram", "6x2"), ("self", "2x3")])
def test_greedy_with_trees_is_plain_greedy_natively(native: LLM, kind: str, tree: str) -> None:
    """Prompts × 48 tokens: the very tokens of plain decoding, with branches that were kept."""
    speculative, branches = native.with_drafter(drafters(native)[kind]), 0
    for prompt in PROMPTS[:: 3 if kind == "ngram" else 9]:
        plain = native.generate(prompt, temperature=0, max_tokens=48)
        out = speculative.generate(prompt, temperature=0, max_tokens=48, tree=tree)
        assert out.token_ids == plain.token_ids, prompt
        branches += sum(rank > 0 for each in out.rounds for rank in each.branches)
        if kind == "self":
            assert out.stats.num_rejections == 0, "the likeliest branch is the target's own text"
    assert branches > 0 or kind == "self", "no side branch was kept: too little to prove anything"


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "repetition_penalty": 1.2}])
def test_coupled_text_does_not_depend_on_the_tree(native: LLM, options: dict[str, Any]) -> None:
    """Temperature 1 with a seed: n-gram trees, drawn trees of a model, a fixed shape, and no draft at all."""
    ask: dict[str, Any] = {"temperature": 1.0, "max_tokens": 32, "seed": 11, **options}
    for prompt in PROMPTS[:2]:
        plain = native.generate(prompt, **ask).token_ids
        for drafter, tree in (("ngram", "4x3"), ("self", "2x2"), ("self", Shape.of_paths([[0], [1], [2], [1, 0]]))):
            assert native.with_drafter(drafters(native)[drafter]).generate(prompt, tree=tree, **ask).token_ids == plain


def test_a_list_of_prompts_with_trees(native: LLM) -> None:
    """Side by side in shared passes, each as alone."""
    speculative = native.with_drafter(drafters(native)["ngram"])
    together = speculative.generate(PROMPTS[:5], temperature=0, max_tokens=24, tree="3x3")
    for prompt, out in zip(PROMPTS, together, strict=False):
        assert out.token_ids == native.generate(prompt, temperature=0, max_tokens=24).token_ids


@pytest.mark.parametrize("rule", ["token", "match", "coupled"])
def test_streams_and_stops_with_trees(rule: str) -> None:
    """Through transformers: the streamed pieces make the text, kinds agree with the rounds, a stop text cuts inside a tree."""
    llm = tiny(drafter=f"model:{folder('drafter')}")
    whole = llm.generate("hi", temperature=0, max_tokens=60, tree="3x4", rule=rule)
    assert whole.token_ids == tiny(drafter="none").generate("hi", temperature=0, max_tokens=60).token_ids
    stream = llm.stream("hi", temperature=0, max_tokens=60, tree="3x4", rule=rule)
    pieces = [piece for step in stream.steps() for piece in step]
    assert "".join(piece.text for piece in pieces) == whole.text
    kept = sum(piece.kind in ("accepted", "branch") for piece in pieces)
    assert kept == whole.stats.num_accepted - (0 if whole.stats.num_cut == 0 else whole.stats.num_cut - 1)
    middle = whole.text[len(whole.text) // 2 :][:2]
    short = llm.generate("hi", temperature=0, max_tokens=60, tree="3x4", rule=rule, stop=middle)
    assert short.text == whole.text[: whole.text.index(middle)]
    assert short.finish_reason == "stop"
