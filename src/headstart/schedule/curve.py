"""What a round costs by how many tokens are drafted in it: measured points, and what lies between them.

It does not measure (`costs` does) and does not know models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.errors import OptionError
from headstart.theory import tokens_per_round

__all__ = ["Curve", "RoundCosts", "break_even"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Seconds by a number of tokens, from measured points: linear between them, the last slope beyond them (never falling)."""

    tokens: tuple[int, ...]  # [points], increasing, 0 or more
    seconds: tuple[float, ...]  # [points]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds) or not self.tokens:
            raise OptionError(f"`curve` must give seconds for each number, got {len(self.seconds)} for {len(self.tokens)}")
        if self.tokens[0] < 0 or any(a >= b for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            raise OptionError(f"`curve` must go up from 0 or more, got numbers {', '.join(map(str, self.tokens))}")
        for value in self.seconds:
            if not (math.isfinite(value) and value >= 0):
                raise OptionError(f"`curve` must be of finite seconds, 0 or more, got {value:g}")

    @staticmethod
    def of(points: Mapping[int, float]) -> Curve:
        """A curve through number → seconds."""
        ordered = sorted(points.items())
        return Curve(tokens=tuple(n for n, _ in ordered), seconds=tuple(float(t) for _, t in ordered))

    def __call__(self, tokens: float) -> float:
        """Seconds at `tokens`; before the first point, what the first point costs."""
        last = self.tokens[-1]
        if tokens <= last:
            return float(np.interp(tokens, self.tokens, self.seconds))
        if len(self.tokens) == 1:
            return self.seconds[0]
        slope = max((self.seconds[-1] - self.seconds[-2]) / (last - self.tokens[-2]), 0.0)
        return self.seconds[-1] + slope * (tokens - last)

    def scaled(self, factor: float) -> Curve:
        """The curve with every second `factor` times as long."""
        return Curve(tokens=self.tokens, seconds=tuple(factor * t for t in self.seconds))

    def to_json(self) -> dict[str, float]:
        """number → seconds."""
        return {str(n): t for n, t in zip(self.tokens, self.seconds, strict=True)}

    @staticmethod
    def from_json(points: Mapping[str, float]) -> Curve:
        """The curve `to_json` wrote. Raises OptionError, or ValueError for keys that are not numbers."""
        return Curve.of({int(n): float(t) for n, t in points.items()})


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Seconds of a round's parts for one target, drafter and batch size, measured on this machine.

    A round of a batch drafts at most n tokens for each sequence and scores 1 + n for each of them in one pass."""

    score: Curve  # by tokens scored in the pass, over all sequences
    draft: Curve  # by tokens drafted for each sequence; 0 at 0
    overhead: Curve  # everything else of a round, by tokens drafted for each sequence
    batch: int = 1  # sequences in the rounds that were measured
    open_per_token: float = 0.0  # the drafter's own prefill, seconds a prompt token

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise OptionError(f"`batch` must be 1 or more, got {self.batch}")
        if not (math.isfinite(self.open_per_token) and self.open_per_token >= 0):
            raise OptionError(f"`open_per_token` must be finite seconds, 0 or more, got {self.open_per_token:g}")
        if self.score(1) <= 0:
            raise OptionError("`score` must cost more than nothing at one token; scoring takes time")

    def round(self, num_drafted: float, batch: int | None = None) -> float:
        """Seconds of a round in which each of `batch` sequences (default: as measured) drafts `num_drafted` tokens.

        For another batch than the measured one, drafting and the rest are scaled as the target's own pass is."""
        size = self.batch if batch is None else batch
        rest = self.draft(num_drafted) + self.overhead(num_drafted)
        if num_drafted == 0:
            rest = self.overhead(0)
        if size != self.batch:
            rest *= self.score(size) / self.score(self.batch)
        return self.score(size * (1 + num_drafted)) + rest

    @property
    def plain(self) -> float:
        """Seconds of a round that drafts nothing."""
        return self.round(0)

    @property
    def cost_ratio(self) -> float:
        """c: seconds a drafted token over seconds of a pass that scores one for each sequence, at the longest draft measured."""
        longest = self.draft.tokens[-1]
        return self.draft(longest) / longest / self.score(self.batch) if longest else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "batch": self.batch,
            "score": self.score.to_json(),
            "draft": self.draft.to_json(),
            "overhead": self.overhead.to_json(),
            "open_per_token": self.open_per_token,
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> RoundCosts:
        """What `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        return RoundCosts(
            batch=int(document["batch"]),
            score=Curve.from_json(document["score"]),
            draft=Curve.from_json(document["draft"]),
            overhead=Curve.from_json(document["overhead"]),
            open_per_token=float(document["open_per_token"]),
        )


def break_even(seconds: Sequence[float]) -> float | None:
    """The constant acceptance above which a draft pays, given what a round costs with n = 0, 1, … drafted tokens.

    The least over the lengths of the α with E(α, n) = cost(n)/cost(0); None where no length pays even at α = 1."""
    found = [_root(n, seconds[n] / seconds[0]) for n in range(1, len(seconds)) if seconds[n] < (n + 1) * seconds[0]]
    return min(found) if found else None


def _root(num_drafted: int, needed: float) -> float:
    """The α with E(α, num_drafted) = needed, by bisection; 0 where nothing need be accepted."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if float(tokens_per_round(middle, num_drafted)) >= needed else (middle, high)
    return 0.0 if needed <= 1.0 else high
