"""Reading and writing safetensors files: eight bytes of length, a JSON header, then the tensors' bytes.

Written here and not taken from the `safetensors` package, which cannot hand bfloat16 to numpy; so a base install reads heads
without one more dependency. A file may be a stranger's: every number in its header is checked before it is used (see
`tensor_files`), and nothing in it is ever run.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headstart.checkpoints.tensors import DTYPES, Tensor
from headstart.errors import ModelError
from headstart.tensor_files import Stored, stored_in

__all__ = ["read_safetensors", "write_safetensors"]

_ALIGNMENT = 8


def read_safetensors(path: Path, *, mapped: bool = False) -> dict[str, Tensor]:
    """Every tensor of the file by its name; `mapped` leaves them in the file, read-only, to be read as they are used.

    Raises ModelError unless the file is whole and says what it holds truthfully."""
    stored = list(stored_in(path))
    try:
        if mapped:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        else:
            data = memoryview(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    tensors = {entry.name: _tensor(entry, data) for entry in stored}
    return tensors if mapped else {name: Tensor(tensor.array.copy(), tensor.dtype) for name, tensor in tensors.items()}


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


def _tensor(stored: Stored, data: memoryview) -> Tensor:
    """One tensor, a view of its part of the file."""
    path, name, dtype, shape, end = stored.file, stored.name, stored.dtype, stored.shape, stored.offset + stored.size
    if dtype not in DTYPES:
        raise ModelError(f"{path}: {name:.80} is of type {dtype!r:.20}, which heads do not come in ({', '.join(DTYPES)})")
    form = np.dtype(DTYPES[dtype])
    if stored.size != math.prod(shape) * form.itemsize or end > len(data):
        raise ModelError(
            f"{path}: {name:.80} of shape {list(shape)} and type {dtype} does not fill bytes {stored.offset} to {end} "
            f"of {len(data)}"
        )
    return Tensor(np.frombuffer(data[stored.offset : end], dtype=form).reshape(shape), dtype)
