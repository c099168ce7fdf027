"""`Shape`: how large a drafted tree may be, or which tree it is; and the best tree for measured acceptances and costs.

Knows depths, widths and ranks. It does not know tokens or rows: who fills a shape is a drafter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import OptionError

__all__ = ["BestTree", "Shape", "best_tree"]

Path = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Room for a tree: how many nodes of a depth are grown further, with as many children at most, how many depths, how many
    nodes in all. With `paths`, one tree exactly.

    A path names a node by ranks: (1, 0) is the likeliest child of the second likeliest first token. The paths of a shape stand in
    order of depth, and whatever one of them hangs from is among them."""

    width: int
    depth: int
    nodes: int
    paths: tuple[Path, ...] | None = None  # [nodes]; None: the drafter grows what its rows say is best

    def __post_init__(self) -> None:
        for name in ("width", "depth", "nodes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"`{name}` of a tree must be a whole number, 1 or more, got {value!r}")
        if self.paths is not None:
            self._check_paths(self.paths)

    def _check_paths(self, paths: tuple[Path, ...]) -> None:
        known = {()} | set(paths)
        for path in paths:
            if not path or min(path) < 0 or path[:-1] not in known:
                raise OptionError(f"`paths` must hold ranks of 0 or more and whatever they hang from, got {list(path)}")
        if len(known) != len(paths) + 1 or list(paths) != sorted(paths, key=lambda path: (len(path), path)):
            raise OptionError("`paths` must name each node once, in order of depth; use Shape.of_paths")

    @staticmethod
    def parse(text: str) -> Shape:
        """A shape from WIDTHxDEPTH, of WIDTH·DEPTH nodes, or from WIDTHxDEPTH:NODES. Raises OptionError for anything else."""
        found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})(?::([1-9]\d{0,3}))?", text)
        if not found:
            raise OptionError(f"`tree` must be WIDTHxDEPTH such as 4x3, WIDTHxDEPTH:NODES or none, got {text!r}")
        width, depth = int(found[1]), int(found[2])
        return Shape(width=width, depth=depth, nodes=int(found[3] or width * depth))

    @staticmethod
    def of_paths(paths: Iterable[Sequence[int]]) -> Shape:
        """One tree exactly, from the ranks that lead to each node in any order, as Medusa's `medusa_choices` lists them."""
        ordered = tuple(sorted({tuple(map(int, path)) for path in paths}, key=lambda path: (len(path), path)))
        if not ordered or not ordered[0]:
            raise OptionError("`paths` must name at least one node, each by one rank or more")
        depths = [len(path) for path in ordered]
        width = max(depths.count(depth) for depth in set(depths))
        return Shape(width=width, depth=depths[-1], nodes=len(ordered), paths=ordered)

    @staticmethod
    def full(widths: Sequence[int]) -> Shape:
        """One tree exactly: every node of depth d has `widths[d]` children, as SpecInfer's expansions are given."""
        paths: list[Path] = [()]
        depth: list[Path] = [()]
        for width in widths:
            depth = [(*path, rank) for path in depth for rank in range(width)]
            paths += depth
        return Shape.of_paths(paths[1:])

    def fitted(self, depth: int, nodes: int) -> Shape | None:
        """This shape cut to the room there is, before anything is drafted; None where there is none."""
        if min(depth, nodes) < 1:
            return None
        if depth >= self.depth and nodes >= self.nodes:
            return self
        if self.paths is not None:
            return Shape.of_paths([path for path in self.paths if len(path) <= depth][:nodes])
        return Shape(width=self.width, depth=min(depth, self.depth), nodes=min(nodes, self.nodes))

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """[nodes]: the index of what each of `paths` hangs from, −1 for the end of the text."""
        place = {path: index for index, path in enumerate(self.paths or ())} | {(): -1}
        return tuple(place[path[:-1]] for path in self.paths or ())

    @cached_property
    def ranks(self) -> dict[Path, tuple[int, ...]]:
        """The ranks of the children of each of `paths` that has any; of () too."""
        ranks: dict[Path, tuple[int, ...]] = {}
        for path in self.paths or ():
            ranks[path[:-1]] = (*ranks.get(path[:-1], ()), path[-1])
        return ranks

    def to_json(self) -> str | list[list[int]]:
        """WIDTHxDEPTH, or the paths of a tree that is fixed."""
        return str(self) if self.paths is None else [list(path) for path in self.paths]

    def __str__(self) -> str:
        if self.paths is not None:
            return f"of {self.nodes} nodes"
        return f"{self.width}x{self.depth}" + ("" if self.nodes == self.width * self.depth else f":{self.nodes}")


