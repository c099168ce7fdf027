"""`gamma="auto"`: the length of each draft, or none, from running estimates and the cost of a round.

Of all lengths n the one with the most expected tokens a second wins, (1 + Σ_{j≤n} P(accepted ≥ j)) / cost(n); none where
plain decoding, 1/cost(0), does better. The length is fixed before anything is drawn, from rounds that are over: a stopping
time, so the law of the text is the target's (under `coupled` the text itself does not change). Off means off: the drafter is
not called. While off it is tried again so rarely that failed tries cost about one part in a hundred.

It does not know models or rules, and takes costs as they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, final

from headstart.errors import OptionError
from headstart.records import LONGEST_GAMMA, Round
from headstart.schedule.curve import break_even
from headstart.schedule.running import RunningAcceptance, RunningCosts

__all__ = ["AdaptiveSchedule", "ScheduleReport"]

_HOPED = 0.9  # the acceptance that decides whether a drafter is worth its reading of the prompt
_STALE = 0.5  # what earlier rounds still count when drafting is tried again


@dataclass(frozen=True, kw_only=True)
class ScheduleReport:
    """What a schedule did with one sequence."""

    active: bool  # whether the last round drafted, or would have
    why: str
    rounds_drafted: int
    rounds_plain: int
    plain_seconds: float  # of a plain round here, by the costs as they stand

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "active": self.active,
            "why": self.why,
            "rounds_drafted": self.rounds_drafted,
            "rounds_plain": self.rounds_plain,
            "plain_seconds": self.plain_seconds,
        }


@final
class AdaptiveSchedule:
    """Chooses how many tokens the next round of one sequence may draft."""

    def __init__(
        self,
        costs: RunningCosts,
        *,
        drafter: str = "the drafter",
        num_prompt: int = 0,  # tokens the drafter would have to read before its first draft
        longest: int = LONGEST_GAMMA,
        counts: bool = False,  # learn from what was kept, not from overlaps: for rules that walk
        tries_cost: float = 0.01,  # of the time spent off, the share that trying again may cost
        shortest_pause: int = 4,  # plain rounds between two tries
    ) -> None:
        if longest < 1:
            raise OptionError(f"`longest` must be 1 or more, got {longest}")
        self._costs, self._drafter, self._num_prompt = costs, drafter, num_prompt
        self._longest, self._counts = longest, counts
        self._tries_cost, self._shortest_pause = tries_cost, shortest_pause
        self._accepted = RunningAcceptance(longest)
        self._opened = False
        self._off = False  # drafting did not pay when last looked at
        self._pause = 0  # plain rounds left before it is tried again
        self._asked = False  # the drafter was called for the round under way
        self._rounds_drafted = self._rounds_plain = 0

    def length(self, room: int, batch: int) -> int:
        """Tokens to draft in the next round, at most `room`; 0: a plain round."""
        wanted = self._wanted(room, batch)
        self._asked = wanted > 0
        return wanted

    def saw(self, done: Round, *, drafted: Sequence[int], seconds: float) -> None:
        """A round of this sequence is over. `drafted`: what each sequence of the pass drafted; `seconds`: what it took."""
        resumed = self._off and bool(done.draft)  # the drafter had to catch up: not a usual round
        if not resumed:
            self._costs.saw(drafted, seconds)
        if not done.draft:
            self._rounds_plain += 1
            self._pause = max(0, self._pause - 1)
            if self._off and self._asked:  # it had nothing to offer, and looking has its price too
                looked = self._costs.measured.draft(1) / self._costs.measured.plain
                self._pause = max(self._shortest_pause, ceil(looked / self._tries_cost))
            return
        self._rounds_drafted += 1
        self._opened = True
        if resumed:
            self._accepted.fade(_STALE)
        self._accepted.saw(self._shares(done))
        costs = self._costs.rounds(self._longest, len(drafted))
        if self._gain(costs, self._best(costs, self._longest)) > 1.0:
            self._off = False
        elif self._off and done.rejected:
            self._rest(seconds if self._costs.learns else 0.0, costs, len(done.draft), done.num_accepted + 1)

    def report(self) -> ScheduleReport:
        """What was done so far, and why; for one sequence alone."""
        seconds = self._costs.rounds(self._longest, 1)
        best = self._best(seconds, self._longest)
        gain = self._gain(seconds, best)
        if not _can_pay(seconds):
            why = f"{self._drafter} cannot pay here, even if every drafted token were kept"
        elif not self._opened:
            why = f"{self._drafter} pays here from an acceptance rate of {break_even(seconds) or 0.0:.2f}; not tried yet"
        elif gain > 1.0:
            why = f"{self._drafter} is expected to give {gain:.2f}× with {best} drafted token{'s' if best > 1 else ''} a round"
        else:
            why = f"{self._drafter} is expected to give {gain:.2f}× at best"
        return ScheduleReport(
            active=_can_pay(seconds) and gain > 1.0,
            why=why,
            rounds_drafted=self._rounds_drafted,
            rounds_plain=self._rounds_plain,
            plain_seconds=seconds[0],
        )

    def _wanted(self, room: int, batch: int) -> int:
        most = min(room, self._longest)
        if most < 1:
            return 0
        seconds = self._costs.rounds(self._longest, batch)
        if not self._may_pay(seconds, room) or self._costs.wants_plain(batch):
            return 0
        best = self._best(seconds, most)
        if self._gain(seconds, best) > 1.0:
            return best
        return best if self._off and self._pause == 0 else self._turned_off(seconds, best)

    def _may_pay(self, seconds: list[float], room: int) -> bool:
        """Whether drafting can be worth it at all: never where it loses with every token kept, and not where the drafter would
        first read the prompt for longer than it could then save."""
        if not _can_pay(seconds):
            return False
        if self._opened:
            return True
        most = min(room, self._longest)
        gain = max(sum(_HOPED**j for j in range(n + 1)) * seconds[0] / seconds[n] for n in range(1, most + 1))
        return room * seconds[0] * (1.0 - 1.0 / gain) > self._costs.measured.open_per_token * self._num_prompt

    def _best(self, seconds: list[float], most: int) -> int:
        """The length from 1 to `most` with the most expected tokens a second; ties go to the shorter."""
        best, rate, expected = 1, 0.0, 1.0
        for n, chance in enumerate(self._accepted.chances()[:most], start=1):
            expected += chance
            if expected / seconds[n] > rate * (1 + 1e-12):
                best, rate = n, expected / seconds[n]
        return best

    def _gain(self, seconds: list[float], num_drafted: int) -> float:
        """Expected speed with drafts of `num_drafted` tokens over plain decoding's."""
        return (1.0 + sum(self._accepted.chances()[:num_drafted])) * seconds[0] / seconds[num_drafted]

    def _turned_off(self, seconds: list[float], best: int) -> int:
        if not self._off:
            self._off = True
            self._rest(0.0, seconds, best, 1)
        return 0

    def _rest(self, measured: float, seconds: list[float], num_drafted: int, emitted: int) -> None:
        """Pause for as long as makes a try that cost so much cheap."""
        lost = max(measured, seconds[num_drafted]) / seconds[0] - emitted
        self._pause = max(self._shortest_pause, ceil(lost / self._tries_cost))

    def _shares(self, done: Round) -> list[float]:
        judged = min(done.num_accepted + 1, len(done.draft))
        if self._counts or len(done.overlaps) < judged:
            return [1.0] * done.num_accepted + [0.0] * (judged - done.num_accepted)
        return list(done.overlaps[:judged])


def _can_pay(seconds: list[float]) -> bool:
    """Whether some length beats plain decoding if everything is kept."""
    return any((1 + n) * seconds[0] > seconds[n] for n in range(1, len(seconds)))
