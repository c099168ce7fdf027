"""Measured speeds as one HTML page, in the manner of a plan's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from headstart.bench.speed import Result
from headstart.plan.report import page, table

__all__ = ["speed_report"]


def speed_report(target: str, results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """A table of speedups and one of tokens per second for each temperature: ways down, categories across."""
    body = [f"<h1>{escape(target)}: measured speed</h1>"]
    for temperature in dict.fromkeys(result.temperature for result in results):
        own = [result for result in results if result.temperature == temperature]
        body.append(f"<h2>{'Greedy' if temperature == 0 else f'Temperature {temperature:g}'}</h2>")
        body.append(_grid(own, "× the first way", lambda r: f"{r.speedup:.2f} ({r.interval[0]:.2f}–{r.interval[1]:.2f})"))
        body.append(_grid(own, "tokens/s", lambda r: f"{r.tokens_per_second:.1f}"))
        wrong = [f"{r.way} on {r.category}" for r in own if r.same_tokens is False]
        if wrong:
            body.append(f"<p><strong>Other tokens than the first way's: {escape(', '.join(wrong))}.</strong></p>")
    note = (
        "Every way answered every prompt in turn, in one run. A speedup is the median over prompts of paired ratios, with its "
        "95 % interval by prompt; the reading of the prompt is left out."
    )
    facts = ", ".join(f"{name} {value}" for name, value in about.items())
    body.append(f'<p class="note">{escape(note)}</p><footer><p>{escape(facts)}</p></footer>')
    return page(f"headstart bench speed: {target}", body)


def _grid(results: Sequence[Result], title: str, shown: Any) -> str:
    categories = list(dict.fromkeys(result.category for result in results))
    cells = {(result.way, result.category): shown(result) for result in results}
    ways = list(dict.fromkeys(result.way for result in results))
    rows = [[way, *(cells.get((way, category), "") for category in categories)] for way in ways]
    return table([title, *categories], rows)
