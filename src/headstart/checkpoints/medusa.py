"""Medusa checkpoints: the authors' form, as a file of its own or inside a Medusa-2 model, and vLLM's dialect.

Published configs sometimes name fewer heads than the weights hold; the weights are right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from headstart.checkpoints.heads import MedusaHead
from headstart.checkpoints.names import number
from headstart.checkpoints.tensors import Tensor
from headstart.errors import ModelError

__all__ = ["is_vllm_medusa", "read_medusa", "write_medusa", "write_vllm_medusa"]

_KEY = re.compile(r"(\d+)\.(\d+)\.(weight|linear\.weight|linear\.bias)$")


def is_vllm_medusa(weights: Mapping[str, Tensor]) -> bool:
    """Whether the weights are in vLLM's dialect."""
    return any(key.removeprefix("medusa_heads.").startswith(("blocks.", "lm_heads.")) for key in weights)


def read_medusa(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> MedusaHead:
    """Heads from config.json and weights in either form. Raises ModelError."""
    if is_vllm_medusa(weights):
        return _read_vllm(config, weights)
    inside = {key.removeprefix("medusa_head."): tensor for key, tensor in weights.items() if key.startswith("medusa_head.")}
    held = inside or dict(weights)
    places = [tuple(map(int, match.group(1, 2))) for key in held if (match := _KEY.match(key)) and match[3] == "weight"]
    if not places:
        raise ModelError("the checkpoint has no 0.1.weight, or any other vocabulary projection of a Medusa head")
    num_heads, num_layers = 1 + max(head for head, _ in places), max(layer for _, layer in places)
    last = held.get(f"0.{num_layers}.weight")
    if last is None or len(last.shape) != 2:
        raise ModelError(f"the checkpoint has no 0.{num_layers}.weight, wanted with shape [vocabulary, hidden]")
    vocab, hidden = last.shape
    return MedusaHead(
        num_heads=num_heads,
        num_layers=num_layers,
        hidden_size=hidden,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        weights=held,
        base_model=config.get("base_model_name_or_path"),
    )


def write_medusa(head: MedusaHead) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and weights in the authors' form. Raises ModelError for heads it has no place for."""
    if head.token_ids is not None:
        raise ModelError("the authors' Medusa form has no place for a cut vocabulary (token_map); write vllm-medusa")
    config = {
        "medusa_num_heads": head.num_heads,
        "medusa_num_layers": head.num_layers,
        "base_model_name_or_path": head.base_model,
        "hidden_size": head.hidden_size,
        "vocab_size": head.vocab_size,
    }
    return config, dict(head.weights)


def write_vllm_medusa(head: MedusaHead) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and weights in vLLM's dialect; a projection that all heads have in common is written once."""
    last = [head.weights[f"{place}.{head.num_layers}.weight"] for place in range(head.num_heads)]
    shared = head.num_heads > 1 and all(last[0].same_as(other) for other in last[1:])
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": head.num_heads,
        "num_hidden_layers": head.num_layers,
        "hidden_size": head.hidden_size,
        "vocab_size": head.vocab_size,
        "truncated_vocab_size": head.draft_vocab_size,
        "medusa_fc_bias": True,
        "original_lm_head": shared,
    }
    weights = {}
    for key, tensor in head.weights.items():
        place, layer, rest = key.split(".", 2)
        name = f"lm_heads.{place}.weight" if rest == "weight" else f"blocks.{place}.layers.{layer}.{rest.removeprefix('linear.')}"
        if not (shared and rest == "weight" and place != "0"):
            weights[name] = tensor
    if head.token_ids is not None:
        weights["token_map"] = Tensor.of(head.token_ids)
    return config, weights


def _read_vllm(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> MedusaHead:
    held = {key.removeprefix("medusa_heads."): tensor for key, tensor in weights.items()}
    num_heads, num_layers = number(config, "num_heads"), number(config, "num_hidden_layers", 1)
    hidden, vocab = number(config, "hidden_size"), number(config, "vocab_size")
    drafted = vocab if config.get("truncated_vocab_size") is None else number(config, "truncated_vocab_size")
    token_map = held.pop("token_map", None)
    shared = bool(config.get("original_lm_head"))  # one projection stands for all heads
    out: dict[str, Tensor] = {}
    for head in range(num_heads):
        own = 0 if shared else head
        out[f"{head}.{num_layers}.weight"] = _taken(held, f"lm_heads.{own}.weight", (drafted, hidden), keep=shared)
        for layer in range(num_layers):
            block = f"blocks.{head}.layers.{layer}."
            out[f"{head}.{layer}.linear.weight"] = _taken(held, f"{block}weight", (hidden, hidden))
            bias = held.pop(f"{block}bias", None)
            out[f"{head}.{layer}.linear.bias"] = bias or Tensor.of(np.zeros(hidden, dtype=np.float32))
    if shared:
        held.pop("lm_heads.0.weight", None)
    if held:
        key = next(iter(held))
        raise ModelError(f"the checkpoint holds {key} with shape {list(held[key].shape)}, which its config does not account for")
    return MedusaHead(
        num_heads=num_heads,
        num_layers=num_layers,
        hidden_size=hidden,
        vocab_size=vocab,
        draft_vocab_size=drafted,
        weights=out,
        token_ids=None if token_map is None else token_map.array.astype(np.int64),
    )


def _taken(held: dict[str, Tensor], key: str, shape: tuple[int, ...], *, keep: bool = False) -> Tensor:
    if key not in held:
        raise ModelError(f"the checkpoint has no {key}, wanted with shape {list(shape)}")
    return held[key] if keep else held.pop(key)
