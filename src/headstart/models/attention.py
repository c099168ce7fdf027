"""Attention for many sequences in one pass, each over its own cache: what transformers calls in every layer.

transformers runs everything that works token by token (projections, norms, MLPs) on all tokens of the pass side by side;
here each sequence's queries meet its own keys. So no sequence can see another, nothing is padded, no mask grows with the
number of sequences, and models need not know our cache: they are run without one. Knows slots, positions, trees and
windows; does not know models, tokens or logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from headstart.models.asks import Layout
from headstart.models.kv import KVCache
from headstart.models.torch_extra import torch, transformers

__all__ = ["ATTENTION", "Pass", "Piece", "running"]

ATTENTION = "headstart"  # our name among transformers' attention implementations

# Up to so many tokens, the query heads that share a key head are laid out as rows of one product: keys are read once for
# all of them. Beyond, that saves nothing and the mask would grow with the number of heads.
_FOLD_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `first` … `last` − 1 of one ask, scored in one pass. Earlier ones are in the cache already."""

    cache: KVCache
    layout: Layout
    first: int
    last: int

    @property
    def start(self) -> int:
        """Slot of the first token."""
        return self.layout.start + self.first

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class _View:
    """Which keys a piece sees under one window: those from slot `low` on, through `mask`."""

    low: int
    mask: Any  # [tokens, slots] to add to the scores, 0 or −inf; None: all of them, or causally if `causal`
    causal: bool = False


@dataclass(slots=True)
class Pass:
    """One forward pass over `pieces`, packed in this order. Made anew for each pass; its masks are shared by the layers."""

    pieces: Sequence[Piece]
    windows: dict[int, int | None] = field(default_factory=dict)  # layer → the sliding window its model asked for
    _views: dict[tuple[int, int | None], _View] = field(default_factory=dict)

    def attend(
        self, layer: int, query: Any, key: Any, value: Any, scale: float | None, window: int | None, cap: float | None
    ) -> Any:
        """[1, tokens, heads, dim] from [1, heads, tokens, dim] queries and the new keys and values of one layer."""
        self.windows[layer] = window
        outputs, offset = [], 0
        for index, piece in enumerate(self.pieces):
            end = offset + piece.size
            keys, values = piece.cache.extend(layer, piece.start, key[:, :, offset:end], value[:, :, offset:end])
            view = self._view(index, window, query)
            outputs.append(_attend(query[:, :, offset:end], keys[:, :, view.low :], values[:, :, view.low :], view, scale, cap))
            offset = end
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _view(self, index: int, window: int | None, query: Any) -> _View:
        view = self._views.get((index, window))
        if view is None:
            view = self._views[index, window] = _see(self.pieces[index], window, query)
        return view


def _see(piece: Piece, window: int | None, query: Any) -> _View:
    """The view of one piece. A key is seen if it is the token itself or above it, and fewer than `window` positions back."""
    chain, rows, end = piece.layout.parents is None, piece.size, piece.layout.start + piece.last
    low = 0
    if window is not None:
        nearest = piece.start if chain else piece.layout.start
        low = max(0, nearest - window + 1)
    if chain and rows == 1:
        return _View(low, None)
    if chain and piece.start == 0 and (window is None or window >= end):
        return _View(low, None, causal=True)
    slots = torch.arange(low, end, device=query.device)
    if chain:
        positions, above = slots, slots[None, :] <= slots[-rows:, None]
    else:
        depths = torch.from_numpy(piece.layout.depths[: piece.last]).to(query.device)
        positions = torch.cat((slots[: piece.layout.start - low], piece.layout.start + depths))
        ancestors = torch.from_numpy(piece.layout.ancestors[piece.first : piece.last, : piece.last]).to(query.device)
        above = torch.nn.functional.pad(ancestors, (piece.layout.start - low, 0), value=True)
    if window is not None:
        above = above & (positions[-rows:, None] - positions[None, :] < window)
    mask = torch.zeros(above.shape, dtype=query.dtype, device=query.device)
    return _View(low, mask.masked_fill_(~above, -torch.inf))


def _attend(query: Any, keys: Any, values: Any, view: _View, scale: float | None, cap: float | None) -> Any:
    """[1, tokens, heads, dim]: softmax(query · keys) · values for one sequence."""
    heads, tokens, shared = query.shape[1], query.shape[2], query.shape[1] // keys.shape[1]
    if cap is not None:
        return _attend_capped(query, keys, values, view, scale, cap)
    attention = torch.nn.functional.scaled_dot_product_attention
    if shared == 1 or tokens > _FOLD_TOKENS or view.causal:
        output = attention(query, keys, values, view.mask, is_causal=view.causal, scale=scale, enable_gqa=shared > 1)
    else:
        folded = query.reshape(1, keys.shape[1], shared * tokens, query.shape[3])
        mask = None if view.mask is None else view.mask.repeat(shared, 1)
        output = attention(folded, keys, values, mask, scale=scale).view(1, heads, tokens, values.shape[3])
    return output.transpose(1, 2).contiguous()


def _attend_capped(query: Any, keys: Any, values: Any, view: _View, scale: float | None, cap: float) -> Any:
    """As `_attend`, with scores bent by cap · tanh(score / cap) before the mask (Gemma 2), which no fused kernel offers."""
    tokens, shared = query.shape[2], query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(shared, dim=1), values.repeat_interleave(shared, dim=1)
    scores = query @ keys.transpose(2, 3) * (query.shape[3] ** -0.5 if scale is None else scale)
    scores = cap * torch.tanh(scores / cap)
    if view.causal:
        hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    elif view.mask is not None:
        scores = scores + view.mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ values).transpose(1, 2).contiguous()


_current: ContextVar[Pass] = ContextVar("headstart_pass")


@contextmanager
def running(this: Pass) -> Iterator[None]:
    """Within it, models whose attention is `ATTENTION` work on `this`. Each thread has its own."""
    token = _current.set(this)
    try:
        yield
    finally:
        _current.reset(token)


def _interface(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_unused: Any,
) -> tuple[Any, None]:
    """The signature transformers calls. Anything unused that mattered shows in the self-check at load."""
    return _current.get().attend(module.layer_idx, query, key, value, scaling, sliding_window, softcap), None


transformers.AttentionInterface.register(ATTENTION, _interface)
