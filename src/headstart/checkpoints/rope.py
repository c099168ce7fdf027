"""How a head turns positions into angles, as its config.json says it: the plain kind, linear, llama3 and yarn.

In the two forms configurations have had: `rope_theta` with `rope_scaling`, and `rope_parameters` that holds both. Kinds that
stretch positions as a sequence grows are refused by name. Angles agree with transformers' own (tested); what the native engine
does with a whole model's is in its file of weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints.names import number
from headstart.errors import ModelError

__all__ = ["Rope", "llama3_factors", "read_rope"]

_NEEDED = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}
_MORE = {"yarn": ("beta_fast", "beta_slow", "attention_factor")}


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embeddings: the base of the rates, and how they are scaled."""

    theta: float = 10000.0
    kind: str = "default"
    original_length: int = 0  # positions the target was trained on before its rates were scaled; for llama3 and yarn
    numbers: tuple[tuple[str, float], ...] = ()  # of the scaling, as config.json names them

    def rates(self, head_dim: int) -> NDArray[np.float64]:
        """[head_dim / 2]: the angle per position of each pair of dimensions."""
        plain: NDArray[np.float64] = self.theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)
        numbers = dict(self.numbers)
        if self.kind == "linear":
            return plain / numbers["factor"]
        if self.kind == "llama3":
            low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
            factors = llama3_factors(self.theta, head_dim, numbers["factor"], low, high, self.original_length)
            return plain / np.array(factors, dtype=np.float64)
        if self.kind == "yarn":
            first = max(0, math.floor(self._turning(numbers.get("beta_fast", 32.0), head_dim)))
            last = min(head_dim - 1, math.ceil(self._turning(numbers.get("beta_slow", 1.0), head_dim)))
            slow = np.clip((np.arange(head_dim // 2) - first) / max(last - first, 1e-3), 0.0, 1.0)
            return plain * (1.0 - slow + slow / numbers["factor"])
        return plain

    @property
    def magnitude(self) -> float:
        """What the rotated numbers are multiplied by (Peng et al. 2023, YaRN)."""
        if self.kind != "yarn":
            return 1.0
        numbers = dict(self.numbers)
        return numbers.get("attention_factor", 1.0 + 0.1 * math.log(numbers["factor"]) if numbers["factor"] > 1 else 1.0)

    def to_json(self) -> dict[str, Any]:
        """As configurations say it."""
        if self.kind == "default":
            return {"rope_theta": self.theta}
        scaling: dict[str, Any] = {"rope_type": self.kind, **dict(self.numbers)}
        if self.original_length:
            scaling["original_max_position_embeddings"] = self.original_length
        return {"rope_theta": self.theta, "rope_scaling": scaling}

    def _turning(self, turns: float, head_dim: int) -> float:
        """The dimension that turns so many times over the original length."""
        return head_dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(self.theta))


def read_rope(layer: Mapping[str, Any]) -> Rope:
    """From the config of a decoder layer. Raises ModelError for what is not known."""
    theta = float(number(layer, "rope_theta", 10000.0))
    named = [(name, layer[name]) for name in ("rope_scaling", "rope_parameters") if layer.get(name)]
    if len(named) == 2 and named[0][1] != named[1][1]:
        raise ModelError("config.json has rope_scaling and rope_parameters, and which counts is not known")
    if not named:
        return Rope(theta=_base(theta))
    name, scaling = named[0]
    if not isinstance(scaling, Mapping):
        raise ModelError(f"{name} of config.json must be an object, got {scaling!r:.60}")
    scaling = {key: value for key, value in scaling.items() if value is not None}
    theta = _base(float(number(scaling, "rope_theta", theta)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in _NEEDED:
        raise ModelError(f"{name} of config.json is of type {kind!r:.40}; heads with {', '.join(_NEEDED)} are run")
    known = {*_NEEDED[kind], *_MORE.get(kind, ())}
    unknown = (
        set(scaling)
        - known
        - {"rope_type", "type", "rope_theta", "original_max_position_embeddings", "partial_rotary_factor", "truncate"}
    )
    if kind != "default" and unknown:
        raise ModelError(
            f"{name} of config.json has {', '.join(sorted(unknown)):.80}, which is not known; the head would be run wrong"
        )
    if scaling.get("partial_rotary_factor", 1.0) != 1.0 or scaling.get("truncate", True) is not True:
        raise ModelError(f"{name} of config.json asks for partial or untruncated rotation, which is not run")
    numbers = tuple((key, float(number(scaling, key))) for key in sorted(known & set(scaling) | set(_NEEDED[kind])))
    for key, value in numbers:
        if not 0 < value < 1e9 or (key == "factor" and value < 1):
            raise ModelError(
                f"{key} in {name} of config.json must be {'1 or more' if key == 'factor' else 'positive'}, got {value:g}"
            )
    if kind in ("default", "linear"):
        return Rope(theta=theta, kind=kind, numbers=numbers)
    given = number(layer, "max_position_embeddings", 0)
    original = int(number(scaling, "original_max_position_embeddings", given))
    if original < 1:
        raise ModelError(f"{name} of config.json has no original_max_position_embeddings, which {kind} needs")
    return Rope(theta=theta, kind=kind, original_length=original, numbers=numbers)


def llama3_factors(base: float, head_dim: int, factor: float, low: float, high: float, original: int) -> list[float]:
    """What each rate is divided by: slow ones by `factor`, fast ones by 1, others by something between (Llama 3.1)."""
    factors = []
    for pair in range(head_dim // 2):
        length = 2 * math.pi * base ** (2 * pair / head_dim)
        keep = min(1.0, max(0.0, (original / length - low) / (high - low))) if high > low else float(original / length > low)
        factors.append(1.0 / ((1.0 - keep) / factor + keep))
    return factors


def _base(theta: float) -> float:
    if not 1.0 < theta < 1e30:
        raise ModelError(f"rope_theta of config.json must be above 1, got {theta:g}")
    return theta
