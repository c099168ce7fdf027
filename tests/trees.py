"""Trees over chains of rows, grown by hand: drawn, chosen or mixed children, in shapes that look at what they may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headstart.records import Draft
from headstart.rows import Row
from tests.exact import Chain, Tokens, every

Count = Callable[[Tokens, Row], int]  # (tokens down to a node, the row its children come from) → how many it gets

# How many children a node gets: by depth, by its own token, by its row; never by the children.
COUNTS: dict[str, Count] = {
    "empty": lambda path, row: 0,
    "single": lambda path, row: 1 if len(path) < 1 else 0,
    "wide": lambda path, row: 3 if len(path) < 1 else 0,
    "pair": lambda path, row: 2 if len(path) < 1 else 0,
    "deep": lambda path, row: 1 if len(path) < 3 else 0,
    "two by two": lambda path, row: 2 if len(path) < 2 else 0,
    "narrowing": lambda path, row: (3, 1, 0)[len(path)],
    "by token": lambda path, row: 0 if len(path) == 2 else 2 if not path or path[-1] == 0 else path[-1] - 1,
    "by row": lambda path, row: 0 if len(path) == 2 else 1 + int(row.prob(0) < 0.5),
}
KINDS = ("drawn", "chosen", "mixed")


def grown(chain: Chain, count: Count, draws: Any, kind: str = "drawn") -> Draft:
    """A tree: `drawn` children without replacement, `chosen` likeliest ones, or one chosen and the others drawn (`mixed`)."""
    tokens, rows, parents = [], [], []
    paths: list[Tokens] = [()]
    for node, path in enumerate(paths):  # grows while it is walked
        row: Row | None = chain(path)
        for number in range(count(path, chain(path))):
            if row is None:
                break  # the whole vocabulary is drafted
            if kind == "chosen" or (kind == "mixed" and number == 0):
                token = int(row.to_array().argmax())
                rows.append(Row.point(token, row.vocab_size))
            else:
                token = draws.draw(row, len(path))
                rows.append(row)
            tokens.append(token)
            parents.append(node - 1)
            paths.append((*path, token))
            row = row.without(token)
    return Draft(tokens=tuple(tokens), rows=tuple(rows), parents=tuple(parents))


def trees(chain: Chain, count: Count, kind: str = "drawn") -> Iterator[tuple[float, Draft]]:
    """(probability, tree) for every way the children can be drawn."""
    return every(lambda draws: grown(chain, count, draws, kind))
