"""Small helpers that every format shares: required numbers of a config, vocabulary maps, renamed keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints.tensors import Tensor
from headstart.errors import ModelError

__all__ = ["d2t_of", "number", "renamed", "t2d_of", "token_ids_of"]


def number(config: Mapping[str, Any], key: str, default: int | float | None = None) -> Any:
    """A number of the config. Raises ModelError where it is missing (and there is no default) or none."""
    value = config.get(key, default)
    if value is None:
        raise ModelError(f"config.json has no {key}, which this kind of head needs")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ModelError(f"{key} of config.json must be a number, got {value!r:.60}")
    return value


def renamed(weights: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    """The same tensors; names that begin with `old` begin with `new`."""
    return {new + name.removeprefix(old) if name.startswith(old) else name: tensor for name, tensor in weights.items()}


def token_ids_of(weights: dict[str, Tensor], size: int, vocab_size: int) -> NDArray[np.int64] | None:
    """Takes d2t and t2d out of `weights`; the target's id of each drafted token, or None where both are absent.

    d2t holds offsets: the id is d + d2t[d]. Raises ModelError where the two maps disagree."""
    d2t, t2d = weights.pop("d2t", None), weights.pop("t2d", None)
    if d2t is None:
        return None
    if d2t.shape != (size,) or d2t.array.dtype.kind != "i":
        raise ModelError(f"d2t has shape {list(d2t.shape)} and type {d2t.dtype}, wanted [{size}] whole numbers")
    ids = np.arange(size) + d2t.array.astype(np.int64)
    if t2d is not None:
        if t2d.shape != (vocab_size,):
            raise ModelError(f"t2d has shape {list(t2d.shape)}, wanted [{vocab_size}]")
        if ids.size and ids.min() >= 0 and set(np.flatnonzero(t2d.array).tolist()) != set(ids.tolist()):
            raise ModelError("d2t and t2d name different tokens; one of them belongs to another head")
    return ids


def d2t_of(token_ids: NDArray[np.int64]) -> Tensor:
    """Offsets, as d2t holds them."""
    return Tensor.of(token_ids - np.arange(len(token_ids)))


def t2d_of(token_ids: NDArray[np.int64], vocab_size: int) -> Tensor:
    """Which of the target's tokens are drafted."""
    drafted = np.zeros(vocab_size, dtype=np.bool_)
    drafted[token_ids] = True
    return Tensor.of(drafted)
