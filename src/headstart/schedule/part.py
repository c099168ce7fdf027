"""One drafter's part in a schedule: how far it is believed to be kept, what its rounds cost, and when it is tried.

Of all lengths n the one with the most expected tokens a second wins, (1 + Σ_{j≤n} P(accepted ≥ j)) / cost(n); none where plain
decoding, 1/cost(0), does better. It does not know other drafters; what drafting may lose is an account that all share.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from headstart.records import Round
from headstart.schedule.clock import RunningCosts
from headstart.schedule.curve import break_even
from headstart.schedule.running import PastAcceptance, RunningAcceptance
from headstart.schedule.trees import TreeChoice, judged_children
from headstart.shapes import Shape

__all__ = ["Account", "Part"]

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


class Account:
    """Plain rounds that drafting may still lose in one text: a few at first, or some of what the text before gained; with each
    round a little more, and what drafts gain."""

    def __init__(self, past: PastAcceptance, *, tries_cost: float, most_lost: float) -> None:
        """It grows by `tries_cost` with each round; `most_lost`: its first size in a long text. `past` is told of the gains."""
        self._past, self.tries_cost, self._most_lost = past, tries_cost, most_lost
        self.left = 0.0
        self._gained = 0.0  # plain rounds: what drafts have gained here, and what was brought along
        self._open = False

    def begin(self, room: int) -> None:
        """Fill it for a text with `room` more tokens; once."""
        if not self._open:
            self._open = True
            self._gained = min(self._past.saved, _SHARE_CARRIED * room)
            self.left = max(self._gained, min(self._most_lost, max(_LEAST_ACCOUNT, _SHARE_OF_TEXT * room)))

    def looked(self, cost: float) -> None:
        """A plain round is over, in which looking for drafts cost `cost`."""
        self.left = min(_MOST_SAVED, self.left + self.tries_cost - cost)

    def drafted(self, lost: float) -> None:
        """A round with a draft is over that cost `lost` more plain rounds than it emitted tokens."""
        self.left = min(_MOST_SAVED, self.left + self.tries_cost - lost)
        self._gained = min(_MOST_SAVED, self._gained - lost)
        self._past.saved = max(0.0, self._gained)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a drafter is expected to give, and why."""

    active: bool
    why: str


