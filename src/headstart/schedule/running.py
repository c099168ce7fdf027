"""What a generation learns while it runs of how far drafts are kept.

All of it only ever sees rounds that are over. `RunningAcceptance` belongs to one sequence, `PastAcceptance` to a target with a
drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["PastAcceptance", "RunningAcceptance"]

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
