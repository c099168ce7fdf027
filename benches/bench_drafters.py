"""Every drafter on prompts no head was trained on: python benches/bench_drafters.py [--drafter "D [N,…] [option=…]" …]

Each drafter at each length answers each prompt, greedy and at temperature 1, in turn with plain decoding and, where its binding
is installed, llama.cpp's plain decoding; who goes first changes from prompt to prompt. Told of each: tokens a target call,
overlap by position, tokens a second, speedups; 95 % intervals by prompt (bootstrap). Everything a second time without the rounds
that begin in a loop (see loops.py). The best length of a drafter is its fastest. Greedy texts must be the plain ones.

Markdown tables on stderr; the last line on stdout is JSON. --minutes cuts the number of prompts to what fits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from loops import SHORTEST, looping

import headstart
from headstart.bench.llamacpp import LlamaCppWay
from headstart.bench.peers import Setup
from headstart.cli.machine import machine
from headstart.cli.view import Loading
from headstart.errors import HeadstartError
from headstart.interfaces import TreeDrafter
from headstart.loading import load_many
from headstart.train.prompts import CATEGORIES, HELD_OUT

OTHER = Path("~/.cache/headstart/models/gemma-3-270m-q4_k_m.gguf").expanduser()
DRAFTERS = ("ngram", "suffix", "skip:8", f"cross:{OTHER}", "eagle:smollm2", "ngram+eagle:smollm2")
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One prompt answered once: an entry for each round."""

    tokens: np.ndarray  # [rounds] emitted
    seconds: np.ndarray  # [rounds], the prompt's reading left out
    loops: np.ndarray  # [rounds] whether its first token repeats (see loops.py)
    looping_tokens: int
    token_ids: tuple[int, ...]
    overlaps: tuple[tuple[float, ...], ...] = ()  # [rounds][judged positions]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A drafter at one length: a number of tokens, auto, or a tree such as 3x2."""

    drafter: str
    length: str
    answer: Callable[[str, float, int], Answered]
    answers: dict[tuple[float, int], Answered] = field(default_factory=dict)  # by temperature and prompt

    @property
    def name(self) -> str:
        """For the eye."""
        return self.drafter if self.drafter in ("none", "llama.cpp") else f"{self.drafter} {self.length}"


def our_way(llm: headstart.LLM, name: str, length: str, rule: str, max_tokens: int) -> Way:
    """Ours; trees are judged by the token rule, since block judges chains alone."""
    how: dict[str, Any] = {"gamma": int(length) if length.isdigit() else "auto", "rule": rule}
    if "x" in length:
        how = {"tree": length, "rule": "token"}

    def answer(prompt: str, temperature: float, seed: int) -> Answered:
        seconds = []
        asked = {**how, "seed": seed} if how.get("gamma") != "auto" else how
        with llm.stream(prompt, max_tokens=max_tokens, temperature=temperature, **asked) as stream:
            start = time.perf_counter()
            for _ in stream.steps():
                seconds.append(time.perf_counter() - start)
                start = time.perf_counter()
        out = stream.output
        seconds = seconds[: len(out.rounds)]
        seconds[0] -= out.stats.seconds.prefill
        marks = looping(out.token_ids)
        sizes = [len(each.emitted) for each in out.rounds]
        first = np.cumsum([0, *sizes[:-1]])
        return Answered(
            tokens=np.array(sizes),
            seconds=np.array(seconds),
            loops=np.array([bool(size) and marks[place] for place, size in zip(first, sizes, strict=True)]),
            looping_tokens=sum(marks),
            token_ids=tuple(out.token_ids),
            overlaps=tuple(each.overlaps for each in out.rounds),
        )

    return Way(drafter=name, length=length, answer=answer)


