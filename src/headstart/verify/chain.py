"""What rules over chains share."""

from __future__ import annotations

import numpy as np

from headstart.rows import FloatArray

__all__ = ["stops"]


def stops(goes_on: FloatArray) -> FloatArray:
    """[gamma + 1]: probability of stopping after exactly i steps, where step i + 1 succeeds with probability `goes_on[i]`."""
    reached = np.concatenate([[1.0], np.cumprod(goes_on, dtype=np.float64)])
    reached[:-1] *= 1.0 - goes_on
    return reached
