"""What an EAGLE head computes, in numpy: features → fc → one decoder layer → norm → rows over its own vocabulary.

The reference for the arithmetic of a head (Li et al. 2024 for generation 1, 2025 for generation 3), and what runs it beside
models whose engine does not (`interfaces.HeadEngine`). Several sequences share each matrix product; each attends to its own keys.
Everything is float32. Does not know drafts, rounds or chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints.heads import EagleConfig, EagleHead
from headstart.interfaces import HeadAsk, Scores, VocabularyRows

__all__ = ["EagleForward", "NumpyHeadCache"]

Floats = NDArray[np.float32]
_FIRST_SLOTS = 256


class NumpyHeadCache:
    """Keys and values of one sequence in the head's only layer."""

    def __init__(self, config: EagleConfig) -> None:
        shape = (config.num_kv_heads, _FIRST_SLOTS, config.head_dim)
        self.length = 0
        self._root, self._parents = 0, list[int]()  # a tree at the end: what it hangs from, and its entries' parents
        self._keys, self._values = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Add [kv heads, new, dim]; all keys and values held so far come back, as views."""
        end = self.length + keys.shape[1]
        while end > self._keys.shape[1]:
            self._keys, self._values = (np.concatenate((a, np.empty_like(a)), axis=1) for a in (self._keys, self._values))
        self._keys[:, self.length : end], self._values[:, self.length : end] = keys, values
        self.length = end
        return self._keys[:, :end], self._values[:, :end]

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` entries."""
        assert 0 <= length <= self.length
        self.length = length
        del self._parents[max(0, length - self._root) :]

    def branch(self, parents: Sequence[int], grows: bool) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many entries are above each of the next ones [new], and which ones each attends to [new, held + new]."""
        if not grows:
            self._root, self._parents = self.length, []
        first = len(self._parents)
        self._parents += parents
        sees = np.zeros((len(parents), self.length + len(parents)), dtype=np.bool_)
        sees[:, : self._root] = True
        for i in range(len(parents)):
            node = first + i
            while node >= 0:
                sees[i, self._root + node] = True
                node = self._parents[node]
        return sees.sum(axis=1) - 1, sees


class EagleForward:
    """A head ready to run beside one target, whose vocabulary matrices it borrows where it brings none."""

    def __init__(self, head: EagleHead, target: VocabularyRows) -> None:
        c = self.config = head.config
        w = {name: tensor.floats() for name, tensor in head.weights.items()}
        layer, attention = "midlayer.", "midlayer.self_attn."
        names = ("q_proj", "k_proj", "v_proj")
        self._fc, self._fc_bias = w["fc.weight"], w.get("fc.bias")
        self._qkv = np.concatenate([w[f"{attention}{name}.weight"] for name in names])
        self._qkv_bias = np.concatenate([w[f"{attention}{name}.bias"] for name in names]) if c.attention_bias else None
        self._o = w[f"{attention}o_proj.weight"]
        self._gate_up = np.concatenate([w[f"{layer}mlp.gate_proj.weight"], w[f"{layer}mlp.up_proj.weight"]])
        self._down = w[f"{layer}mlp.down_proj.weight"]
        self._post_norm = w[f"{layer}post_attention_layernorm.weight"]
        self._input_norm, self._hidden_norm = w.get(f"{layer}input_layernorm.weight"), w.get(f"{layer}hidden_norm.weight")
        self._norm = w.get("norm.weight")
        self._embed, self._target = w.get("embed_tokens.weight"), target
        ids = np.arange(c.draft_vocab_size) if head.token_ids is None else head.token_ids
        own = w.get("lm_head.weight")
        self._lm_head = target.head_rows(ids) if own is None else own
        self._rates = c.rope.rates(c.head_dim)

    def open(self) -> NumpyHeadCache:
        """An empty cache."""
        return NumpyHeadCache(self.config)

    def run(self, asks: Sequence[HeadAsk], *, from_target: bool = False) -> list[Scores]:
        """See `HeadRunner`."""
        outputs = self._layer(asks, from_target)
        wanted = [output[len(output) - ask.num_logits :] for ask, output in zip(asks, outputs, strict=True)]
        logits = np.split(self._logits(np.concatenate(wanted)), np.cumsum([len(part) for part in wanted])[:-1])
        return [Scores(logits=part, features=output) for part, output in zip(logits, outputs, strict=True)]

    def _layer(self, asks: Sequence[HeadAsk], from_target: bool) -> list[Floats]:
        """The layer's output [entries, hidden] for each ask."""
        splits = np.cumsum([len(ask.tokens) for ask in asks])[:-1]
        tokens = [token for ask in asks for token in ask.tokens]
        e = self._target.embeddings(tokens) if self._embed is None else self._embed[np.asarray(tokens)]
        h = np.concatenate([ask.hidden for ask in asks])
        if from_target and self.config.generation == 3:
            h = self._linear(h, self._fc, self._fc_bias)
        residual: Floats
        mixed: Floats
        if self.config.generation == 1:
            residual = joined = self._linear(np.concatenate((e, h), axis=1), self._fc, self._fc_bias)
        else:
            assert self._input_norm is not None
            assert self._hidden_norm is not None
            normed = self._normed(h, self._hidden_norm)
            joined = np.concatenate((self._normed(e, self._input_norm), normed), axis=1)
            residual = normed if self.config.norm_before_residual else h
        parts = np.split(self._linear(joined, self._qkv, self._qkv_bias), splits)
        mixed = np.concatenate([self._attend(ask, part) for ask, part in zip(asks, parts, strict=True)])
        middle: Floats = residual + mixed @ self._o.T
        gate, up = np.split(self._normed(middle, self._post_norm) @ self._gate_up.T, 2, axis=1)
        out: Floats = middle + (gate / (1 + np.exp(-np.maximum(gate, -80))) * up) @ self._down.T
        return np.split(out, splits)

    def _logits(self, hidden: Floats) -> Floats:
        """[n, draft vocab] from outputs of the layer."""
        normed = hidden if self._norm is None else self._normed(hidden, self._norm)
        out: Floats = normed @ self._lm_head.T
        return out

    def _attend(self, ask: HeadAsk, qkv: Floats) -> Floats:
        """[new, heads · dim] of one sequence: its new queries over everything it holds, each up to itself."""
        c, new = self.config, len(qkv)
        shared = c.num_heads // c.num_kv_heads
        heads = qkv.reshape(new, c.num_heads + 2 * c.num_kv_heads, c.head_dim).transpose(1, 0, 2)
        query, key, value = np.split(heads, [c.num_heads, c.num_heads + c.num_kv_heads])
        cache: NumpyHeadCache = ask.cache
        start = cache.length
        positions, sees = np.arange(start, start + new), None
        if ask.parents is not None:
            positions, sees = cache.branch(ask.parents, ask.grows)
        elif new > 1:
            sees = np.arange(start + new) <= positions[:, None]
        angles = positions[:, None] * self._rates
        cos, sin = ((c.rope.magnitude * turn(angles)).astype(np.float32) for turn in (np.cos, np.sin))
        keys, values = cache.append(_turned(key, cos, sin), value)
        query = (_turned(query, cos, sin) * np.float32(c.head_dim**-0.5)).reshape(c.num_kv_heads, shared * new, c.head_dim)
        scores = (query @ keys.transpose(0, 2, 1)).reshape(c.num_kv_heads, shared, new, start + new)
        if sees is not None:
            scores = np.where(sees, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed: Floats = weights.reshape(c.num_kv_heads, shared * new, start + new) @ values
        return mixed.reshape(c.num_heads, new, c.head_dim).transpose(1, 0, 2).reshape(new, -1)

    def _normed(self, x: Floats, weight: Floats) -> Floats:
        """x / rms(x) · weight, row by row."""
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.config.rms_norm_eps))
        normed: Floats = x * scale * weight
        return normed

    @staticmethod
    def _linear(x: Floats, weight: Floats, bias: Floats | None) -> Floats:
        out: Floats = x @ weight.T
        return out if bias is None else out + bias


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotary embedding of [heads, new, dim], halves rotated."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)
