"""Reading and writing safetensors files: eight bytes of length, a JSON header, then the tensors' bytes.

Written here and not taken from the `safetensors` package, which cannot hand bfloat16 to numpy; so a base install reads heads
without one more dependency. A file may be a stranger's: every number in its header is checked before it is used, and nothing in
it is ever run. Format: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headstart.checkpoints.tensors import DTYPES, Tensor
from headstart.errors import ModelError

__all__ = ["read_safetensors", "write_safetensors"]

_MOST_HEADER = 100_000_000  # bytes; the format's own limit
_ALIGNMENT = 8


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file by its name. Raises ModelError unless the file is whole and says what it holds truthfully."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    size = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 0 <= size <= min(_MOST_HEADER, len(data) - 8):
        raise ModelError(f"{path} is not a whole safetensors file: its header does not fit into its {len(data)} bytes")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ModelError(f"{path} is not a safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + size :]
    return {name: _tensor(path, name, entry, body) for name, entry in header.items()}


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """All tensors in one file, by name; it appears whole or not at all."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers wants to be told
    place = 0
    names = sorted(tensors)
    for name in names:
        tensor = tensors[name]
        end = place + tensor.array.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(tensors[name].array.tobytes())
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _tensor(path: Path, name: str, entry: Any, body: memoryview) -> Tensor:
    """One tensor, a copy of its part of the file."""
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise ModelError(f"{path}: the header's entry for {name:.80} is not a tensor's")
    if dtype not in DTYPES:
        raise ModelError(f"{path}: {name:.80} is of type {dtype!r:.20}, which heads do not come in ({', '.join(DTYPES)})")
    form = np.dtype(DTYPES[dtype])
    if end - start != math.prod(shape) * form.itemsize or end > len(body):
        raise ModelError(
            f"{path}: {name:.80} of shape {list(shape)} and type {dtype} does not fill bytes {start} to {end} of {len(body)}"
        )
    return Tensor(np.frombuffer(body[start:end], dtype=form).reshape(shape).copy(), dtype)
