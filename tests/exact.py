"""Exact laws by enumeration: every draft, every outcome, every draw, and no randomness.

A `Law` maps what happened to its probability. `every` runs a piece of code once for each way its draws can fall;
`round_law` sums a rule's stated law over every draft. A `Chain` is a model written as a function: what is out → next row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from headstart.interfaces import Rule
from headstart.records import Draft
from headstart.rows import Row

TOLERANCE = 1e-12  # "exact" in every test that sums

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Chain = Callable[[Tokens], Row]
Ends = Callable[[Tokens, Row], bool]  # (drafted so far, the row the next token would be drawn from) → the draft ends here
T = TypeVar("T")


# Chance, enumerated


class Script:
    """Draws that take one scripted branch each; past the script's end the first branch, noting the others in `untried`."""

    def __init__(self, choices: Sequence[int] = ()) -> None:
        self._choices = list(choices)
        self._taken: list[int] = []
        self.weight = 1.0
        self.untried: list[list[int]] = []

    def draw(self, row: Row, position: int) -> int:
        places = np.flatnonzero(row.probs)
        probs = row.probs[places].astype(np.float64)
        return row.token(int(places[self.branch(probs / probs.sum())]))

    def branch(self, probs: Sequence[float]) -> int:
        """Index of the branch taken; each has its (positive) probability."""
        depth = len(self._taken)
        if depth < len(self._choices):
            choice = self._choices[depth]
        else:
            choice = 0
            self.untried += [[*self._taken, other] for other in range(1, len(probs))]
        self._taken.append(choice)
        self.weight *= float(probs[choice])
        return choice


class SharedScript(Script):
    """Draws keyed by position: each position owns one uniform, read through the inverse CDF of whichever row is asked.

    What is known of a uniform is an interval; a draw splits it. Over two tokens this *is* the Gumbel race: E_1/(E_0 + E_1) is
    uniform, and token 1 wins against 0 exactly where it is under p_1."""

    def __init__(self, choices: Sequence[int] = (), known: dict[Hashable, tuple[float, float]] | None = None) -> None:
        super().__init__(choices)
        self.known = dict(known or {})  # key → interval of its uniform

    def draw(self, row: Row, position: int) -> int:
        return self.keyed(row, position)

    def keyed(self, row: Row, key: Hashable) -> int:
        low, high = self.known.get(key, (0.0, 1.0))
        # From the last token down, so that token 1 of two is drawn where the uniform is under p_1.
        probs = row.probs[::-1].astype(np.float64)
        edges = np.clip(np.concatenate([[0.0], np.cumsum(probs / probs.sum())]), low, high)
        edges[-1] = high
        places = np.flatnonzero(np.diff(edges) > 1e-15)
        widths = np.diff(edges)[places]
        place = int(places[self.branch(widths / widths.sum())])
        self.known[key] = float(edges[place]), float(edges[place + 1])
        return row.token(row.probs.size - 1 - place)


def every(run: Callable[[Any], T], script: Callable[[Sequence[int]], Any] = Script) -> Iterator[tuple[float, T]]:
    """(probability, result) of `run(draws)` for every way the draws can fall."""
    pending: list[list[int]] = [[]]
    while pending:
        draws = script(pending.pop())
        result = run(draws)
        pending += draws.untried
        yield draws.weight, result


# Models as functions


def iid(probs: Sequence[float]) -> Chain:
    """The same row everywhere."""
    row = Row.dense(probs)
    return lambda tokens: row


def table(probs: np.ndarray) -> Chain:
    """An order-n table [vocab] * (n + 1), completed on the left with token 0."""
    order = probs.ndim - 1
    rows = {index: Row.dense(probs[index]) for index in np.ndindex(probs.shape[:-1])}
    return lambda tokens: rows[((0,) * order + tuple(tokens))[len(tokens) :]]


