"""The price of scoring k tokens in one pass, native engine against llama.cpp: python benches/bench_costs.py FILE.gguf

Both engines in one process, in turn, round after round; medians and interquartile ranges over rounds; all logits read back.
Also the speed of a 512-token prompt. Without llama-cpp-python only our own figures. A table on stderr; the last line on stdout
is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from peers import LlamaCpp

from headstart.cli.doctor import processor_name
from headstart.costs import measure_bandwidth
from headstart.interfaces import Ask
from headstart.models.native import NativeModel


class Ours:
    """One sequence on the native engine, with the peer's interface."""

    name = "headstart"

    def __init__(self, path: Path, threads: int) -> None:
        self.model = NativeModel.load(path, threads=threads)
        self.cache = self.model.open()
        self.vocab_size = self.model.vocab_size

    def score(self, tokens: list[int], start: int, all_rows: bool = True) -> Any:
        """As `LlamaCpp.score`."""
        assert self.cache.length == start
        (scores,) = self.model.score([Ask(cache=self.cache, tokens=tokens, num_logits=len(tokens) if all_rows else 1)])
        return scores.logits

    def rewind(self, length: int) -> None:
        """As `LlamaCpp.rewind`."""
        self.cache.rewind(length)


def timed(engine: Any, tokens: list[int], start: int, all_rows: bool = True) -> float:
    """Milliseconds of one pass."""
    begin = time.perf_counter()
    engine.score(tokens, start, all_rows)
    elapsed = time.perf_counter() - begin
    engine.rewind(start)
    return elapsed * 1e3


def quartiles(values: list[float]) -> dict[str, float]:
    """Median and interquartile range."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": round(float(middle), 3), "iqr": round(float(high - low), 3)}


def measure(engines: list[Any], ks: list[int], context: int, repeats: int, draw: Callable[[int], list[int]]) -> dict[str, Any]:
    """Milliseconds by engine and k, and of a 512-token prompt."""
    found: dict[str, Any] = {engine.name: {str(k): [] for k in [*ks, "prompt512"]} for engine in engines}
    for repeat in range(-1, repeats):
        for engine in engines:
            engine.rewind(0)
            prompt = timed(engine, draw(512), 0, all_rows=False)
            engine.score(draw(context), 0, all_rows=False)
            passes = {str(k): timed(engine, draw(k), context) for k in ks}
            for k, milliseconds in ({**passes, "prompt512": prompt} if repeat >= 0 else {}).items():
                found[engine.name][k].append(milliseconds)
            time.sleep(0.05)  # the other engine's idle threads stop looking for work
    return {name: {k: quartiles(values) for k, values in rows.items()} for name, rows in found.items()}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--k", default="1,2,4,8,16,32")
    a = parser.parse_args()
    ks = [int(k) for k in a.k.split(",")]
    ours = Ours(a.file, a.threads)
    engines: list[Any] = [ours]
    try:
        engines.append(LlamaCpp(a.file, a.threads))
    except ImportError:
        print("llama-cpp-python is not installed: our own figures only", file=sys.stderr)
    rng = np.random.default_rng(0)
    found = measure(engines, ks, a.context, a.repeats, lambda n: rng.integers(100, ours.vocab_size - 1000, n).tolist())
    print(f"{'k':>10}" + "".join(f"{name:>24}" for name in found), file=sys.stderr)
    for k in found["headstart"]:
        cells = "".join(f"{rows[k]['median']:>16.2f} ± {rows[k]['iqr']:<5.2f}" for rows in found.values())
        print(f"{k:>10}{cells}", file=sys.stderr)
    bandwidth = measure_bandwidth(a.threads)
    document = {
        "bench": "costs",
        "file": a.file.name,
        "instruction_set": ours.model.instruction_set,
        "threads": a.threads,
        "context": a.context,
        "n": a.repeats,
        "milliseconds": found,
        "bytes_per_pass": ours.model.bytes_per_pass,
        "measured_bandwidth_gb_s": round(bandwidth, 2),
        "memory_limit_ms": round(ours.model.bytes_per_pass / bandwidth / 1e6, 3),
        "versions": {"headstart": version("headstart"), **({"llama_cpp_python": engines[1].version} if len(engines) > 1 else {})},
        "hardware": {"processor": processor_name(), "cores": os.cpu_count()},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
