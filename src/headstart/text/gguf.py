"""The metadata of a GGUF file: key → value, without touching its tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Every length is checked
against the file before it is used, so a truncated or hostile file costs one clear error, not memory.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from headstart.errors import ModelError

__all__ = ["read_metadata"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_KEYS = 1 << 16  # real files have a few dozen
_U64 = struct.Struct("<Q")


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Every key of the file with its value; arrays are lists. Raises ModelError unless `path` is a whole GGUF header."""
    path = Path(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Reader(view, path).read()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; name a GGUF file, or see `headstart models`") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder, not a GGUF file") from None
    except ValueError:  # mmap cannot map an empty file
        raise ModelError(f"{path} is empty, not a GGUF file; fetch it again") from None


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, view: mmap.mmap, path: Path) -> None:
        self._view = view
        self._path = path
        self._size = len(view)
        self._place = 0

    def read(self) -> dict[str, Any]:
        if self._view[:4] != b"GGUF":
            raise ModelError(f"{self._path} is not a GGUF file (it begins with {self._view[:4]!r})")
        self._place = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelError(f"{self._path}: GGUF version {version} is not supported; versions 2 and 3, little-endian, are")
        self._scalar("Q")  # number of tensors
        num_keys = self._scalar("Q")
        if num_keys > _MOST_KEYS:
            raise self._broken(f"it claims {num_keys} keys")
        values: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text()
            if key in values:
                raise self._broken(f"the key {key!r} comes twice")
            values[key] = self._value(self._scalar("I"))
        return values

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._scalar(self._letter(kind))
        inner = self._scalar("I")
        count = self._scalar("Q")
        if inner == _STRING:
            return self._texts(count)
        letter = self._letter(inner)
        width = struct.calcsize("<" + letter)
        if count > (self._size - self._place) // width:
            raise self._broken(f"an array of {count} values does not fit into it")
        values = list(struct.unpack_from(f"<{count}{letter}", self._view, self._place))
        self._place += count * width
        return values

    def _letter(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._broken(f"it has a value of unknown type {kind}")
        return _SCALARS[kind]

    def _scalar(self, letter: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + letter, self._view, self._place)
        except struct.error:
            raise self._broken("it ends inside its header") from None
        self._place += struct.calcsize("<" + letter)
        return value

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        # The hot loop: vocabularies are arrays of a hundred thousand strings and more.
        view, size, place, length_at = self._view, self._size, self._place, _U64.unpack_from
        if count > (size - place) // 8:
            raise self._broken(f"{count} strings do not fit into it")
        texts = []
        try:
            for _ in range(count):
                start = place + 8
                place = start + length_at(view, place)[0]
                if place > size:
                    raise self._broken("it ends inside its header")
                texts.append(view[start:place].decode())
        except struct.error:
            raise self._broken("it ends inside its header") from None
        except UnicodeDecodeError:
            raise self._broken(f"it has a string that is not UTF-8 at byte {start}") from None
        self._place = place
        return texts

    def _broken(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is not a whole GGUF file: {what}; fetch it again")
