"""Damages Hugging Face folders in many ways and loads them: each must score three tokens or be refused in one line.

`python csrc/fuzz/fuzz_folder.py ROUNDS SEED FOLDER…` with small folders (config.json, model.safetensors). For the address and
undefined-behaviour sanitizers run it on that build of the core, as CMakeLists.txt says for the unit tests:
`HEADSTART_CORE=build/sanitize python -c "import tests.native.other_core, runpy, sys; …"` with `runpy.run_path` of this file.
"""

from __future__ import annotations

import collections
import json
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from headstart.errors import HeadstartError
from headstart.interfaces import Ask
from headstart.models.native import NativeModel

ODD = ["null", "0", "-1", "1", "7", "1e9", "1e308", "2147483647", "9223372036854775808", "true", '""', '"x"', "[]", "{}", "[1]"]


def damaged(text: bytes, chance: random.Random) -> bytes:
    """Values replaced by odd ones, numbers nudged, bytes flipped, pieces moved, cut."""
    for _ in range(chance.randint(1, 3)):
        numbers = [match.span() for match in re.finditer(rb"\d+|true|false|null|\"[^\"]*\"", text)]
        kind = chance.randrange(6)
        if kind < 2 and numbers:
            start, end = chance.choice(numbers)
            text = text[:start] + chance.choice(ODD).encode() + text[end:]
        elif kind == 2 and numbers:
            (start, end), (first, last) = chance.choice(numbers), chance.choice(numbers)
            text = text[:start] + text[first:last] + text[end:]
        elif kind == 3 and text:
            place = chance.randrange(len(text))
            text = text[:place] + bytes([chance.randrange(256)]) + text[place + 1 :]
        elif kind == 4 and text:
            text = text[: chance.randrange(len(text))] if chance.random() < 0.1 else text
        elif text:
            start = chance.randrange(len(text))
            text = text[:start] + text[start + chance.randrange(32) :]
    return text


def examine(folder: Path, quantize: str | None) -> str:
    """What was said of the folder; "" where it was read and scored."""
    try:
        model = NativeModel.load(folder, threads=1, context=None, quantize=quantize)
        model.score([Ask(cache=model.open(), tokens=[0] * min(3, model.context_limit), num_logits=1)])
    except HeadstartError as error:
        said = str(error)
        assert "\n" not in said, said
        assert 0 < len(said) < 2000, said
        return re.sub(r"'[^']*'|\d+", "…", said.replace(str(folder), ""))[:60]
    return ""


def main(rounds: int, seed: int, folders: list[Path]) -> None:
    """Run and report."""
    chance, kinds, slowest = random.Random(seed), collections.Counter[str](), 0.0
    seeds = [((path / "config.json").read_bytes(), (path / "model.safetensors").read_bytes()) for path in folders]
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None, prefix="headstart-fuzz-"))
    print(f"files in {place}", file=sys.stderr)
    for _ in range(rounds):
        config, weights = chance.choice(seeds)
        end = 8 + int.from_bytes(weights[:8], "little")
        header = weights[8:end]
        if chance.random() < 0.4:
            config = damaged(config, chance)
        else:
            header = damaged(header, chance)
            length = len(header) if chance.random() < 0.9 else chance.getrandbits(chance.choice([4, 12, 40, 64]))
            data = weights[end:] if chance.random() < 0.9 else weights[end : end + chance.randrange(len(weights))]
            weights = length.to_bytes(8, "little") + header + data
        (place / "config.json").write_bytes(config)
        (place / "model.safetensors").write_bytes(weights)
        signal.alarm(20)  # a hang is a crash
        start = time.perf_counter()
        kinds[examine(place, chance.choice([None, "q8_0"]))] += 1
        slowest = max(slowest, time.perf_counter() - start)
    for kind, count in kinds.most_common(40):
        print(f"{count:8}  {kind or '(read whole)'}", file=sys.stderr)
    print(json.dumps({"rounds": rounds, "seed": seed, "read_whole": kinds[""], "slowest_ms": round(1000 * slowest, 1)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [Path(path) for path in sys.argv[3:]])
