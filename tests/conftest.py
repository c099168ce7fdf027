"""Fixtures shared by all rooms: real models, loaded once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstart import fetch


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct. Tests on a real model are never skipped: without the file they fail."""
    path = fetch.find("smollm2")
    if path is None:
        pytest.fail("smollm2 is missing; `headstart models fetch smollm2` (or `make test`) fetches it")
    return path


@pytest.fixture(scope="session")
def smollm2_float32(smollm2_path: Path) -> Any:
    """SmolLM2 run by transformers in float32 on the CPU. Caches are the tests' own; the model is shared."""
    transformers_model = pytest.importorskip("headstart.models.transformers")
    return transformers_model.TransformersModel.load(smollm2_path, dtype="float32", device="cpu")


@pytest.fixture(scope="session", autouse=True)
def _costs_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Costs measured by tests are kept where no user's are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_COSTS", str(tmp_path_factory.mktemp("costs")))
        yield
