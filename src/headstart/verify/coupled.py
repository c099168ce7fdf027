"""Gumbel coupling: `match` with noise that drafter and target share, keyed by (seed, position).

The text is what plain decoding with the same seed emits, whatever the drafter, the draft's length or the batch. The laws below
integrate over the shared noise; they hold for drafts that were drawn with it, and for deterministic drafts.

Write t_i = q_i/p_i and B(t) = Σ_k max(q_k, t·p_k). Racing exponential clocks E_k, X = argmin E_k/q_k and y = argmin E_k/p_k,
    P(X = i, y = i) = q_i / B(t_i)                                  (= 1 / Σ_k max(p_k/p_i, q_k/q_i))
    P(X = i, y = j) = q_i·p_j·(F(t_i) − F(t_j))+,  F(t) = ∫_0^t du / B(u)².
B is piecewise linear, so F is exact in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify.chain import stops

__all__ = ["CoupledRule", "coupled_agreement"]


@final
class CoupledRule:
    """Draw y with the shared noise, emit it, go on while y = X_i."""

    name = "coupled"
    walks = True
    keyed = True

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[gamma + 1]: as `match`, with P(y = X_i | X_i) under the shared noise."""
        chain = zip(draft.tokens, draft.rows, target_rows, strict=False)
        return stops(np.array([_agree(p, q, token) / q.prob(token) for token, q, p in chain]))

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """P(y | X = the missed token, y ≠ X), or the target's row after the whole draft."""
        row = target_rows[node]
        if node == len(draft):
            return row
        p, q = row.to_array().astype(np.float64), draft.rows[node].to_array().astype(np.float64)
        areas, token = _areas(p, q), draft.tokens[node]
        law = p * np.maximum(areas[token] - areas, 0.0)
        law[token] = 0.0
        return Row(law / law.sum(), None, row.vocab_size) if law.sum() > 0 else row


def coupled_agreement(target: Row, draft: Row) -> float:
    """Σ_i P(X = y = i): the acceptance of one position; at least (1 − TV)/(1 + TV)."""
    p, q = target.to_array().astype(np.float64), draft.to_array().astype(np.float64)
    both = np.flatnonzero((p > 0) & (q > 0))
    if not both.size:
        return 0.0
    order = both[np.argsort(q[both] / p[both], kind="stable")]
    p_up_to, q_up_to = p[q == 0].sum() + np.cumsum(p[order]), np.cumsum(q[order])  # tokens with q = 0 have t = 0
    spread = q.sum() - q_up_to + q[order] / p[order] * p_up_to  # B(t_i) in increasing order of t_i
    return float((q[order] / spread).sum())


def _agree(p: Row, q: Row, token: int) -> float:
    """P(X = y = token)."""
    mine, drafted = p.prob(token), q.prob(token)
    if mine == 0.0 or drafted == 0.0:
        return 0.0
    # Σ_k max(q_k, t·p_k) = Σ_k q_k + Σ_k (t·p_k − q_k)+, and the second sum lives on p's support alone.
    excess = np.maximum(p.probs.astype(np.float64) * (drafted / mine) - q.at(p.ids), 0.0)
    return drafted / (1.0 + float(excess.sum()))


def _areas(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """[vocab]: F(q_i/p_i); tokens without mass in either row get F = 0, where they change nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        breaks = np.where(p > 0, q / np.where(p > 0, p, 1.0), np.where(q > 0, np.inf, 0.0))
    order = np.argsort(breaks, kind="stable")
    sorted_breaks, areas = breaks[order], np.zeros(p.size)
    slope, rest, area, last = 0.0, float(q.sum()), 0.0, 0.0
    for place, t in zip(order, sorted_breaks, strict=True):
        if t > last:
            # ∫ du/(rest + slope·u)² over [last, t], in the form that also holds for slope 0.
            area += (
                1.0 / (slope * (rest + slope * last))
                if np.isinf(t)
                else (t - last) / ((rest + slope * last) * (rest + slope * t))
            )
            last = float(t)
        areas[place] = area
        slope, rest = slope + p[place], rest - q[place]
    return areas
