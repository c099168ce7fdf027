"""`gamma="auto"`: the length of each draft, or none, from running estimates and the cost of a round; `tree="auto"`: its shape.

Where several drafters stand in a row, each gets a length of its own: a look-up that found a long match may draft seven tokens
where the head behind it may draft two (`part` has how a length is chosen). Trees are those of Sequoia's dynamic programme for the
acceptances seen so far, and are taken where they are expected to beat every chain. All of it is fixed before anything is drawn,
from rounds that are over: a stopping time, so the law of the text is the target's (under `coupled` the text itself does not
change). Off means off: the drafter is not called.

What drafting may lose is bounded, whatever is kept: a round is drafted only where the worst that can come of it is still in an
account, which begins with the time of a few plain rounds, or with what the text before gained, and grows a little with each
round, and by what drafts gain. It does not know models or rules, and takes costs as they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from headstart.errors import OptionError
from headstart.records import LONGEST_GAMMA, Round
from headstart.schedule.clock import RunningCosts
from headstart.schedule.part import Account, Part
from headstart.schedule.running import PastAcceptance
from headstart.schedule.trees import TreeChoice
from headstart.shapes import Shape

__all__ = ["AdaptiveSchedule", "ScheduleReport"]


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
        names: Sequence[str] = ("the drafter",),  # of the drafters that `costs` has parts for
        num_prompt: int = 0,  # tokens a drafter would have to read before its first draft
        longest: int | Sequence[int] = LONGEST_GAMMA,  # of a draft; one number holds for all drafters
        counts: bool = False,  # learn from what was kept, not from overlaps: for rules that are lossy
        walks: bool = False,  # the rule walks: it keeps a token less often than the rows overlap, by a share that is learnt
        trees: TreeChoice | None = None,  # chooses among trees too; for one drafter
        pasts: Sequence[PastAcceptance] | None = None,  # what texts before showed of each drafter; they are told of this one
        tries_cost: float = 0.007,  # of a plain round: what the account grows by with each round
        most_lost: float = 2.5,  # plain rounds: the account of a long text at its beginning
        shortest_pause: int = 4,  # plain rounds between two tries
    ) -> None:
        most = [longest] * len(names) if isinstance(longest, int) else longest
        if min(most) < 1:
            raise OptionError(f"`longest` must be 1 or more, got {min(most)}")
        if len(names) != len(costs.parts) or (trees is not None and len(names) > 1):
            raise OptionError(f"`names` must name the {len(costs.parts)} drafters with costs, one with trees, got {len(names)}")
        known = [PastAcceptance() for _ in names] if pasts is None else pasts
        self._costs = costs
        self._account = Account(known[0], tries_cost=tries_cost, most_lost=most_lost)
        self._parts = [
            Part(
                costs,
                index,
                self._account,
                past,
                name=name,
                num_prompt=num_prompt,
                longest=own_longest,
                counts=counts,
                walks=walks,
                trees=trees,
                shortest_pause=shortest_pause,
            )
            for index, (name, past, own_longest) in enumerate(zip(names, known, most, strict=True))
        ]
        self._limits: tuple[int, ...] = (0,) * len(names)  # of the round under way
        self._rounds_plain = 0

    def length(self, room: int, batch: int) -> int:
        """Tokens to draft in the next round, or depths of its tree, at most `room`; 0: a plain round."""
        if room > 0:
            self._account.begin(room)
        if self._costs.wants_plain(batch, max(part.gain for part in self._parts)):
            room = 0
        self._limits = tuple(part.wanted(room, batch) for part in self._parts)
        return max(self._limits)

    def limits(self) -> Sequence[int]:
        """The same for each drafter, in order; 0: it is not asked."""
        return self._limits

    def tree(self) -> Shape | None:
        """The tree to draft in the round that `length` was last asked for; None: a chain."""
        return self._parts[-1].shape

    def saw(self, done: Round, *, drafted: Sequence[int], seconds: float) -> None:
        """A round of this sequence is over. `drafted`: what each sequence of the pass drafted; `seconds`: what it took."""
        if done.draft:
            whose = self._parts[min(done.part, len(self._parts) - 1)]  # with trees, drafters in a row are one
            for part in self._parts:
                if part is not whose:
                    part.was_another(done)
            self._account.drafted(whose.drafted(done, list(drafted), seconds))
            return
        self._rounds_plain += 1
        self._costs.saw(drafted, seconds)
        self._account.looked(sum(part.looking_cost for part in self._parts if part.asked))
        for part in self._parts:
            part.was_plain()

    def report(self) -> ScheduleReport:
        """What was done so far, and why; for one sequence alone."""
        outlooks = [part.outlook() for part in self._parts]
        return ScheduleReport(
            active=any(outlook.active for outlook in outlooks),
            why="; ".join(outlook.why for outlook in outlooks),
            rounds_drafted=sum(part.rounds_drafted for part in self._parts),
            rounds_plain=self._rounds_plain,
            plain_seconds=self._parts[-1].seconds(1)[0],
        )
