"""`Growth`: a drafted tree grown a depth at a time from rows; what drafters that run a model share.

Which nodes get children, and how many, is decided before anything is drawn: by a fixed shape, or by each node's chance of being
reached. For chosen children that is the product of their probabilities (EAGLE-2, Li et al. 2024); more are made than there is
room for, and the best are kept. Drawn children all stay; what counts for them is the order they were drawn in. It does not know
where rows come from.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from headstart.errors import RowError
from headstart.interfaces import Draws, Processor
from headstart.records import Draft
from headstart.rows import FloatArray, IntArray, Row
from headstart.shapes import Shape

__all__ = ["Growth", "Source", "drawn_children", "likeliest", "source"]


class Source(NamedTuple):
    """What the children of a node come from."""

    row: Row
    drawn: bool  # they are drawn from `row`, which goes with them; else its likeliest tokens are chosen, as point masses


def source(processor: Processor, history: Sequence[int], logits: FloatArray, ids: IntArray | None = None) -> Source | None:
    """Where the processed row leaves something to chance, that row; else (greedy) the law before temperature, to choose from.

    `ids` as in `Processor.row`. None for a row nothing can be drawn from."""
    try:
        row = processor.row(history, logits, ids)
        if not row.is_point:
            return Source(row, True)
        if ids is not None:
            some, logits = logits, np.full(max(processor.vocab_size, int(ids[-1]) + 1), -np.inf, dtype=logits.dtype)
            logits[ids] = some
        return Source(processor.law(history, logits), False)
    except RowError:
        return None


def drawn_children(row: Row, count: int, draws: Draws, position: int) -> list[tuple[Row, int]]:
    """`count` tokens drawn without replacement, each with the row it was drawn from; fewer where the row lists fewer."""
    children: list[tuple[Row, int]] = []
    left: Row | None = row
    while left is not None and len(children) < count:
        token = draws.draw(left, position)
        children.append((left, token))
        left = left.without(token) if len(children) < count else None
    return children


def likeliest(row: Row, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens with their log-probabilities, likeliest first, of equals the lower id; none without mass."""
    left, best = row.probs.copy(), []
    for _ in range(min(count, left.size)):  # a few looks at the row are cheaper than one partition of it
        place = int(left.argmax())
        if left[place] <= 0:
            break
        best.append((row.token(place), min(0.0, float(np.log(left[place])))))
        left[place] = 0
    return best


