"""The tokenizers the tests of this room share: two small ones, and the real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headstart import fetch
from headstart.text import Tokenizer
from tests.text.small import CHAT_TEMPLATE, byte_fallback_core, byte_level_core, gguf_bytes


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a byte-level tokenizer and a chat template."""
    path = tmp_path_factory.mktemp("folder")
    byte_level_core().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        '{"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "<|end|>"}}', encoding="utf-8"
    )
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def byte_level(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("fallback")
    byte_fallback_core().save(str(path / "tokenizer.json"))
    return Tokenizer.from_folder(path)


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    path = fetch.find("smollm2")
    assert path is not None, "the real model is not here; run: headstart models fetch smollm2"
    return path


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_file)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a GGUF file with these keys (`__` for the dots after `tokenizer`) and returns its path."""

    def write(**values: Any) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(gguf_bytes({f"tokenizer.{key.replace('__', '.')}": value for key, value in values.items()}))
        return path

    return write
