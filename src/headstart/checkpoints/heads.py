"""Heads in memory: what every checkpoint format is read into and written from, checked when made.

Weights carry the names of the published formats (EAGLE-3's for an EAGLE head of any generation, the authors' for Medusa) and
the bits of the file. What a head computes is in `drafters`; where its files come from and what they are called is in the
modules beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints.rope import Rope
from headstart.checkpoints.tensors import Tensor
from headstart.errors import ModelError

__all__ = ["EagleConfig", "EagleHead", "MedusaHead"]


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """The sizes of an EAGLE head, and where the generations differ."""

    generation: Literal[1, 3]  # EAGLE-2 drafts with EAGLE-1's weights
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # the target's
    draft_vocab_size: int
    num_features: int = 3  # hidden states of the target joined before `fc`; generation 1: one
    feature_layers: tuple[int, ...] | None = None  # inputs to these layers; None: where the generation takes them
    rms_norm_eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    norm_before_residual: bool = False
    fc_bias: bool = False
    attention_bias: bool = False  # biases of q, k and v
    quantize: Literal["q8_0", "q4_0"] = "q8_0"  # what an engine that makes matrices smaller makes of the layer's

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "target_hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
        for name in (*sizes, "vocab_size", "draft_vocab_size", "num_features"):
            if getattr(self, name) < 1:
                raise ModelError(f"`{name}` of the head must be 1 or more, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"`num_heads` of the head must be a multiple of num_kv_heads ({self.num_kv_heads}), got {self.num_heads}"
            )
        if self.head_dim % 2:
            raise ModelError(f"`head_dim` of the head must be even for rotary embeddings, got {self.head_dim}")
        if self.draft_vocab_size > self.vocab_size:
            raise ModelError(f"`draft_vocab_size` must be at most vocab_size ({self.vocab_size}), got {self.draft_vocab_size}")
        if self.feature_layers is not None and len(self.feature_layers) != self.num_features:
            raise ModelError(f"`feature_layers` must name {self.num_features} layers, got {list(self.feature_layers)}")

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """Layers of a target of `num_layers` whose inputs are the features; `num_layers` itself: after its final norm."""
        if self.feature_layers is not None:
            return self.feature_layers
        return (num_layers,) if self.generation == 1 else (2, num_layers // 2, num_layers - 3)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight the head must have, with its shape."""
        hidden, joined = self.hidden_size, (1 if self.generation == 1 else 2) * self.hidden_size
        q, kv, inner = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.intermediate_size
        fc = 2 * hidden if self.generation == 1 else self.num_features * self.target_hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, fc),
            "midlayer.self_attn.q_proj.weight": (q, joined),
            "midlayer.self_attn.k_proj.weight": (kv, joined),
            "midlayer.self_attn.v_proj.weight": (kv, joined),
            "midlayer.self_attn.o_proj.weight": (hidden, q),
            "midlayer.mlp.gate_proj.weight": (inner, hidden),
            "midlayer.mlp.up_proj.weight": (inner, hidden),
            "midlayer.mlp.down_proj.weight": (hidden, inner),
            "midlayer.post_attention_layernorm.weight": (hidden,),
        }
        if self.fc_bias:
            shapes["fc.bias"] = (hidden,)
        if self.attention_bias:
            shapes |= {f"midlayer.self_attn.{name}_proj.bias": (size,) for name, size in (("q", q), ("k", kv), ("v", kv))}
        if self.generation == 3:
            names = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight", "norm.weight")
            shapes |= dict.fromkeys(names, (hidden,))
        return shapes


@dataclass(frozen=True, kw_only=True)
class EagleHead:
    """An EAGLE head. `embed_tokens.weight` and `lm_head.weight` may be absent: the target's own are used then."""

    config: EagleConfig
    weights: Mapping[str, Tensor]
    token_ids: NDArray[np.int64] | None = None  # [draft_vocab]: the target's id of each drafted one; None: the same ids

    def __post_init__(self) -> None:
        c = self.config
        shapes = c.shapes()
        optional = {
            "embed_tokens.weight": (c.vocab_size, c.hidden_size),
            "lm_head.weight": (c.draft_vocab_size, c.hidden_size),
        }
        _check_weights(self.weights, shapes, optional)
        if self.token_ids is None:
            if c.draft_vocab_size != c.vocab_size:
                raise ModelError(
                    f"the head drafts {c.draft_vocab_size} of {c.vocab_size} tokens and does not say which: d2t is missing"
                )
            return
        ids = self.token_ids
        if ids.shape != (c.draft_vocab_size,):
            raise ModelError(f"d2t has shape {list(ids.shape)}, wanted [{c.draft_vocab_size}]")
        if ids.size != np.unique(ids).size or ids.min() < 0 or ids.max() >= c.vocab_size:
            raise ModelError(f"d2t must name different tokens from 0 to {c.vocab_size - 1}; this file is not whole")


@dataclass(frozen=True, kw_only=True)
class MedusaHead:
    """Medusa heads: head i predicts the token i + 2 after the hidden state it reads (Cai et al. 2024).

    Weights are `{head}.{layer}.linear.weight`, `{head}.{layer}.linear.bias` and `{head}.{num_layers}.weight`."""

    num_heads: int
    num_layers: int  # residual blocks in each head
    hidden_size: int
    vocab_size: int  # the target's
    draft_vocab_size: int
    weights: Mapping[str, Tensor]
    token_ids: NDArray[np.int64] | None = None  # [draft_vocab]; None: the same ids
    base_model: str | None = None

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.num_layers < 0:
            raise ModelError(f"a Medusa checkpoint needs 1 head or more, got {self.num_heads} with {self.num_layers} layers")
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(self.num_heads):
            for layer in range(self.num_layers):
                shapes[f"{head}.{layer}.linear.weight"] = (self.hidden_size, self.hidden_size)
                shapes[f"{head}.{layer}.linear.bias"] = (self.hidden_size,)
            shapes[f"{head}.{self.num_layers}.weight"] = (self.draft_vocab_size, self.hidden_size)
        _check_weights(self.weights, shapes, {})
        if self.token_ids is None and self.draft_vocab_size != self.vocab_size:
            raise ModelError(
                f"the heads draft {self.draft_vocab_size} of {self.vocab_size} tokens and do not say which: token_map is missing"
            )


def _check_weights(
    weights: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], optional: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse missing keys, wrong shapes, types that are no floats, and keys nobody would read."""
    for key, shape in wanted.items():
        if key not in weights:
            raise ModelError(f"the checkpoint has no {key}, wanted with shape {list(shape)}")
    for key, tensor in weights.items():
        shape = wanted.get(key) or optional.get(key) or ()
        if not shape:
            raise ModelError(f"the checkpoint holds {key} with shape {list(tensor.shape)}, which no head of its kind has")
        if tensor.shape != shape:
            raise ModelError(f"{key} has shape {list(tensor.shape)}, wanted {list(shape)}")
        if tensor.dtype not in ("F64", "F32", "F16", "BF16"):
            raise ModelError(f"{key} holds {tensor.dtype}, wanted floating point numbers")
