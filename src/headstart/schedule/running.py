"""What a generation learns while it runs: how far drafts are kept, and what rounds really cost.

All of it only ever sees rounds that are over. `RunningAcceptance` belongs to one sequence; `RunningCosts` and `PastAcceptance`
to a target with a drafter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from headstart.schedule.curve import RoundCosts

__all__ = ["PastAcceptance", "RunningAcceptance", "RunningCosts"]

_FIRST_GUESS, _FIRST_WEIGHT = 0.6, 10.0
_PAST_WEIGHT = 0.1  # of a position judged in an earlier text: texts differ
_DOUBTED = 0.7
_LEAST_WEIGHT = 1.0
_SPELL_PULL, _SPELL_DECAY = 8.0, 0.95
_LATER_RANKS = 0.25  # the first guess for a second child and on, where those before it were not kept


class PastAcceptance:
    """How often drafts were kept in texts before, and what they gained: what the next text begins with."""

    def __init__(
        self,
        *,
        kept: float = 0.0,
        tried: float = 0.0,
        saved: float = 0.0,
        walked: float = 0.0,
        covered: float = 0.0,
        most: float = 200.0,
    ) -> None:
        """`kept` of `tried` judged positions so far; beyond `most` older ones count less. `saved`: plain rounds that drafts
        gained in the newest text, with what it had brought along. `walked`: how many were kept by a rule that walks, of positions
        whose overlaps add up to `covered`."""
        self.kept, self.tried, self.saved, self._most = kept, tried, saved, most
        self.walked, self.covered = walked, covered

    def saw(self, shares: Sequence[float]) -> None:
        """One judged draft."""
        self.kept, self.tried = self.kept + sum(shares), self.tried + len(shares)
        if self.tried > self._most:
            self.kept, self.tried = self.kept * self._most / self.tried, self._most

    def saw_walk(self, kept: Sequence[bool], overlaps: Sequence[float]) -> None:
        """One draft, judged by a rule that walks."""
        self.walked, self.covered = self.walked + sum(kept), self.covered + sum(overlaps)
        if self.covered > self._most:
            self.walked, self.covered = self.walked * self._most / self.covered, self._most

    @property
    def kept_of_overlap(self) -> float:
        """The share of its overlap with which a token is kept by a rule that walks. Such a rule keeps tokens less often than
        could be: under exponential races with the chance (1 − d)/(1 + d) at the least, d being the total variation."""
        return min(1.0, (_FIRST_WEIGHT + self.walked) / (_FIRST_WEIGHT + self.covered))

    @property
    def guess(self) -> float:
        """The share kept; at first the usual guess, which counts as ten positions."""
        return (_FIRST_WEIGHT * _FIRST_GUESS + self.kept) / (_FIRST_WEIGHT + self.tried)

    @property
    def weight(self) -> float:
        """How many observations of a text the guess counts as: the more, the more it rests on."""
        return _FIRST_WEIGHT + _PAST_WEIGHT * self.tried


class RunningAcceptance:
    """P(kept to j tokens or more), from the rounds so far: a share by position, pulled to the share over all positions, which is
    pulled to a first guess; older rounds count less. With `ranks`, the same for a second child of a node, a third and so on.

    Acceptance comes in spells: a look-up that was right to the end is in text that repeats. So rounds after a draft that was kept
    whole are also counted apart from the others, each kind pulled to all of them."""

    def __init__(
        self,
        longest: int,
        *,
        guess: float = _FIRST_GUESS,
        weight: float = _FIRST_WEIGHT,
        pull: float = 6.0,
        decay: float = 0.97,
        ranks: int = 1,
        spell_pull: float = _SPELL_PULL,
        spell_decay: float = _SPELL_DECAY,
    ) -> None:
        """`guess` counts as `weight` observations of the share over all positions (of later ranks, as one), that share as `pull`
        observations of each position; each further round makes older ones, and the guess, count `decay` times as much. What all
        rounds say of a position counts as `spell_pull` observations among those after whole drafts, and among the others, where
        older ones count `spell_decay` times as much."""
        self._guess, self._weight, self._pull, self._decay = guess, weight, pull, decay
        self._spell_pull, self._spell_decay = spell_pull, spell_decay
        self._whole = False  # whether the last draft was kept to its end
        self._chances: list[float] | None = None  # until something more is learnt
        self._spells = {kind: ([0.0] * longest, [0.0] * longest) for kind in (False, True)}  # tried and kept, after either kind
        # [ranks][longest]: how often a child of this rank was judged, those before it not being kept, and how often kept
        self._tried = [[0.0] * longest for _ in range(ranks)]
        self._kept = [[0.0] * longest for _ in range(ranks)]

    def saw(self, shares: Sequence[float], *, whole: bool = False) -> None:
        """One judged draft: by position that was reached, the chance (or the fact, 0 or 1) that it was kept; and whether the
        whole draft was."""
        self._weight = max(_LEAST_WEIGHT, self._weight * self._decay)
        self.fade(self._decay)
        tried, kept = self._tried[0], self._kept[0]
        spell_tried, spell_kept = self._spells[self._whole]
        for place in range(len(tried)):
            spell_tried[place] *= self._spell_decay
            spell_kept[place] *= self._spell_decay
        for place, share in enumerate(shares[: len(tried)]):
            tried[place] += 1.0
            kept[place] += share
            spell_tried[place] += 1.0
            spell_kept[place] += share
        self._whole = whole

    def saw_children(self, judged: Sequence[tuple[int, int | None]]) -> None:
        """One judged tree: at each node that was reached, how many children it had and the rank of the one kept, if any."""
        self.fade(self._decay)
        for depth, (num_children, kept_rank) in enumerate(judged[: len(self._tried[0])]):
            last = num_children - 1 if kept_rank is None else kept_rank
            for rank in range(min(last + 1, len(self._tried))):
                self._tried[rank][depth] += 1.0
                self._kept[rank][depth] += rank == kept_rank

    def fade(self, factor: float) -> None:
        """Make everything seen so far count `factor` times as much."""
        self._chances = None
        self._tried = [[factor * tried for tried in ranked] for ranked in self._tried]
        self._kept = [[factor * kept for kept in ranked] for ranked in self._kept]

    def doubt(self) -> None:
        """A try after a pause has failed: what was guessed at first is believed less."""
        self._guess *= _DOUBTED
        self._chances = None

    def chances(self) -> list[float]:
        """[longest]: P(accepted ≥ j), j = 1 … longest, for chains."""
        if self._chances is None:
            self._chances = self._believed()
        return self._chances

    def _believed(self) -> list[float]:
        chances, reach = [], 1.0
        pull, (tried, kept) = self._spell_pull, self._spells[self._whole]
        own = 0.0
        for place, share in enumerate(self._shares(0)):
            # A position hardly ever reached is believed to do as well as the one before it: else nothing would be learnt of it.
            unknown = self._pull / (self._pull + self._tried[0][place])
            prior = share + unknown * max(0.0, own - share)
            own = (pull * prior + kept[place]) / (pull + tried[place])
            reach *= own
            chances.append(reach)
        return chances

    def by_rank(self) -> list[list[float]]:
        """[longest][ranks]: probability that the child of each rank is the one kept, once its parent is."""
        shares = [self._shares(rank) for rank in range(len(self._tried))]
        table = []
        for depth in range(len(self._tried[0])):
            left, row = 1.0, []
            for ranked in shares:
                row.append(left * ranked[depth])
                left -= row[-1]
            table.append(row)
        return table

    def _shares(self, rank: int) -> list[float]:
        """[longest]: P(kept | judged), by depth."""
        weight, guess = (self._weight, self._guess) if rank == 0 else (1.0, _LATER_RANKS)
        pooled = (weight * guess + sum(self._kept[rank])) / (weight + sum(self._tried[rank]))
        pull = self._pull
        return [(pull * pooled + kept) / (pull + tried) for tried, kept in zip(self._tried[rank], self._kept[rank], strict=True)]


_KEPT_TIMINGS = 15  # of each kind of round; enough for a median, few enough to follow a growing context
_ENOUGH_TIMINGS = 3
_TRUST = 0.25  # of a plain round: what the measured curve's extra cost of a draft counts against the timed one
_MOST_FACTOR = 1.5  # lengths that were not timed yet are believed to be dearer by this much at most: else they never would be
_PLAIN_EVERY = 64  # rounds between two plain ones where every round drafts: without them a slow machine looks like a dear draft


class RunningCosts:
    """Seconds of a round by draft length and batch: the measured curve, corrected by what rounds of that kind took."""

    def __init__(self, measured: RoundCosts, *, learns: bool = True) -> None:
        """`learns` False: the measured curve stands, whatever the clock says."""
        self.measured, self.learns = measured, learns
        self._predicted: dict[int, list[float]] = {}  # batch → seconds by draft length, as measured
        self._corrected: dict[int, list[float]] = {}  # the same with what was timed, until the next round is timed
        self._timings: dict[int, dict[int, deque[float]]] = {}  # batch → drafted → seconds
        self._usual: dict[int, dict[int, float]] = {}  # batch → drafted → their median, where there are enough
        self._since_plain: dict[int, int] = {}  # batch → rounds since the last plain one
        self._tree_ratios: deque[float] = deque(maxlen=_KEPT_TIMINGS)  # seconds of rounds with trees over what was expected

    def rounds(self, longest: int, batch: int) -> list[float]:
        """[longest + 1, or more]: seconds of a round in which each of `batch` sequences drafts n = 0 … longest tokens."""
        known = self._corrected.get(batch, [])
        if len(known) <= longest:
            known = self._corrected[batch] = self._rounds(longest, batch)
        return known

    def _rounds(self, longest: int, batch: int) -> list[float]:
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
        factor = min(factor, _MOST_FACTOR * plain / predicted[0])
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
            self._corrected.pop(batch, None)

    def tree(self, nodes: int, depth: int, batch: int) -> float:
        """Seconds of a round that drafts a tree: `depth` steps of drafting, all nodes scored."""
        rounds, score = self.rounds(depth, batch), self.measured.score
        more = score(batch * (1 + nodes)) - score(batch * (1 + depth))
        dearer = median(self._tree_ratios) if len(self._tree_ratios) >= _ENOUGH_TIMINGS else 1.0
        return (rounds[depth] + more * rounds[0] / self.measured.round(0, batch)) * dearer

    def saw_tree(self, nodes: int, depth: int, seconds: float) -> None:
        """A round of one sequence that drafted a tree took `seconds`."""
        self._since_plain[1] = self._since_plain.get(1, 0) + 1
        if self.learns and seconds > 0:
            dearer = median(self._tree_ratios) if len(self._tree_ratios) >= _ENOUGH_TIMINGS else 1.0
            self._tree_ratios.append(seconds * dearer / self.tree(nodes, depth, 1))
