"""The GGUF reader: right on the real file, one clear error on anything broken."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from headstart.errors import ModelError
from headstart.text import read_metadata
from tests.text.small import gguf_bytes

VALUES = {"a": 3, "b": True, "c": "ü", "d": ["x", "", "yy"], "e": [1, 2], "f": 0.5, "g": []}


def test_values_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(VALUES))
    assert read_metadata(path) == VALUES


def test_a_file_cut_anywhere_is_one_clear_error(tmp_path: Path) -> None:
    whole = gguf_bytes(VALUES)
    path = tmp_path / "a.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"GGUF"):
            read_metadata(path)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (struct.pack("<IQQ", 3, 0, 2**60), "keys"),
        (struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), "ends inside"),
        (struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**61), "do not fit"),
        (struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62), "does not fit"),
        (struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "unknown type"),
        (struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "unknown type"),
        (struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<I", 4), "not UTF-8"),
        (struct.pack("<I", 1), "version 1"),
        (struct.pack(">I", 3), "little-endian"),
    ],
)
def test_a_hostile_header_is_refused_at_once(tmp_path: Path, body: bytes, says: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + body)
    began = time.perf_counter()
    with pytest.raises(ModelError, match=says):
        read_metadata(path)
    assert time.perf_counter() - began < 0.5


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    one = gguf_bytes({"a": 1})[24:]
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + one + one)
    with pytest.raises(ModelError, match="twice"):
        read_metadata(path)


def test_other_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_metadata(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="folder"):
        read_metadata(tmp_path)
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_metadata(tmp_path / "zip.gguf")


def test_the_real_file(smollm2_file: Path) -> None:
    """Values as the reference reader (the package gguf) gives them."""
    found = read_metadata(smollm2_file)
    assert len(found) == 33
    assert (found["general.architecture"], found["llama.block_count"]) == ("llama", 30)
    assert found["llama.attention.layer_norm_rms_epsilon"] == 9.999999747378752e-06
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert len(found["tokenizer.ggml.tokens"]) == len(found["tokenizer.ggml.token_type"]) == 49152
    assert found["tokenizer.ggml.merges"][:3] == ["Ġ t", "Ġ a", "i n"]
