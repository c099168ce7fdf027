"""Medusa heads: rows against an independent float32 computation in torch, from files in both published forms."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.checkpoints import read_head, write_head
from headstart.drafters import MedusaDrafter
from headstart.draws import StreamDraws
from headstart.interfaces import Context
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from tests.checkpoints.heads import HIDDEN, VOCAB, medusa

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


def context(tokens) -> Context:
    """What a drafter sees."""
    processor = SamplingProcessor(Sampling(temperature=0.8), num_prompt=2, vocab_size=VOCAB)
    return Context(tokens=tokens, num_prompt=2, processor=processor)


@pytest.mark.parametrize(("form", "cut"), [("medusa", False), ("vllm-medusa", False), ("vllm-medusa", True)])
@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_rows_equal_an_independent_computation(form, cut, num_layers, tmp_path) -> None:
    """Each head's row is its own network on the newest hidden state, over its own tokens."""
    write_head(medusa(cut=cut, num_layers=num_layers), tmp_path, form)
    head = read_head(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    w = safetensors.load_file(file)
    drafter = MedusaDrafter(head, num_layers=6)
    assert tuple(drafter.feature_layers) == (6,)
    tokens, features = [3, 1, 4, 1], np.random.default_rng(3).normal(size=(3, HIDDEN)).astype(np.float32)
    (state,) = drafter.open([context(tokens)])
    drafter.commit(state, tokens, features)
    (draft,) = drafter.propose([state], [context(tokens)], [7], [StreamDraws(0)])
    assert len(draft) == 3  # as many as there are heads
    ids = w["token_map"].long() if cut else torch.arange(VOCAB)
    for i, row in enumerate(draft.rows):
        x = torch.from_numpy(features[-1])
        for layer in range(num_layers):
            name = f"{i}.{layer}.linear." if form == "medusa" else f"blocks.{i}.layers.{layer}."
            x = x + torch.nn.functional.silu(torch.nn.functional.linear(x, w[name + "weight"], w[name + "bias"]))
        logits = w[f"{i}.{num_layers}.weight" if form == "medusa" else f"lm_heads.{i}.weight"] @ x
        want = torch.zeros(VOCAB)
        want[ids] = torch.softmax(logits / 0.8, dim=-1)
        np.testing.assert_allclose(row.to_array(), want.numpy(), atol=1e-5)


def test_only_the_newest_hidden_state_is_read() -> None:
    """Known for the text at hand it drafts, batched or alone; a text that has moved on without it, or has none, gets nothing."""
    drafter = MedusaDrafter(medusa(), num_layers=6)
    tokens, features = [3, 1, 4, 1], np.random.default_rng(3).normal(size=(3, HIDDEN)).astype(np.float32)
    states = drafter.open([context(tokens)] * 3)
    drafter.commit(states[0], tokens, features)
    drafter.commit(states[1], tokens, features[-1:])
    drafter.commit(states[2], tokens, None)
    draws = [StreamDraws(0) for _ in states]
    first, second, third = drafter.propose(states, [context(tokens)] * 3, [3, 2, 3], draws)
    assert first.tokens[:2] == second.tokens
    assert len(second) == 2
    assert len(third) == 0
    (moved,) = drafter.propose(states[:1], [context([*tokens, 2])], [3], draws[:1])
    assert len(moved) == 0
