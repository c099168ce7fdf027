"""Tiny random networks with a tiny tokenizer, saved as Hugging Face folders and loaded as users load them."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers

import headstart
from headstart.generation import LLM
from tests.text.small import CHAT_TEMPLATE, byte_level_core

# name → how the folder differs from "target"
RECIPES: dict[str, dict[str, Any]] = {
    "target": {},
    "drafter": {"noise": 0.02},  # a relative that is often, not always, right
    "short": {"noise": 0.02, "context": 40},
    "padded": {"extra_rows": 30},
    "narrow": {"extra_rows": -10},
    "raw": {"chat": False},
    "swapped": {"swap": (300, 301)},  # same size, two tokens exchanged
    "long": {"context": 1_000_000},
    "wide": {"sizes": {"head_dim": 16, "intermediate_size": 64}},  # suits the native engine
    "wide-drafter": {"noise": 0.02, "sizes": {"head_dim": 16, "intermediate_size": 64}},
}


@cache
def folder(name: str) -> Path:
    """The folder of a recipe, made at first use and removed at exit."""
    return _save(_root() / name, **RECIPES[name])


@cache
def tiny(name: str = "target", drafter: str = "ngram") -> LLM:
    """A recipe loaded in float32 on one thread; `drafter` none, ngram, or the name of a recipe."""
    if drafter in RECIPES:
        drafter = f"model:{folder(drafter)}"
    return headstart.load(folder(name), drafter=drafter, dtype="float32", device="cpu", threads=1)


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="headstart-tiny-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def core() -> tokenizers.Tokenizer:
    """The tokenizer of all recipes."""
    return byte_level_core()


def _save(
    path: Path,
    *,
    noise: float = 0.0,
    context: int = 256,
    extra_rows: int = 0,
    chat: bool = True,
    swap: tuple[int, int] | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Path:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    path.mkdir()
    torch.manual_seed(0)
    usual = {
        "vocab_size": core().get_vocab_size() + extra_rows,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "initializer_range": 0.3,
        "bos_token_id": core().token_to_id("<s>"),
        "eos_token_id": core().token_to_id("<|end|>"),
    }
    config = transformers.LlamaConfig(**usual | sizes)
    network = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(noise * torch.randn_like(weight))
    network.save_pretrained(path)
    described = json.loads(core().to_str())
    if swap is not None:
        vocab = described["model"]["vocab"]
        named = {place: token for token, place in vocab.items()}
        vocab[named[swap[0]]], vocab[named[swap[1]]] = swap[1], swap[0]
    (path / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "<|end|>"}', encoding="utf-8")
    if chat:
        (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return path
