"""A small model drafting for a larger one, ours and llama.cpp's: python benches/bench_speculation.py TARGET.gguf DRAFT.gguf

Greedy answers to five prompts by four programs in turn, round after round: llama.cpp plain, llama.cpp with the draft (its own
llama-speculative-simple, named by --llama-speculative), headstart plain, headstart with the draft. Tokens per second of decoding
alone; medians and interquartile ranges. Before anything is timed, our text with the draft must equal our plain text. A table on
stderr; the last line on stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from peers import LlamaCpp

import headstart
from headstart.cli.doctor import processor_name

PROMPTS = {
    "CSV parser": "Write a Python function that parses a CSV file and returns a list of dictionaries.",
    "binary search tree": "Write a binary search tree in Python with insert and search.",
    "rename a variable": "Rename the variable x to total in this code:\n\ndef add(values):\n    x = 0\n    for v in values:\n"
    "        x = x + v\n    return x",
    "hash map": "Explain how a hash map works in three sentences.",
    "short story": "Write a short story about a lighthouse keeper.",
}
SPEED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds, speed:\s+([\d.]+) t/s")


def llama_plain(peer: LlamaCpp, prompt: list[int], tokens: int, end_ids: set[int]) -> tuple[float, list[int]]:
    """Tokens per second after the prompt, and the tokens."""
    peer.rewind(0)
    out = [int(peer.score(prompt, 0, all_rows=False)[0].argmax())]
    start = time.perf_counter()
    while len(out) < tokens and out[-1] not in end_ids:
        out.append(int(peer.score([out[-1]], len(prompt) + len(out) - 1)[0].argmax()))
    return (len(out) - 1) / (time.perf_counter() - start), out


def llama_draft(program: Path, a: argparse.Namespace, text: str) -> float:
    """What llama-speculative-simple itself reports."""
    command = [
        str(program),
        "-m",
        str(a.target),
        "-md",
        str(a.draft),
        "--spec-type",
        "draft-simple",
        "--spec-draft-n-max",
        str(a.llama_gamma),
    ]
    command += ["-t", str(a.threads), "-td", str(a.threads), "-n", str(a.tokens), "--temp", "0", "-c", "2048", "-p", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = SPEED.search(done.stderr + done.stdout)
    if not found:
        raise SystemExit(f"{program} said nothing about its speed:\n{done.stderr[-2000:]}")
    return float(found.group(3))


def ours(llm: headstart.LLM, prompt: str, tokens: int, gamma: int | str) -> tuple[float, Any]:
    """Tokens per second after the prompt, and the output."""
    output = llm.generate(prompt, max_tokens=tokens, gamma=gamma)
    seconds = output.stats.seconds
    return len(output.token_ids) / (seconds.draft + seconds.score + seconds.verify + seconds.other), output


def summary(values: list[float]) -> dict[str, float]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {"median": round(float(middle), 2), "iqr": round(float(high - low), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--drafter", help="default: model:DRAFT")
    parser.add_argument("--draft-vocab", type=int, help="tokens that the draft answers for (default all)")
    parser.add_argument("--draft-quantize", help="q4_0 or q8_0: what the draft's wider matrices become (default: as in the file)")
    parser.add_argument("--gamma", default="auto", help="draft length: a number or auto (default)")
    parser.add_argument("--llama-gamma", type=int, default=3, help="draft length of llama.cpp (default 3)")
    parser.add_argument(
        "--llama-speculative", type=Path, help="the program llama-speculative-simple; without it that column is empty"
    )
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    a = parser.parse_args()
    gamma: int | str = int(a.gamma) if a.gamma.isdigit() else a.gamma
    with_draft = headstart.load(
        a.target,
        drafter=a.drafter or f"model:{a.draft}",
        draft_vocab=a.draft_vocab,
        draft_quantize=a.draft_quantize,
        threads=a.threads,
    )
    plain = with_draft.with_drafter(headstart.NoDrafter())
    tokenizer = with_draft.tokenizer
    assert tokenizer is not None
    peer = LlamaCpp(a.target, a.threads)
    end_ids = set(tokenizer.end_ids)
    results: dict[str, dict[str, Any]] = {}
    for name, prompt in PROMPTS.items():
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
        text = "".join(tokenizer.token_text(token) for token in ids)  # the template's markers too
        expected = ours(plain, prompt, a.tokens, 1)[1]
        drafted = ours(with_draft, prompt, a.tokens, gamma)[1]
        if drafted.token_ids != expected.token_ids:
            raise SystemExit(f"{name}: the text with the draft is not the plain text")
        theirs = llama_plain(peer, ids, a.tokens, end_ids)[1]
        times: dict[str, list[float]] = {
            "llama.cpp plain": [],
            "llama.cpp draft": [],
            "headstart plain": [],
            "headstart draft": [],
        }
        programs: dict[str, Callable[[], float]] = {
            "llama.cpp plain": lambda ids=ids: llama_plain(peer, ids, a.tokens, end_ids)[0],
            "headstart plain": lambda prompt=prompt: ours(plain, prompt, a.tokens, 1)[0],
            "headstart draft": lambda prompt=prompt: ours(with_draft, prompt, a.tokens, gamma)[0],
        }
        if a.llama_speculative:
            programs["llama.cpp draft"] = lambda text=text: llama_draft(a.llama_speculative, a, text)
        for _ in range(a.repeats):
            for program, run in programs.items():
                times[program].append(run())
        row: dict[str, Any] = {program: summary(values) for program, values in times.items() if values}
        row["same_text_as_llama_cpp"] = theirs[: len(expected.token_ids)] == list(expected.token_ids)[: len(theirs)]
        row["block_efficiency"] = round(drafted.stats.block_efficiency, 3)
        row["acceptance_rate"] = drafted.stats.acceptance_rate and round(drafted.stats.acceptance_rate, 3)
        for program in ("headstart plain", "headstart draft"):
            row[f"{program} / llama.cpp plain"] = summary(
                [x / y for x, y in zip(times[program], times["llama.cpp plain"], strict=True)]
            )
        row["draft / plain"] = summary([x / y for x, y in zip(times["headstart draft"], times["headstart plain"], strict=True)])
        results[name] = row
        cells = "  ".join(
            f"{program} {row[program]['median']:6.1f} ± {row[program]['iqr']:4.1f}" for program in times if program in row
        )
        print(
            f"{name:>20}  {cells}  = {row['headstart draft / llama.cpp plain']['median']:.2f}× llama.cpp plain",
            file=sys.stderr,
            flush=True,
        )
    document = {
        "bench": "speculation",
        "target": a.target.name,
        "drafter": (a.drafter or f"model:{a.draft.name}").replace(str(a.draft), a.draft.name),
        "draft_vocab": a.draft_vocab,
        "draft_quantize": a.draft_quantize,
        "gamma": gamma,
        "llama_gamma": a.llama_gamma,
        "tokens": a.tokens,
        "threads": a.threads,
        "n": a.repeats,
        "tokens_per_second": results,
        "versions": {"headstart": version("headstart"), "llama_cpp_python": peer.version},
        "hardware": {"processor": processor_name(), "cores": os.cpu_count()},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
