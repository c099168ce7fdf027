"""Speculative against plain decoding by prompt: python benches/bench_generate.py [--target REF] [--drafter D] [--gamma N|auto]

Greedy, in one process. Each repeat runs plain and speculative decoding of every prompt in turn; the ratio is taken
within the repeat, its median and interquartile range over repeats are reported. Text must be the same before time counts.
A table on stderr; the last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from importlib.metadata import version
from typing import Any

import headstart
from headstart.cli.doctor import processor_name
from headstart.comparison import compare

CODE = """def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)

def describe(width, height):
    print("area", area(width, height))
    print("perimeter", perimeter(width, height))
"""

PROMPTS = {
    "edit code": f"Copy this code and add a docstring to each function:\n\n{CODE}",
    "C switch": "Write a C function with a switch statement that returns the name of each month.",
    "HTML table": "Write an HTML table with the columns name, age and city and five rows of example data.",
    "Python class": "Write a Python class for a bank account with deposit and withdraw methods, then write unit tests for it.",
    "explain": "Explain how a hash map works in three sentences.",
    "story": "Write a short story about a lighthouse keeper.",
}


def quartiles(values: list[float]) -> list[float]:
    """First quartile, median, third quartile."""
    return [round(q, 4) for q in statistics.quantiles(values, n=4)] if len(values) > 1 else values * 3


def measure(llm: headstart.LLM, repeats: int, tokens: int, gamma: int | str) -> dict[str, Any]:
    """Speedups and counts by prompt."""
    speedups: dict[str, list[float]] = {name: [] for name in PROMPTS}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, prompt in PROMPTS.items():
            out = llm.generate(prompt, temperature=0, max_tokens=tokens, gamma=gamma)
            both = compare(llm, out, prompt)
            speedups[name].append(both.speedup or 0.0)
            low, middle, high = quartiles(speedups[name])
            results[name] = {
                "same_tokens": both.same_tokens,
                "completion_tokens": len(out.token_ids),
                "block_efficiency": out.stats.block_efficiency,
                "acceptance_rate": out.stats.acceptance_rate,
                "tokens_per_second": out.stats.tokens_per_second,
                "plain_tokens_per_second": both.plain.stats.tokens_per_second,
                "speedup": middle,
                "speedup_quartiles": [low, high],
            }
    return results


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--gamma", default="4", help="draft length: a number or auto")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", default="auto")
    a = parser.parse_args()
    gamma: int | str = int(a.gamma) if a.gamma.isdigit() else a.gamma
    llm = headstart.load(a.target, drafter=a.drafter, threads=a.threads, dtype=a.dtype)
    llm.generate("Hello", max_tokens=16)
    results = measure(llm, a.repeats, a.tokens, gamma)
    print(f"{'prompt':14}{'plain tok/s':>14}{'spec tok/s':>12}{'tok/call':>10}{'speedup':>10}  same", file=sys.stderr)
    for name, r in results.items():
        row = f"{r['plain_tokens_per_second']:>14.1f}{r['tokens_per_second']:>12.1f}{r['block_efficiency']:>10.2f}"
        print(f"{name:14}{row}{r['speedup']:>9.2f}×  {r['same_tokens']}", file=sys.stderr)
    document = {
        "bench": "generate",
        "target": os.path.basename(a.target),
        "drafter": a.drafter,
        "gamma": gamma,
        "rule": "block",
        "temperature": 0,
        "tokens": a.tokens,
        "repeats": a.repeats,
        "loaded": llm.loaded,
        "prompts": results,
        "median_speedup": statistics.median(r["speedup"] for r in results.values()),
        "versions": {name: version(name) for name in ("headstart", "torch", "transformers", "numpy")},
        "hardware": {"processor": processor_name(), "cores": os.cpu_count()},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
