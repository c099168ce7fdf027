"""The files of a checkpoint folder: config.json and the weights, safetensors first, pickles only through torch's safe loader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from headstart.checkpoints.safetensors import read_safetensors
from headstart.checkpoints.tensors import Tensor
from headstart.errors import MissingExtraError, ModelError
from headstart.tensor_files import read_json

__all__ = ["read_config", "read_weights"]

# In the order they are looked for.
_WEIGHTS = ("model.safetensors", "medusa_lm_head.safetensors", "medusa_lm_head.pt", "pytorch_model.bin")


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises ModelError where there is none, or no JSON object in it."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"no head in {folder}: it has no config.json")
    return read_json(path)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The folder's weights by name. Raises ModelError where there are none, or they cannot be read safely."""
    for name in _WEIGHTS:
        path = folder / name
        if path.is_file():
            return read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    raise ModelError(f"no head in {folder}: it has none of {', '.join(_WEIGHTS)}")


def _read_torch(path: Path) -> dict[str, Tensor]:
    """A pickle of tensors. torch refuses to run anything it holds."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "transformers", f"reading {path.name}, which is no safetensors file,") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, AttributeError) as error:
        raise ModelError(f"{path} holds more than tensors, or is not whole ({str(error).splitlines()[0]:.120})") from None
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelError(f"{path} is not a table of tensors by name")
    return {str(name): _from_torch(torch, value) for name, value in state.items()}


def _from_torch(torch: Any, value: Any) -> Tensor:
    value = value.detach().contiguous()
    if value.dtype == torch.bfloat16:
        return Tensor(value.view(torch.int16).numpy().view(np.uint16), "BF16")
    return Tensor.of(value.numpy())
