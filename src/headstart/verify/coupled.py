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

from headstart.errors import OptionError
from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify.match import missed
from headstart.verify.walk import stops

__all__ = ["CoupledRule", "coupled_agreement"]


@final
class CoupledRule:
    """Draw y with the shared noise, emit it, go on while y is drafted. On trees all nodes of one depth share their noise."""

    name = "coupled"
    walks = True
    keyed = True
    trees = True
    lossless = True

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """[nodes + 1]: as `match`, with P(y = X | X) under the shared noise. Raises OptionError for several drawn siblings."""

        def step(node: int) -> FloatArray:
            p, children = target_rows[node], draft.children(node)
            if _chosen(draft, node):
                keeps = [p.prob(draft.tokens[child - 1]) for child in children]
            else:
                token, q = draft.tokens[children[0] - 1], draft.rows[children[0] - 1]
                keeps = [_agree(p, q, token) / q.prob(token)]
            return np.array([*keeps, max(0.0, 1.0 - sum(keeps))])

        return stops(draft, step)

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """P(y | X = the missed token, y ≠ X), or the target's row where nothing was missed."""
        row = target_rows[node]
        if _chosen(draft, node):
            return missed(row, draft, node)
        child = draft.children(node)[0]
        p, q = row.to_array().astype(np.float64), draft.rows[child - 1].to_array().astype(np.float64)
        areas, token = _areas(p, q), draft.tokens[child - 1]
        law = p * np.maximum(areas[token] - areas, 0.0)
        law[token] = 0.0
        return Row(law / law.sum(), None, row.vocab_size) if law.sum() > 0 else row


def _chosen(draft: Draft, node: int) -> bool:
    """Whether no child of `node` was drawn. Raises OptionError for several that were: no closed form is known."""
    children = draft.children(node)
    drawn = [child for child in children if not draft.rows[child - 1].is_point]
    if drawn and len(children) > 1:
        raise OptionError(
            f"`rule` coupled states no law for several drawn children, got {len(children)} at node {node}; `decide` judges them, "
            "and what it emits never depends on the draft"
        )
    return not drawn


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
