"""`Automaton`: every substring of some texts, how often each was met, and what followed it most often.

A suffix automaton (Blumer et al. 1985) that grows token by token. One node stands for all substrings that end at the same
places; `link` leads from a node to the next shorter suffix that ends in more places. Counts are kept for substrings of up to
`depth` + 1 tokens, by a walk over the few nodes whose suffixes the text ends with, so a token costs a time that does not depend
on how long the text is. Several texts may grow in one automaton, each with a `Writer` of its own.

It knows token ids and counts. It does not know what is drafted from them (`suffix`), and it forgets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Automaton", "Place", "Writer"]

_ROOT = 0


@dataclass
class Place:
    """The longest suffix of a text, of at most `depth` tokens, that the automaton knows."""

    node: int = _ROOT
    length: int = 0


@dataclass
class Writer:
    """A text that grows in the automaton."""

    last: int = _ROOT  # the node of the whole text
    tail: Place = field(default_factory=Place)  # its last `depth` tokens


@dataclass
class Automaton:
    """Lists by node. `count` and `followed` hold for substrings of at most `depth` tokens (`count`: one more)."""

    depth: int
    num_tokens: int = 0  # written so far
    next: list[dict[int, int]] = field(default_factory=lambda: [{}])  # token → node
    link: list[int] = field(default_factory=lambda: [-1])
    longest: list[int] = field(default_factory=lambda: [0])  # length of the node's longest substring
    count: list[int] = field(default_factory=lambda: [0])  # places where the node's substrings end
    followed: list[int] = field(default_factory=lambda: [0])  # of them, so many are not the end of a text
    best: list[int] = field(default_factory=lambda: [-1])  # the token that followed most often, of equals the latest; −1: none

    def write(self, writer: Writer, token: int) -> None:
        """Append a token to a text."""
        writer.last = self._grown(writer.last, token)
        self.num_tokens += 1
        before = writer.tail
        self.settle(before)  # growing may have split its node
        after = Place(self.next[before.node][token], before.length + 1)
        self.settle(after)
        self._count(before.node, token, after.node)
        after.length = min(after.length, self.depth)
        self.settle(after)
        writer.tail = after

    def read(self, place: Place, token: int) -> None:
        """Follow a text that is not written here: to the longest suffix of it, `token` included, that is known."""
        self.settle(place)
        while place.node != _ROOT and token not in self.next[place.node]:
            place.node = self.link[place.node]
            place.length = self.longest[place.node]
        if token in self.next[place.node]:
            place.node = self.next[place.node][token]
            place.length = min(place.length + 1, self.depth)
            self.settle(place)

    def settle(self, place: Place) -> None:
        """Move to the node that has the substring of `place.length` tokens, now that nodes may have been split."""
        while place.node != _ROOT and self.longest[self.link[place.node]] >= place.length:
            place.node = self.link[place.node]

    def _grown(self, last: int, token: int) -> int:
        """The node of the text `last` with one more token, made where there is none."""
        known = self.next[last].get(token)
        if known is not None:  # another text went this way
            return known if self.longest[known] == self.longest[last] + 1 else self._split(last, token, known)
        made = self._new_node(self.longest[last] + 1)
        node = last
        while node >= 0 and token not in self.next[node]:
            self.next[node][token] = made
            node = self.link[node]
        if node < 0:
            self.link[made] = _ROOT
        else:
            known = self.next[node][token]
            self.link[made] = known if self.longest[known] == self.longest[node] + 1 else self._split(node, token, known)
        return made

    def _split(self, node: int, token: int, known: int) -> int:
        """A node for those substrings of `known` that are no longer than `node`'s with `token`: they will end in more places."""
        made = self._new_node(self.longest[node] + 1)
        self.next[made] = dict(self.next[known])
        for values in (self.link, self.count, self.followed, self.best):
            values[made] = values[known]
        self.link[known] = made
        while node >= 0 and self.next[node].get(token) == known:
            self.next[node][token] = made
            node = self.link[node]
        return made

    def _new_node(self, longest: int) -> int:
        self.next.append({})
        self.link.append(_ROOT)
        self.longest.append(longest)
        self.count.append(0)
        self.followed.append(0)
        self.best.append(-1)
        return len(self.link) - 1

    def _count(self, before: int, token: int, after: int) -> None:
        """One more place for every suffix at `after`, one more follower for every suffix at `before`."""
        while after != _ROOT:
            self.count[after] += 1
            after = self.link[after]
        while before != _ROOT:
            self.followed[before] += 1
            follows = self.next[before]
            best = self.best[before]
            if best < 0 or self.count[follows[token]] >= self.count[follows[best]]:
                self.best[before] = token
            before = self.link[before]
