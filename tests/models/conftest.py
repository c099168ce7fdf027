"""Small models of every kind: tables, and random networks saved as folders and loaded as users load them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstart.models.native import NativeModel
from headstart.models.table import TableModel
from tests.native.random_gguf import shape_of, write

VOCAB = 50
WINDOW = 8

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # large enough that a wrong key is not mistaken for rounding
}

# name → (configuration class of transformers, arguments)
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SHAPE | {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", _SHAPE),
    "qwen3": ("Qwen3Config", _SHAPE | {"head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        _SHAPE | {"head_dim": 16, "sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": ("Gemma3TextConfig", _SHAPE | {"head_dim": 16, "sliding_window": WINDOW, "sliding_window_pattern": 2}),
    "mistral": ("MistralConfig", _SHAPE | {"sliding_window": WINDOW}),
}

# name → architecture and weight type of a random GGUF file, for the native engine
NATIVES = {"native-llama": ("llama", "F32"), "native-qwen3": ("qwen3", "Q8_0"), "native-gemma3": ("gemma3", "Q4_K")}


@pytest.fixture(scope="session")
def save_network(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that saves a random network of a configuration into a new folder and says where."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    def save(config_name: str, arguments: dict[str, Any], *, weights: bool = True) -> Path:
        folder = tmp_path_factory.mktemp(config_name)
        config = getattr(transformers, config_name)(**arguments)
        if not weights:
            config.save_pretrained(folder)
            return folder
        torch.manual_seed(0)
        network = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():  # norms and biases away from 0 and 1, or they would hide being ignored
            for weight in network.parameters():
                if weight.ndim == 1:
                    weight.add_(0.3 * torch.randn_like(weight))
        network.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def folders(save_network: Callable[..., Path]) -> dict[str, Path]:
    """name → folder of each random network."""
    return {name: save_network(*what) for name, what in NETWORKS.items()}


def _table(order: int) -> TableModel:
    probs = np.random.default_rng(order).dirichlet(np.full(5, 0.5), size=(5,) * order)
    return TableModel(probs, context_limit=64)


@pytest.fixture(scope="session")
def models(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """name → model, for the contract suite."""
    from headstart.models.transformers import TransformersModel

    tables = {f"table{order}": _table(order) for order in (0, 1, 2)}
    networks = {name: TransformersModel.load(folder, dtype="float32", device="cpu") for name, folder in folders.items()}
    folder = tmp_path_factory.mktemp("gguf")
    natives = {
        name: NativeModel.load(write(folder / f"{name}.gguf", shape_of(architecture, context=64), kind).path)
        for name, (architecture, kind) in NATIVES.items()
    }
    return tables | networks | natives
