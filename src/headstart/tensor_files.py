"""What lies in a .safetensors file: its header, read and checked. And JSON files of folders, which come with it.

A file may be a stranger's: a header may be wrong in any way, and the answer is a directory in sound form or a ModelError with one
line. Whether the places named in it lie within the file is for whoever reads them; what names and types mean is not known here.
Format: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import ModelError

__all__ = ["Stored", "read_json", "stored_in"]

_MOST_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One tensor in one file."""

    name: str
    dtype: str  # as the format spells it: F32, BF16, …
    shape: tuple[int, ...]
    file: Path
    offset: int  # from the beginning of the file
    size: int  # bytes


def stored_in(path: Path) -> Iterator[Stored]:
    """The tensors of one file, as its header has them. Raises ModelError."""
    try:
        if not path.is_file():
            raise ModelError(f"{path} is missing; is the download complete?")
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                pointer = b"git-lfs" in path.read_bytes()[:200] if size < 1000 else False
                way_out = "it is a Git LFS pointer; run `git lfs pull`" if pointer else "it is cut short, or no safetensors file"
                raise ModelError(f"{path}: a header of {length} bytes in a file of {size}; {way_out}")
            if length > _MOST_HEADER:
                raise ModelError(f"{path}: a header of {length} bytes, and at most {_MOST_HEADER} are allowed")
            header = _parsed(file.read(length), path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    for name, entry in header.items():
        if name != "__metadata__":
            yield _stored(name, entry, path, 8 + length)


def _stored(name: str, entry: Any, path: Path, start: int) -> Stored:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, place = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or place is None or len(place) != 2 or place[0] > place[1]:
        raise ModelError(f"{path}: the header's entry of {name!r:.200} is damaged: {entry!r:.200}")
    return Stored(name=name, dtype=dtype, shape=shape, file=path, offset=start + place[0], size=place[1] - place[0])


def _sizes(value: Any) -> tuple[int, ...] | None:
    """A list of whole numbers that fit 64 bits; None where it is anything else."""
    if not isinstance(value, list) or not all(type(size) is int and 0 <= size < 2**62 for size in value):
        return None
    return tuple(value)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError if it cannot be read as one."""
    try:
        return _parsed(path.read_bytes(), path)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; is the download complete?") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except RecursionError:
        raise ModelError(f"{path} is not readable JSON: it is nested too deeply") from None
    except ValueError as error:  # broken JSON, a name given twice, or not UTF-8
        raise ModelError(f"{path} is not readable JSON: {' '.join(str(error).split()):.200}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, got a {type(value).__name__}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are distinct: which of two was meant cannot be told."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found
