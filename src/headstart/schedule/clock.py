"""What rounds really cost, from how long they take: the measured curve, corrected while it is used.

A round's time is what its kind costs, times how slow the machine is just then, which changes within seconds, times noise. The
three are told apart by a Kalman filter over logarithms: the machine's slowness wanders, what one kind of round costs beside a
plain one hardly changes, and an error found with one draft length is likely to be that of its neighbours, too. So a plain round
timed in a slow minute is not held against drafts timed in a fast one. It only ever sees rounds that are over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np

from headstart.records import LONGEST_GAMMA
from headstart.rows import FloatArray
from headstart.schedule.curve import RoundCosts

__all__ = ["RunningCosts"]

# Standard deviations of natural logarithms: .06 is six percent.
_NOISE = 0.2  # of one round's time
_WANDERS = 0.03  # the machine's slowness, from one round to the next
_AGES = 0.003  # what a kind of round costs beside a plain one, each time it is timed
_UNSURE = 0.04  # of the measured curve: at first …
_UNSURE_OF_MORE = 0.2  # … and so much more for each e-fold that a round costs beyond a plain one
_ALIKE = 0.9  # correlation of the errors of neighbouring lengths
_ALIKE_PARTS = 0.5  # of one length with different drafters
_OUTLIER = 2.0  # standard deviations; a residual counts as so much at most, and slowness is less sure from then on
_JUMP = 0.1
_ENOUGH_PLAIN = 3  # plain rounds before drafts are compared with them
# Rounds between two plain ones where every round drafts: without them a slow machine looks like a dear draft. Fewer, in
# proportion to the variance, where the cost of such drafts is less sure than this.
_PLAIN_EVERY, _LEAST_PLAIN_EVERY = 64, 4
_SURE = 0.05
_CLEAR = 0.1  # the gain from which they are fewer


@final
class RunningCosts:
    """Seconds of a round by who drafts, draft length and batch."""

    def __init__(self, *measured: RoundCosts, learns: bool = True) -> None:
        """`measured`: for each drafter that may draft, in order, rounds in which it does. `learns` False: the measured curves
        stand, whatever the clock says."""
        self.parts, self.learns = measured, learns
        self._last: RunningCosts | None = None
        self._clocks: dict[int, _Clock] = {}  # by batch
        self._since_plain: dict[int, float] = {}  # batch → rounds since the last plain one
        self._num_plain: dict[int, float] = {}
        self._trees_dearer, self._num_trees = 1.0, 0  # rounds with trees beside what was expected

    @property
    def measured(self) -> RoundCosts:
        """As measured, with the last drafter."""
        return self.parts[-1]

    @property
    def last(self) -> RunningCosts:
        """The last drafter's alone, which learn for themselves; the same object at every call."""
        if len(self.parts) == 1:
            return self
        if self._last is None:
            self._last = RunningCosts(self.parts[-1], learns=self.learns)
        return self._last

    def rounds(self, longest: int, batch: int, part: int = 0) -> list[float]:
        """[longest + 1, or more]: seconds of a round in which drafter `part` drafts n = 0 … longest tokens for each of `batch`
        sequences."""
        return self._clock(batch).rounds(part, longest)

    def wants_plain(self, batch: int, gain: float = 1.0) -> bool:
        """Whether a plain round is due, to know what plain decoding costs now; more seldom where drafts are believed to gain much
        (`gain` over plain decoding), as it costs more there and could change less."""
        if not self.learns or self._num_plain.get(batch, 0.0) < _ENOUGH_PLAIN - 0.01:
            return self.learns
        return self._since_plain.get(batch, 0.0) >= self._clock(batch).plain_every * max(1.0, (gain - 1.0) / _CLEAR)

    def saw(self, drafted: Sequence[int], seconds: float, part: int = 0) -> None:
        """A round took `seconds`; `drafted` has one number for each sequence in it, drafter `part` drafted them. Only rounds that
        are all alike teach. Every sequence of a batch tells of the same round."""
        batch, num_drafted = len(drafted), drafted[0]
        plain = not any(drafted)
        self._since_plain[batch] = 0.0 if plain else self._since_plain.get(batch, 0.0) + 1.0 / batch
        if not self.learns or len(set(drafted)) != 1 or seconds <= 0 or num_drafted > LONGEST_GAMMA:
            return
        if plain:
            self._num_plain[batch] = self._num_plain.get(batch, 0.0) + 1.0 / batch
        self._clock(batch).saw(part, num_drafted, seconds, told=batch)

    def tree(self, nodes: int, depth: int, batch: int) -> float:
        """Seconds of a round that drafts a tree: `depth` steps of drafting, all nodes scored."""
        rounds, score = self.rounds(depth, batch), self.measured.score
        more = score(batch * (1 + nodes)) - score(batch * (1 + depth))
        return (rounds[depth] + more * rounds[0] / self.measured.round(0, batch)) * self._trees_dearer

    def saw_tree(self, nodes: int, depth: int, seconds: float) -> None:
        """A round of one sequence that drafted a tree took `seconds`."""
        self._since_plain[1] = self._since_plain.get(1, 0.0) + 1.0
        if self.learns and seconds > 0:
            self._num_trees += 1
            ratio = min(2.0, max(0.5, seconds / self.tree(nodes, depth, 1)))
            self._trees_dearer *= ratio ** (1.0 / min(self._num_trees + 1, 15))

    def _clock(self, batch: int) -> _Clock:
        if batch not in self._clocks:
            self._clocks[batch] = _Clock(self.parts, batch)
        return self._clocks[batch]


