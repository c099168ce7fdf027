"""The one place that imports torch and transformers, so that a missing one is an error with its pip line.

Import `torch`, `transformers` and `tqdm` (which comes with transformers) from here. Loading this module takes seconds;
nothing outside the transformers engine does.
"""

from __future__ import annotations

from headstart.errors import MissingExtraError

try:
    import torch
    import tqdm  # type: ignore[import-untyped]
    import transformers
except ImportError as error:
    raise MissingExtraError(error.name or "transformers", "transformers", "running a model with transformers") from None

__all__ = ["torch", "tqdm", "transformers"]
