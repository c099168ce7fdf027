"""Checkpoints of draft heads: read and write every published format, through one description in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headstart.checkpoints.eagle import read_eagle, write_eagle
from headstart.checkpoints.files import read_config, read_weights
from headstart.checkpoints.heads import EagleConfig, EagleHead, MedusaHead
from headstart.checkpoints.medusa import is_vllm_medusa, read_medusa, write_medusa, write_vllm_medusa
from headstart.checkpoints.rope import Rope, llama3_factors
from headstart.checkpoints.safetensors import read_safetensors, write_safetensors
from headstart.checkpoints.speculators import read_speculators, write_speculators
from headstart.checkpoints.tensors import Tensor
from headstart.errors import ModelError, OptionError, did_you_mean

__all__ = [
    "FORMATS",
    "EagleConfig",
    "EagleHead",
    "MedusaHead",
    "Rope",
    "Tensor",
    "llama3_factors",
    "read_head",
    "read_safetensors",
    "write_head",
    "write_safetensors",
]

_Written = tuple[dict[str, Any], dict[str, Tensor]]
_EAGLE: Mapping[str, Callable[[EagleHead], _Written]] = {
    "eagle": write_eagle,
    "eagle3": write_eagle,
    "speculators": write_speculators,
}
_MEDUSA: Mapping[str, Callable[[MedusaHead], _Written]] = {"medusa": write_medusa, "vllm-medusa": write_vllm_medusa}
FORMATS = (*_EAGLE, *_MEDUSA)


def read_head(folder: str | os.PathLike[str]) -> EagleHead | MedusaHead:
    """The head in a checkpoint folder, whatever its format. Raises ModelError, naming key, shape found and shape wanted."""
    place = Path(folder)
    config, weights = read_config(place), read_weights(place)
    try:
        if "speculators_model_type" in config:
            return read_speculators(config, weights)
        if "medusa_num_heads" in config or is_vllm_medusa(weights) or any(key.startswith("medusa_head.") for key in weights):
            return read_medusa(config, weights)
        return read_eagle(config, weights)
    except ModelError as error:
        raise ModelError(f"{place}: {error}") from None


def write_head(head: EagleHead | MedusaHead, folder: str | os.PathLike[str], form: str) -> None:
    """Write config.json and safetensors in one of `FORMATS`. Raises ModelError where that format computes something else.

    EAGLE generations differ in what they compute, and so do EAGLE and Medusa: no rewriting of keys turns one into another."""
    if form not in FORMATS:
        raise OptionError(f"`to` must be one of {', '.join(FORMATS)}, got {form!r}{did_you_mean(form, FORMATS)}")
    config, weights = _written(head, form)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    name = "medusa_lm_head.safetensors" if form == "medusa" else "model.safetensors"
    write_safetensors(place / name, weights)
    (place / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _written(head: EagleHead | MedusaHead, form: str) -> _Written:
    if isinstance(head, MedusaHead):
        if form not in _MEDUSA:
            raise ModelError(f"Medusa heads cannot be written as {form}: they hold no decoder layer; use {' or '.join(_MEDUSA)}")
        return _MEDUSA[form](head)
    own = "eagle" if head.config.generation == 1 else "eagle3"
    if form in _MEDUSA:
        raise ModelError(f"an EAGLE head cannot be written as {form}: it drafts with a decoder layer, Medusa without one")
    if form != own and (form != "speculators" or own == "eagle"):
        reason = "EAGLE-1 joins embeddings before fc and has no norms of its own, EAGLE-3 joins hidden states of three layers"
        raise ModelError(f"an {own} head cannot be written as {form}: {reason}; use {own}")
    return _EAGLE[form](head)
