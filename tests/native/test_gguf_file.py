"""The C++ reader of GGUF files: what the `gguf` package wrote is what is read; what is damaged is refused in one line."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant
from gguf import GGUFValueType, GGUFWriter

from headstart import _core
from tests.native.random_gguf import TYPES, blocks

NUMBERS = [kind for kind in GGUFValueType if kind not in (GGUFValueType.ARRAY, GGUFValueType.STRING)]


def finish(writer: Any) -> None:
    """Write everything out."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def everything(path: Path, **options: Any) -> Path:
    """A file with every kind of value and of tensor."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama", **{key: value for key, value in options.items() if key != "alignment"})
    if "alignment" in options:
        writer.add_custom_alignment(options["alignment"])
    for kind in NUMBERS:
        writer.add_key_value(f"one.{kind.name}", 1, kind)
        writer.add_key_value(f"many.{kind.name}", [0, 1, 1], GGUFValueType.ARRAY, sub_type=kind)
    writer.add_key_value("low", -7, GGUFValueType.INT64)
    writer.add_key_value("high", 2**64 - 1, GGUFValueType.UINT64)
    writer.add_string("text", "naïve\n" * 3)
    writer.add_array("texts", ["a", "bc", "", "def"])
    for kind in TYPES:
        data = blocks(kind, 3, 512, rng)
        as_numbers = {"F32": np.float32, "F16": np.float16}.get(kind)
        writer.add_tensor(
            f"t.{kind}", data.view(as_numbers) if as_numbers else data, raw_dtype=None if as_numbers else Quant[kind]
        )
    writer.add_tensor("t.four", np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2))
    writer.add_tensor("t.unknown", np.zeros((2, 84), np.uint8), raw_dtype=Quant.Q2_K)
    finish(writer)
    return path


def told(path: Path) -> Iterator[tuple[bytes, Any]]:
    """What the `gguf` package reads of the metadata, as the core tells it."""
    for key, field in gguf.GGUFReader(path).fields.items():
        if key.startswith("GGUF."):
            continue
        if field.types[-1] == GGUFValueType.STRING:
            yield key.encode(), bytes(field.parts[-1]) if len(field.types) == 1 else ("texts", len(field.data))
            continue
        numbers = [field.parts[place][0] for place in field.data]
        if field.types[0] == GGUFValueType.ARRAY:
            yield key.encode(), [float(number) for number in numbers]
        else:
            yield key.encode(), numbers[0].item()


def assert_read(path: Path, parts: list[Path]) -> None:
    """Metadata of the first part and tensors of all are what the `gguf` package reads."""
    file = _core.open_gguf(str(path))
    assert file.metadata() == dict(told(path))
    assert file.size == sum(part.stat().st_size for part in parts)
    expected = [tensor for part in parts for tensor in gguf.GGUFReader(part).tensors]
    assert len(file.tensors()) == len(expected)
    for (name, kind, shape, data), tensor in zip(file.tensors(), expected, strict=True):
        assert (name.decode(), kind) == (tensor.name, tensor.tensor_type.name)
        assert shape == [int(size) for size in tensor.shape]
        assert data == (tensor.data.tobytes() if kind in TYPES else b"")


@pytest.mark.parametrize("options", [{}, {"alignment": 128}, {"alignment": 8}], ids=str)
def test_every_kind_of_value_and_tensor(tmp_path: Path, options: dict[str, Any]) -> None:
    path = everything(tmp_path / "all.gguf", **options)
    assert_read(path, [path])


def test_version_2(tmp_path: Path) -> None:
    """The version before is laid out alike."""
    path = everything(tmp_path / "all.gguf")
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    (tmp_path / "two.gguf").write_bytes(data)
    assert _core.open_gguf(str(tmp_path / "two.gguf")).tensors() == _core.open_gguf(str(path)).tensors()


@pytest.mark.parametrize("bare", [False, True])
def test_files_in_parts(tmp_path: Path, bare: bool) -> None:
    """Opened by the first part; another part, and a first part without the others, are refused by name."""
    everything(tmp_path / "model.gguf", split_max_tensors=4, small_first_shard=bare)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) == (5 if bare else 4)
    assert_read(parts[0], parts)
    refused(parts[1], "is part 2 of", parts[0].name)
    parts[0].rename(tmp_path / "first.gguf")
    refused(tmp_path / "first.gguf", "its name must end in", "-00001-of-")
    (tmp_path / "first.gguf").rename(parts[0])
    parts[2].unlink()
    refused(parts[0], parts[2].name, "no such file", "part 3")


def refused(path: Path, *words: str) -> None:
    """A FileError of one line that names the file."""
    with pytest.raises(_core.FileError) as caught:
        _core.open_gguf(str(path))
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    for word in (path.parent.name, *words):
        assert word in message


def _at(place: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + value + data[place + len(value) :]


def _instead(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def replace(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return replace


def _text(text: str, layout: str = "<", *values: Any) -> bytes:
    """A name as a file has it, and what follows it."""
    return struct.pack("<Q", len(text)) + text.encode() + struct.pack(layout, *values)


def _follows(name: str, layout: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> Callable[[bytes], bytes]:
    return _instead(_text(name, layout, *old), _text(name, layout, *new))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", ["is empty"]),
        (lambda data: data[:3], ["not a GGUF file"]),
        (lambda data: data[:10], ["cut short", "byte 10"]),
        (lambda data: data[:200], ["cut short"]),
        (lambda data: data[:-4000], ["cut short", "tensor"]),
        (_at(0, b"GGML"), ["not a GGUF file"]),
        (_at(0, b"<html>"), ["web page"]),
        (_at(0, b"PK\x03\x04"), ["zip"]),
        (lambda data: b"version https://git-lfs.github.com/spec/v1", ["git lfs pull"]),
        (lambda data: struct.pack("<Q", 2) + b'{"a":1}   ', ["safetensors"]),
        (_at(4, struct.pack(">I", 3)), ["big-endian"]),
        (_at(4, struct.pack("<I", 4)), ["version 4"]),
        (_at(8, struct.pack("<Q", 2**63)), [str(2**63), "damaged"]),
        (_at(16, struct.pack("<Q", 60_000)), ["60000 keys", "ends at byte"]),
        (_follows("text", "<I", (8,), (77,)), ["'text'", "type 77"]),
        (_instead(_text("high"), struct.pack("<Q", 2**40) + b"high"), ["cut short"]),
        (_follows("one.BOOL", "<IB", (7, 1), (7, 2)), ["'one.BOOL'"]),
        (_instead(_text("one.INT16"), _text("one.INT32")), ["'one.INT32'", "twice"]),
        (_instead(_text("t.F32"), _text("t.F16")), ["'t.F16'", "twice"]),
        (_follows("t.F32", "<I", (2,), (5,)), ["'t.F32'", "5 sizes"]),
        (_follows("t.F32", "<IQ", (2, 512), (2, 0)), ["'t.F32'", "size of 0"]),
        (_follows("t.Q4_K", "<IQ", (2, 512), (2, 500)), ["500", "256", "Q4_K"]),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, damage: Callable[[bytes], bytes], words: list[str]) -> None:
    """What is wrong is said, with the key or the tensor."""
    path = everything(tmp_path / "all.gguf")
    path.write_bytes(damage(path.read_bytes()))
    refused(path, *words)


def test_tensors_that_share_bytes(tmp_path: Path) -> None:
    """A small file cannot stand for any amount of weights."""
    writer = GGUFWriter(tmp_path / "two.gguf", "llama")
    for name in ("a", "b"):
        writer.add_tensor(name, np.zeros(32, np.float32))
    finish(writer)
    data = (tmp_path / "two.gguf").read_bytes()
    entry = _text("b") + struct.pack("<IQIQ", 1, 32, 0, 128)
    (tmp_path / "two.gguf").write_bytes(_instead(entry, entry[:-8] + struct.pack("<Q", 96))(data))
    refused(tmp_path / "two.gguf", "'a' and 'b' overlap")


def test_what_is_no_file(tmp_path: Path) -> None:
    """A name that is not there, a folder, a pipe that nobody writes to."""
    import os

    refused(tmp_path / "none.gguf", "no such file")
    refused(tmp_path, "is a folder")
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(tmp_path / "pipe.gguf", "pipe")
    with pytest.raises(_core.FileError, match="zero byte"):
        _core.open_gguf("a\0b")
