"""Is `--gamma auto` never slower than plain decoding, and nearly as fast as the best fixed length?

For every drafter, category and temperature: plain decoding, automatic lengths and each fixed length answer the same prompts, side
by side, a few tokens at a time. Ratios are by pairs (the same prompt in the same repeat); medians over pairs, with 95 % intervals
from drawing prompts with replacement. The best fixed length is chosen with hindsight, by category. By default also drafters that
are bad on prose (look-ups, at temperature 1) and a draft model that is the target itself. Last line: one JSON object.

    python benches/bench_auto.py --target qwen2.5-coder-1.5b --drafter ngram --drafter model:qwen2.5-coder-0.5b --minutes 11
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from turns import side_by_side

from headstart.cli.machine import machine
from headstart.loading import load_many
from headstart.prompts import CATEGORIES, builtin_prompts
from headstart.records import Options

RESAMPLES = 2000


def main() -> None:
    asked = _arguments()
    started = time.perf_counter()
    fixed = [int(n) for n in asked.gamma.split(",")]
    temperatures = [float(t) for t in asked.temperature.split(",")]
    drafters = asked.drafter or ["ngram", "suffix", f"model:{asked.target}"]
    prompts = builtin_prompts(asked.category or CATEGORIES, each=asked.each)
    loaded = load_many(asked.target, ["none", *drafters])
    plain, others = loaded[0].llm, {each.llm.drafter.name: each.llm for each in loaded[1:]}
    for llm in others.values():
        for temperature in temperatures:
            begun = time.perf_counter()
            llm.round_costs(Options.of(**_keywords(temperature, "auto", asked.max_tokens, 0)), refresh=asked.refresh)
            spent = time.perf_counter() - begun
            print(f"costs of {llm.drafter.name} at temperature {temperature:g}: {spent:.1f} s", file=sys.stderr)
    seconds = 1.0 / plain.generate(prompts[0].text, **_keywords(temperatures[0], 1, asked.max_tokens, 0)).stats.tokens_per_second
    jobs = [(t, place, name) for t in temperatures for place in range(len(prompts)) for name in others]
    each_job = seconds * asked.max_tokens * (2 + len(fixed))
    repeats = max(1, min(asked.repeats, int(asked.minutes * 60 / (len(jobs) * each_job))))
    print(f"{len(jobs) * repeats} jobs, about {len(jobs) * repeats * each_job / 60:.1f} minutes", file=sys.stderr)
    ratios: dict[tuple[str, float, str], dict[str, dict[int, list[float]]]] = {}
    wrong = 0
    for repeat in range(repeats):
        for done, (temperature, place, name) in enumerate(jobs):
            prompt = prompts[place]
            ways: list[Any] = [("plain", plain, 1), ("auto", others[name], "auto"), *((n, others[name], n) for n in fixed)]
            racing = {label: (llm, _keywords(temperature, gamma, asked.max_tokens, place)) for label, llm, gamma in ways}
            outputs = side_by_side(racing, prompt.text, first=place + repeat)
            speeds = {label: float(out.stats.tokens_per_second) for label, out in outputs.items()}
            wrong += any(out.token_ids != outputs["plain"].token_ids for out in outputs.values())
            own = ratios.setdefault((name, temperature, prompt.category), {})
            for label in ("auto", *fixed):
                own.setdefault(str(label), {}).setdefault(place, []).append(speeds[label] / speeds["plain"])
            _bar(repeat * len(jobs) + done + 1, repeats * len(jobs))
    results = [_result(name, t, category, own) for (name, t, category), own in ratios.items()]
    _show(results)
    document = {
        "bench": "auto",
        "target": asked.target,
        "machine": machine(plain),
        "cores": os.cpu_count(),
        "max_tokens": asked.max_tokens,
        "prompts_of_a_category": asked.each,
        "n": repeats,
        "seed": 0,
        "texts_that_differ_from_plain": wrong,
        "seconds": round(time.perf_counter() - started, 1),
        "worst": {
            "median_against_plain": min(r["auto"] for r in results),
            "low_against_plain": min(r["interval"][0] for r in results),
            "against_best_fixed": min(r["against_best_fixed"] for r in results),
        },
        "results": results,
    }
    print(json.dumps(document))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", action="append", help="repeat; default: ngram, suffix, and the target as its own draft")
    parser.add_argument("--category", action="append", choices=CATEGORIES)
    parser.add_argument("--each", type=int, default=3, help="prompts of a category")
    parser.add_argument("--gamma", default="1,3,6", help="fixed lengths to compare with")
    parser.add_argument("--temperature", default="0,1")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5, help="at most; fewer where --minutes are over before")
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--refresh", action="store_true", help="measure costs anew, and forget what was kept")
    return parser.parse_args()


def _keywords(temperature: float, gamma: Any, max_tokens: int, seed: int) -> dict[str, Any]:
    """With a temperature the rule is coupled: every way says the same, which makes pairs of them."""
    return {"temperature": temperature, "gamma": gamma, "max_tokens": max_tokens, "min_tokens": max_tokens, "seed": seed}


def _result(name: str, temperature: float, category: str, own: dict[str, dict[int, list[float]]]) -> dict[str, Any]:
    medians = {label: float(np.median([r for place in places.values() for r in place])) for label, places in own.items()}
    best = max((label for label in medians if label != "auto"), key=lambda label: medians[label])
    # Plain decoding is a fixed choice, too; pair by pair, as prompts differ more than ways do.
    goals = own[best] if medians[best] > 1 else {place: [1.0] * len(ratios) for place, ratios in own["auto"].items()}
    against = [mine / goal for place, ratios in own["auto"].items() for mine, goal in zip(ratios, goals[place], strict=True)]
    places = list(own["auto"].values())
    rng = np.random.default_rng(0)
    drawn = [
        float(np.median([r for i in rng.integers(0, len(places), len(places)) for r in places[i]])) for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {
        "drafter": name,
        "temperature": temperature,
        "category": category,
        "auto": round(medians["auto"], 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "lowest_pair": round(min(r for place in places for r in place), 4),
        "fixed": {label: round(m, 4) for label, m in medians.items() if label != "auto"},
        "best_fixed": int(best) if medians[best] > 1 else 0,
        "against_best_fixed": round(float(np.median(against)), 4),
        "pairs": sum(map(len, places)),
    }


def _show(results: Sequence[dict[str, Any]]) -> None:
    print(f"{'drafter':28} {'T':>3} {'category':9} {'auto':>6} {'95 %':>13} {'best fixed':>12} {'auto/best':>9}")
    for r in results:
        low, high = r["interval"]
        best = f"γ={r['best_fixed']} {max(1.0, *r['fixed'].values()):.2f}"
        print(
            f"{r['drafter']:28} {r['temperature']:>3g} {r['category']:9} {r['auto']:6.3f} {low:6.3f}–{high:.3f} {best:>12} "
            f"{r['against_best_fixed']:9.3f}"
        )


def _bar(done: int, total: int) -> None:
    if sys.stderr.isatty() or done % max(1, total // 20) == 0:
        print(f"\r{'█' * (30 * done // total):30} {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
