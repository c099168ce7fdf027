"""`Draft`: drafted tokens with the rows they were drawn from, as a chain or as a tree.

It knows nothing of models, rules or chance. A draft numbers its nodes: node 0 is the end of the text, node i is the i-th drafted
token. In a chain, node i is where keeping exactly i tokens leads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from headstart.errors import OptionError
from headstart.rows import Row, as_rows

__all__ = ["NOTHING", "Draft"]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Drafted tokens and, for each, the row it was drawn from (after all processing): a chain, or a tree.

    Siblings stand in the order they were drawn, without replacement: the row of each gives nothing to those before it. Children
    that were chosen, not drawn, carry point masses, for which this holds by itself; both kinds may hang from one node."""

    tokens: tuple[int, ...] = ()  # [nodes], parents before children
    rows: tuple[Row, ...] = ()  # [nodes]
    parents: tuple[int, ...] | None = None  # [nodes]: index in `tokens` of what it hangs from, −1: the text's end; None: a chain
    _children: tuple[tuple[int, ...], ...] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", as_rows(self.rows))  # rows given as plain arrays are checked
        if len(self.tokens) != len(self.rows):
            raise OptionError(f"`draft` must carry one row a token, got {len(self.tokens)} tokens and {len(self.rows)} rows")
        for place, (token, row) in enumerate(zip(self.tokens, self.rows, strict=True)):
            if not 0 <= token < row.vocab_size or row.prob(token) <= 0.0:
                raise OptionError(
                    f"`draft` token {token} at index {place} has no probability in its own row; "
                    "pass the row the token was drawn from, after all processing"
                )
        if self.parents is not None:
            self._branch(tuple(int(parent) for parent in self.parents))

    def _branch(self, parents: tuple[int, ...]) -> None:
        """Check the tree and list the children of every node; a tree that does not branch becomes the chain it is."""
        if len(parents) != len(self.tokens) or any(not -1 <= parent < place for place, parent in enumerate(parents)):
            raise OptionError(
                f"`parents` must name for each of {len(self.tokens)} tokens an earlier one, or −1, got {list(parents)}"
            )
        chain = all(parent == place - 1 for place, parent in enumerate(parents))
        object.__setattr__(self, "parents", None if chain else parents)
        if chain:
            return
        children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
        for place, parent in enumerate(parents):
            for elder in children[parent + 1]:
                if self.rows[place].prob(self.tokens[elder - 1]) > 0.0:
                    raise OptionError(
                        f"`draft` token {self.tokens[place]} at index {place} comes from a row that still holds its sibling "
                        f"{self.tokens[elder - 1]}; draw siblings without replacement, each from Row.without(the ones before)"
                    )
            children[parent + 1].append(place + 1)
        object.__setattr__(self, "_children", tuple(map(tuple, children)))

    @staticmethod
    def points(tokens: Sequence[int], vocab_size: int, parents: Sequence[int] | None = None) -> Draft:
        """A deterministic draft: each row is a point mass on its token."""
        rows = tuple(Row.point(token, vocab_size) for token in tokens)
        return Draft(tokens=tuple(tokens), rows=rows, parents=None if parents is None else tuple(parents))

    def then(self, row: Row, token: int) -> Draft:
        """This draft with one more token after its last, drawn from `row`."""
        parents = None if self.parents is None else (*self.parents, len(self.tokens) - 1)
        return Draft(tokens=(*self.tokens, token), rows=(*self.rows, row), parents=parents)

    def pruned(self, keep: Collection[int]) -> Draft:
        """Only the nodes `keep`, and whatever they hang from. Raises OptionError if a token that was drawn would go.

        A token that was drawn must stay, whatever it is: to drop it for what it is would change the law. How many are drawn is
        decided before drawing."""
        kept = {above for node in keep for above in self.path(node)}
        lost = [node for node in range(1, len(self) + 1) if node not in kept and not self.rows[node - 1].is_point]
        if lost:
            raise OptionError(
                f"`keep` must hold every token that was drawn, got none of node {lost[0]} (token {self.tokens[lost[0] - 1]}); "
                "prune chosen tokens only, and fix the number of drawn ones before they are drawn"
            )
        order = sorted(kept)
        place = {0: -1} | {node: index for index, node in enumerate(order)}
        parents = tuple(place[self.parent(node)] for node in order)
        return Draft(
            tokens=tuple(self.tokens[n - 1] for n in order), rows=tuple(self.rows[n - 1] for n in order), parents=parents
        )

    def parent(self, node: int) -> int:
        """The node that `node` ≥ 1 hangs from."""
        return node - 1 if self.parents is None else self.parents[node - 1] + 1

    def children(self, node: int) -> tuple[int, ...]:
        """The nodes that hang from `node`, in the order they were drawn."""
        if self._children is not None:
            return self._children[node]
        return (node + 1,) if node < len(self.tokens) else ()

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that is `token`."""
        return next((child for child in self.children(node) if self.tokens[child - 1] == token), None)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first token down to `node`; empty for node 0."""
        if self.parents is None:
            return tuple(range(1, node + 1))
        nodes = []
        while node:
            nodes.append(node)
            node = self.parent(node)
        return tuple(reversed(nodes))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens from the first one down to `node`'s own."""
        return self.tokens[:node] if self.parents is None else tuple(self.tokens[each - 1] for each in self.path(node))

    def star(self, node: int) -> Draft:
        """The children of `node` alone: a tree of depth 1."""
        places = [child - 1 for child in self.children(node)]
        tokens, rows = tuple(self.tokens[place] for place in places), tuple(self.rows[place] for place in places)
        return Draft(tokens=tokens, rows=rows, parents=(-1,) * len(places))

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        if self.parents is None:
            return len(self.tokens)
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return max(depths)

    def __len__(self) -> int:
        return len(self.tokens)


NOTHING = Draft()  # no draft at all