class BestTree(NamedTuple):
    """A shape and what it is expected to do."""

    shape: Shape
    tokens_per_round: float  # the extra token included
    rate: float  # tokens per unit of cost


def best_tree(
    acceptances: Sequence[float],  # [ranks]: probability that the child of each rank is the one kept, once its parent is
    cost: Callable[[int], float],  # cost of a pass of the target over so many tokens
    *,
    draft_cost: float = 0.0,  # of one more depth, in the same unit
    max_nodes: int = 64,
    max_depth: int = 16,
) -> BestTree | None:
    """The tree with the most tokens per cost (Chen et al. 2024, Sequoia); None where no tree beats plain decoding.

    Expected tokens are 1 + Σ over nodes of the product of acceptances down to it, as if depths were independent. The children of
    a node are its first ranks: a second child cannot be drawn without a first."""
    if min(acceptances, default=-1.0) < 0 or sum(acceptances) > 1 + 1e-9:
        raise OptionError(f"`acceptances` must be probabilities of exclusive events, got {list(acceptances)}")
    gains, firsts = _gains(np.asarray(acceptances, dtype=np.float64), max_nodes, max_depth)
    rates = np.array(
        [[(1 + gains[d, 0, n]) / (cost(n + 1) + d * draft_cost) for n in range(max_nodes + 1)] for d in range(max_depth + 1)]
    )
    depth, nodes = divmod(int(rates[1:, 1:].argmax()), max_nodes)
    depth, nodes = depth + 1, nodes + 1
    if rates[depth, nodes] <= 1 / cost(1):
        return None
    shape = Shape.of_paths(_paths(firsts, depth, 0, nodes))
    return BestTree(shape, 1 + float(gains[depth, 0, nodes]), float(rates[depth, nodes]))


def _gains(accept: NDArray[np.float64], max_nodes: int, max_depth: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """[depth + 1, ranks + 1, nodes + 1]: the most tokens `nodes` nodes can add as children of rank ≥ r and below, to `depth`.

    The second array says how many of them go to the child of rank r and what hangs from it; 0: rank r gets no child."""
    ranks = len(accept)
    gains = np.zeros((max_depth + 1, ranks + 1, max_nodes + 1))
    firsts = np.zeros(gains.shape, dtype=np.int64)
    for depth in range(1, max_depth + 1):
        for rank in range(ranks - 1, -1, -1):
            for nodes in range(1, max_nodes + 1):
                # A child of this rank with m nodes in all, and the other ranks with the rest; they stay ordered by rank.
                shares = accept[rank] * (1 + gains[depth - 1, 0, :nodes]) + gains[depth, rank + 1, nodes - 1 :: -1][:nodes]
                best = int(shares.argmax())
                gains[depth, rank, nodes], firsts[depth, rank, nodes] = shares[best], best + 1
    return gains, firsts


def _paths(firsts: NDArray[np.int64], depth: int, rank: int, nodes: int) -> list[Path]:
    """The paths of the tree that `_gains` found best."""
    if nodes == 0 or depth == 0 or rank + 1 == firsts.shape[1]:
        return []
    size = int(firsts[depth, rank, nodes])
    below = [(rank, *path) for path in _paths(firsts, depth - 1, 0, size - 1)]
    return [(rank,), *below, *_paths(firsts, depth, rank + 1, nodes - size)]
