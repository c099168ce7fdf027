"""How far drafts are kept, estimated with little variance: from drafts that were judged, or from a text and its rows.

Counting accepted tokens throws most of what a run knows away. Two roads use it, with k(x) = P(kept | X = x) at one position.

`kept_given_draft`: a draft X was drawn and the target scored it. P(accepted ≥ j) is the mean over drafts of
    token, match, coupled    Π_{i<j} k_i(X_i) · Σ_x q_j(x)·k_j(x)
    block                    Σ_x min(r_{j−1}·p_j(x), q_j(x)),  r_j = min(1, r_{j−1}·p_j/q_j(X_j))    (Sun et al. 2024)
The sum over x is Σ min(p, q) for token, Σ p·q for match, and what two racing clocks agree on for coupled.

`kept_given_text`: only the text is known, with the target's and the drafter's rows along it. Given that x_1 … x_j were emitted,
the chance that they came from a draft begun just before them is
    token, match, coupled    Π k_i(x_i)·q_i(x_i)/p_i(x_i)        (for token Π min(1, q_i/p_i), for match Π q_i)
    block                    r_j·Π q_i(x_i)/p_i(x_i)
because P(X = x_1 … x_j, all kept) is divided by P(x_1 … x_j), and what follows a kept token is the target's whatever was drafted.
So one pass of a draft model over a text gives every draft length under every rule.

It knows chains only, and nothing of costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from headstart.errors import OptionError
from headstart.interfaces import Rule
from headstart.pairs import overlap
from headstart.records import Draft
from headstart.rows import FloatArray, Row
from headstart.verify import coupled_agreement, joint_ratios, rule_named

__all__ = ["Place", "Watched", "kept_along", "kept_given_draft", "kept_given_text", "place_of"]


def kept_given_draft(rule: str, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
    """[gamma]: unbiased for P(accepted ≥ j), j = 1 … gamma, when the draft was drawn from its rows.

    `target_rows` has at least gamma rows, row i the one after X_1 … X_i. Raises OptionError for an unknown rule."""
    judged = rule_named(rule)
    positions = list(zip(target_rows, draft.rows, draft.tokens, strict=False))
    if rule == "block":
        ratios = joint_ratios(target_rows, draft)
        return np.array([_covered(p, q, float(r)) for r, (p, q, _) in zip(ratios, positions, strict=False)], dtype=np.float64)
    before = np.cumprod([1.0, *(_keeps(judged, p, q, token) for p, q, token in positions[:-1])])
    last = [_agreement(rule, p, q) for p, q, _ in positions]
    return before[: len(last)] * np.array(last, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One token of a text, as far as any rule needs to know it."""

    target: float  # p(x)
    draft: float  # q(x)
    keeps: Mapping[str, float]  # rule → P(kept | X = x); block needs none


def place_of(rules: Sequence[str], target: Row, draft: Row, token: int) -> Place:
    """What `rules` need to know of `token`, drawn from `target` and drafted from `draft`."""
    mine, drafted = target.prob(token), draft.prob(token)
    possible = mine > 0.0 and drafted > 0.0
    keeps = {rule: _keeps(rule_named(rule), target, draft, token) if possible else 0.0 for rule in rules if rule != "block"}
    return Place(target=mine, draft=drafted, keeps=keeps)


def kept_along(rule: str, places: Sequence[Place]) -> FloatArray:
    """[n]: P(the first j tokens came from a draft that began before them | they were emitted), j = 1 … n.

    Where the draft gives a token nothing, that and all later chances are 0."""
    chances = np.zeros(len(places), dtype=np.float64)
    weight = ratio = 1.0
    for index, place in enumerate(places):
        if place.draft == 0.0 or place.target == 0.0:
            break
        weight *= place.draft / place.target
        if rule == "block":
            ratio = min(1.0, ratio * place.target / place.draft)
            chances[index] = weight * ratio
        else:
            weight *= place.keeps[rule]
            chances[index] = weight
    return np.minimum(chances, 1.0)  # a weight may exceed 1 by rounding


def kept_given_text(rule: str, target_rows: Sequence[Row], draft_rows: Sequence[Row], tokens: Sequence[int]) -> FloatArray:
    """[n]: `kept_along` the tokens; row i of either kind is the one after tokens[:i]. Raises OptionError for an unknown rule."""
    rule_named(rule)
    return kept_along(rule, [place_of([rule], *each) for each in zip(target_rows, draft_rows, tokens, strict=False)])


@final
class Watched:
    """A rule that judges as the one it wraps, and notes for each draft how far every rule would have kept it."""

    walks = keyed = trees = False
    lossless = True

    def __init__(self, inner: Rule, rules: Sequence[str]) -> None:
        """Raises OptionError for a rule that walks: it is never asked for its law."""
        if inner.walks or not inner.lossless:
            raise OptionError(f"`inner` must judge by an exact law to be watched, got rule {inner.name!r}; use token or block")
        self.name, self._inner, self._rules = inner.name, inner, tuple(rules)
        self.seen: list[dict[str, FloatArray]] = []  # one a judged draft: rule → [gamma]

    def outcome_probs(self, target_rows: Sequence[Row], draft: Draft) -> FloatArray:
        """As the wrapped rule."""
        self.seen.append({rule: kept_given_draft(rule, target_rows, draft) for rule in self._rules})
        return self._inner.outcome_probs(target_rows, draft)

    def next_probs(self, target_rows: Sequence[Row], draft: Draft, node: int) -> Row:
        """As the wrapped rule."""
        return self._inner.next_probs(target_rows, draft, node)


def _keeps(rule: Rule, target: Row, draft: Row, token: int) -> float:
    """P(kept | X = token) at one position, as the rule itself states it."""
    return float(rule.outcome_probs([target, target], Draft(tokens=(token,), rows=(draft,)))[1])


def _agreement(rule: str, target: Row, draft: Row) -> float:
    """Σ_x q(x)·P(kept | X = x)."""
    if rule == "token":
        return overlap(target, draft)
    if rule == "coupled":
        return coupled_agreement(target, draft)
    return min(1.0, float((target.probs.astype(np.float64) * draft.at(target.ids)).sum()))


def _covered(target: Row, draft: Row, scale: float) -> float:
    """Σ_x min(scale·p(x), q(x))."""
    small, large = (target, draft) if target.probs.size <= draft.probs.size else (draft, target)
    factors = (scale, 1.0) if small is target else (1.0, scale)
    both = np.minimum(small.probs.astype(np.float64) * factors[0], large.at(small.ids).astype(np.float64) * factors[1])
    return min(1.0, float(both.sum()))
