"""Does `headstart plan` predict what is then measured, and is its choice the best there is?

Samples as the plan takes them; then, again and again, costs as the plan measures them, and every candidate and plain decoding
answer half of the prompts, side by side, a few tokens at a time: a host whose memory is faster at one minute than at another is
so for both. Predicted are medians over the plans, measured all tokens over all seconds, the prompt's reading left out. The regret
is how much slower the plan's choice is than the fastest that was measured. Last line: one JSON object.

    python benches/bench_prediction.py --target qwen2.5-coder-1.5b --drafter ngram --drafter model:qwen2.5-coder-0.5b --minutes 11
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
from turns import side_by_side

from headstart.cli.machine import machine
from headstart.costs import measure_rounds
from headstart.generation import LLM
from headstart.loading import Loaded, load_many
from headstart.plan.planner import Guesser, Plan, make_plan
from headstart.plan.predict import Candidate, choose
from headstart.plan.texts import Text, sample_texts
from headstart.prompts import CATEGORIES, Prompt, builtin_prompts
from headstart.records import Sampling

Key = tuple[str, int, str | None]
RULES = {0.0: "block", 1.0: "coupled"}  # under coupled every way says the same
TURN = 48  # tokens a turn: shorter ones are slower than a generation alone, as caches are cold when they begin


def main() -> None:
    asked = _arguments()
    started = time.perf_counter()
    temperatures = [float(t) for t in asked.temperature.split(",")]
    prompts = builtin_prompts(asked.category or CATEGORIES, each=asked.each)
    loaded = load_many(asked.target, ["none", *(asked.drafter or ["ngram", "suffix"])])
    rows: list[dict[str, Any]] = []
    choices, repeats = [], asked.repeats
    for place, temperature in enumerate(temperatures):
        end = time.perf_counter() + (asked.minutes * 60 - (time.perf_counter() - started)) / (len(temperatures) - place)
        plans, measured = _alternated(loaded, prompts, temperature, end, asked)
        repeats = min(repeats, len(plans) // 2)
        own, choice = _compared(temperature, plans, measured)
        rows += own
        choices.append(choice)
    errors = [abs(r["error"]) for r in rows if r["drafter"] != "none"]
    _show(rows, choices)
    document = {
        "bench": "prediction",
        "target": asked.target,
        "machine": machine(loaded[0].llm),
        "max_tokens": asked.max_tokens,
        "prompts_of_a_category": asked.each,
        "n": repeats,
        "seed": 0,
        "configurations": len(errors),
        "median_absolute_error": round(float(np.median(errors)), 4),
        "spread": [round(float(q), 4) for q in np.percentile(errors, [25, 75])],
        "choices": choices,
        "seconds": round(time.perf_counter() - started, 1),
        "results": rows,
    }
    print(json.dumps(document))


def _alternated(
    loaded: list[Loaded], prompts: list[Prompt], temperature: float, end: float, asked: Any
) -> tuple[list[Plan], dict[Key, float]]:
    """Plans, and tokens per second of every candidate: costs are measured anew before every half of the prompts, until `end`.

    Tokens per second are all tokens over all seconds, of as many first halves as second ones."""
    llms = {each.llm.drafter.name: each.llm for each in loaded}
    gammas = [int(n) for n in asked.gamma.split(",")]
    texts = sample_texts(loaded[0].llm, prompts, max_tokens=asked.max_tokens, temperature=temperature, seed=0)
    plans: list[Plan] = []
    totals: dict[Key, list[float]] = {}  # tokens and seconds
    begun = time.perf_counter()
    while len(plans) < 2 * asked.repeats:
        plans.append(_plan(loaded, texts, temperature, gammas, asked))
        _run(plans, llms, prompts, temperature, asked.max_tokens, totals)
        now = time.perf_counter()
        if len(plans) % 2 == 0 and now + 2 * (now - begun) / len(plans) > end:
            break
    return plans, {key: tokens / seconds for key, (tokens, seconds) in totals.items()}


def _compared(temperature: float, plans: list[Plan], measured: dict[Key, float]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Prediction beside measurement, and what following the plan costs."""
    keys = [_key(each) for each in plans[-1].candidates]
    predicted = {key: float(np.median([_predicted(plan, key) for plan in plans])) for key in keys}
    settled = [replace(each, predicted_tokens_per_second=predicted[_key(each)]) for each in plans[-1].candidates]
    rows = [_row(temperature, each, measured[_key(each)]) for each in settled]
    best_plan = choose(settled)
    chosen = next(row for row, each in zip(rows, settled, strict=True) if each == best_plan)
    best = max(rows, key=lambda row: row["measured"])
    regret = round(1.0 - chosen["measured"] / best["measured"], 4)
    return rows, {"temperature": temperature, "chosen": chosen, "best": best, "regret": regret}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", action="append", help="repeat; default: ngram and suffix")
    parser.add_argument("--category", action="append", choices=CATEGORIES)
    parser.add_argument("--each", type=int, default=2, help="prompts of a category")
    parser.add_argument("--gamma", default="1,3,5")
    parser.add_argument("--temperature", default="0,1")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5, help="at most; fewer where --minutes are over before")
    parser.add_argument("--context", type=int, default=192, help="tokens in the cache where costs are measured")
    parser.add_argument("--minutes", type=float, default=11.0)
    return parser.parse_args()