class _Clock:
    """The filter, for one batch size. State: slowness, then for each drafter and length the error of its cost beside a plain
    round's, all as logarithms."""

    def __init__(self, parts: Sequence[RoundCosts], batch: int) -> None:
        self._parts, self._batch = parts, batch
        self._predicted = [self._curve(part, LONGEST_GAMMA) for part in range(len(parts))]
        self._plain = parts[-1].round(0, batch)
        more = np.array([np.abs(np.log(seconds[1:] / seconds[0])) for seconds in self._predicted])  # [parts, lengths]
        unsure = (_UNSURE + _UNSURE_OF_MORE * more).ravel()
        lengths, who = np.tile(np.arange(LONGEST_GAMMA), len(parts)), np.repeat(np.arange(len(parts)), LONGEST_GAMMA)
        alike = _ALIKE ** np.abs(lengths[:, None] - lengths) * np.where(who[:, None] == who, 1.0, _ALIKE_PARTS)
        self._covariance = np.zeros((1 + unsure.size, 1 + unsure.size))
        self._covariance[1:, 1:] = unsure[:, None] * unsure * alike
        self._alike = alike
        self._state = np.zeros(1 + unsure.size)
        self._begun = False
        self._odd = 0  # reports in a row that were outliers
        self.plain_every = _PLAIN_EVERY
        self._known: dict[int, list[float]] = {}  # part → seconds by length, until the next round is timed

    def rounds(self, part: int, longest: int) -> list[float]:
        """[longest + 1, or more] seconds by draft length."""
        known = self._known.get(part, [])
        if len(known) <= longest:
            known = self._known[part] = self._rounds(part, longest)
        return known

    def saw(self, part: int, num_drafted: int, seconds: float, *, told: int) -> None:
        """One round of a kind, of which `told` reports come."""
        self._known.clear()
        covariance, state = self._covariance, self._state
        place = 0 if num_drafted == 0 else part * LONGEST_GAMMA + num_drafted
        beside = self._predicted[part][num_drafted] / self._predicted[part][0] * self._plain
        surprise = math.log(seconds / beside) - float(state[0]) - (float(state[place]) if place else 0.0)
        if not self._begun:  # costs may be from another day: the machine is as slow as it is
            self._begun = True
            state[0] += surprise
            covariance[0, 0] = _NOISE**2
            return
        covariance[0, 0] += _WANDERS**2 / told
        if place:
            covariance[place, place] += _AGES**2 / told
        shared = covariance[0] + covariance[place] if place else covariance[0].copy()
        variance = float(shared[0] + (shared[place] if place else 0.0)) + told * _NOISE**2
        most = _OUTLIER * variance**0.5
        state += shared * (max(-most, min(most, surprise)) / variance)
        covariance -= shared[:, None] * (shared / variance)
        self._odd = self._odd + 1 if abs(surprise) > most else 0
        if self._odd > 0:  # a slow moment, most likely
            covariance[0, 0] += _JUMP**2 / told
        if self._odd > told and place:  # costs are wrong, or a slow minute has begun; plain rounds will tell
            wrong = self._alike[place - 1] * (abs(surprise) - most)
            covariance[1:, 1:] += np.outer(wrong, wrong) / told
        if place:
            unsure = float(covariance[place, place]) / _SURE**2
            self.plain_every = max(_LEAST_PLAIN_EVERY, round(_PLAIN_EVERY / max(1.0, unsure)))

    def _rounds(self, part: int, longest: int) -> list[float]:
        predicted = self._predicted[part]
        errors = self._state[1 + part * LONGEST_GAMMA : 1 + (part + 1) * LONGEST_GAMMA]
        if longest > LONGEST_GAMMA:
            predicted = self._curve(part, longest)
            errors = np.append(errors, np.full(longest - LONGEST_GAMMA, errors[-1]))
        slowness = math.exp(self._state[0]) * self._plain / predicted[0]
        seconds = predicted * slowness
        # Whatever the clock said, a round that drafts and scores more is no cheaper than a plain one.
        seconds[1:] = np.maximum(seconds[1:] * np.exp(errors), min(seconds[0], float(seconds[1:].min())))
        found: list[float] = seconds.tolist()
        return found

    def _curve(self, part: int, longest: int) -> FloatArray:
        return np.array([self._parts[part].round(n, self._batch) for n in range(longest + 1)])
