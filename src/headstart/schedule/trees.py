"""Which tree, if any, the next round should draft: the best for the acceptances seen so far and for what rounds cost.

It does not know tokens, and whether a tree is worth drafting at all is `adaptive`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from headstart.records import Round
from headstart.schedule.clock import RunningCosts
from headstart.schedule.running import RunningAcceptance
from headstart.shapes import BestTree, Shape, best_tree

__all__ = ["TreeChoice", "judged_children"]

_DEEPEST = 6


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """A tree and what it is expected to give."""

    shape: Shape
    gain: float  # over plain decoding
    cost: float  # plain rounds


@final
class TreeChoice:
    """The best tree, looked for anew after some drafted rounds, then after twice as many: looking takes half a millisecond."""

    most_ranks = 3  # children of a node

    def __init__(self, costs: RunningCosts, longest: int, *, most_nodes: int = 12, looks_after: int = 8) -> None:
        self._costs, self._deepest, self._most_nodes = costs, min(longest, _DEEPEST), most_nodes
        self._best: BestTree | None = None
        self._look_at, self._step = 0, looks_after

    def best(self, accepted: RunningAcceptance, seconds: list[float], batch: int, rounds_drafted: int) -> _Choice | None:
        """The tree for the next round, given what rounds with chains cost by length; None where no tree beats plain decoding, and
        where the best one is a chain."""
        if rounds_drafted >= self._look_at:
            self._best = self._found(accepted, seconds, batch)
            self._look_at, self._step = rounds_drafted + self._step, 2 * self._step
        if self._best is None:
            return None
        shape, table = self._best.shape, accepted.by_rank()
        cost = self._costs.tree(shape.nodes, shape.depth, batch) / seconds[0]
        tokens = 1.0 + sum(_reached(path, table) for path in shape.paths or ())
        return _Choice(shape=shape, gain=tokens / cost, cost=cost)

    def _found(self, accepted: RunningAcceptance, seconds: list[float], batch: int) -> BestTree | None:
        deepest = self._deepest
        score = self._costs.measured.score
        # One more depth costs what a longer chain costs beyond the scoring of its tokens.
        scored = (score(batch * (1 + deepest)) - score(batch)) * seconds[0] / self._costs.measured.round(0, batch)
        draft_cost = max(0.0, seconds[deepest] - seconds[0] - scored) / deepest
        slower = seconds[0] / self._costs.measured.round(0, batch)
        found = best_tree(
            accepted.by_rank()[:deepest],
            lambda tokens: seconds[0] + (score(batch * tokens) - score(batch)) * slower,
            draft_cost=draft_cost,
            max_nodes=self._most_nodes,
            max_depth=deepest,
        )
        return None if found is None or found.shape.nodes == found.shape.depth else found


def judged_children(done: Round) -> list[tuple[int, int | None]]:
    """Of each node that was reached and had children: their number, and the rank of the one kept, if any."""
    parents = done.parents if done.parents is not None else tuple(range(-1, len(done.draft) - 1))
    path = done.path if done.path is not None else tuple(range(done.num_accepted))
    judged: list[tuple[int, int | None]] = [
        (parents.count(parents[place]), rank) for place, rank in zip(path, done.branches, strict=True)
    ]
    last = parents.count(path[-1] if path else -1)
    return [*judged, (last, None)] if last else judged


def _reached(path: tuple[int, ...], table: list[list[float]]) -> float:
    chance = 1.0
    for depth, rank in enumerate(path):
        chance *= table[depth][rank]
    return chance
