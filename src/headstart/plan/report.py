"""A plan as one HTML page: no script, nothing fetched, readable on a phone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from headstart.plan.charts import Series, line_chart
from headstart.plan.planner import Plan
from headstart.plan.predict import Candidate

__all__ = ["STYLE", "page", "report", "table"]

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #5f5f5f; --line: #d9d9d9; --paper: #fff; --card: #f3f5f8;
  --shade: #0003; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #eaeaea; --faint: #a8a8a8; --line: #3c3c3c; --paper: #141414; --card: #1f2225; --shade: #fff4; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 54rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
p.note, figcaption, footer { color: var(--faint); font-size: .9rem; }
.answer { background: var(--card); border-radius: .6rem; padding: .8rem 1rem; font-size: 1.1rem; }
figure { margin: 0; } figure > svg { width: 100%; max-width: 46rem; height: auto; }
svg text { fill: var(--ink); font-size: 14px; } svg text.mark { font-weight: 650; }
@media (max-width: 34rem) { svg text { font-size: 23px; } }
svg .grid { stroke: var(--line); } svg .dot { stroke: var(--paper); stroke-width: 1.5; }
svg .parity, svg .level { stroke: var(--ink); stroke-dasharray: 5 4; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: .2rem 0 0; padding: 0;
  font-size: .9rem; }
svg.key { width: 26px; height: 12px; margin-right: .4rem; }
.wide { overflow-x: auto; margin: .6rem 0; background:
  linear-gradient(to left, var(--paper) 40%, transparent) right / 2.4rem 100% no-repeat local,
  linear-gradient(to left, var(--shade), transparent) right / .7rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .95rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem 0 .25rem 1rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 7rem; }
tr.best td { font-weight: 650; }
pre { background: var(--card); padding: .7rem; border-radius: .4rem; font-size: .85rem; white-space: pre-wrap; }
.bars { display: grid; grid-template-columns: minmax(6rem, 14rem) auto 1fr; gap: .15rem .7rem; align-items: center;
  font-size: .92rem; }
.bars svg { width: 100%; height: 1rem; overflow: visible; } .bars b { font-weight: 650; text-align: right; }
.bars line { stroke: var(--ink); vector-effect: non-scaling-stroke; }
@media (max-width: 34rem) {
  .bars { grid-template-columns: 1fr auto; } .bars svg { grid-column: 1 / -1; height: .7rem; margin-bottom: .4rem; }
}
"""


