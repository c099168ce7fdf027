"""`gamma="auto"`: the length of each draft, or none, from running estimates and the cost of a round; `tree="auto"`: its shape.

Of all lengths n the one with the most expected tokens a second wins, (1 + Σ_{j≤n} P(accepted ≥ j)) / cost(n); none where
plain decoding, 1/cost(0), does better. Trees are those of Sequoia's dynamic programme for the acceptances seen so far, and are
taken where they are expected to beat every chain. All of it is fixed before anything is drawn, from rounds that are over: a
stopping time, so the law of the text is the target's (under `coupled` the text itself does not change). Off means off: the
drafter is not called.

What drafting may lose is bounded, whatever is kept: a round is drafted only where the worst that can come of it is still in an
account, which begins with the time of a few plain rounds, or with what the text before gained, and grows a little with each
round, and by what drafts gain. It does not know models or rules, and takes costs as they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, final

from headstart.errors import OptionError
from headstart.records import LONGEST_GAMMA, Round
from headstart.schedule.curve import break_even
from headstart.schedule.running import PastAcceptance, RunningAcceptance, RunningCosts
from headstart.schedule.trees import TreeChoice, judged_children
from headstart.shapes import Shape

__all__ = ["AdaptiveSchedule", "ScheduleReport"]

_HOPED = 0.9  # the acceptance that decides whether a drafter is worth its reading of the prompt
_STALE = 0.5  # what earlier rounds still count when drafting is tried again
_PAYS = 0.97  # the expected gain from which rounds are drafted: a little under 1, as the account bounds what an error costs
_TREE = 1.02  # how much better than the best chain, and than none, a tree must be expected to be
_COULD_PAY = 1.05  # the same with every drafted token kept: costs are measured with an error, too
_SHARE_OF_TEXT = 0.01  # the account's first size for each token of room …
_LEAST_ACCOUNT = 0.5  # … but so many plain rounds for the shortest texts
_MOST_SAVED = 12.0  # plain rounds: what drafts gain beyond it is not lost again, should they stop paying
_SHARE_CARRIED = 0.03  # of the next text's room: what it may lose of the gains of the text before
_NEVER = 10**9  # rounds of pause


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
    """Chooses how many tokens, or which tree, the next round of one sequence may draft."""

    def __init__(
        self,
        costs: RunningCosts,
        *,
        drafter: str = "the drafter",
        num_prompt: int = 0,  # tokens the drafter would have to read before its first draft
        longest: int = LONGEST_GAMMA,
        counts: bool = False,  # learn from what was kept, not from overlaps: for rules that are lossy
        walks: bool = False,  # the rule walks: it keeps a token less often than the rows overlap, by a share that is learnt
        trees: TreeChoice | None = None,  # chooses among trees too
        past: PastAcceptance | None = None,  # what texts before this one showed; it is told of this one
        tries_cost: float = 0.007,  # of a plain round: what the account grows by with each round
        most_lost: float = 2.5,  # plain rounds: the account of a long text at its beginning
        shortest_pause: int = 4,  # plain rounds between two tries
    ) -> None:
        if longest < 1:
            raise OptionError(f"`longest` must be 1 or more, got {longest}")
        self._costs, self._drafter, self._num_prompt = costs, drafter, num_prompt
        self._longest, self._counts, self._walks = longest, counts, walks
        self._past = PastAcceptance() if past is None else past
        self._tries_cost, self._most_lost, self._shortest_pause = tries_cost, most_lost, shortest_pause
        self._tree_choice = trees
        self._accepted = RunningAcceptance(
            longest,
            guess=self._past.guess,
            weight=self._past.weight,
            ranks=1 if trees is None else trees.most_ranks,
        )
        self._account: float | None = None  # plain rounds that drafting may still lose; None: not asked yet
        self._gained = 0.0  # plain rounds: what drafts have gained here, and what was brought along
        self._opened = False
        self._off = False  # drafting did not pay when last looked at
        self._pause = 0  # plain rounds left before it is tried again
        self._missed = 0  # tokens of plain rounds since it last drafted, which the drafter has not read
        self._shape: Shape | None = None  # of the round under way, where it is a tree
        self._asked = False  # the drafter was called for the round under way
        self._rounds_drafted = self._rounds_plain = 0

    def length(self, room: int, batch: int) -> int:
        """Tokens to draft in the next round, or depths of its tree, at most `room`; 0: a plain round."""
        self._shape = None
        wanted = 0 if self._pause > 0 else self._wanted(room, batch)
        self._asked = wanted > 0
        return wanted

    def tree(self) -> Shape | None:
        """The tree to draft in the round that `length` was last asked for; None: a chain."""
        return self._shape

    def saw(self, done: Round, *, drafted: Sequence[int], seconds: float) -> None:
        """A round of this sequence is over. `drafted`: what each sequence of the pass drafted; `seconds`: what it took."""
        batch = len(drafted)
        if not (self._missed and done.draft):  # having caught up, the drafter took longer than it usually does
            self._learn_costs(drafted, seconds)
        grown = (self._account or 0.0) + self._tries_cost
        if not done.draft:
            self._rounds_plain += 1
            self._pause = max(0, self._pause - 1)
            self._missed += 1
            if self._asked:  # it had nothing to offer, and looking has its price too
                looked = self._costs.measured.draft(1) / self._costs.measured.plain
                grown -= looked
                if self._off:
                    self._pause = max(self._shortest_pause, ceil(looked / self._tries_cost))
            self._account = min(_MOST_SAVED, grown)
            return
        costs = self._costs.rounds(self._longest, batch)
        lost = (
            self._seconds(len(done.draft), costs, batch) / costs[0] + self._missed * self._catching_up() - done.num_accepted - 1
        )
        self._account = min(_MOST_SAVED, grown - lost)
        self._gained = min(_MOST_SAVED, self._gained - lost)
        self._past.saved = max(0.0, self._gained)
        self._rounds_drafted += 1
        self._opened = True
        if self._off:
            self._accepted.fade(_STALE)
        self._missed = 0
        self._learn_acceptance(done)
        if self._gain(costs, self._best(costs, self._longest)) > _PAYS:
            self._off = False
        elif self._off and done.rejected:
            self._accepted.doubt()
            self._rest(costs)

    def report(self) -> ScheduleReport:
        """What was done so far, and why; for one sequence alone."""
        seconds = self._costs.rounds(self._longest, 1)
        best = self._best(seconds, self._longest)
        gain, most = self._gain(seconds, best), _most(seconds)
        if most <= 1.0:
            why = f"{self._drafter} cannot pay here, even if every drafted token were kept"
        elif most <= _COULD_PAY:
            why = f"{self._drafter} could give {most:.2f}× at most, were every drafted token kept"
        elif not self._opened:
            why = f"{self._drafter} pays here from an acceptance rate of {break_even(seconds) or 0.0:.2f}; not tried yet"
        elif self._off and gain > _PAYS:
            why = f"{self._drafter} was kept too seldom so far; it is tried again now and then"
        elif gain > _PAYS:
            why = f"{self._drafter} is expected to give {gain:.2f}× with {best} drafted token{'s' if best > 1 else ''} a round"
        else:
            why = f"{self._drafter} is expected to give {gain:.2f}× at best"
        return ScheduleReport(
            active=most > _COULD_PAY and gain > _PAYS and not self._off,
            why=why,
            rounds_drafted=self._rounds_drafted,
            rounds_plain=self._rounds_plain,
            plain_seconds=seconds[0],
        )

    def _wanted(self, room: int, batch: int) -> int:
        most = min(room, self._longest)
        if most < 1:
            return 0
        if self._account is None:
            self._gained = min(self._past.saved, _SHARE_CARRIED * room)
            self._account = max(self._gained, min(self._most_lost, max(_LEAST_ACCOUNT, _SHARE_OF_TEXT * room)))
        seconds = self._costs.rounds(self._longest, batch)
        if not self._may_pay(seconds, room) or self._costs.wants_plain(batch):
            return 0
        best = self._best(seconds, most)
        gain = self._gain(seconds, best)
        tree = self._tree_choice.best(self._accepted, seconds, batch, self._rounds_drafted) if self._tree_choice else None
        if tree is not None and tree.shape.depth <= most and tree.gain > _TREE * max(1.0, gain) and self._affords(tree.cost):
            self._shape = tree.shape
            return tree.shape.depth
        if gain <= _PAYS and not self._off:
            self._off = True
            self._rest(seconds)
            return 0
        while best > 0 and not self._affords(seconds[best] / seconds[0]):
            best -= 1
        if best == 0:
            self._wait_for(seconds)
        return best

    def _affords(self, cost: float) -> bool:
        """Whether a round that costs `cost` plain ones, and of which nothing is kept, is in the account."""
        assert self._account is not None
        return cost - 1.0 + self._missed * self._catching_up() <= self._account

    def _catching_up(self) -> float:
        """Plain rounds that the drafter takes to read a token it has missed."""
        return self._costs.measured.open_per_token / self._costs.measured.plain

    def _may_pay(self, seconds: list[float], room: int) -> bool:
        """Whether drafting can be worth it at all: never where it gains next to nothing with every token kept, and not where the
        drafter would first read the prompt for longer than it could then save."""
        if _most(seconds) <= _COULD_PAY:
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

    def _rest(self, seconds: list[float]) -> None:
        """Pause until trying again costs little of the time gone by; sooner where what the drafter misses would make it dear."""
        lost, reading = seconds[1] / seconds[0] - 1.0, self._catching_up()
        pause = ceil(lost / self._tries_cost)
        if reading > 0 and self._account is not None:
            pause = min(pause, int((self._account - lost) / (2 * reading)))
        self._pause = max(self._shortest_pause, pause)

    def _wait_for(self, seconds: list[float]) -> None:
        """Pause until the account holds a try; for good where what the drafter misses meanwhile costs more than comes in."""
        assert self._account is not None
        self._off = True
        comes_in = self._tries_cost - self._catching_up()
        lacking = seconds[1] / seconds[0] - 1.0 + self._missed * self._catching_up() - self._account
        self._pause = max(self._shortest_pause, ceil(lacking / comes_in)) if comes_in > 0 else _NEVER

    def _seconds(self, num_drafted: int, costs: list[float], batch: int) -> float:
        if self._shape is not None:
            return self._costs.tree(num_drafted, self._shape.depth, batch)
        return costs[min(num_drafted, len(costs) - 1)]

    def _learn_costs(self, drafted: Sequence[int], seconds: float) -> None:
        if self._shape is not None and len(drafted) == 1 and drafted[0]:
            self._costs.saw_tree(drafted[0], self._shape.depth, seconds)
        elif self._tree_choice is None or len(drafted) == 1 or not any(drafted):
            self._costs.saw(drafted, seconds)

    def _learn_acceptance(self, done: Round) -> None:
        if done.parents is not None:
            judged = judged_children(done)
            self._accepted.saw_children(judged)
            shares = [float(kept is not None) for _, kept in judged]
        else:
            shares = self._shares(done)
            self._accepted.saw(shares, whole=done.num_accepted == len(done.draft))
        self._past.saw(shares)

    def _shares(self, done: Round) -> list[float]:
        judged = min(done.num_accepted + 1, len(done.draft))
        kept, overlaps = [place < done.num_accepted for place in range(judged)], done.overlaps[:judged]
        if self._counts or len(overlaps) < judged:
            return [float(each) for each in kept]
        if not self._walks:
            return list(overlaps)
        self._past.saw_walk(kept, overlaps)
        return [self._past.kept_of_overlap * overlap for overlap in overlaps]


def _most(seconds: list[float]) -> float:
    """The gain over plain decoding if everything were kept, with the best of the lengths."""
    return max((1 + n) * seconds[0] / seconds[n] for n in range(1, len(seconds)))
