"""Speculative against plain decoding on one prompt: same tokens? how much faster? and where they differ, why.

On engines whose rows depend in the last bits on how many tokens a pass scores, two tokens with nearly the same logit can change
places. `first_difference` measures that gap, so that a flipped near tie can be told from a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.drafters import NoDrafter
from headstart.generation import LLM, Output
from headstart.interfaces import Ask
from headstart.rows import FloatArray

__all__ = ["Comparison", "Difference", "compare", "first_difference"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One speculative and one plain run of the same request."""

    speculative: Output
    plain: Output

    @property
    def same_tokens(self) -> bool | None:
        """Whether both emitted the same tokens; None where chance may differ between them (sampling but for `coupled`) or law."""
        options = self.speculative.settings.options
        if options.sampling.temperature > 0 and options.resolved_rule != "coupled":
            return None
        return self.speculative.token_ids == self.plain.token_ids

    @property
    def speedup(self) -> float | None:
        """Measured tokens per second over plain's, prefill excluded; None where a run was too short to time."""
        fast, slow = self.speculative.stats.tokens_per_second, self.plain.stats.tokens_per_second
        return fast / slow if fast and slow else None

    def to_json(self) -> dict[str, Any]:
        """What `generate --compare --json` adds."""
        plain = {"tokens_per_second": self.plain.stats.tokens_per_second, "token_ids": self.plain.token_ids}
        return {"plain": plain, "same_tokens": self.same_tokens, "speedup": self.speedup}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first place where two runs of one prompt part, and how near a tie the target sees there."""

    position: int  # index in the output
    tokens: tuple[int, int]  # speculative, plain
    gap_alone: float  # logit of plain's token − logit of the other, scored one token at a time
    gap_together: float  # the same gap, scored in one pass with the tokens that followed


def compare(
    llm: LLM, speculative: Output, prompt: Any, *, progress: Callable[[str, float | None], None] | None = None
) -> Comparison:
    """Run `prompt` again without a drafter, with the options and the seed of `speculative`; under an exact rule in any case."""
    options = speculative.settings.options
    flat = options.to_json() | {
        "logit_bias": dict(options.sampling.logit_bias),
        "seed": speculative.seed,
        "rule": options.resolved_rule if speculative.lossless else None,
        "gamma": options.longest_draft,
        "tree": None,
    }
    with llm.with_drafter(NoDrafter()).stream(prompt, **flat) as stream:
        for number, _ in enumerate(stream.steps(), start=1):
            if progress is not None:
                progress(f"plain decoding, to compare ({number} tokens)", min(1.0, number / options.max_tokens))
    return Comparison(speculative=speculative, plain=stream.output)


def first_difference(llm: LLM, prompt_ids: Sequence[int], comparison: Comparison) -> Difference | None:
    """Where the two runs part, with the control that uses no drafter: the same row scored alone and among others.

    None if they never part, or if one is a beginning of the other."""
    fast, slow = comparison.speculative.token_ids, comparison.plain.token_ids
    pairs = enumerate(zip(fast, slow, strict=False))
    position = next((i for i, (a, b) in pairs if a != b), None)
    if position is None:
        return None
    prefix, tokens = [*prompt_ids, *slow[:position]], (fast[position], slow[position])
    alone = _logits_after(llm, prefix, 1)
    together = _logits_after(llm, prefix, min(comparison.speculative.settings.options.longest_draft + 1, len(prefix)))

    def gap(row: FloatArray) -> float:
        return float(row[tokens[1]] - row[tokens[0]])

    return Difference(position=position, tokens=tokens, gap_alone=gap(alone), gap_together=gap(together))


def _logits_after(llm: LLM, tokens: Sequence[int], last: int) -> FloatArray:
    """[vocab] logits after `tokens`, the last `last` of them scored in one pass."""
    cache = llm.model.open()
    if len(tokens) > last:
        llm.model.score([Ask(cache=cache, tokens=tokens[:-last], num_logits=0)])
    (scores,) = llm.model.score([Ask(cache=cache, tokens=tokens[-last:], num_logits=1)])
    return np.asarray(scores.logits[-1])
