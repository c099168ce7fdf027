"""What to do when two runs on an engine that is not bit-exact part: tell a flipped near tie from a fault.

The rows of transformers differ in their last bits with the number of tokens a pass scores. Where two tokens' logits are that
close, their order can flip. The control uses no drafter: it scores the same tokens in one pass and one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headstart.generation import LLM
from headstart.interfaces import Ask

# float32 on SmolLM2: logits of magnitude 10–30 were seen to move by up to 4e-5 with the number of tokens in a pass.
NEAR_TIE = 1e-3


def logits_after(llm: LLM, tokens: Sequence[int], together: int) -> np.ndarray:
    """[vocab] logits after `tokens`, whose last `together` are scored in one pass."""
    cache = llm.model.open()
    if len(tokens) > together:
        llm.model.score([Ask(cache=cache, tokens=tokens[:-together], num_logits=0)])
    (scores,) = llm.model.score([Ask(cache=cache, tokens=tokens[-together:], num_logits=1)])
    return np.asarray(scores.logits[-1], dtype=np.float64)


def explain(llm: LLM, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int]) -> str | None:
    """None where two greedy outputs are the same; a note where they part at a near tie. Fails anywhere else."""
    place = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if place is None:
        assert len(expected) == len(got), f"same tokens, but {len(expected)} and {len(got)} of them"
        return None
    prefix = [*prompt, *expected[:place]]
    gaps = [
        abs(float(row[expected[place]] - row[got[place]])) for row in (logits_after(llm, prefix, 1), logits_after(llm, prefix, 5))
    ]
    assert min(gaps) < NEAR_TIE, (
        f"tokens differ at output {place} although the logits are {gaps} apart: "
        f"{expected[place : place + 5]} and {got[place : place + 5]}"
    )
    return f"near tie at output {place}: gaps {gaps[0]:.2e} alone, {gaps[1]:.2e} in one pass"