def random_table(rng: np.random.Generator, vocab: int, order: int, zeros: float = 0.0) -> np.ndarray:
    """A random table; about a share `zeros` of its entries is zero, never a whole row."""
    weights = rng.gamma(0.7, size=(vocab,) * (order + 1)) + 1e-3
    dead = rng.random(weights.shape) < zeros
    np.put_along_axis(dead, rng.integers(vocab, size=(*weights.shape[:-1], 1)), False, axis=-1)
    weights[dead] = 0.0
    return weights / weights.sum(axis=-1, keepdims=True)


def support(row: Row) -> list[tuple[int, float]]:
    """(token, probability) where the probability is positive, normalised as a draw normalises it."""
    total = float(row.probs.sum(dtype=np.float64))
    return [(row.token(int(place)), float(row.probs[place]) / total) for place in np.flatnonzero(row.probs)]


# Laws


def sequence_law(chain: Chain, length: int) -> Law:
    """The law of the first `length` tokens of plain decoding."""
    return completed({(): 1.0}, chain, length)


def completed(law: Law, chain: Chain, length: int) -> Law:
    """Every sequence of `law` continued by `chain` to `length` tokens (cut there if it is longer)."""
    full: dict[Tokens, float] = defaultdict(float)
    for tokens, weight in law.items():
        if len(tokens) >= length:
            full[tokens[:length]] += weight
            continue
        for token, chance in support(chain(tokens)):
            for longer, share in completed({(*tokens, token): weight * chance}, chain, length).items():
                full[longer] += share
    return dict(full)


def drafts(draft: Chain, gamma: int, ends: Ends | None = None) -> Iterator[tuple[float, Draft]]:
    """(probability, draft) for every draft of at most `gamma` tokens, its rows kept."""

    def run(script: Script) -> Draft:
        made = Draft()
        while len(made) < gamma:
            row = draft(made.tokens)
            if ends is not None and ends(made.tokens, row):
                break
            made = made.then(row, script.draw(row, len(made)))
        return made

    return every(run)


def target_rows(target: Chain, draft: Draft) -> list[Row]:
    """[nodes + 1]: the target's row after each node's own path."""
    return [target(draft.path_tokens(node)) for node in range(len(draft) + 1)]


def judged(rule: Rule, target: Chain, draft: Draft) -> Iterator[tuple[float, int, int]]:
    """(probability, node stopped at, extra token) for every outcome of a rule's stated law on one draft."""
    rows = target_rows(target, draft)
    for kept, chance in enumerate(rule.outcome_probs(rows, draft)):
        assert chance >= 0, f"{rule.name} states a negative probability, {chance}"
        if chance > 0:
            for token, share in support(rule.next_probs(rows, draft, kept)):
                yield float(chance) * share, kept, token


def emitted_law(rule: Rule, target: Chain, weighted: Iterator[tuple[float, Draft]]) -> Law:
    """The law of what one round emits: kept tokens and the extra one, summed over the given drafts."""
    law: dict[Tokens, float] = defaultdict(float)
    for weight, draft in weighted:
        for chance, kept, token in judged(rule, target, draft):
            law[(*draft.path_tokens(kept), token)] += weight * chance
    return dict(law)


def round_law(rule: Rule, target: Chain, draft: Chain, gamma: int, ends: Ends | None = None) -> Law:
    """The law of gamma + 1 tokens of which one round gives the first and plain decoding the rest."""
    return completed(emitted_law(rule, target, drafts(draft, gamma, ends)), target, gamma + 1)


def mean_accepted(rule: Rule, target: Chain, draft: Chain, gamma: int) -> float:
    """E[number of drafted tokens kept]."""
    return mean_depth(rule, target, drafts(draft, gamma))


def mean_depth(rule: Rule, target: Chain, weighted: Iterator[tuple[float, Draft]]) -> float:
    """E[length of the path kept], over the given drafts."""
    return sum(w * chance * len(d.path(node)) for w, d in weighted for chance, node, _ in judged(rule, target, d))


def distance(one: dict[Any, float], other: dict[Any, float]) -> float:
    """Total variation between two laws; also counts a total that is not 1."""
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys()) / 2
