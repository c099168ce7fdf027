"""Does `headstart plan` predict what is then measured, and is its choice the best there is?

Costs and samples as the plan takes them; then every candidate and plain decoding answer the same prompts, taking turns. Measured
tokens per second are all tokens over all seconds, the prompt's reading left out, and so are predicted ones. The regret is how
much slower the plan's choice is than the fastest that was measured. Last line: one JSON object.

    python benches/bench_prediction.py --target qwen2.5-coder-1.5b --drafter ngram --drafter model:qwen2.5-coder-0.5b --minutes 11
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from headstart.cli.machine import machine
from headstart.costs import measure_rounds
from headstart.generation import LLM
from headstart.loading import Loaded, load_many
from headstart.plan.planner import Guesser, Plan, make_plan
from headstart.plan.predict import Candidate
from headstart.plan.texts import sample_texts
from headstart.prompts import CATEGORIES, Prompt, builtin_prompts
from headstart.records import Sampling

RULES = {0.0: "block", 1.0: "coupled"}  # under coupled every way says the same


def main() -> None:
    asked = _arguments()
    started = time.perf_counter()
    gammas = [int(n) for n in asked.gamma.split(",")]
    temperatures = [float(t) for t in asked.temperature.split(",")]
    prompts = builtin_prompts(asked.category or CATEGORIES, each=asked.each)
    loaded = load_many(asked.target, ["none", *(asked.drafter or ["ngram", "suffix"])])
    plans = {t: _plan(loaded, prompts, t, gammas, asked) for t in temperatures}
    planned = time.perf_counter() - started
    llms = {each.llm.drafter.name: each.llm for each in loaded}
    plain_seconds = len(prompts) * asked.max_tokens / plans[temperatures[0]].plain.predicted_tokens_per_second
    a_repeat = plain_seconds * sum(len(plan.candidates) for plan in plans.values())
    left = asked.minutes * 60 - planned
    repeats = max(1, min(asked.repeats, int(left / a_repeat)))
    estimate = (planned + repeats * a_repeat) / 60
    print(f"planned in {planned:.0f} s; {repeats} repeats, at most {estimate:.1f} minutes in all", file=sys.stderr)
    rows, choices = [], []
    for temperature, plan in plans.items():
        measured = _measured(plan, llms, prompts, temperature, repeats, asked.max_tokens)
        own = [_row(temperature, each, measured[each.drafter, each.gamma, each.tree]) for each in plan.candidates]
        rows += own
        chosen = next(r for r, each in zip(own, plan.candidates, strict=True) if each == plan.best)
        best = max(own, key=lambda r: r["measured"])
        regret = 1.0 - chosen["measured"] / best["measured"]
        choices.append({"temperature": temperature, "chosen": chosen, "best": best, "regret": round(regret, 4)})
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


def _plan(loaded: list[Loaded], prompts: list[Prompt], temperature: float, gammas: list[int], asked: Any) -> Plan:
    """As `headstart plan` makes it, every cost measured now."""

    def measure(llm: LLM, rule: str) -> Any:
        how = {"context": asked.context, "rule": rule, "sampling": Sampling(temperature=temperature)}
        return measure_rounds(llm.model, llm.drafter, gammas, vocab_size=llm.vocab_size, **how)

    plain = loaded[0].llm
    texts = sample_texts(plain, prompts, max_tokens=asked.max_tokens, temperature=temperature, seed=0)
    guessers = [Guesser(llm=each.llm, model=each.model, looks_up=each.looks_up) for each in loaded[1:]]
    return make_plan(plain, guessers, texts, measure, rules=[RULES[min(1.0, temperature)]], gammas=gammas)


def _measured(
    plan: Plan, llms: dict[str, LLM], prompts: list[Prompt], temperature: float, repeats: int, max_tokens: int
) -> dict[Any, float]:
    """Tokens per second of every candidate: all tokens over all seconds of all prompts, medians over repeats of each prompt."""
    seconds: dict[Any, dict[int, list[float]]] = {}
    tokens: dict[Any, dict[int, int]] = {}
    for repeat in range(repeats):
        for place, prompt in enumerate(prompts):
            turn = (place + repeat) % len(plan.candidates)
            for each in (*plan.candidates[turn:], *plan.candidates[:turn]):
                key = each.drafter, each.gamma, each.tree
                out = llms[each.drafter].generate(prompt.text, seed=place, **_asked(each, temperature, max_tokens))
                spent = out.stats.seconds.total - out.stats.seconds.prefill
                seconds.setdefault(key, {}).setdefault(place, []).append(spent)
                tokens.setdefault(key, {})[place] = len(out.token_ids)
            _bar(repeat * len(prompts) + place + 1, repeats * len(prompts), f"temperature {temperature:g}")
    return {key: sum(tokens[key].values()) / sum(float(np.median(s)) for s in by.values()) for key, by in seconds.items()}


def _asked(each: Candidate, temperature: float, max_tokens: int) -> dict[str, Any]:
    size: dict[str, Any] = {"gamma": each.gamma or 1} if each.tree is None else {"tree": each.tree}
    return {"temperature": temperature, "max_tokens": max_tokens, **size, **({"rule": each.rule} if each.rule else {})}


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
