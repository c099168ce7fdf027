"""What a generation learns while it runs: how far drafts are kept, and what rounds really cost.

Both only ever see rounds that are over. `RunningAcceptance` belongs to one sequence; `RunningCosts` to a target with a drafter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from headstart.schedule.curve import RoundCosts

__all__ = ["RunningAcceptance", "RunningCosts"]


class RunningAcceptance:
    """P(kept to j tokens or more), from the rounds so far: a share by position, pulled to the share over all positions, which is
    pulled to a first guess; older rounds count less."""

    def __init__(self, longest: int, *, guess: float = 0.6, weight: float = 1.0, decay: float = 0.95) -> None:
        """`guess` counts as `weight` observations; each further round makes older ones count `decay` times as much."""
        self._guess, self._weight, self._decay = guess, weight, decay
        self._tried, self._kept = [0.0] * longest, [0.0] * longest

    def saw(self, shares: Sequence[float]) -> None:
        """One judged draft: for each position that was reached, the chance (or the fact, 0 or 1) that it was kept."""
        self.fade(self._decay)
        for place, share in enumerate(shares[: len(self._tried)]):
            self._tried[place] += 1.0
            self._kept[place] += share

    def fade(self, factor: float) -> None:
        """Make everything seen so far count `factor` times as much."""
        self._tried = [factor * tried for tried in self._tried]
        self._kept = [factor * kept for kept in self._kept]

    def chances(self) -> list[float]:
        """[longest]: P(accepted ≥ j), j = 1 … longest."""
        weight = self._weight
        pooled = (weight * self._guess + sum(self._kept)) / (weight + sum(self._tried))
        chances, reach = [], 1.0
        for tried, kept in zip(self._tried, self._kept, strict=True):
            reach *= (weight * pooled + kept) / (weight + tried)
            chances.append(reach)
        return chances


_KEPT_TIMINGS = 15  # of each kind of round; enough for a median, few enough to follow a growing context
_ENOUGH_TIMINGS = 3
_TRUST = 0.25  # of a plain round: what the measured curve's extra cost of a draft counts against the timed one
_PLAIN_EVERY = 64  # rounds between two plain ones where every round drafts: without them a slow machine looks like a dear draft


class RunningCosts:
    """Seconds of a round by draft length and batch: the measured curve, corrected by what rounds of that kind took."""

    def __init__(self, measured: RoundCosts, *, learns: bool = True) -> None:
        """`learns` False: the measured curve stands, whatever the clock says."""
        self.measured, self.learns = measured, learns
        self._predicted: dict[int, list[float]] = {}  # batch → seconds by draft length, as measured
        self._timings: dict[int, dict[int, deque[float]]] = {}  # batch → drafted → seconds
        self._usual: dict[int, dict[int, float]] = {}  # batch → drafted → their median, where there are enough
        self._since_plain: dict[int, int] = {}  # batch → rounds since the last plain one

    def rounds(self, longest: int, batch: int) -> list[float]:
        """[longest + 1]: seconds of a round in which each of `batch` sequences drafts n = 0 … longest tokens."""
        predicted = self._predicted.get(batch, [])
        if len(predicted) <= longest:
            predicted = [self.measured.round(n, batch) for n in range(longest + 1)]
            self._predicted[batch] = predicted
        usual = self._usual.get(batch, {})
        if 0 not in usual:  # nothing to compare with yet
            return predicted
        plain = usual[0]
        # Lengths not timed yet cost more than plain by as much more as the others were found to; a small difference of two noisy
        # medians is believed little, the plain rounds' own slowness until then.
        timed = [n for n in usual if 0 < n < len(predicted)]
        trust = _TRUST * predicted[0]
        found = sum(usual[n] - plain for n in timed) + trust * plain / predicted[0]
        factor = max(0.0, found / (sum(predicted[n] - predicted[0] for n in timed) + trust))
        return [usual.get(n, plain + factor * (seconds - predicted[0])) for n, seconds in enumerate(predicted)]

    def wants_plain(self, batch: int) -> bool:
        """Whether a plain round is due, to know what plain decoding costs now."""
        known = 0 in self._usual.get(batch, {})
        return self.learns and (not known or self._since_plain.get(batch, 0) >= _PLAIN_EVERY)

    def saw(self, drafted: Sequence[int], seconds: float) -> None:
        """A round took `seconds`; `drafted` has one number for each sequence in it. Only rounds that are all alike teach."""
        batch, num_drafted = len(drafted), drafted[0]
        self._since_plain[batch] = 0 if not any(drafted) else self._since_plain.get(batch, 0) + 1
        if not self.learns or len(set(drafted)) != 1 or seconds <= 0:
            return
        # Every sequence of a batch tells of the same round.
        seen = self._timings.setdefault(batch, {}).setdefault(num_drafted, deque(maxlen=_KEPT_TIMINGS * batch))
        seen.append(seconds)
        if len(seen) >= _ENOUGH_TIMINGS * batch:
            self._usual.setdefault(batch, {})[num_drafted] = median(seen)
