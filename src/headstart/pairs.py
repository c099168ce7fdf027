"""What can be said of two rows over one vocabulary: residual, overlap, total variation. Plain [vocab] arrays will do as well."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from headstart import _core
from headstart.errors import OptionError
from headstart.rows import FloatArray, IntArray, Row, as_row

__all__ = ["excess_mass", "overlap", "residual", "total_variation"]


def residual(target: Row | ArrayLike, draft: Row | ArrayLike, scale: float = 1.0) -> Row:
    """norm((scale·p − q)+), the law of a correction (Leviathan et al. 2023, Alg. 1; block verification scales p).

    Where nothing is left (p = q up to rounding) the target's own row comes back, never NaN."""
    p, q = as_row(target), as_row(draft)
    _same_vocabulary(p, q)
    excess, mass = _excess(p, q, scale)
    if mass <= 4 * float(np.finfo(excess.dtype).eps):
        return p
    excess /= excess.dtype.type(mass)  # made for this
    return Row(excess, p.ids, p.vocab_size).compact()


def excess_mass(target: Row, draft: Row, scale: float = 1.0) -> float:
    """Σ (scale·p − q)+, the mass a correction is drawn from; 1 − overlap at scale 1."""
    if (some := _some_of(target, draft)) is not None:
        return _core.beyond(*some, scale)
    return _excess(target, draft, scale)[1]


def overlap(target: Row | ArrayLike, draft: Row | ArrayLike) -> float:
    """Σ min(p, q) = 1 − TV(p, q): the chance that the token rule accepts a token drawn from q."""
    p, q = as_row(target), as_row(draft)
    _same_vocabulary(p, q)
    if p.ids is None and q.ids is None and p.probs.dtype == np.float32:
        return min(1.0, max(0.0, 1.0 - _excess(p, q, 1.0)[1]))
    if (some := _some_of(p, q)) is not None or (some := _some_of(q, p)) is not None:
        return min(1.0, _core.common(*some, 1.0))
    # Only tokens both rows list can contribute: walk the smaller support.
    small, large = (p, q) if p.probs.size <= q.probs.size else (q, p)
    return min(1.0, float(np.minimum(small.probs, large.at(small.ids)).sum(dtype=np.float64)))


def total_variation(target: Row | ArrayLike, draft: Row | ArrayLike) -> float:
    """½ Σ |p − q|, between 0 and 1."""
    p, q = as_row(target), as_row(draft)
    _same_vocabulary(p, q)
    return float(np.abs(p.to_array().astype(np.float64) - q.to_array()).sum()) / 2


def _excess(p: Row, q: Row, scale: float) -> tuple[FloatArray, float]:
    """(scale·p − q)+ on p's support, and its sum."""
    if (some := _some_of(p, q)) is not None:
        out = np.empty_like(some[0])
        return out, _core.beyond(*some, scale, out)
    if p.probs.dtype == np.float32:
        others = np.ascontiguousarray(q.at(p.ids), dtype=np.float32)
        out = np.empty_like(p.probs)
        return out, _core.residual(np.ascontiguousarray(p.probs), others, scale, out)
    excess = np.maximum(p.probs * p.probs.dtype.type(scale) - q.at(p.ids), 0)
    return excess, float(excess.sum(dtype=np.float64))


def _some_of(whole: Row, some: Row) -> tuple[FloatArray, IntArray, FloatArray] | None:
    """The numbers of a row over the whole vocabulary, and the ids and numbers of one over some of it, where they are such."""
    if whole.ids is not None or some.ids is None or whole.probs.dtype != np.float32:
        return None
    numbers = np.ascontiguousarray(some.probs, dtype=np.float32)
    return np.ascontiguousarray(whole.probs), np.ascontiguousarray(some.ids, dtype=np.int64), numbers


def _same_vocabulary(p: Row, q: Row) -> None:
    if p.vocab_size != q.vocab_size:
        raise OptionError(f"`target` and `draft` must be rows over one vocabulary, got {p.vocab_size} and {q.vocab_size} tokens")
