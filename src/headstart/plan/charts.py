"""Line charts as SVG, written by hand: no library, no script, readable on a phone and in the dark.

It draws series of points between axes; what they mean is the report's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["COLOURS", "Series", "line_chart"]

# Okabe and Ito's palette without its yellow: told apart by people who do not see all colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#777777")
_DASHES = ("", "6 4", "2 3", "9 3 2 3")
_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 40, 64  # room for the larger letters of a narrow screen


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve: its name, its points, and the place of the point to mark, if any, with what is written there."""

    name: str
    points: tuple[tuple[float, float], ...]
    mark: int | None = None
    mark_label: str = ""

    @property
    def marked(self) -> tuple[float, float] | None:
        """The point to mark."""
        return None if self.mark is None else self.points[self.mark]


def line_chart(series: Sequence[Series], *, x_label: str, y_label: str, parity: float | None = None, lowest: float = 0.0) -> str:
    """An <svg> with a legend under it; `parity` draws a dashed level line, plain decoding. Empty text without points."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    scale = _Scale.of(points, parity, lowest)
    parts = [_axes(scale, x_label, y_label)]
    if parity is not None:
        y = scale.y(parity)
        parts.append(f'<line class="parity" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    parts += [_curve(one, place, scale) for place, one in enumerate(series)]
    label = escape(f"{y_label} by {x_label}")
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return svg + _legend(series, parity is not None)


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """From values to places on the page."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @staticmethod
    def of(points: Sequence[tuple[float, float]], parity: float | None, lowest: float) -> _Scale:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        top = max([*ys, parity if parity is not None else ys[0], lowest + 1e-9])
        low, high = min(xs), max(xs)
        return _Scale(x_low=low, x_high=high if high > low else low + 1, y_low=lowest, y_high=lowest + 1.08 * (top - lowest))

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (_HEIGHT - _TOP - _BOTTOM)


def _axes(scale: _Scale, x_label: str, y_label: str) -> str:
    parts = []
    for value in _ticks(scale.y_low, scale.y_high, 7):
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(scale.x_low, scale.x_high, 9, whole=True):
        parts.append(f'<text x="{scale.x(value):.1f}" y="{_HEIGHT - _BOTTOM + 24}" text-anchor="middle">{value:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(f'<text x="2" y="20">{escape(y_label)}</text>')
    return "".join(parts)


def _curve(one: Series, place: int, scale: _Scale) -> str:
    if not one.points:
        return ""
    colour, dash = COLOURS[place % len(COLOURS)], _DASHES[place % len(_DASHES)]
    places = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in one.points)
    parts = [f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>']
    dots = one.points if len(one.points) == 1 else ()
    if one.marked is not None:
        dots = (one.marked,)
    for x, y in dots:
        parts.append(f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="5.5" fill="{colour}" class="dot"/>')
    if one.marked is not None and one.mark_label:
        x, y = scale.x(one.marked[0]), scale.y(one.marked[1])
        anchor = "start" if x < _LEFT + 40 else "end" if x > _WIDTH - _RIGHT - 40 else "middle"
        parts.append(f'<text class="mark" x="{x:.1f}" y="{y - 10:.1f}" text-anchor="{anchor}">{escape(one.mark_label)}</text>')
    return "".join(parts)


def _legend(series: Sequence[Series], parity: bool) -> str:
    items = []
    if parity:
        items.append(
            '<li><svg class="key" viewBox="0 0 26 12"><line class="level" x2="26" y1="6" y2="6"/></svg>plain decoding</li>'
        )
    for place, one in enumerate(series):
        colour, dash = COLOURS[place % len(COLOURS)], _DASHES[place % len(_DASHES)]
        line = f'<line x1="0" x2="26" y1="6" y2="6" stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}"/>'
        items.append(f'<li><svg class="key" viewBox="0 0 26 12">{line}</svg>{escape(one.name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Round values between low and high, about so many."""
    power = floor(log10((high - low) / about))
    rounds = (1, 2, 5) if whole else (1, 2, 2.5, 5)
    step = next(s for s in (m * 10.0**p for p in (power, power + 1) for m in rounds) if (high - low) / s <= about)
    if whole:
        step = max(1.0, float(ceil(step)))
    first = ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, floor(high / step + 1e-9) + 1)]
