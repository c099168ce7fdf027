"""Heads that come with the package, and which target each belongs to.

A head fits one model only, whatever the model's file is called: `headstart_target` in its config says by which weights that
model is known, and `headstart_auto` whether it pays well enough to be what `auto` means. Knows folders and fingerprints; does
not know how a head is run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from headstart.interfaces import FeatureModel

__all__ = ["fingerprint", "folder_of", "matching", "names"]

_FOLDER = Path(__file__).parent / "heads"
_SAMPLED = 64  # tokens whose embeddings make the fingerprint, spread over the vocabulary


def names() -> list[str]:
    """Heads in the package, by the name of the target they were trained for."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))


def folder_of(name: str) -> Path | None:
    """Where the head of that name lies; None where there is none."""
    return _FOLDER / name if name in names() else None


def fingerprint(model: FeatureModel) -> dict[str, Any]:
    """What tells a target from every other: its sizes, and a hash of some of its embeddings as float32."""
    tokens = np.linspace(0, model.vocab_size - 1, _SAMPLED).astype(np.int64)
    digest = hashlib.sha256(np.ascontiguousarray(model.embeddings(tokens), dtype="<f4").tobytes()).hexdigest()
    sizes = {"vocab_size": model.vocab_size, "hidden_size": model.hidden_size, "num_layers": model.num_layers}
    return sizes | {"embeddings_sha256": digest}


def matching(model: object) -> Path | None:
    """The folder of the head that `auto` means for this very target; None where the package has none."""
    if not isinstance(model, FeatureModel):
        return None
    own: dict[str, Any] | None = None
    for name in names():
        config = json.loads((_FOLDER / name / "config.json").read_text(encoding="utf-8"))
        wanted = config.get("headstart_target")
        if (
            config.get("headstart_auto")
            and wanted
            and wanted.get("vocab_size") == model.vocab_size
            and wanted.get("hidden_size") == model.hidden_size
        ):
            own = own or fingerprint(model)
            if wanted == own:
                return _FOLDER / name
    return None