@final
class Growth:
    """One tree under way. Give `grow` a source for each node of `frontier`, until there is none; then take `draft`."""

    def __init__(self, shape: Shape, draws: Draws, position: int) -> None:
        """`position`: index of the first drafted token in prompt + output."""
        self._shape, self._draws, self._position = shape, draws, position
        self._tokens: list[int] = []
        self._rows: list[Row] = []
        self._parents: list[int] = []
        self._scores = [0.0]  # [nodes + 1]: log of the chance of being reached, as far as the draft can tell
        self._ranks: list[tuple[int, ...]] = [()]  # [nodes + 1]: the place in a fixed shape
        self._fixed: set[int] = set()  # nodes that were drawn, and what they hang from: they stay
        self._depth = 0
        self.frontier = [0]  # nodes, numbered as in `Draft`, that may get children next

    def path(self, node: int) -> list[int]:
        """The nodes from the first token down to `node`."""
        nodes = []
        while node:
            nodes.append(node)
            node = self._parents[node - 1] + 1
        return nodes[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """The tokens from the first one down to `node`'s own."""
        return [self._tokens[each - 1] for each in self.path(node)]

    def above_frontier(self) -> tuple[list[int], list[int]]:
        """Tokens and parents of the part of the tree that `frontier` ends, its own nodes last: what a model is asked to score."""
        nodes = sorted({each for node in self.frontier for each in self.path(node)})
        place = {node: index for index, node in enumerate(nodes)} | {0: -1}
        return [self._tokens[node - 1] for node in nodes], [place[self._parents[node - 1] + 1] for node in nodes]

    def grow(self, sources: Sequence[Source | None]) -> None:
        """One more depth below `frontier`, from one source a node; None: that node gets no children."""
        alive = [(node, each) for node, each in zip(self.frontier, sources, strict=True) if each is not None]
        grown = self._grow_best(alive) if self._shape.paths is None else self._grow_fixed(alive)
        self._depth += 1
        self.frontier = self._worth_growing(grown) if self._depth < self._shape.depth else []

    def draft(self) -> Draft:
        """The tree; of chosen nodes the best by score, ties towards parents, so that what they hang from comes along."""
        parents = tuple(self._parents)
        full = Draft(tokens=tuple(self._tokens), rows=tuple(self._rows), parents=parents)
        if len(full) <= self._shape.nodes:
            return full
        keep = set(self._fixed)
        for node in sorted(range(1, len(full) + 1), key=lambda node: (-self._scores[node], node)):
            if len(keep) >= self._shape.nodes:
                break
            keep.add(node)
        return full.pruned(keep)

    def _grow_best(self, alive: Sequence[tuple[int, Source]]) -> list[int]:
        """Children where the best of the next depth are to be expected; those that may be expanded in turn come back."""
        ranked = {node: likeliest(each.row, self._shape.width) for node, each in alive}
        hopes = {node: _hopes(ranked[node], each.drawn) for node, each in alive}
        every = [(self._scores[node] + hope, node, rank) for node in hopes for rank, hope in enumerate(hopes[node])]
        best = sorted(every, key=lambda each: -each[0])[: self._shape.width]
        drawn = {node for node, each in alive if each.drawn}
        allowed = self._allowed({node: hopes[node] for node in hopes if node in drawn})
        counts = {node: 0 for node, _ in alive}
        for _, node, _ in [each for each in best if each[1] in drawn][:allowed]:
            counts[node] += 1
        grown: list[int] = []
        for node, each in alive:
            if each.drawn:
                grown += self._draw(node, each.row, range(counts[node]), hopes[node])
            else:
                chosen = [self._choose(node, each.row, rank, *pair) for rank, pair in enumerate(ranked[node])]
                grown += [chosen[rank] for _, parent, rank in best if parent == node]
        return grown

    def _allowed(self, hopes: dict[int, list[float]]) -> int:
        """How many children to draw at this depth: as many as the best tree in the room left has there, were later rows alike."""
        needed = self._fixed.union(*(self.path(node) for node in hopes))
        room = self._shape.nodes - len(needed)
        if room >= self._shape.width * (self._shape.depth - self._depth):
            return self._shape.width  # room for all
        later = [float(np.mean(ranks)) for ranks in zip(*hopes.values(), strict=False)]
        # Best first: (−score, depths further down, score of the parent, hopes at the parent, rank).
        heap = [(-(self._scores[node] + ranks[0]), 0, self._scores[node], ranks, 0) for node, ranks in hopes.items()]
        heapq.heapify(heap)
        count = 0
        for _ in range(room):
            if not heap:
                break
            score, down, parent, ranks, rank = heapq.heappop(heap)
            count += down == 0
            if rank + 1 < len(ranks):
                heapq.heappush(heap, (-(parent + ranks[rank + 1]), down, parent, ranks, rank + 1))
            if self._depth + down + 1 < self._shape.depth:
                heapq.heappush(heap, (score - later[0], down + 1, -score, later, 0))
        return count

    def _worth_growing(self, grown: Sequence[int]) -> list[int]:
        """Those whose children could still be in the tree."""
        if self._shape.paths is not None:
            return [node for node in grown if self._ranks[node] in self._shape.ranks]
        nodes = self._shape.nodes
        if len(self._fixed) >= nodes:
            return []
        least = sorted(self._scores[1:], reverse=True)[nodes - 1] if len(self._tokens) >= nodes else -np.inf
        return [node for node in grown if self._scores[node] >= least or node in self._fixed]

    def _grow_fixed(self, alive: Sequence[tuple[int, Source]]) -> list[int]:
        """The children that the shape gives each node."""
        grown: list[int] = []
        for node, each in alive:
            ranks = self._shape.ranks[self._ranks[node]]
            if each.drawn:
                grown += self._draw(node, each.row, ranks, [0.0] * len(ranks))
            else:
                best = likeliest(each.row, max(ranks) + 1)
                grown += [self._choose(node, each.row, rank, *best[rank]) for rank in ranks if rank < len(best)]
        return grown

    def _draw(self, node: int, row: Row, ranks: Sequence[int], hopes: Sequence[float]) -> list[int]:
        children = drawn_children(row, len(ranks), self._draws, self._position + self._depth)
        # Where the row lists fewer tokens than asked for, there are fewer children.
        drawn = zip(ranks, hopes, children, strict=False)
        added = [self._add(node, token, own, hope, rank) for rank, hope, (own, token) in drawn]
        self._fixed.update(*(self.path(child) for child in added))
        return added

    def _choose(self, node: int, row: Row, rank: int, token: int, log: float) -> int:
        return self._add(node, token, Row.point(token, row.vocab_size), log, rank)

    def _add(self, node: int, token: int, row: Row, log: float, rank: int) -> int:
        self._tokens.append(token)
        self._rows.append(row)
        self._parents.append(node - 1)
        self._scores.append(self._scores[node] + log)
        self._ranks.append((*self._ranks[node], rank))
        return len(self._tokens)


def _hopes(ranked: Sequence[tuple[int, float]], drawn: bool) -> list[float]:
    """[ranks]: log of the chance that the child of each rank is kept, once its parent is, guessed from the draft's row alone.

    A chosen child: its own probability. Drawn ones: the first is kept but for half of what the row leaves unsure, 1 − max q, and
    each later one by the same chance where those before it failed. Only the shape of the tree hangs on this guess."""
    if not drawn:
        return [log for _, log in ranked]
    miss = min(0.5, max(1e-6, (1.0 - float(np.exp(ranked[0][1]))) / 2))
    return [float(np.log1p(-miss) + rank * np.log(miss)) for rank in range(len(ranked))]
