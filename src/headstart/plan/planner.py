"""The plan: every drafter, length and rule on one target, what each is predicted to give, and the best of them, off included.

It works on objects: names, files and what is kept between runs are for whoever calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headstart.costs import MeasuredRounds
from headstart.errors import OptionError
from headstart.generation import LLM
from headstart.interfaces import FeatureDrafter, Model, TreeDrafter
from headstart.plan.exports import export
from headstart.plan.predict import Candidate, choose, plain_candidate, predict
from headstart.plan.texts import Text, samples_of
from headstart.plan.trees import best_shape, predict_tree, run_trees
from headstart.plan.yields import Sample, acceptance_rate, accepted_by_position
from headstart.shapes import Shape
from headstart.verify import rule_named

__all__ = ["Acceptance", "Guesser", "Plan", "make_plan"]

Progress = Callable[[str, float | None], None]
# (drafter's LLM, rule) → what its rounds cost
Measure = Callable[[LLM, str], MeasuredRounds]


@dataclass(frozen=True, kw_only=True)
class Guesser:
    """One drafter on the target, and what is known of how it guesses: a sample is then cheaper to take."""

    llm: LLM
    model: Model | None = None  # the model it drafts with, where that is all it does
    looks_up: bool = False  # its drafts come from the text alone, without chance

    @property
    def name(self) -> str:
        """The drafter's name."""
        return self.llm.drafter.name


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """How far one drafter's drafts are kept under one rule, at the longest length, in one category or over all."""

    drafter: str
    rule: str
    category: str | None  # None: all prompts
    by_position: tuple[float, ...]  # P(accepted ≥ j), j = 1 … longest
    acceptance_rate: float | None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "drafter": self.drafter,
            "rule": self.rule,
            "category": self.category,
            "by_position": list(self.by_position),
            "acceptance_rate": self.acceptance_rate,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was measured, what follows from it, and what to do."""

    target: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    costs: dict[str, dict[str, MeasuredRounds]]  # drafter → rule
    acceptance: tuple[Acceptance, ...]
    candidates: tuple[Candidate, ...]  # plain decoding first
    num_prompts: int
    num_tokens: int
    methods: Mapping[str, str]  # drafter with a head → what vLLM calls its kind

    @property
    def plain(self) -> Candidate:
        """Decoding without a drafter."""
        return self.candidates[0]

    @property
    def best(self) -> Candidate:
        """The fastest by prediction; plain decoding where nothing beats it."""
        return choose(self.candidates)

    @property
    def export(self) -> dict[str, Any]:
        """The best in the words of other engines."""
        return export(self.best, self.methods)

    def to_json(self) -> dict[str, Any]:
        """What `headstart plan --json` prints."""
        return {
            "target": self.target,
            "machine": self.machine,
            "settings": self.settings,
            "sample": {"prompts": self.num_prompts, "tokens": self.num_tokens},
            "costs": {name: {rule: m.to_json() for rule, m in rules.items()} for name, rules in self.costs.items()},
            "acceptance": [each.to_json() for each in self.acceptance],
            "candidates": [each.to_json() for each in self.candidates],
            "plain": {"tokens_per_second": self.plain.predicted_tokens_per_second},
            "best": self.best.to_json(),
            "export": self.export,
        }


def make_plan(
    plain: LLM,
    guessers: Sequence[Guesser],
    texts: Sequence[Text],
    measure: Measure,
    *,
    rules: Sequence[str],
    gammas: Sequence[int],
    trees: Sequence[Shape | Literal["auto"]] = (),
    machine: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """Sample every drafter on `texts`, take what `measure` says of costs, and predict every choice.

    `trees` are for drafters that grow them; auto is the best tree found here, for those that do not look the text up.

    Raises OptionError without a drafter, a text, a rule or a length."""
    for name, given in (("guessers", guessers), ("texts", texts), ("rules", rules), ("gammas", gammas)):
        if not given:
            raise OptionError(f"`{name}` must not be empty; a plan compares at least one")
    reference = measure(plain, rules[0])
    costs = {"none": {rules[0]: reference}}
    off = plain_candidate(reference.costs)
    candidates, acceptance = [off], []
    for guesser in guessers:
        samples = samples_of(
            plain,
            texts,
            guesser.llm.drafter,
            model=guesser.model,
            looks_up=guesser.looks_up,
            gamma=max(gammas),
            rules=rules,
            seed=seed,
            progress=progress,
        )
        costs[guesser.name] = {rule: measure(guesser.llm, rule).beside(reference) for rule in rules}
        for rule in rules:
            own = costs[guesser.name][rule].costs
            candidates += [predict(guesser.name, samples, own, off, rule=rule, gamma=n, seed=seed) for n in sorted(set(gammas))]
            acceptance += _acceptance(guesser.name, rule, samples, max(gammas))
        candidates += _trees(plain, guesser, texts, costs[guesser.name], off, trees, seed, progress)
    return Plan(
        target=plain.target,
        machine=dict(machine or {}),
        settings=dict(settings or {}),
        costs=costs,
        acceptance=tuple(acceptance),
        candidates=tuple(candidates),
        num_prompts=len(texts),
        num_tokens=sum(len(text.output) for text in texts),
        methods={guesser.name: word for guesser in guessers if (word := _method(guesser)) is not None},
    )


def _trees(
    plain: LLM,
    guesser: Guesser,
    texts: Sequence[Text],
    costs: Mapping[str, MeasuredRounds],
    off: Candidate,
    trees: Sequence[Shape | Literal["auto"]],
    seed: int,
    progress: Progress | None,
) -> list[Candidate]:
    """Each tree under each rule that judges trees; `block`, which does not, becomes `token`, whose rounds cost as much."""
    drafter, found = guesser.llm.drafter, []
    if not isinstance(drafter, TreeDrafter):
        return []
    by_rule = {rule if rule_named(rule).trees else "token": measured.costs for rule, measured in costs.items()}
    for rule, own in by_rule.items():
        shapes = dict.fromkeys(tree for tree in trees if not isinstance(tree, str))
        if "auto" in trees and not guesser.looks_up:
            if progress:
                progress(f"looking for the best tree of {guesser.name}", None)
            best = best_shape(plain, texts, drafter, own, rule, seed=seed)
            shapes |= {} if best is None else {best: None}
        for shape in shapes:
            if progress:
                progress(f"trees {shape} of {guesser.name}", None)
            samples = run_trees(plain, texts, drafter, shape, rule, seed=seed)
            found.append(predict_tree(guesser.name, samples, own, off, rule=rule, shape=shape, seed=seed))
    return found


def _method(guesser: Guesser) -> str | None:
    """What vLLM calls the head that `guesser` drafts with: EAGLE-3 reads several layers, EAGLE-1 one."""
    kind, drafter = guesser.name.partition(":")[0], guesser.llm.drafter
    if kind not in ("eagle", "medusa") or not isinstance(drafter, FeatureDrafter):
        return None
    return "eagle3" if kind == "eagle" and len(drafter.feature_layers) > 1 else kind


def _acceptance(drafter: str, rule: str, samples: Sequence[Sample], longest: int) -> list[Acceptance]:
    """Over all prompts, then by category in the order they came."""
    groups: dict[str | None, list[Sample]] = {None: list(samples)}
    for sample in samples:
        groups.setdefault(sample.category, []).append(sample)
    found = []
    for category, members in groups.items():
        yields = [sample.at(rule, longest) for sample in members]
        found.append(
            Acceptance(
                drafter=drafter,
                rule=rule,
                category=category,
                by_position=tuple(accepted_by_position(yields).tolist()),
                acceptance_rate=acceptance_rate(yields),
            )
        )
    return found
