"""Measured speeds as one HTML page, in the manner of a plan's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from headstart.bench.speed import Result
from headstart.plan.charts import COLOURS
from headstart.plan.report import page, table

__all__ = ["alike", "short", "speed_report"]


def speed_report(target: str, results: Sequence[Result], about: Mapping[str, Any], missing: Sequence[str] = ()) -> str:
    """For each temperature: bars of speedups by category, then tables with every figure. `missing`: who is left out, and why."""
    body = [f"<h1>{escape(target)}: measured speed</h1>"]
    body.append(
        '<p class="note">Every way answered every prompt in turn, in one run. A speedup is over the first way: the median over '
        "prompts of paired ratios, with its 95 % interval by prompt (the line on a bar). The reading of the prompt is left out. "
        "The dashed line is the first way itself.</p>"
    )
    for line in missing:
        body.append(f'<p class="note">{escape(line)}.</p>')
    for temperature in dict.fromkeys(result.temperature for result in results):
        own = [result for result in results if result.temperature == temperature]
        body.append(f"<h2>{'Greedy' if temperature == 0 else f'Temperature {temperature:g}'}</h2>")
        longest = max(1.0, *(result.interval[1] for result in own), *(result.speedup for result in own))
        body += [_bars(category, own, longest) for category in dict.fromkeys(result.category for result in own)]
        body.append(_grid(own, "× the first way", lambda r: f"{r.speedup:.2f} ({r.interval[0]:.2f}–{r.interval[1]:.2f})"))
        body.append(_grid(own, "tokens/s", lambda r: f"{r.tokens_per_second:.1f}"))
        body.append(
            _grid(own, "tokens a target call", lambda r: "–" if r.block_efficiency is None else f"{r.block_efficiency:.2f}")
        )
        if any(result.same_tokens is None and result.same_prefix is not None for result in own):
            body.append(_grid(own, "same text", alike))
            body.append(
                "<p class='note'>Same text: how much of the first way's greedy text a way says before its first other token. "
                "Gap: how far, at the worst of those places, the target's own logit for that token lay below its highest; a "
                "small one is a near tie that another engine's rounding decides another way.</p>"
            )
        wrong = [f"{r.way} on {r.category}" for r in own if r.same_tokens is False]
        if wrong:
            body.append(f"<p><strong>Other tokens than the first way's: {escape(', '.join(wrong))}.</strong></p>")
    body.append(
        f"<footer><p>{escape(', '.join(f'{name} {_plain(value)}' for name, value in about.items() if value))}</p></footer>"
    )
    return page(f"headstart bench speed: {target}", body)


def _bars(category: str, results: Sequence[Result], longest: float) -> str:
    """One category: a bar a way, with its interval, and a line where the first way stands."""
    own = [result for result in results if result.category == category]
    rows = []
    for place, result in enumerate(own):
        width, low, high, parity = (100 * x / longest for x in (result.speedup, *result.interval, 1.0))
        colour = COLOURS[place % len(COLOURS)]
        rows.append(
            f"<span>{escape(short(result.way))}</span><b>{result.speedup:.2f}×</b>"
            '<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect width="{width:.1f}" height="10" fill="{colour}" opacity=".75"/>'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="5" y2="5"/>'
            f'<line class="parity" x1="{parity:.1f}" x2="{parity:.1f}" y1="-1" y2="11"/></svg>'
        )
    return f'<h3>{escape(category)}</h3><div class="bars">{"".join(rows)}</div>'


def alike(result: Result) -> str:
    """Whether a way says what the first says: all of it, or how much before the first other token, and the widest gap there."""
    if result.same_tokens is not None:
        return "yes" if result.same_tokens else "NO"
    if result.same_prefix is None:
        return "–"
    gap = "" if result.largest_gap is None else f", gap {result.largest_gap:.2f}"
    return f"{100 * result.same_prefix:.0f} %{gap}"


def short(way: str) -> str:
    """A way's name with file names for paths: `model:/a/b.gguf γ=4` is model:b.gguf γ=4."""
    return re.sub(r"(^|[:+ ])(?:[^:+ ]*/)+", r"\1", way)


def _calls(result: Result) -> str:
    return "–" if result.block_efficiency is None else f"{result.block_efficiency:.2f}"


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {_plain(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _grid(results: Sequence[Result], title: str, shown: Callable[[Result], str]) -> str:
    categories = list(dict.fromkeys(result.category for result in results))
    cells = {(result.way, result.category): shown(result) for result in results}
    ways = list(dict.fromkeys(result.way for result in results))
    rows = [[short(way), *(cells.get((way, category), "") for category in categories)] for way in ways]
    return table([title, *categories], rows)