def llama_way(setup: Setup, max_tokens: int) -> Way:
    """llama.cpp, plain: a token a round, all of one answer's taken to cost the same."""
    peer = LlamaCppWay(setup)

    def answer(prompt: str, temperature: float, seed: int) -> Answered:
        time.sleep(0.05)  # our idle threads stop looking for work
        found = peer.answer(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
        time.sleep(0.05)
        each = found.seconds / max(1, found.timed_tokens)
        size, marks = len(found.token_ids), looping(found.token_ids)
        return Answered(
            tokens=np.ones(size),
            seconds=np.full(size, each),
            loops=np.array(marks),
            looping_tokens=sum(marks),
            token_ids=found.token_ids,
        )

    return Way(drafter="llama.cpp", length="", answer=answer)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Load options after a drafter's name, such as draft_vocab=8192."""
    pairs = [word.split("=", 1) for word in words[1:] if "=" in word]
    return {key: int(value) if value.isdigit() else value for key, value in pairs}


def short(drafter: str) -> str:
    """A drafter's name without the folders of its files."""
    parts = []
    for part in drafter.split("+"):
        kind, _, reference = part.partition(":")
        parts.append(f"{kind}:{Path(reference).name.removesuffix('.gguf')}" if "/" in reference else part)
    return "+".join(parts)


def ways_of(a: argparse.Namespace, progress: Loading) -> tuple[list[Way], Any]:
    """Plain first, then every drafter at every length it can draft, then llama.cpp; and the target."""
    wanted = [each.split() for each in a.drafter if not (each.startswith(f"cross:{OTHER}") and not OTHER.is_file())]
    loaded = load_many(
        a.target, ["none", *(each[0] for each in wanted if not options_of(each))], threads=a.threads, progress=progress
    )
    plain, shared = loaded[0].llm, iter(loaded[1:])
    ways = [our_way(plain, "none", "1", a.rule, a.max_tokens)]
    for each in wanted:
        lengths = next((word for word in each[1:] if "=" not in word), a.length)
        own = options_of(each)
        name = " ".join([short(each[0]), *(f"{key}={value}" for key, value in own.items() if key != "engine")])
        llm = (load_many(a.target, each[:1], threads=a.threads, progress=progress, **own)[0] if own else next(shared)).llm
        for length in lengths.split(","):
            if "x" not in length or isinstance(llm.drafter, TreeDrafter):
                ways.append(our_way(llm, name, length, a.rule, a.max_tokens))
    threads = int(plain.loaded.get("threads") or 1)
    if loaded[0].source.suffix != ".gguf":
        print("llama.cpp reads GGUF files alone: no comparison with it", file=sys.stderr)
    elif find_spec("llama_cpp") is None:
        print("llama-cpp-python is not installed: no comparison with llama.cpp", file=sys.stderr)
    else:
        ways.append(llama_way(Setup(source=loaded[0].source, llm=plain, threads=threads, context=2048), a.max_tokens))
    return ways, plain


def peers_of(ways: Sequence[Way]) -> dict[str, Any]:
    """Versions of other engines that took part."""
    if not any(way.drafter == "llama.cpp" for way in ways):
        return {}
    import llama_cpp

    return {"llama.cpp": {"version": llama_cpp.__version__}}


def warm_up(ways: Sequence[Way], temperatures: Sequence[float], tokens: int) -> float:
    """Seconds that one prompt costs with every way and temperature, guessed from an answer of each."""
    seconds = 0.0
    for way in ways:
        for temperature in temperatures:
            start = time.perf_counter()
            made = way.answer(HELD_OUT[0].text, temperature, 0)
            seconds += (time.perf_counter() - start) * tokens / max(1, len(made.token_ids))
    return seconds


def chosen(count: int) -> list[str]:
    """So many prompts, every category in turn."""
    by = [[prompt.text for prompt in HELD_OUT if prompt.category == category] for category in CATEGORIES]
    turns = [by[k % len(by)][k // len(by)] for k in range(len(HELD_OUT)) if k // len(by) < len(by[k % len(by)])]
    return turns[:count]


def ratio(values: Sequence[tuple[float, float]], picks: np.ndarray, over: Sequence[tuple[float, float]] | None = None) -> Any:
    """Σ first / Σ second over prompts, with its interval by prompt; divided by the same of `over`, with the same prompts."""
    table = np.array(values, dtype=float)

    def of(data: np.ndarray, pick: np.ndarray) -> np.ndarray:
        sums = data[pick].sum(axis=-2)
        return np.divide(sums[..., 0], sums[..., 1], out=np.full(sums.shape[:-1], np.nan), where=sums[..., 1] > 0)

    every = np.arange(len(table))
    middle, drawn = of(table, every), of(table, picks)
    if over is not None:
        other = np.array(over, dtype=float)
        middle, drawn = middle / of(other, every), drawn / of(other, picks)
    if not np.isfinite(middle):
        return None
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return {"value": round(float(middle), 4), "interval": [round(float(low), 4), round(float(high), 4)]}


def pairs(answers: Sequence[Answered], kind: str, loops: bool) -> list[tuple[float, float]]:
    """For each prompt, tokens and `kind`: rounds, or seconds; with or without the rounds that begin in a loop."""
    found = []
    for answer in answers:
        kept = np.full(len(answer.tokens), True) if loops else ~answer.loops
        below = kept.sum() if kind == "rounds" else answer.seconds[kept].sum()
        found.append((float(answer.tokens[kept].sum()), float(below)))
    return found


def overlap(answers: Sequence[Answered]) -> list[float]:
    """Mean overlap at each position of a draft, over the rounds that judged it."""
    deepest = max((len(one) for answer in answers for one in answer.overlaps), default=0)
    columns = [[one[j] for answer in answers for one in answer.overlaps if len(one) > j] for j in range(deepest)]
    return [round(float(np.mean(column)), 4) for column in columns]


def results(ways: Sequence[Way], temperature: float, count: int, seed: int) -> list[dict[str, Any]]:
    """Every way's figures at one temperature."""
    picks = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    answers = {way.name: [way.answers[temperature, place] for place in range(count)] for way in ways}
    plain, llama = answers["none"], answers.get("llama.cpp")
    found = []
    for way in ways:
        own = answers[way.name]
        row: dict[str, Any] = {"drafter": way.drafter, "length": way.length, "temperature": temperature}
        row["tokens"], row["looping_tokens"] = (sum(len(x.token_ids) for x in own), sum(x.looping_tokens for x in own))
        for name, loops in (("all", True), ("without_loops", False)):
            timed = pairs(own, "seconds", loops)
            row[name] = {
                "block_efficiency": ratio(pairs(own, "rounds", loops), picks),
                "tokens_per_second": ratio(timed, picks),
                "over_plain": ratio(timed, picks, pairs(plain, "seconds", loops)),
                "over_llama_cpp": None if llama is None else ratio(timed, picks, pairs(llama, "seconds", loops)),
            }
        row["overlap_by_position"] = overlap(own)
        ours = way.drafter != "llama.cpp" and temperature == 0
        row["same_tokens"] = all(x.token_ids == y.token_ids for x, y in zip(own, plain, strict=True)) if ours else None
        found.append(row)
    for row in found:
        rivals = [r["all"]["tokens_per_second"]["value"] for r in found if r["drafter"] == row["drafter"]]
        row["best"] = row["all"]["tokens_per_second"]["value"] == max(rivals)
    return found


def shown(cell: dict[str, Any] | None) -> str:
    """Value (interval)."""
    return "–" if cell is None else f"{cell['value']:.2f} ({cell['interval'][0]:.2f}–{cell['interval'][1]:.2f})"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The best length of every drafter, a table."""
    lines = [
        "| drafter | length | tokens/call | overlap by position | tokens/s | × plain | × llama.cpp | without loops: tokens/call | × plain |",  # noqa: E501
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["best"]:
            whole, rest = row["all"], row["without_loops"]
            cells = [row["drafter"], row["length"] if row["drafter"] != "none" else "", shown(whole["block_efficiency"])]
            cells += [" ".join(f"{x:.2f}" for x in row["overlap_by_position"]), f"{whole['tokens_per_second']['value']:.0f}"]
            cells += [shown(whole["over_plain"]), shown(whole["over_llama_cpp"])]
            cells += [shown(rest["block_efficiency"]), shown(rest["over_plain"])]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument(
        "--drafter",
        action="append",
        help=f"may be repeated, and followed by lengths and options of its own; default: {', '.join(DRAFTERS)}",
    )
    parser.add_argument("--length", default="2,4", help="draft lengths: numbers, auto, trees such as 3x2 (default 2,4)")
    parser.add_argument("--temperature", default="0,1")
    parser.add_argument("--prompts", type=int, default=len(HELD_OUT), help=f"how many of the {len(HELD_OUT)} held-out prompts")
    parser.add_argument("--max-tokens", type=int, default=80)
    parser.add_argument("--rule", default="block", help="of chains (default block)")
    parser.add_argument("--minutes", type=float, help="fewer prompts where all would take longer than this")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    a.drafter = a.drafter or list(DRAFTERS)
    return a


def main() -> None:
    """Run and report."""
    a = options()
    temperatures = [float(t) for t in a.temperature.split(",")]
    with Loading() as progress:
        ways, target = ways_of(a, progress)
        progress("warming up", None)
        each = warm_up(ways, temperatures, a.max_tokens)
        count = min(a.prompts, len(HELD_OUT))
        if a.minutes is not None:
            count = max(1, min(count, int(60 * a.minutes / each)))
        prompts = chosen(count)
        print(f"{len(ways)} ways, {count} prompts: at most about {each * count / 60:.1f} minutes", file=sys.stderr, flush=True)
        begun, done, total = time.perf_counter(), 0, count * len(temperatures) * len(ways)
        for place, prompt in enumerate(prompts):
            for temperature in temperatures:
                first = place % len(ways)
                for way in (*ways[first:], *ways[:first]):
                    way.answers[temperature, place] = way.answer(prompt, temperature, a.seed + place)
                    done += 1
                    progress(f"{way.name} at temperature {temperature:g}", done / total)
    tables = {temperature: results(ways, temperature, count, a.seed) for temperature in temperatures}
    for temperature, rows in tables.items():
        share = sum(r["looping_tokens"] for r in rows if r["drafter"] == "none") / max(1, rows[0]["tokens"])
        print(f"\nTemperature {temperature:g}: {100 * share:.0f} % of the plain tokens loop\n\n{markdown(rows)}", file=sys.stderr)
        for row in rows:
            if row["same_tokens"] is False:
                print(f"{row['drafter']} {row['length']} did NOT say the plain text", file=sys.stderr)
    document = {
        "bench": "drafters",
        "target": Path(a.target).name,
        "prompts": count,
        "max_tokens": a.max_tokens,
        "rule": a.rule,
        "seed": a.seed,
        "loop": f"a span as long as its period, at least {SHORTEST} tokens, that repeats what stands immediately before it",
        "minutes": round((time.perf_counter() - begun) / 60, 2),
        "results": [row for rows in tables.values() for row in rows],
        "machine": machine(target) | {"peers": peers_of(ways)},
    }
    print(json.dumps(document, ensure_ascii=False))


if __name__ == "__main__":
    try:
        main()
    except HeadstartError as error:
        raise SystemExit(str(error)) from None
