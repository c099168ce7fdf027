"""Costs when they are first needed, and schedules that share them: what `gamma="auto"` runs on.

Costs come from whoever made the model, from an earlier run on this machine, or from a short measurement; the acceptance a text
begins with comes from earlier texts. Those of greedy and of sampled generation, and of each rule, are kept apart: the work
between the passes differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from headstart.costs.rounds import measure_rounds
from headstart.costs.store import find_costs, find_past, keep_costs, keep_past
from headstart.interfaces import Drafter, Model, Rule
from headstart.records import LONGEST_GAMMA, Options, Sampling
from headstart.schedule import AdaptiveSchedule, PastAcceptance, RoundCosts, RunningCosts, TreeChoice

__all__ = ["Pacer"]

Progress = Callable[[str, float | None], None]

_PATIENCE = 2.0  # seconds; on a busy machine fewer rounds must do
_REPEATS = 3  # the rounds that are run correct what so few could get wrong


@final
class Pacer:
    """Makes schedules for one target with one drafter."""

    def __init__(
        self,
        model: Model,
        drafter: Drafter,
        *,
        vocab_size: int,
        key: Mapping[str, Any] | None = None,  # what costs are kept under; None: they are not kept
        given: RoundCosts | None = None,
    ) -> None:
        self._model, self._drafter, self._vocab_size = model, drafter, vocab_size
        self._key, self._given = key, given
        self._costs: dict[tuple[str, bool], RunningCosts] = {}  # (rule, greedy) → what rounds cost
        self._past: dict[tuple[str, bool], PastAcceptance] = {}

    def costs(self, rule: str, *, greedy: bool, refresh: bool = False, progress: Progress | None = None) -> RunningCosts:
        """What rounds cost; the same object at every call, so that all generations correct it together.

        `refresh`: measured now, and acceptance is learnt from nothing again."""
        if refresh or (rule, greedy) not in self._costs:
            self._costs[rule, greedy] = RunningCosts(self._given or self._found(rule, greedy, refresh, progress))
            key = self._key_of(rule, greedy)
            self._past[rule, greedy] = PastAcceptance() if refresh or key is None else find_past(key)
        return self._costs[rule, greedy]

    def schedule(self, asked: Options, *, num_prompt: int, rule: Rule) -> AdaptiveSchedule:
        """A schedule for one sequence."""
        name, greedy = asked.resolved_rule, asked.sampling.temperature == 0
        costs = self.costs(name, greedy=greedy)
        return AdaptiveSchedule(
            costs,
            drafter=self._drafter.name,
            num_prompt=num_prompt,
            counts=not rule.lossless,
            walks=rule.walks,
            trees=TreeChoice(costs, LONGEST_GAMMA) if asked.tree == "auto" else None,
            past=self._past[name, greedy],
        )

    def keep(self, asked: Options) -> None:
        """Keep for later runs what was learnt of how far drafts are kept."""
        rule, greedy = asked.resolved_rule, asked.sampling.temperature == 0
        key = self._key_of(rule, greedy)
        if key is not None and (rule, greedy) in self._past:
            keep_past(key, self._past[rule, greedy])

    def _key_of(self, rule: str, greedy: bool) -> dict[str, Any] | None:
        return None if self._key is None else {**self._key, "drafter": self._drafter.name, "rule": rule, "greedy": greedy}

    def _found(self, rule: str, greedy: bool, refresh: bool, progress: Progress | None) -> RoundCosts:
        key = self._key_of(rule, greedy)
        kept = None if key is None or refresh else find_costs(key)
        if kept is not None:
            return kept.costs
        measured = measure_rounds(
            self._model,
            self._drafter,
            repeats=_REPEATS,
            patience=_PATIENCE,
            rule=rule,
            sampling=Sampling(temperature=0.0 if greedy else 1.0),
            vocab_size=self._vocab_size,
            progress=progress,
        )
        if key is not None:
            keep_costs(key, measured)
        return measured.costs
