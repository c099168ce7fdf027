"""The real model as users hold it, loaded once, and a smaller relative of it as drafter."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import headstart
from headstart import fetch
from headstart.generation import LLM
from headstart.text import Tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_float32: Any) -> LLM:
    """SmolLM2 in float32 with no drafter; tests put their own drafter on the same weights with `with_drafter`."""
    path = fetch.find("smollm2")
    assert path is not None, "smollm2 is missing; run `headstart models fetch smollm2`"
    return LLM(smollm2_float32, tokenizer=Tokenizer.from_gguf(path), target="smollm2", engine="transformers")


@pytest.fixture(scope="session")
def half_model(smollm2_float32: Any) -> Any:
    """SmolLM2 without its last six layers: a drafter of the same vocabulary that is often, not always, right."""
    from headstart.models.transformers import TransformersModel

    network = smollm2_float32.network
    config = copy.deepcopy(network.config)
    config.num_hidden_layers = 24
    smaller = type(network)._from_config(config, dtype=network.dtype).eval()
    state = {name: tensor for name, tensor in network.state_dict().items() if name in smaller.state_dict()}
    smaller.load_state_dict(state)
    smaller.set_attn_implementation(network.config._attn_implementation)
    return TransformersModel(smaller, context_limit=smollm2_float32.context_limit)


def with_drafter(llm: LLM, drafter: Any) -> LLM:
    """The same weights under another drafter."""
    return llm.with_drafter(drafter)


@pytest.fixture(scope="session")
def ngram(smollm2: LLM) -> LLM:
    """SmolLM2 with prompt lookup."""
    return with_drafter(smollm2, headstart.NGramDrafter(smollm2.vocab_size))
