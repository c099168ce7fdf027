"""Random models, written once a session and loaded as a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headstart.models.native import NativeModel
from tests.native.random_gguf import RandomModel, shape_of, write

Written = Callable[..., RandomModel]
Loaded = Callable[..., NativeModel]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """written(architecture, kind, **changes of the shape): a random model's file and numbers."""
    folder = tmp_path_factory.mktemp("gguf")
    made: dict[Any, RandomModel] = {}

    def get(architecture: str, kind: str = "F32", **changes: Any) -> RandomModel:
        key = (architecture, kind, repr(changes))
        if key not in made:
            path: Path = folder / f"{len(made)}.gguf"
            made[key] = write(path, shape_of(architecture, **changes), kind)
        return made[key]

    return get


@pytest.fixture(scope="session")
def loaded(written: Written) -> Loaded:
    """loaded(architecture, kind, threads=…, instruction_set=…, **changes): the native model of such a file."""
    made: dict[Any, NativeModel] = {}

    def get(
        architecture: str, kind: str = "F32", *, threads: int = 2, instruction_set: str | None = None, **changes: Any
    ) -> NativeModel:
        key = (architecture, kind, threads, instruction_set, repr(changes))
        if key not in made:
            path = written(architecture, kind, **changes).path
            made[key] = NativeModel.load(path, threads=threads, instruction_set=instruction_set)
        return made[key]

    return get
