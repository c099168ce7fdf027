"""Tokens per second of several ways to generate, taking turns on the same prompts.

Every way answers every prompt once in each repeat, and the order turns from prompt to prompt, so that a machine that slows down
slows all of them. A speedup is by pairs: of one prompt's seconds a token, the baseline's over the way's, the median over repeats;
its interval is by prompt. The prompt's own reading is left out of the seconds. Ways that must say the same are checked to; of the
others it is told how far their greedy texts go along with the baseline's.

It does not know engines: a way is whatever answers a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import sleep
from typing import Any, Protocol

import numpy as np

from headstart.errors import OptionError
from headstart.prompts import Prompt

__all__ = ["Answer", "Result", "Way", "measure_speed"]

_RESAMPLES = 2000
Progress = Callable[[str, float | None], None]
# After a prompt and these greedy tokens: the target's highest logit minus that of the token given last.
Gap = Callable[[str, Sequence[int], int], float]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One prompt answered once."""

    token_ids: tuple[int, ...]
    seconds: float  # of decoding, the prompt's reading left out
    timed_tokens: int  # tokens that took those seconds
    rounds: int | None = None  # passes of the target after the prompt, where the way tells
    notes: dict[str, Any] = field(default_factory=dict)  # what else it tells of itself


class Way(Protocol):
    """One way to generate."""

    name: str
    exact: bool  # at temperature 0, and with a seed, says token for token what the baseline says

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One way in one category at one temperature. Fields and order are those of `bench speed --json`."""

    category: str
    temperature: float
    way: str
    tokens_per_second: float  # all tokens over all seconds
    speedup: float  # over the baseline, median over prompts of paired ratios
    interval: tuple[float, float]  # 95 %, by prompt
    same_tokens: bool | None  # as the baseline, on every prompt; None: not promised
    same_prefix: float | None  # greedy: share of the baseline's tokens before the first other one; None with a temperature
    largest_gap: float | None  # of the first other tokens: how far the target's logit for one lay below its highest; None: none
    block_efficiency: float | None
    prompts: int
    repeats: int

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}


def measure_speed(
    ways: Sequence[Way],
    prompts: Sequence[Prompt],
    *,
    temperatures: Sequence[float] = (0.0,),
    max_tokens: int = 256,
    repeats: int = 3,
    seed: int = 0,
    gap: Gap | None = None,  # tells a near tie from another text: see `Result.largest_gap`
    pause: float = 0.0,  # seconds between answers, in which another engine's idle threads stop looking for work
    progress: Progress | None = None,
) -> list[Result]:
    """Time `ways`, the first being the baseline, on `prompts`. Raises OptionError where there is nothing to compare."""
    for name, given in (("ways", ways), ("prompts", prompts), ("temperatures", temperatures)):
        if not given:
            raise OptionError(f"`{name}` must not be empty; give at least one")
    if repeats < 1:
        raise OptionError(f"`repeats` must be 1 or more, got {repeats}")
    if len({way.name for way in ways}) < len(ways):
        raise OptionError(f"`ways` must have names of their own, got {', '.join(way.name for way in ways)}")
    for way in ways:  # first calls load, compile and fill caches
        way.answer(prompts[0].text, max_tokens=min(max_tokens, 8), temperature=temperatures[0], seed=seed)
    total, done = len(temperatures) * repeats * len(prompts) * len(ways), 0
    results = []
    for temperature in temperatures:
        answers: dict[tuple[str, int], list[Answer]] = {}
        for repeat in range(repeats):
            for place, prompt in enumerate(prompts):
                first = (place + repeat) % len(ways)
                for way in (*ways[first:], *ways[:first]):
                    sleep(pause)
                    made = way.answer(prompt.text, max_tokens=max_tokens, temperature=temperature, seed=seed + place)
                    answers.setdefault((way.name, place), []).append(made)
                    done += 1
                    if progress:
                        progress(f"{way.name}: {prompt.category}", done / total)
        results += _results(ways, prompts, answers, temperature, repeats, seed, gap)
    return results


def _results(
    ways: Sequence[Way],
    prompts: Sequence[Prompt],
    answers: dict[tuple[str, int], list[Answer]],
    temperature: float,
    repeats: int,
    seed: int,
    gap: Gap | None,
) -> list[Result]:
    categories = list(dict.fromkeys(prompt.category for prompt in prompts))
    found = []
    for category in categories:
        places = [place for place, prompt in enumerate(prompts) if prompt.category == category]
        for way in ways:
            own = [answers[way.name, place] for place in places]
            base = [answers[ways[0].name, place] for place in places]
            ratios = np.array([_speedup(mine, other) for mine, other in zip(own, base, strict=True)])
            every = [answer for one in own for answer in one]
            picks = np.random.default_rng(seed).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
            low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
            counted = [answer for answer in every if answer.rounds]
            rounds = sum(answer.rounds or 0 for answer in counted)
            found.append(
                Result(
                    category=category,
                    temperature=temperature,
                    way=way.name,
                    tokens_per_second=_rate(every),
                    speedup=float(np.median(ratios)),
                    interval=(float(low), float(high)),
                    same_tokens=_same(own, base) if way.exact else None,
                    same_prefix=_prefix(own, base) if temperature == 0 else None,
                    largest_gap=_gap(gap, [prompts[place].text for place in places], own, base) if temperature == 0 else None,
                    block_efficiency=sum(len(a.token_ids) for a in counted) / rounds if rounds else None,
                    prompts=len(places),
                    repeats=repeats,
                )
            )
    return found


def _rate(answers: Sequence[Answer]) -> float:
    """Tokens per second, a ratio of sums; 0 where nothing was long enough to be timed."""
    seconds = sum(answer.seconds for answer in answers)
    return sum(answer.timed_tokens for answer in answers) / seconds if seconds > 0 else 0.0


def _speedup(own: Sequence[Answer], base: Sequence[Answer]) -> float:
    """Median over repeats of the baseline's seconds a token over the way's; 1 where either was too short to time."""
    pairs = [(_rate([mine]), _rate([other])) for mine, other in zip(own, base, strict=True)]
    ratios = [mine / other for mine, other in pairs if mine > 0 and other > 0]
    return float(np.median(ratios)) if ratios else 1.0


def _prefix(own: Sequence[Sequence[Answer]], base: Sequence[Sequence[Answer]]) -> float:
    """Tokens before the first difference over all the baseline said, every prompt's first answers."""
    same = sum(_alike(mine[0], other[0]) for mine, other in zip(own, base, strict=True))
    said = sum(len(other[0].token_ids) for other in base)
    return same / said if said else 1.0


def _alike(mine: Answer, other: Answer) -> int:
    """How many tokens both begin with."""
    pairs = zip(mine.token_ids, other.token_ids, strict=False)
    shorter = min(len(mine.token_ids), len(other.token_ids))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)


def _gap(
    gap: Gap | None, prompts: Sequence[str], own: Sequence[Sequence[Answer]], base: Sequence[Sequence[Answer]]
) -> float | None:
    gaps = []
    for prompt, mine, other in zip(prompts, own, base, strict=True):
        alike = _alike(mine[0], other[0])
        if gap and alike < min(len(mine[0].token_ids), len(other[0].token_ids)):
            gaps.append(gap(prompt, other[0].token_ids[:alike], mine[0].token_ids[alike]))
    return max(gaps, default=None)


def _same(own: Sequence[Sequence[Answer]], base: Sequence[Sequence[Answer]]) -> bool:
    return all(
        mine.token_ids == other.token_ids
        for mine_all, other_all in zip(own, base, strict=True)
        for mine, other in zip(mine_all, other_all, strict=True)
    )
