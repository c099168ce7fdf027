"""What loading a model takes: seconds, and how far peak memory grows: python benches/bench_load.py FILE.gguf|FOLDER

Each load is a process of its own, with the file read once before, so that it lies in the page cache. Peak memory is that of the
whole process (file pages included) over what it held before the load. Processor time is told beside wall time: on a busy machine
only the former says much. A table on stderr; the last line on stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def _peak() -> int:
    """Bytes this program has held at most (Linux only). `getrusage` would count what its parent held, too."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def _read(path: Path) -> int:
    """Read a file once, so that it is in the page cache; its size."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
        return file.tell()


def load_once(path: str, threads: int | None, quantize: str | None) -> dict[str, Any]:
    """Load in this process and say what it took."""
    from headstart.models.native import NativeModel

    before, wall, cpu = _peak(), time.perf_counter(), time.process_time()
    model = NativeModel.load(path, threads=threads, quantize=quantize)
    return {
        "seconds": round(time.perf_counter() - wall, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "growth": _peak() - before,
        "weight_bytes": model.weight_bytes,
        "threads": model.threads,
    }


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quantize")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.once:
        print(json.dumps(load_once(str(a.path), a.threads, a.quantize)))
        return
    files = [a.path] if a.path.is_file() else sorted(a.path.glob("*.safetensors"))
    size = sum(map(_read, files))
    runs = []
    for _ in range(a.repeats):
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--once"], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(runs[-1], file=sys.stderr)
    growth = max(run["growth"] for run in runs)
    held = runs[0]["weight_bytes"]
    document = {
        "bench": "load",
        "file": a.path.name,
        "file_bytes": size,
        "weight_bytes": held,
        "quantize": a.quantize,
        "threads": runs[0]["threads"],
        "n": a.repeats,
        "seconds": {name: round(statistics.median(run[name] for run in runs), 3) for name in ("seconds", "cpu_seconds")},
        "slowest_seconds": max(run["seconds"] for run in runs),
        "peak_growth_bytes": growth,
        "peak_growth_over_file": round(growth / size, 3),
        "allowed_growth_bytes": round(1.2 * max(size, held)) + (64 << 20),
        "load_average": round(os.getloadavg()[0], 1),
        "versions": {"headstart": version("headstart"), "python": platform.python_version()},
        "hardware": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
