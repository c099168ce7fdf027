"""Reading a GGUF file through transformers, in a fraction of the time.

transformers reads GGUF files with the `gguf` package: twice, value by value, a tokenizer's every word included, and builds
one table of tensor names anew for each module. `quick_gguf` lends it, while a model loads, a reader that skips what no
network needs and a table that is built once. Knows the file format and those two public names of `gguf`; the meaning of
keys and tensors stays with transformers. A version that reads files another way loads as fast as it does on its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from headstart.errors import MissingExtraError

__all__ = ["QuickReader", "quick_gguf"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # type → struct code
_STRING, _ARRAY = 8, 9


@contextmanager
def quick_gguf() -> Iterator[None]:
    """Within it, transformers reads GGUF files quickly. Raises MissingExtraError without the `gguf` package."""
    try:
        import gguf
    except ImportError:
        raise MissingExtraError("gguf", "transformers", "reading a GGUF file with transformers") from None
    with ExitStack() as stack:
        stack.enter_context(patch.object(gguf, "GGUFReader", cache(QuickReader)))
        stack.enter_context(patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)))
        yield


class QuickReader:
    """`fields` and `tensors` as `gguf.GGUFReader` gives them, without the contents of the tokenizer's lists.

    Of `tokenizer.ggml.tokens` the number of words is kept (it may be the only place a vocabulary's size is told), the
    words themselves read as empty; the tokenizer's other lists are empty. Raises ValueError for a file that is not a
    whole little-endian GGUF file of version 2 or 3."""

    def __init__(self, path: str | Path, mode: str = "r") -> None:
        from gguf import GGUFValueType, ReaderField

        if Path(path).stat().st_size < 24:
            raise ValueError("the file is too short to be a GGUF file")
        self._file = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        self._bytes = memoryview(self._file)  # type: ignore[arg-type]  # numpy declares the buffer protocol from Python 3.12 on
        self._place = 0
        self._value_type, self._field = GGUFValueType, ReaderField
        self.fields: dict[str, Any] = {}
        self.tensors: list[Any] = []
        try:
            self._read_all()
        except struct.error:
            raise ValueError("the GGUF file ends within its header") from None

    def get_field(self, key: str) -> Any:
        """The field of that name, or None."""
        return self.fields.get(key)

    def get_tensor(self, idx: int) -> Any:
        """The tensor at that index."""
        return self.tensors[idx]

    def _read_all(self) -> None:
        if bytes(self._bytes[:4]) != b"GGUF":
            raise ValueError("the file does not begin as a GGUF file does")
        self._place = 4
        version = self._take("I")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported, only 2 and 3 in little-endian order")
        num_tensors, num_fields = self._take("Q"), self._take("Q")
        for _ in range(num_fields):
            name = self._string().decode()
            parts, data, types = self._value(name)
            self.fields[name] = self._field(0, name, parts, data, [self._value_type(kind) for kind in types])
        self._read_tensors(num_tensors)

    def _take(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._bytes, self._place)
        self._place += struct.calcsize(code)
        return value

    def _string(self) -> bytes:
        size = self._take("Q")
        start, self._place = self._place, self._place + size
        if self._place > len(self._bytes):
            raise ValueError("the GGUF file ends within its header")
        return bytes(self._bytes[start : self._place])

    def _value(self, name: str) -> tuple[list[Any], list[int], list[int]]:
        """One field's parts, the indices of its values among them, and its types."""
        kind = self._take("I")
        if kind == _STRING:
            return [np.frombuffer(self._string(), dtype=np.uint8)], [0], [kind]
        if kind in _SCALARS:
            return [np.array([self._take(_SCALARS[kind])])], [0], [kind]
        if kind != _ARRAY:
            raise ValueError(f"field {name!r} of the GGUF file has the unknown type {kind}")
        inner, count = self._take("I"), self._take("Q")
        wanted = not name.startswith("tokenizer.")
        parts = self._strings(count, wanted) if inner == _STRING else self._numbers(name, inner, count, wanted)
        if name == "tokenizer.ggml.tokens":
            return [np.zeros(0, dtype=np.uint8)], [0] * count, [kind, inner]
        return parts, list(range(len(parts))), [kind, inner] if count else [kind]

    def _strings(self, count: int, wanted: bool) -> list[Any]:
        if wanted:
            return [np.frombuffer(self._string(), dtype=np.uint8) for _ in range(count)]
        place, size_of = self._place, struct.Struct("<Q").unpack_from
        for _ in range(count):
            place += 8 + size_of(self._bytes, place)[0]
        self._place = place
        return []

    def _numbers(self, name: str, kind: int, count: int, wanted: bool) -> list[Any]:
        if kind not in _SCALARS:
            raise ValueError(f"field {name!r} of the GGUF file holds a list of the unknown type {kind}")
        values = self._file[self._place : self._place + count * struct.calcsize(_SCALARS[kind])]
        self._place += len(values)
        return list(values.view("<" + _SCALARS[kind]).reshape(-1, 1)) if wanted else []

    def _read_tensors(self, count: int) -> None:
        infos = []
        for _ in range(count):
            name = self._string().decode()
            shape = [self._take("Q") for _ in range(self._take("I"))]
            infos.append((name, shape, self._take("I"), self._take("Q")))
        alignment = int(self.fields["general.alignment"].parts[0][0]) if "general.alignment" in self.fields else 32
        base = -(-self._place // alignment) * alignment
        for name, shape, kind, offset in infos:
            self.tensors.append(self._tensor(name, shape, kind, base + offset))

    def _tensor(self, name: str, shape: list[int], kind: int, start: int) -> Any:
        """A tensor over the file's own memory: numbers in their shape, blocks as rows of bytes."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, ReaderTensor

        form = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[form]
        size = int(np.prod(shape, dtype=np.int64))
        num_bytes = size // block * block_bytes
        raw = self._file[start : start + num_bytes]
        if len(raw) != num_bytes:
            raise ValueError(f"the GGUF file ends within tensor {name!r}")
        plain = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}.get(form.name)
        rows = [int(extent) for extent in reversed(shape)]
        data = raw.view(plain).reshape(rows) if plain else raw.reshape([*rows[:-1], rows[-1] // block * block_bytes])
        field = self._field(0, name, [], [])
        return ReaderTensor(name, form, np.array(shape, dtype=np.uint32), size, num_bytes, start, data, field)
