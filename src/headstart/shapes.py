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
            raise OptionError(f"`tree` must be WIDTHxDEPTH such as 4x3, WIDTHxDEPTH:NODES, auto or none, got {text!r}")
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
    acceptances: Sequence[float] | Sequence[Sequence[float]],  # [ranks], or [depths][ranks]: see below
    cost: Callable[[int], float],  # cost of a pass of the target over so many tokens
    *,
    draft_cost: float = 0.0,  # of one more depth, in the same unit
    max_nodes: int = 64,
    max_depth: int = 16,
) -> BestTree | None:
    """The tree with the most tokens per cost (Chen et al. 2024, Sequoia); None where no tree beats plain decoding.

    `acceptances`: probability that the child of each rank is the one kept, once its parent is; one list for all depths, or one a
    depth. Expected tokens are 1 + Σ over nodes of the product of acceptances down to it, as if depths were independent. The
    children of a node are its first ranks: a second child cannot be drawn without a first."""
    table = np.array(acceptances, dtype=np.float64)
    table = np.tile(table, (max_depth, 1)) if table.ndim == 1 else table[:max_depth]
    if not table.size or table.min() < 0 or table.sum(axis=1).max() > 1 + 1e-9:
        raise OptionError(f"`acceptances` must be probabilities of exclusive events, got {list(acceptances)}")
    depths = np.arange(1, len(table) + 1)
    gains, firsts = _gains(table, max_nodes)
    tokens = 1 + gains[:, 0, 0, 1:]  # [depths, max_nodes]
    passes = np.array([cost(n + 1) for n in range(1, max_nodes + 1)])
    rates = tokens / (passes + draft_cost * depths[:, None])
    most, nodes = divmod(int(rates.argmax()), max_nodes)
    if rates[most, nodes] <= 1 / cost(1):
        return None
    shape = Shape.of_paths(_paths(firsts[most], 0, 0, nodes + 1))
    return BestTree(shape, float(tokens[most, nodes]), float(rates[most, nodes]))


def _gains(accept: NDArray[np.float64], max_nodes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """[most depths, depth + 1, ranks + 1, nodes + 1]: the most tokens that `nodes` nodes at `depth` and below can add, as
    children of rank ≥ r of one node, in a tree of so many depths at most.

    The second array says how many of them go to the child of rank r and what hangs from it; 0: rank r gets no child."""
    depths, ranks = accept.shape
    gains = np.zeros((depths, depths + 1, ranks + 1, max_nodes + 1))
    firsts = np.zeros(gains.shape, dtype=np.int64)
    # Of n nodes, m + 1 may go to a child and what hangs from it; the other ranks get the n − 1 − m that are left.
    left = np.arange(max_nodes)[:, None] - np.arange(max_nodes)  # [n − 1, m]
    impossible = np.where(left < 0, -np.inf, 0.0)
    left = np.maximum(left, 0)
    for depth in range(depths - 1, -1, -1):
        deep = slice(depth, None)  # trees that reach this depth
        for rank in range(ranks - 1, -1, -1):
            below = accept[depth, rank] * (1 + gains[deep, depth + 1, 0, :max_nodes])
            shares = below[:, None, :] + gains[deep, depth, rank + 1][:, left] + impossible
            gains[deep, depth, rank, 1:], firsts[deep, depth, rank, 1:] = shares.max(axis=2), shares.argmax(axis=2) + 1
    return gains, firsts


def _paths(firsts: NDArray[np.int64], depth: int, rank: int, nodes: int) -> list[Path]:
    """The paths, from `depth` and `rank` on, of the tree that `_gains` found best."""
    size = int(firsts[depth, rank, nodes]) if nodes else 0
    if size == 0:
        return []
    below = [(rank, *path) for path in _paths(firsts, depth + 1, 0, size - 1)]
    return [(rank,), *below, *_paths(firsts, depth, rank + 1, nodes - size)]