def _plan(loaded: list[Loaded], texts: list[Text], temperature: float, gammas: list[int], asked: Any) -> Plan:
    """As `headstart plan` makes it, every cost measured now."""

    def measure(llm: LLM, rule: str) -> Any:
        how = {"context": asked.context, "rule": rule, "sampling": Sampling(temperature=temperature)}
        return measure_rounds(llm.model, llm.drafter, gammas, vocab_size=llm.vocab_size, stopper=llm.stopper, **how)

    guessers = [Guesser(llm=each.llm, model=each.model, looks_up=each.looks_up) for each in loaded[1:]]
    return make_plan(loaded[0].llm, guessers, texts, measure, rules=[RULES[min(1.0, temperature)]], gammas=gammas)


def _run(
    plans: list[Plan],
    llms: dict[str, LLM],
    prompts: list[Prompt],
    temperature: float,
    max_tokens: int,
    totals: dict[Key, list[float]],
) -> None:
    """Every candidate of the newest plan answers one half of the prompts, and the next time the other."""
    half = range((len(plans) + 1) % 2, len(prompts), 2)
    for done, place in enumerate(half, start=1):
        asked = {_key(each): (llms[each.drafter], _asked(each, temperature, max_tokens, place)) for each in plans[-1].candidates}
        for key, out in side_by_side(asked, prompts[place].text, first=place + len(plans), tokens=TURN).items():
            total = totals.setdefault(key, [0.0, 0.0])
            total[0] += len(out.token_ids)
            total[1] += out.stats.seconds.total - out.stats.seconds.prefill
        _bar(done, len(half), f"temperature {temperature:g}, half {len(plans)}")


def _key(each: Candidate) -> Key:
    return each.drafter, each.gamma, each.tree


def _predicted(plan: Plan, key: Key) -> float:
    return next(each.predicted_tokens_per_second for each in plan.candidates if _key(each) == key)


def _asked(each: Candidate, temperature: float, max_tokens: int, seed: int) -> dict[str, Any]:
    size: dict[str, Any] = {"gamma": each.gamma or 1} if each.tree is None else {"tree": each.tree}
    return {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "seed": seed,
        **size,
        **({"rule": each.rule} if each.rule else {}),
    }


def _row(temperature: float, each: Candidate, measured: float) -> dict[str, Any]:
    predicted = each.predicted_tokens_per_second
    return {
        "drafter": each.drafter,
        "gamma": each.gamma,
        "tree": each.tree,
        "rule": each.rule,
        "temperature": temperature,
        "predicted": round(predicted, 2),
        "measured": round(measured, 2),
        "error": round(predicted / measured - 1.0, 4),
    }


def _show(rows: list[dict[str, Any]], choices: list[dict[str, Any]]) -> None:
    print(f"{'T':>3} {'drafter':28} {'γ':>2} {'tree':>8} {'predicted':>10} {'measured':>9} {'error':>7}")
    for r in rows:
        tree = r["tree"] or "–"
        print(
            f"{r['temperature']:>3g} {r['drafter']:28} {r['gamma']:>2} {tree:>8} {r['predicted']:10.1f} {r['measured']:9.1f} "
            f"{r['error']:+7.1%}"
        )
    for each in choices:
        chosen, best = each["chosen"], each["best"]
        print(
            f"T {each['temperature']:g}: chosen {chosen['drafter']} γ={chosen['gamma']}, fastest {best['drafter']} "
            f"γ={best['gamma']}, regret {each['regret']:.1%}"
        )


def _bar(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty() or done % max(1, total // 10) == 0:
        print(
            f"\r{what} {'█' * (30 * done // total):30} {done}/{total}",
            end="\n" if done == total else "",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
