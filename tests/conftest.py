"""Fixtures shared by all rooms: real models, loaded once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SMOLLM2 = Path.home() / ".cache" / "headstart" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; skips where it has not been fetched."""
    if not SMOLLM2.is_file():
        pytest.skip(f"{SMOLLM2} is missing; `headstart models fetch smollm2` fetches it")
    return SMOLLM2


@pytest.fixture(scope="session")
def smollm2_float32(smollm2_path: Path) -> Any:
    """SmolLM2 run by transformers in float32 on the CPU. Caches are the tests' own; the model is shared."""
    transformers_model = pytest.importorskip("headstart.models.transformers")
    return transformers_model.TransformersModel.load(smollm2_path, dtype="float32", device="cpu")