def page(title: str, body: Sequence[str]) -> str:
    """A whole document."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> str:
    """A table that scrolls sideways where it must; row `best` stands out. Cells are text, not markup."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = []
    for place, row in enumerate(rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        opening = '<tr class="best">' if place == best else "<tr>"
        lines.append(f"{opening}{cells}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def report(plan: Plan) -> str:
    """The page of a plan."""
    body = [f"<h1>{escape(plan.target)}: which draft, how long, does it pay?</h1>", _answer(plan)]
    body += [_speedups(plan), _candidates(plan), _cost_curve(plan), _acceptance(plan), _exports(plan)]
    machine = ", ".join(f"{name} {_plain(value)}" for name, value in {**plan.settings, **plan.machine}.items())
    sample = f"{plan.num_prompts} prompts, {plan.num_tokens} tokens of output"
    body.append(f"<footer><p>Sampled on {sample}. Predictions, not measurements. {escape(machine)}.</p></footer>")
    return page(f"headstart plan: {plan.target}", body)


def _answer(plan: Plan) -> str:
    best, plain = plan.best, plan.plain
    if best.drafter == "none":
        text = f"Do not speculate: nothing beats plain decoding's {plain.predicted_tokens_per_second:.1f} tokens/s here."
    else:
        low, high = best.interval
        size = f"{best.gamma} drafted tokens" if best.tree is None else f"a tree of {best.tree}"
        text = (
            f"Use {best.drafter} with {size} a round and the {best.rule} rule: "
            f"{best.predicted_tokens_per_second:.1f} tokens/s ({low:.1f} to {high:.1f}) against "
            f"{plain.predicted_tokens_per_second:.1f} plain, {best.walltime_improvement:.2f}×."
        )
    return f'<p class="answer">{escape(text)}</p>'


def _speedups(plan: Plan) -> str:
    series = []
    for name, rule, members in _curves(plan):
        values = [each.walltime_improvement for each in members]
        points = tuple((float(each.gamma), each.walltime_improvement) for each in members)
        best = values.index(max(values))
        label = f"{values[best]:.2f}×"
        series.append(Series(name=f"{name}, {rule}", points=points, mark=best, mark_label=label))
    chart = line_chart(series, x_label="drafted tokens a round", y_label="speed against plain", parity=1.0)
    note = "Predicted from measured costs. Dot: the best length of each. Under the line, plain decoding is faster."
    return f"<h2>Speed by draft length</h2><figure>{chart}<figcaption>{note}</figcaption></figure>"


def _candidates(plan: Plan) -> str:
    """The best length of every drafter and rule, and plain decoding."""
    shown = [plan.plain, *(max(members, key=_speed) for _, _, members in _curves(plan))]
    shown += [each for each in plan.candidates if each.tree is not None]
    shown.sort(key=_speed, reverse=True)
    rows = [
        [
            each.drafter,
            each.tree or str(each.gamma),
            each.rule or "",
            f"{each.predicted_tokens_per_second:.1f}",
            f"{each.interval[0]:.1f} to {each.interval[1]:.1f}",
            f"{each.walltime_improvement:.2f}×",
            "" if each.closed_form is None else f"{each.closed_form:.2f}×",
            "" if each.break_even is None else f"{each.break_even:.2f}",
        ]
        for each in shown
    ]
    headings = ["drafter", "γ or tree", "rule", "tokens/s", "95 %", "predicted", "closed form", "break-even"]
    note = (
        "Closed form: the article's E/(γc + 1), in which every round drafts and scoring γ + 1 tokens costs as much as one. "
        "Break-even: the acceptance rate above which that length pays here."
    )
    best = next(place for place, each in enumerate(shown) if each == plan.best)
    return f'<h2>The best of each</h2>{table(headings, rows, best)}<p class="note">{note}</p>'


def _cost_curve(plan: Plan) -> str:
    series = []
    for name, rules in plan.costs.items():
        rule, measured = next(iter(rules.items()))
        costs = measured.costs
        if name == "none":
            scored = tuple((float(k) / costs.batch, 1e3 * costs.score(k)) for k in costs.score.tokens)
            series.append(Series(name="target's pass", points=tuple(p for p in scored if p[0] <= _longest(plan) + 1)))
        else:
            points = tuple((n + 1.0, 1e3 * costs.round(n)) for n in range(_longest(plan) + 1))
            series.append(Series(name=f"whole round with {name} ({rule})", points=points))
    chart = line_chart(series, x_label="tokens scored for each sequence (drafted + 1)", y_label="milliseconds")
    return f"<h2>What a round costs</h2><figure>{chart}</figure>"


def _acceptance(plan: Plan) -> str:
    overall = [each for each in plan.acceptance if each.category is None]
    series = [
        Series(name=f"{each.drafter}, {each.rule}", points=tuple((j + 1.0, p) for j, p in enumerate(each.by_position)))
        for each in overall
    ]
    chart = line_chart(series, x_label="position in the draft", y_label="share kept so far")
    categories = list(dict.fromkeys(each.category for each in plan.acceptance if each.category is not None))
    rates = {(each.drafter, each.rule, each.category): each.acceptance_rate for each in plan.acceptance}
    rows = [
        [f"{each.drafter}, {each.rule}", *(_rate(rates.get((each.drafter, each.rule, c))) for c in (None, *categories))]
        for each in overall
    ]
    shares = table(["acceptance rate", "all", *(str(c) for c in categories)], rows)
    return f"<h2>How far drafts are kept</h2><figure>{chart}</figure>{shares}"


def _exports(plan: Plan) -> str:
    words = plan.export
    flags = words["llama_cpp"]
    lines = [
        ("vLLM, speculative_config", json.dumps(words["vllm"])),
        ("llama.cpp, llama-server", "no such drafter" if flags is None else " ".join(flags)),
        ("transformers, generate(…)", json.dumps(words["transformers"])),
    ]
    shown = "".join(f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in lines)
    note = "The same choice in other engines' words. Their costs differ from those measured here, and so may their best length."
    return f'<h2>For other engines</h2><p class="note">{note}</p>{shown}'


def _curves(plan: Plan) -> list[tuple[str, str, list[Candidate]]]:
    """(drafter, rule, candidates by length)."""
    found: dict[tuple[str, str], list[Candidate]] = {}
    for each in plan.candidates:
        if each.rule is not None and each.tree is None:
            found.setdefault((each.drafter, each.rule), []).append(each)
    return [(name, rule, sorted(members, key=lambda c: c.gamma)) for (name, rule), members in found.items()]


def _longest(plan: Plan) -> int:
    return max(each.gamma for each in plan.candidates)


def _speed(each: Candidate) -> float:
    return each.predicted_tokens_per_second


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
