"""Charts of `headstart theory`, drawn with matplotlib, which is loaded when a chart is asked for and not before.

One look for all of them; colours are told apart by people who do not see all colours, and curves are named where they end.
It draws values that are already computed and computes nothing itself beyond the smooth line under simulated points.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import MissingExtraError, OptionError
from headstart.theory import SequenceResult, StepResult, WalltimePoint, YieldPoint, ceiling, tokens_per_round

__all__ = ["SUFFIXES", "check_plot", "plot_sequence", "plot_step", "plot_training", "plot_walltime", "plot_yield"]

SUFFIXES = (".png", ".svg", ".pdf")

# Okabe and Ito's palette, where each colour means one thing on every chart.
_TARGET, _DRAFT, _OUTPUT, _EXACT = "#0072B2", "#BDBDBD", "#D55E00", "#1A1A1A"
_INK, _FAINT = "#333333", "#8A8A8A"
_STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "legend.frameon": False,
    "svg.hashsalt": "headstart",  # the same numbers give the same file
}


def check_plot(file: str) -> Path:
    """`file` as a path that can become a chart, checked before anything is computed.

    Raises OptionError for another suffix or a folder that cannot be written, MissingExtraError without matplotlib."""
    path = Path(file)
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"`plot` must end in one of {', '.join(SUFFIXES)}, got {file!r}")
    folder = path.parent
    if not folder.is_dir():
        raise OptionError(f"`plot` must be in a folder that exists, got {file!r}; create {str(folder)!r} first")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise OptionError(f"`plot` must be a file that can be written, got {file!r}; choose another place")
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot", "--plot")
    return path


def plot_step(result: StepResult, path: Path) -> None:
    """Bars of draft, target and output for each token."""
    note = f"accepted {result.acceptance_rate:.4f},  overlap Σ min(p, q) = {result.overlap:.4f},  {result.draws:,} draws"
    with _chart(path, "One position: the output follows the target, not the draft", note=note) as axes:
        places = np.arange(len(result.target))
        bars = [("draft q", result.draft, _DRAFT), ("target p", result.target, _TARGET), ("output", result.empirical, _OUTPUT)]
        for shift, (label, heights, colour) in zip((-0.27, 0, 0.27), bars, strict=True):
            axes.bar(places + shift, heights, width=0.25, color=colour, label=label)
        axes.set_xlabel("token")
        axes.set_ylabel("probability, share of outputs")
        axes.set_ylim(0, 1.2 * max(max(heights) for _, heights, _ in bars))
        axes.grid(axis="x", visible=False)
        _whole_ticks(axes)
        axes.legend(loc="upper right", ncols=3)


def plot_yield(points: Sequence[YieldPoint], path: Path) -> None:
    """Tokens per round against γ: a curve for each α, simulated points on it, and the ceilings that fit."""
    alphas = sorted({point.alpha for point in points})
    longest = max(8, *(point.gamma for point in points))
    gammas = np.arange(longest + 1)
    top = 1.08 * max(float(tokens_per_round(alphas[-1], longest)), 2.0)
    note = "line: (1 − α^(γ+1)) / (1 − α)     circle: simulated ± 2 standard errors     dotted: ceiling 1/(1 − α)"
    with _chart(path, "Tokens per round: each further guess adds less", note=note) as axes:
        ends = []
        for alpha, colour in zip(alphas, _shades(len(alphas)), strict=True):
            curve = tokens_per_round(alpha, gammas)
            axes.plot(gammas, curve, color=colour, linewidth=2)
            limit = ceiling(alpha)
            if limit is not None and limit < top:
                axes.axhline(limit, color=colour, linewidth=1.2, linestyle=(0, (1, 3)))
            own = [point for point in points if point.alpha == alpha]
            spread = [2 * point.standard_error for point in own]
            marks = {"fmt": "o", "color": colour, "markerfacecolor": "white", "markeredgewidth": 1.8, "zorder": 3}
            axes.errorbar([point.gamma for point in own], [point.simulated for point in own], yerr=spread, **marks)
            ends.append((float(curve[-1]), f"α = {alpha:g}", colour))
        axes.set_ylim(0, top)
        axes.set_xlim(0, longest * 1.02)
        _label_ends(axes, ends)
        axes.set_xlabel("draft length γ")
        axes.set_ylabel("tokens per round")
        _whole_ticks(axes)


def plot_walltime(points: Sequence[WalltimePoint], cost_ratio: float, path: Path, *, flat: bool = True) -> None:
    """S against γ, one curve an α, a dot at each optimum and a line where plain decoding is. `flat`: v ≡ 1."""
    ordered = sorted({point.alpha: point for point in points}.values(), key=lambda point: point.alpha)
    longest = ordered[0].curve[-1][0]
    note = f"E / (γc + v(γ+1)) at c = {cost_ratio:g}, {'v ≡ 1' if flat else 'v as given'};  dot: the best draft length for its α"
    with _chart(path, "Past the best draft length, a longer one gives speed back", note=note) as axes:
        ends = [(1.0, "dashed: plain decoding", _INK)]
        axes.axhline(1, color=_INK, linewidth=1.2, linestyle="--")
        for point, colour in zip(ordered, _shades(len(ordered)), strict=True):
            gammas, improvements = zip(*point.curve, strict=True)
            axes.plot(gammas, improvements, color=colour, linewidth=2)
            best = (point.best_gamma, point.walltime_improvement)
            axes.plot(*best, "o", color=colour, markersize=9, markeredgecolor="white", zorder=4)
            ends.append((improvements[-1], f"α = {point.alpha:g}:  {best[1]:.2f}× at γ = {best[0]}", colour))
        margin = 0.02 * longest if longest > 1 else 0.5
        axes.set_ylim(0, 1.08 * max(1.0, *(point.walltime_improvement for point in ordered)))
        axes.set_xlim(1 - margin, longest + margin)
        _label_ends(axes, ends)
        axes.set_xlabel("draft length γ")
        axes.set_ylabel("speed against plain decoding, predicted")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        _whole_ticks(axes)


def plot_sequence(result: SequenceResult, path: Path) -> None:
    """Left: token frequencies with and without speculation, and exact. Right: the four answers for tokens per target call."""
    with _chart(path, "The same text …", "… in fewer target calls") as (left, right):
        _token_shares(left, result)
        _four_yields(right, result)


def plot_training(history: Sequence[dict[str, Any]], path: Path) -> None:
    """Overlap by depth and tokens per target call as a head was trained."""
    steps = [entry["step"] for entry in history]
    depths = len(history[-1]["overlap"])
    titles = ("Overlap on held-out answers", "Tokens per target call, chains of four")
    with _chart(path, *titles) as (left, right):
        overlaps = [
            (f"token {depth + 1}", [entry["overlap"][depth] for entry in history], shade)
            for depth, shade in zip(range(depths), _shades(depths), strict=True)
        ]
        measured = [
            (label, [entry[f"{name}_block_efficiency"] for entry in history], colour)
            for name, label, colour in (("greedy", "greedy", _TARGET), ("sampled", "sampled", _OUTPUT))
        ]
        yields = [(label, values, colour) for label, values, colour in measured if None not in values]
        for axes, curves, lowest in ((left, overlaps, 0.0), (right, yields, 1.0)):  # 1: plain decoding
            for _, values, colour in curves:
                axes.plot(steps, values, "o-", color=colour, markersize=4)  # a run may have been measured once
            highest = max((max(values) for _, values, _ in curves), default=lowest)
            axes.set_ylim(lowest, highest + 0.08 * max(highest - lowest, 0.1))
            if curves:
                _label_ends(axes, [(values[-1], f"{label}: {values[-1]:.2f}", colour) for label, values, colour in curves])
            axes.set_xlabel("steps")
            _whole_ticks(axes)
            axes.locator_params(axis="x", nbins=6)


def _token_shares(axes: Any, result: SequenceResult) -> None:
    places = np.arange(len(result.exact))
    plain = axes.bar(places - 0.2, result.target_only, width=0.36, color=_TARGET)
    spoken = axes.bar(places + 0.2, result.speculative, width=0.36, color=_OUTPUT)
    exact = axes.hlines(result.exact, places - 0.42, places + 0.42, color=_EXACT, linewidth=1.8)
    axes.set_ylim(0, 1.25 * max(*result.exact, *result.target_only, *result.speculative))
    axes.set_xlabel("token")
    axes.set_ylabel(f"share of tokens, {result.trials:,} sequences")
    axes.grid(axis="x", visible=False)
    _whole_ticks(axes)
    axes.legend([plain, spoken, exact], ["target alone", "speculative", "exact"], loc="upper center", ncols=3)


def _four_yields(axes: Any, result: SequenceResult) -> None:
    rows = [
        (f"simulated\n(L = {result.length})", result.block_efficiency, _OUTPUT),
        (f"exact\n(L = {result.length})", result.block_efficiency_exact, _EXACT),
        ("exact\n(long run)", result.block_efficiency_long_run, _EXACT),
        (f"i.i.d. formula\n(α = {result.alpha_stationary:.4f})", result.block_efficiency_iid, _TARGET),
    ]
    values = [value for _, value, _ in rows]
    for place, (_, value, colour) in enumerate(rows):
        error = 2 * result.block_efficiency_error if place == 0 else None
        axes.errorbar(value, place, xerr=error, fmt="o", color=colour, markersize=8, capsize=4)
        axes.annotate(f"{value:.4f}", (value, place), xytext=(0, 9), textcoords="offset points", ha="center", color=colour)
    room = max(np.ptp(values), 4 * result.block_efficiency_error, 0.02)
    axes.set_xlim(min(values) - 0.3 * room, max(values) + 0.3 * room)
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"tokens per target call, γ = {result.gamma} (axis does not start at 0)")
    axes.grid(axis="y", visible=False)


@contextmanager
def _chart(path: Path, *titles: str, note: str = "") -> Iterator[Any]:
    """The axes to draw on, a list of them for several titles; saved at the end. No window system, no global state is touched.

    `note` is one faint line under the title that says how to read the chart."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure: Any = Figure(figsize=(8.0 if len(titles) == 1 else 10.5, 4.8), dpi=150, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04)
        panels = figure.subplots(1, len(titles), squeeze=False)[0]
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, pad=28 if note else 12)
        if note:
            panels[0].annotate(
                note, (0, 1), xytext=(0, 9), xycoords="axes fraction", textcoords="offset points", fontsize=9, color=_FAINT
            )
        yield panels[0] if len(titles) == 1 else panels
        dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
        figure.savefig(path, metadata=dated)


def _shades(number: int) -> list[Any]:
    """Colours in order, dark to light, the palest left out: an order that survives grey print."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.08 + 0.67 * place / max(1, number - 1)) for place in range(number)]


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, Any]]) -> None:
    """Names right of where curves end (height, text, colour), moved apart where they would overlap."""
    bottom, top = axes.get_ylim()
    gap = (top - bottom) * min(0.055, 0.98 / len(ends))
    ordered = sorted(ends, key=lambda end: end[0])
    heights = [end[0] for end in ordered]
    for _ in range(400):  # push neighbours apart until they rest, never below the chart
        heights[0] = max(heights[0], bottom + gap / 3)
        for place in range(1, len(heights)):
            short = max(gap - (heights[place] - heights[place - 1]), 0.0)
            heights[place] += short / 2
            heights[place - 1] -= short / 2
    size = 10 * min(1.0, 18 / len(ends))
    for height, (_, text, colour) in zip(heights, ordered, strict=True):
        axes.text(1.015, height, text, color=colour, va="center", fontsize=size, transform=axes.get_yaxis_transform())


def _whole_ticks(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
