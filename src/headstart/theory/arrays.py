"""What the files of this room share: checks of plain numbers and rows, drawing many tokens at once, work in pieces.

It knows arrays of any small vocabulary; it does not know models, drafts or rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headstart.errors import OptionError
from headstart.rows import FloatArray

__all__ = [
    "Advance",
    "check_alpha",
    "check_row",
    "check_table",
    "check_whole",
    "correction_rows",
    "cumulative",
    "draw_many",
    "pieces",
]

# Called with how many draws, rounds or sequences have just been done.
Advance = Callable[[int], object]

_PIECE = 1 << 18  # draws in memory at once: large enough for numpy, small enough to stay near the cache
_SUM_TOLERANCE = 1e-4  # the same slack as `rows`; a row within it is used as given


def check_whole(name: str, value: Any, least: int, way_out: str = "", most: int = 2**63 - 1) -> int:
    """`value` as an int. Raises OptionError unless it is a whole number from `least` to `most`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise OptionError(f"`{name}` must be a whole number, got {value!r}{way_out}")
    if value < least:
        raise OptionError(f"`{name}` must be {least} or more, got {value}{way_out}")
    if value > most:
        raise OptionError(f"`{name}` must be at most {most}, got {value}{way_out}")
    return int(value)


def check_alpha(alpha: ArrayLike) -> FloatArray:
    """Acceptance rates as an array of the same shape. Raises OptionError for anything outside [0, 1], NaN included."""
    values = np.asarray(alpha, dtype=np.float64)
    wrong = ~((values >= 0) & (values <= 1))
    if wrong.any():
        raise OptionError(f"`alpha` must be between 0 and 1, got {values[wrong].flat[0]:g}; it is the share of guesses accepted")
    return values


def check_row(name: str, row: ArrayLike) -> FloatArray:
    """A [vocab] row as float64. Raises OptionError unless it is finite, not negative and sums to 1 (within 1e-4)."""
    values = np.asarray(row, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise OptionError(f"`{name}` must be a list of probabilities, one a token, got shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        raise OptionError(f"`{name}` must hold finite probabilities of 0 or more, got {values[wrong][0]:g}")
    total = float(values.sum())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise OptionError(f"`{name}` must sum to 1, got {total:.6g}; divide every entry by that sum")
    return values


def check_table(name: str, table: ArrayLike) -> FloatArray:
    """A last-token table [vocab, vocab] (row x: law of the token after x) as float64. Raises OptionError."""
    values = np.asarray(table, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise OptionError(f"`{name}` must be a square table, one row a last token, got shape {values.shape}")
    for token, row in enumerate(values):
        check_row(f"{name}[{token}]", row)
    return values


def correction_rows(target: FloatArray, draft: FloatArray) -> FloatArray:
    """norm((p − q)+) along the last axis: what is drawn after a rejection; the target's row where p = q leaves no mass."""
    above = np.maximum(target - draft, 0.0)
    mass = above.sum(axis=-1, keepdims=True)
    return np.where(mass > 0, above / np.where(mass > 0, mass, 1.0), target)


def cumulative(rows: FloatArray) -> FloatArray:
    """Running sums along the last axis that end in exactly 1, so that a uniform below 1 always finds a token."""
    sums = np.cumsum(rows, axis=-1)
    ends: FloatArray = sums / sums[..., -1:]
    return ends


def draw_many(ends: FloatArray, rng: np.random.Generator) -> NDArray[np.int64]:
    """One token for each of the [n, vocab] rows of `cumulative`; never one of probability zero."""
    uniforms = rng.random((ends.shape[0], 1))
    tokens: NDArray[np.int64] = (ends <= uniforms).sum(axis=1)
    return tokens


def pieces(total: int, width: int = 1) -> Iterator[int]:
    """Sizes that sum to `total`, small enough that arrays of `width` numbers for each draw stay within bounded memory."""
    most = max(1, _PIECE // width)
    for done in range(0, total, most):
        yield min(most, total - done)
