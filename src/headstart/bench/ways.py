"""Headstart with a drafter as a way to generate, and what every way shares: a timer for tokens as they come.

Other engines are ways too; each has a file of its own beside this one, and `peers` opens them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy as np

from headstart.bench.speed import Answer
from headstart.generation import LLM
from headstart.interfaces import Ask

__all__ = ["OwnWay", "Timer"]


@final
class OwnWay:
    """Headstart on one LLM with one draft length.

    With a temperature the rule is `coupled` unless told otherwise: all ways then say the same, which makes pairs of them."""

    def __init__(self, llm: LLM, *, gamma: int | Literal["auto"] = 1, rule: str | None = None) -> None:
        drafter = llm.drafter.name
        self.name = "plain" if drafter == "none" else f"{drafter} γ={gamma}"
        self._llm, self._gamma, self._rule = llm, gamma, rule
        self.exact = rule in (None, "coupled")

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once."""
        asked: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "gamma": self._gamma}
        if temperature == 0 or self._rule in (None, "coupled"):
            asked["seed"] = seed
        if self._rule is not None:
            asked["rule"] = self._rule
        out = self._llm.generate(prompt, **asked)
        seconds = out.stats.seconds.total - out.stats.seconds.prefill
        notes = {} if out.schedule is None else out.schedule.to_json()
        return Answer(
            token_ids=tuple(out.token_ids),
            seconds=seconds,
            timed_tokens=len(out.token_ids),
            rounds=out.stats.num_rounds,
            notes=notes,
        )

    def gap(self, prompt: str, said: Sequence[int], token: int) -> float:
        """How far the logit of `token` lies below the highest after `prompt` and `said`: near 0, rounding decides."""
        cache = self._llm.model.open()
        asked = Ask(cache=cache, tokens=[*self._llm.prompt_ids(prompt), *said], num_logits=1)
        (scores,) = self._llm.model.score([asked])
        row = np.asarray(scores.logits[-1])[: self._llm.vocab_size]
        return float(row.max() - row[token])


class Timer:
    """Tokens as they come, and the seconds after the first of them: those that come together are one round."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.tokens: list[int] = []
        self._first = self._last = 0.0
        self._rounds = self._untimed = 0

    def add(self, tokens: Sequence[int]) -> None:
        """One round's tokens."""
        if not tokens:
            return
        self._last = self._clock()
        if not self.tokens:
            self._first, self._untimed = self._last, len(tokens)
        self.tokens.extend(tokens)
        self._rounds += 1

    def answer(self, *, max_tokens: int, counts_rounds: bool = True) -> Answer:
        """What came, cut to `max_tokens`; `counts_rounds`: the engine hands tokens out round by round."""
        return Answer(
            token_ids=tuple(self.tokens[:max_tokens]),
            seconds=self._last - self._first,
            timed_tokens=len(self.tokens) - self._untimed,
            rounds=self._rounds or None if counts_rounds else None,
        )
