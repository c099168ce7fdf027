"""Costs when they are first needed, and schedules that share them: what `gamma="auto"` runs on.

Costs come from whoever made the model, from an earlier run on this machine, or from a short measurement; the acceptance a text
begins with comes from earlier texts. Those of greedy and of sampled generation, and of each rule, are kept apart: the work
between the passes differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from headstart.costs.rounds import MeasuredRounds, measure_rounds
from headstart.costs.store import find_costs, find_past, keep_costs, keep_past
from headstart.decode import Stopper
from headstart.interfaces import Drafter, Model, PartedDrafter, Rule, ShortDrafter
from headstart.records import LONGEST_GAMMA, Options, Sampling
from headstart.schedule import AdaptiveSchedule, PastAcceptance, RoundCosts, RunningCosts, TreeChoice

__all__ = ["Pacer"]

Progress = Callable[[str, float | None], None]

_PATIENCE = 3.0  # seconds; on a busy machine fewer rounds must do
_REPEATS = 5  # the rounds that are run correct what so few could get wrong


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
        stopper: Callable[[], Stopper] | None = None,  # as for `measure_rounds`
    ) -> None:
        self._model, self._drafter, self._vocab_size = model, drafter, vocab_size
        self._key, self._given, self._stopper = key, given, stopper
        # Of several drafters in a row each has its own costs, and is kept as far as it is kept there.
        self._parts = drafter.parts if isinstance(drafter, PartedDrafter) else (drafter,)
        self._costs: dict[tuple[str, bool], RunningCosts] = {}  # (rule, greedy) → what rounds cost
        self._pasts: dict[tuple[str, bool], list[PastAcceptance]] = {}

    def costs(self, rule: str, *, greedy: bool, refresh: bool = False, progress: Progress | None = None) -> RunningCosts:
        """What rounds cost; the same object at every call, so that all generations correct it together.

        `refresh`: measured now, and acceptance is learnt from nothing again."""
        if refresh or (rule, greedy) not in self._costs:
            if self._given is not None:
                measured = [self._given] * len(self._parts)
            else:
                measured = self._found(rule, greedy, refresh, progress)
            self._costs[rule, greedy] = RunningCosts(*measured)
            keys = self._past_keys(rule, greedy)
            self._pasts[rule, greedy] = [PastAcceptance() if refresh or key is None else find_past(key) for key in keys]
        return self._costs[rule, greedy]

    def schedule(self, asked: Options, *, num_prompt: int, rule: Rule) -> AdaptiveSchedule:
        """A schedule for one sequence."""
        name, greedy = asked.resolved_rule, asked.sampling.temperature == 0
        costs = self.costs(name, greedy=greedy)
        parts, pasts = self._parts, self._pasts[name, greedy]
        names = [part.name for part in parts]
        trees = None
        if asked.tree == "auto":  # of one shape for all; only the last drafter's price is known
            costs = costs.last
            parts, names, pasts = parts[-1:], [self._drafter.name], pasts[-1:]
            trees = TreeChoice(costs, LONGEST_GAMMA)
        return AdaptiveSchedule(
            costs,
            names=names,
            longest=[min(LONGEST_GAMMA, part.longest) if isinstance(part, ShortDrafter) else LONGEST_GAMMA for part in parts],
            num_prompt=num_prompt,
            counts=not rule.lossless,
            walks=rule.walks,
            trees=trees,
            pasts=pasts,
        )

    def keep(self, asked: Options) -> None:
        """Keep for later runs what was learnt of how far drafts are kept."""
        rule, greedy = asked.resolved_rule, asked.sampling.temperature == 0
        for key, past in zip(self._past_keys(rule, greedy), self._pasts.get((rule, greedy), []), strict=False):
            if key is not None:
                keep_past(key, past)

    def _key_of(self, drafter: str, rule: str, greedy: bool) -> dict[str, Any] | None:
        return None if self._key is None else {**self._key, "drafter": drafter, "rule": rule, "greedy": greedy}

    def _past_keys(self, rule: str, greedy: bool) -> list[dict[str, Any] | None]:
        key = self._key_of(self._drafter.name, rule, greedy)
        if key is None or len(self._parts) == 1:
            return [key] * len(self._parts)
        return [{**key, "part": place} for place in range(len(self._parts))]

    def _found(self, rule: str, greedy: bool, refresh: bool, progress: Progress | None) -> list[RoundCosts]:
        """What rounds cost with each drafter, as if all had been measured together with the last."""
        last, *others = [self._measured(part, rule, greedy, refresh, progress) for part in reversed(self._parts)]
        return [*(other.beside(last).costs for other in reversed(others)), last.costs]

    def _measured(self, drafter: Drafter, rule: str, greedy: bool, refresh: bool, progress: Progress | None) -> MeasuredRounds:
        key = self._key_of(drafter.name, rule, greedy)
        kept = None if key is None or refresh else find_costs(key)
        if kept is not None:
            return kept
        measured = measure_rounds(
            self._model,
            drafter,
            repeats=_REPEATS,
            patience=_PATIENCE,
            rule=rule,
            sampling=Sampling(temperature=0.0 if greedy else 1.0),
            vocab_size=self._vocab_size,
            stopper=self._stopper,
            progress=progress,
        )
        if key is not None:
            keep_costs(key, measured)
        return measured
