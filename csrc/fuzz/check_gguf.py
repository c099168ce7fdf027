"""Compares the C++ reader with the `gguf` package, key by key and tensor by tensor: `python check_gguf.py DUMP_GGUF FILE…`.

DUMP_GGUF is dump_gguf.cpp, built. Of a model in parts give the first.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

from gguf import GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderField

KNOWN = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"}


def checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def value(field: ReaderField) -> str:
    """A metadata value as the dump writes it."""
    if field.types[-1] == GGUFValueType.STRING:
        return f"text {checksum(bytes(field.parts[-1]))}" if len(field.types) == 1 else f"{len(field.data)} texts"
    numbers = [field.parts[at][0] for at in field.data]
    if field.types[0] == GGUFValueType.ARRAY:
        return f"text {checksum(''.join(f'{float(x):.17g},' for x in numbers).encode())}"
    if field.types[0] == GGUFValueType.BOOL:
        return str(bool(numbers[0])).lower()
    return f"{float(numbers[0]):.17g}" if field.types[0] in (GGUFValueType.FLOAT32, GGUFValueType.FLOAT64) else str(numbers[0])


def reference(path: Path, fields: dict[str, ReaderField]) -> list[str]:
    """The lines the dump should have."""
    lines = [value(field) for field in fields.values()]
    for part in sorted(path.parent.glob(path.name.replace("-00001-of-", "-*-of-"))):
        for tensor in GGUFReader(part).tensors:
            shape = "".join(f"{size}," for size in tensor.shape)
            data = tensor.data.tobytes() if tensor.tensor_type.name in KNOWN else b""
            lines.append(f"{tensor.name}\t{tensor.tensor_type.name}\t{shape}\t{len(data)}\t{checksum(data)}")
    return lines


def main(dump: str, paths: list[str]) -> int:
    differ = 0
    for path in paths:
        fields = {key: field for key, field in GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
        done = subprocess.run([dump, path, *fields], capture_output=True, text=True, check=False)
        expected = reference(Path(path), fields)
        same = done.stdout.splitlines() == expected
        print(f"{path}: {len(expected)} lines {'equal' if same else 'DIFFERENT'}; {done.stderr.strip()}")
        differ += not same
    return differ


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
