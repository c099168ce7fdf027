"""What a sample of texts says a draft length yields: expected rounds of each draft length for the same tokens.

A `TextSample` replays one text: at each place it knows how far a draft begun there would be kept, so the expected number of
rounds is summed over every way the rounds could have fallen, for every γ, without running the target again. A `RoundSample` has
only the rounds of one run at a fixed γ; a shorter draft is then a shorter look at the same rounds, which leaves out that shorter
drafts begin elsewhere. Neither knows what a round costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headstart.errors import OptionError
from headstart.rows import FloatArray, IntArray

__all__ = ["RoundSample", "Sample", "TextSample", "Yield", "acceptance_rate", "accepted_by_position"]


@dataclass(frozen=True, kw_only=True)
class Yield:
    """Expected numbers for one prompt at one γ."""

    tokens: float  # emitted
    rounds: FloatArray  # [gamma + 1]: rounds that drafted exactly n tokens
    reached: FloatArray  # [gamma]: drafts of at least j tokens
    kept: FloatArray  # [gamma]: of them, those accepted to j tokens or more
    judged: float  # accepted tokens plus drafts that were rejected: what the acceptance rate is a share of


class Sample(Protocol):
    """One prompt's evidence."""

    @property
    def category(self) -> str:
        """The kind of work the prompt stands for."""

    def at(self, rule: str, gamma: int) -> Yield:
        """What drafts of at most `gamma` tokens yield under `rule`."""


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """A generated text, and at each place of it how far a draft that begins there would be kept, given the text."""

    category: str
    max_tokens: int  # what the generation was allowed; a draft never goes past it
    drafted: IntArray  # [tokens]: length of the longest draft the drafter has there
    kept: Mapping[str, FloatArray]  # rule → [tokens, gamma]: P(accepted ≥ j | text), 0 beyond `drafted`

    def __post_init__(self) -> None:
        length = len(self.drafted)
        if not 1 <= length <= self.max_tokens:
            raise OptionError(f"`drafted` must hold 1 to {self.max_tokens} places, got {length}")
        for rule, chances in self.kept.items():
            if chances.ndim != 2 or chances.shape[0] != length:
                raise OptionError(f"`kept` must be [{length}, gamma] for each rule, got {chances.shape} for {rule}")

    def at(self, rule: str, gamma: int) -> Yield:
        """Summed over every way the rounds can fall: a round at t that keeps j tokens is followed by one at t + j + 1."""
        chances, length = self.kept[rule], len(self.drafted)
        _check_gamma(gamma, chances.shape[1])
        visits = np.zeros(length + gamma + 1)
        visits[0] = 1.0
        rounds, reached, kept, judged = np.zeros(gamma + 1), np.zeros(gamma), np.zeros(gamma), 0.0
        for start in range(length):
            here = visits[start]
            num_drafted = min(gamma, int(self.drafted[start]), self.max_tokens - start - 1)
            rounds[num_drafted] += here
            if num_drafted == 0:
                visits[start + 1] += here
                continue
            survives = chances[start, :num_drafted]
            reached[:num_drafted] += here
            kept[:num_drafted] += here * survives
            judged += here * (1.0 + float(survives[:-1].sum()))
            stops = np.concatenate([[1.0], survives]) - np.concatenate([survives, [0.0]])
            visits[start + 1 : start + num_drafted + 2] += here * stops
        return Yield(tokens=float(length), rounds=rounds, reached=reached, kept=kept, judged=judged)


@dataclass(frozen=True, kw_only=True)
class RoundSample:
    """The rounds of one run: for each, P(accepted ≥ j) by every rule for the draft it judged (empty: nothing was drafted)."""

    category: str
    rounds: Sequence[Mapping[str, FloatArray]]  # rule → [num_drafted]

    def at(self, rule: str, gamma: int) -> Yield:
        """The same rounds with drafts cut to `gamma`."""
        _check_gamma(gamma, None)
        tokens, rounds, reached, kept, judged = 0.0, np.zeros(gamma + 1), np.zeros(gamma), np.zeros(gamma), 0.0
        for seen in self.rounds:
            survives = seen[rule][:gamma]
            rounds[len(survives)] += 1
            reached[: len(survives)] += 1
            kept[: len(survives)] += survives
            tokens += 1 + float(survives.sum())
            judged += 1.0 + float(survives[:-1].sum()) if len(survives) else 0.0
        return Yield(tokens=tokens, rounds=rounds, reached=reached, kept=kept, judged=judged)


def acceptance_rate(yields: Sequence[Yield]) -> float | None:
    """Accepted / (accepted + drafts that were rejected), a ratio of sums over prompts; None where nothing was drafted."""
    judged = sum(y.judged for y in yields)
    return float(sum(y.kept.sum() for y in yields) / judged) if judged > 0 else None


def accepted_by_position(yields: Sequence[Yield]) -> FloatArray:
    """[gamma]: P(accepted ≥ j) among drafts of at least j tokens, a ratio of sums over prompts; 0 where none was that long."""
    reached = np.sum([y.reached for y in yields], axis=0)
    kept = np.sum([y.kept for y in yields], axis=0)
    shares: FloatArray = np.divide(kept, reached, out=np.zeros_like(kept), where=reached > 0)
    return shares


def _check_gamma(gamma: int, longest: int | None) -> None:
    if gamma < 1 or (longest is not None and gamma > longest):
        most = "" if longest is None else f" and at most the {longest} that were sampled"
        raise OptionError(f"`gamma` must be 1 or more{most}, got {gamma}")
