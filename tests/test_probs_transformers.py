"""Processors against transformers' own, where their meaning agrees: random rows without ties, alone and in their order."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.probs import process
from headstart.records import Sampling

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers.generation.logits_process")

WARPERS = {  # in transformers' order, which is ours
    "repetition_penalty": lambda value: hf.RepetitionPenaltyLogitsProcessor(value),
    "temperature": lambda value: hf.TemperatureLogitsWarper(value),
    "top_k": lambda value: hf.TopKLogitsWarper(value),
    "top_p": lambda value: hf.TopPLogitsWarper(value),
    "min_p": lambda value: hf.MinPLogitsWarper(value),
    "typical_p": lambda value: hf.TypicalLogitsWarper(value),
}
CASES = [
    {"temperature": 0.37},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"top_k": 5},
    {"top_k": 10_000},
    {"top_p": 0.81},
    {"top_p": 0.05},
    {"min_p": 0.07},
    {"typical_p": 0.63},
    {"temperature": 1.7, "top_k": 40, "top_p": 0.83},
    {"repetition_penalty": 1.2, "temperature": 0.8, "top_k": 30, "top_p": 0.91, "min_p": 0.03, "typical_p": 0.77},
]


def theirs(logits: np.ndarray, history: list[int], options: dict) -> np.ndarray:
    scores, ids = torch.tensor(logits)[None], torch.tensor([history])
    for name, warper in WARPERS.items():
        if name in options:
            scores = warper(options[name])(ids, scores)
    return torch.softmax(scores, dim=-1)[0].numpy()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("vocab", [30, 3000])
@pytest.mark.parametrize("options", CASES, ids=lambda case: "+".join(case))
def test_rows_agree_with_transformers(options, vocab, kind) -> None:
    """The same support and the same probabilities, some logits at −inf, on 20 random rows."""
    rng = np.random.default_rng(vocab)
    for _ in range(20):
        logits = (rng.normal(size=vocab) * 3).astype(kind)
        logits[rng.integers(vocab, size=vocab // 10)] = -np.inf
        history = rng.integers(vocab, size=12).tolist()
        ours = process(logits, Sampling(**{"temperature": 1.0, **options}), history).to_array()
        want = theirs(logits, history, options)
        assert np.array_equal(ours > 0, want > 0)
        assert ours == pytest.approx(want, rel=1e-3 if kind is np.float32 else 1e-10)


def test_twin_another_order_is_not_the_same_row() -> None:
    """Temperature after truncation gives another support: the comparison above can fail."""
    logits = np.random.default_rng(0).normal(size=30) * 3
    scores = hf.TopPLogitsWarper(0.81)(None, torch.tensor(logits)[None])
    swapped = torch.softmax(hf.TemperatureLogitsWarper(1.7)(None, scores), dim=-1)[0].numpy()
    ours = process(logits, Sampling(temperature=1.7, top_p=0.81)).to_array()
    assert not np.array_equal(ours > 0, swapped > 0)