class Part:
    """Chooses how many tokens, or which tree, one drafter may draft in the next round of one sequence."""

    def __init__(
        self,
        costs: RunningCosts,
        index: int,  # which of the drafters `costs` knows
        account: Account,
        past: PastAcceptance,  # what texts before this one showed; it is told of this one
        *,
        name: str,
        num_prompt: int,  # tokens the drafter would have to read before its first draft
        longest: int,
        counts: bool,  # learn from what was kept, not from overlaps: for rules that are lossy
        walks: bool,  # the rule walks: it keeps a token less often than the rows overlap, by a share that is learnt
        trees: TreeChoice | None,
        shortest_pause: int,  # plain rounds between two tries
    ) -> None:
        self._costs, self._index, self._account, self._past = costs, index, account, past
        self.name, self._num_prompt, self._longest = name, num_prompt, longest
        self._counts, self._walks, self._tree_choice, self._shortest_pause = counts, walks, trees, shortest_pause
        measured = costs.parts[index]
        self.looking_cost = measured.draft(1) / measured.plain  # plain rounds that asking takes where there is nothing to offer
        self._hoped = list(accumulate(_HOPED**n for n in range(longest + 1)))  # tokens of a round, by length
        self._open_per_token = measured.open_per_token
        self._reading = measured.open_per_token / measured.plain  # plain rounds that reading a token takes which it has missed
        self.accepted = RunningAcceptance(
            longest, guess=past.guess, weight=past.weight, ranks=1 if trees is None else trees.most_ranks
        )
        self.shape: Shape | None = None  # of the round under way, where it is a tree
        self.asked = False  # it may draft in the round under way
        self.rounds_drafted = 0
        self.gain = 1.0  # over plain decoding, when last asked
        self._off = False  # drafting did not pay when last looked at
        self._pause = 0  # rounds left before it is tried again
        self._missed = 0  # tokens emitted since it last drafted, which it has not read

    def seconds(self, batch: int) -> list[float]:
        """Seconds of a round by the length of its draft."""
        return self._costs.rounds(self._longest, batch, self._index)

    def wanted(self, room: int, batch: int) -> int:
        """Tokens to draft in the next round, or depths of its tree `shape`, at most `room`; 0: it is not asked."""
        self.shape = None
        length = 0 if self._pause > 0 else self._length(room, batch)
        self.asked = length > 0
        return length

    def was_plain(self) -> None:
        """Nothing was drafted."""
        self._pass_by(1)
        if self.asked and self._off:  # it had nothing to offer, and looking has its price too
            self._pause = max(self._shortest_pause, ceil(self.looking_cost / self._account.tries_cost))

    def was_another(self, done: Round) -> None:
        """Another drafter drafted."""
        self._pass_by(len(done.emitted))

    def drafted(self, done: Round, drafted: list[int], seconds: float) -> float:
        """Its draft was judged. Returns what the round cost beyond the tokens it gave, in plain rounds."""
        batch, costs = len(drafted), self.seconds(len(drafted))
        catching_up = self._missed * self._reading
        expected = self._expected(len(done.draft), costs, batch)
        if catching_up < 0.02:  # else it took longer than it usually does
            self._learn_costs(drafted, seconds)
        self.rounds_drafted += 1
        if self._off:
            self.accepted.fade(_STALE)
        self._missed = 0
        self._learn_acceptance(done)
        if self._gain(costs, self._best(costs, self._longest)) > _PAYS:
            self._off = False
        elif self._off and done.rejected:
            self.accepted.doubt()
            self._rest(costs)
        return expected / costs[0] + catching_up - done.num_accepted - 1

    def outlook(self) -> Outlook:
        """What is expected of it, in a sequence that is alone."""
        seconds = self.seconds(1)
        best = self._best(seconds, self._longest)
        gain, most = self._gain(seconds, best), _most(seconds)
        if most <= 1.0:
            why = f"{self.name} cannot pay here, even if every drafted token were kept"
        elif most <= _COULD_PAY:
            why = f"{self.name} could give {most:.2f}× at most, were every drafted token kept"
        elif not self.rounds_drafted:
            why = f"{self.name} pays here from an acceptance rate of {break_even(seconds) or 0.0:.2f}; not tried yet"
        elif self._off and gain > _PAYS:
            why = f"{self.name} was kept too seldom so far; it is tried again now and then"
        elif gain > _PAYS:
            why = f"{self.name} is expected to give {gain:.2f}× with {best} drafted token{'s' if best > 1 else ''} a round"
        else:
            why = f"{self.name} is expected to give {gain:.2f}× at best"
        return Outlook(active=most > _COULD_PAY and gain > _PAYS and not self._off, why=why)

    def _pass_by(self, num_emitted: int) -> None:
        self._pause = max(0, self._pause - 1)
        self._missed += num_emitted

    def _length(self, room: int, batch: int) -> int:
        most = min(room, self._longest)
        seconds = self.seconds(batch)
        if most < 1 or not self._may_pay(seconds, room):
            return 0
        best = self._best(seconds, most)
        gain = self.gain = self._gain(seconds, best)
        tree = self._tree_choice.best(self.accepted, seconds, batch, self.rounds_drafted) if self._tree_choice else None
        if tree is not None and tree.shape.depth <= most and tree.gain > _TREE * max(1.0, gain) and self._affords(tree.cost):
            self.shape = tree.shape
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
        return cost - 1.0 + self._missed * self._reading <= self._account.left

    def _may_pay(self, seconds: list[float], room: int) -> bool:
        """Whether drafting can be worth it at all: never where it gains next to nothing with every token kept, and not where the
        drafter would first read the prompt for longer than it could then save."""
        if _most(seconds) <= _COULD_PAY:
            return False
        if self.rounds_drafted:
            return True
        most = min(room, self._longest)
        gain = max(self._hoped[n] * seconds[0] / seconds[n] for n in range(1, most + 1))
        return room * seconds[0] * (1.0 - 1.0 / gain) > self._open_per_token * self._num_prompt

    def _best(self, seconds: list[float], most: int) -> int:
        """The length from 1 to `most` with the most expected tokens a second; ties go to the shorter."""
        best, rate, expected = 1, 0.0, 1.0
        for n, chance in enumerate(self.accepted.chances()[:most], start=1):
            expected += chance
            if expected / seconds[n] > rate * (1 + 1e-12):
                best, rate = n, expected / seconds[n]
        return best

    def _gain(self, seconds: list[float], num_drafted: int) -> float:
        """Expected speed with drafts of `num_drafted` tokens over plain decoding's."""
        return (1.0 + sum(self.accepted.chances()[:num_drafted])) * seconds[0] / seconds[num_drafted]

    def _rest(self, seconds: list[float]) -> None:
        """Pause until trying again costs little of the time gone by; sooner where what the drafter misses would make it dear."""
        lost, reading = seconds[1] / seconds[0] - 1.0, self._reading
        pause = ceil(lost / self._account.tries_cost)
        if reading > 0:
            pause = min(pause, int((self._account.left - lost) / (2 * reading)))
        self._pause = max(self._shortest_pause, pause)

    def _wait_for(self, seconds: list[float]) -> None:
        """Pause until the account holds a try; for good where what the drafter misses meanwhile costs more than comes in."""
        self._off = True
        comes_in = self._account.tries_cost - self._reading
        lacking = seconds[1] / seconds[0] - 1.0 + self._missed * self._reading - self._account.left
        self._pause = max(self._shortest_pause, ceil(lacking / comes_in)) if comes_in > 0 else _NEVER

    def _expected(self, num_drafted: int, costs: list[float], batch: int) -> float:
        if self.shape is not None:
            return self._costs.tree(num_drafted, self.shape.depth, batch)
        return costs[min(num_drafted, len(costs) - 1)]

    def _learn_costs(self, drafted: list[int], seconds: float) -> None:
        if self.shape is not None and len(drafted) == 1:
            self._costs.saw_tree(drafted[0], self.shape.depth, seconds)
        elif self._tree_choice is None or len(drafted) == 1:
            self._costs.saw(drafted, seconds, self._index)

    def _learn_acceptance(self, done: Round) -> None:
        if done.parents is not None:
            judged = judged_children(done)
            self.accepted.saw_children(judged)
            shares = [float(kept is not None) for _, kept in judged]
        else:
            shares = self._shares(done)
            self.accepted.saw(shares, whole=done.num_accepted == len(done.draft))
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
