"""An EAGLE-3 head as a torch module, run as it will be used: on its own output, several tokens deep (Li et al. 2025).

At index t the head reads the embedding of token t + 1 and the target's hidden states at t, and predicts token t + 2. Depth k
repeats this on the head's own output in place of the target's hidden states, one token further along, as drafting does
("training-time test"). Knows tensors; does not know files, data or the target.
"""

from __future__ import annotations

import math
from typing import Any

from headstart.checkpoints.heads import EagleConfig
from headstart.models.torch_extra import torch
from headstart.train.corpus import Batch

__all__ = ["EagleNetwork"]


class _Norm(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """x / rms(x) · weight, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Any) -> Any:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class EagleNetwork(torch.nn.Module):  # type: ignore[misc]
    """fc → one decoder layer → norm. The vocabulary head is applied by whoever holds its rows.

    Parameters are named as in published EAGLE-3 checkpoints."""

    rows = None  # the target's

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        c = self.config = config
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        linear, hidden = torch.nn.Linear, c.hidden_size
        self.fc = linear(c.num_features * c.target_hidden_size, hidden, bias=c.fc_bias)
        layer = self.midlayer = torch.nn.Module()
        layer.input_layernorm = _Norm(hidden, c.rms_norm_eps)
        layer.hidden_norm = _Norm(hidden, c.rms_norm_eps)
        layer.post_attention_layernorm = _Norm(hidden, c.rms_norm_eps)
        layer.self_attn = torch.nn.Module()
        layer.self_attn.q_proj = linear(2 * hidden, q, bias=False)
        layer.self_attn.k_proj = linear(2 * hidden, kv, bias=False)
        layer.self_attn.v_proj = linear(2 * hidden, kv, bias=False)
        layer.self_attn.o_proj = linear(q, hidden, bias=False)
        layer.mlp = torch.nn.Module()
        layer.mlp.gate_proj = linear(hidden, c.intermediate_size, bias=False)
        layer.mlp.up_proj = linear(hidden, c.intermediate_size, bias=False)
        layer.mlp.down_proj = linear(c.intermediate_size, hidden, bias=False)
        self.norm = _Norm(hidden, c.rms_norm_eps)
        # Hidden states differ a hundredfold in size, and some hardly vary around a large value; `folded` puts this into fc.
        self.register_buffer("feature_scale", torch.ones(c.num_features * c.target_hidden_size))
        self.register_buffer("feature_shift", torch.zeros(c.num_features * c.target_hidden_size))

    def folded(self) -> dict[str, Any]:
        """The weights under their published names, for features as the target gives them."""
        weights = {name: value.detach() for name, value in self.named_parameters()}
        weights["fc.weight"] = weights["fc.weight"] * self.feature_scale
        if self.config.fc_bias:
            weights["fc.bias"] = weights["fc.bias"] - weights["fc.weight"] @ self.feature_shift
        return weights

    def outputs(self, batch: Batch, embeddings: Any, depth: int) -> list[Any]:
        """By depth, what the vocabulary head is applied to wherever an answer's token is guessed, [rows, hidden].

        `embeddings` [vocab, hidden] are the target's."""
        return batch.gathered(self(embeddings[batch.tokens], batch.features.flatten(2)[:, :-1], depth), first=2)

    def forward(
        self,
        embeddings: Any,  # [batch, tokens, hidden]: of every token
        features: Any,  # [batch, indices, layers · target hidden]: the target's, indices ≤ tokens − 2
        depth: int,
    ) -> list[Any]:
        """What the vocabulary head is applied to at each depth, [batch, indices, hidden].

        At depth k index t predicts token t + 2 + k; where that is past the end the output means nothing."""
        indices = features.shape[1]
        padded = torch.nn.functional.pad(embeddings, (0, 0, 0, depth))
        hidden = self.fc((features - self.feature_shift) * self.feature_scale)
        outputs: list[Any] = []
        keys: list[Any] = []
        values: list[Any] = []
        for step in range(depth):
            hidden, key, value = self._layer(hidden, padded[:, 1 + step : 1 + step + indices], step, keys, values)
            keys.append(key)
            values.append(value)
            outputs.append(self.norm(hidden))
        return outputs

    def _layer(self, hidden: Any, embedded: Any, step: int, keys: list[Any], values: list[Any]) -> tuple[Any, Any, Any]:
        """The decoder layer at one depth; its output, and its keys and values [batch, heads, indices, dim]."""
        c, layer, attention = self.config, self.midlayer, self.midlayer.self_attn
        normed = layer.hidden_norm(hidden)
        joined = torch.cat((layer.input_layernorm(embedded), normed), dim=-1)
        residual = normed if c.norm_before_residual else hidden.float()
        query = _rotated(_heads(attention.q_proj(joined), c.num_heads), step, c.rope.theta)
        key = _rotated(_heads(attention.k_proj(joined), c.num_kv_heads), step, c.rope.theta)
        value = _heads(attention.v_proj(joined), c.num_kv_heads)
        shared = c.num_heads // c.num_kv_heads
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        mixed = _attend(query, [*keys, key], [*values, value])
        hidden = residual + attention.o_proj(mixed.transpose(1, 2).flatten(2)).float()
        inner = layer.post_attention_layernorm(hidden)
        gated = torch.nn.functional.silu(layer.mlp.gate_proj(inner)) * layer.mlp.up_proj(inner)
        return hidden + layer.mlp.down_proj(gated).float(), key, value


def _heads(x: Any, count: int) -> Any:
    """[batch, indices, heads · dim] → [batch, heads, indices, dim]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _rotated(x: Any, offset: int, theta: float) -> Any:
    """Rotary embedding, halves rotated; index t stands at position t + offset."""
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = (torch.arange(x.shape[-2], device=x.device, dtype=torch.float32) + offset)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    low, high = x[..., :half].float(), x[..., half:].float()
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _attend(query: Any, keys: list[Any], values: list[Any]) -> Any:
    """Each index sees depth 0 up to itself, and of every later depth only itself: the chain that drafting would hold."""
    if len(keys) == 1:
        return torch.nn.functional.scaled_dot_product_attention(query, keys[0], values[0], is_causal=True)
    scale = 1 / math.sqrt(query.shape[-1])
    scores = query @ keys[0].transpose(-1, -2) * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    own = [(query * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
    scores = torch.cat((scores.masked_fill(hidden, -torch.inf), *own), dim=-1)
    weights = torch.softmax(scores.float(), dim=-1).to(query.dtype)
    indices = query.shape[-2]
    mixed = weights[..., :indices] @ values[0]
    for place, value in enumerate(values[1:]):
        mixed = mixed + weights[..., indices + place, None] * value
    return mixed
