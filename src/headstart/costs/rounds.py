"""What a whole round costs by the length of its draft: the target's pass, drafting, and everything else, each on its own.

Rounds are run by the loop itself, on a text that repeats: the target's logits are bent so that it goes on repeating, which
gives a look-up drafter something to find every time. A model or a head drafts something else; half of it is kept, so that it
reads what was kept as it does in any text. Of combined drafters the last is timed, which drafts where those before it have
nothing: a look-up in front would hide its price. Lengths take turns, so that a machine that slows down slows all of them, each a
few rounds in a row, as a generation runs them: what rounds of other lengths left in the caches slows the first, which is not
counted. Medians are kept, with the interquartile range. The target's own pass is timed within these rounds, without the bending,
and apart for numbers of tokens that no round scored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headstart.costs.passes import measure_passes
from headstart.decode import Decoder, EndTokens, Request, Stopper
from headstart.draws import KeyedDraws, StreamDraws
from headstart.errors import OptionError
from headstart.interfaces import Ask, Cache, Context, Drafter, Model, PartedDrafter, Remembering, Scores
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from headstart.schedule import Curve, RoundCosts
from headstart.verify import rule_named

__all__ = ["MeasuredRounds", "measure_rounds"]

_PERIOD = 24  # tokens after which the text repeats
_IN_A_ROW = 3  # rounds of one length, of which the first is not counted
_LARGER_PASSES = (16, 32)  # further points of the target's curve, for batches larger than the one measured


@dataclass(frozen=True, kw_only=True)
class MeasuredRounds:
    """Costs with what is needed to judge them."""

    costs: RoundCosts
    plain_pass: float  # seconds of the target's pass in the rounds that drafted nothing: how fast the machine was just then
    context: int
    repeats: int
    spread: dict[str, dict[int, float]]  # part → number → interquartile range in seconds

    def beside(self, reference: MeasuredRounds) -> MeasuredRounds:
        """These costs as they would have been measured together with `reference`: its target's curve, and the rest scaled by how
        much slower or faster the machine was."""
        factor = reference.plain_pass / self.plain_pass
        costs = replace(
            self.costs,
            score=reference.costs.score,
            draft=self.costs.draft.scaled(factor),
            overhead=self.costs.overhead.scaled(factor),
            open_per_token=self.costs.open_per_token * factor,
        )
        return replace(self, costs=costs, plain_pass=reference.plain_pass)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        spread = {part: {str(n): seconds for n, seconds in by.items()} for part, by in self.spread.items()}
        about = {"plain_pass": self.plain_pass, "context": self.context, "repeats": self.repeats, "spread": spread}
        return self.costs.to_json() | about

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> MeasuredRounds:
        """What `to_json` wrote. Raises KeyError, TypeError, AttributeError or ValueError for anything else."""
        spread = {part: {int(n): float(s) for n, s in by.items()} for part, by in document["spread"].items()}
        return MeasuredRounds(
            costs=RoundCosts.from_json(document),
            plain_pass=float(document["plain_pass"]),
            context=int(document["context"]),
            repeats=int(document["repeats"]),
            spread=spread,
        )


def measure_rounds(
    model: Model,
    drafter: Drafter,
    gammas: Sequence[int] = (1, 2, 4, 7, 8),  # 7: scoring eight tokens fills whole tiles of some kernels, nine begin a new one
    *,
    context: int = 256,
    batch: int = 1,
    repeats: int = 9,
    rule: str = "block",
    sampling: Sampling | None = None,
    vocab_size: int | None = None,  # tokens the rows are over, where fewer than the model's
    stopper: Callable[[], Stopper] | None = None,  # what looks at each emitted token in a generation, as that takes time too
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    patience: float = math.inf,  # seconds after which no further repeat begins, for rounds and passes each; one is always made
    progress: Callable[[str, float | None], None] | None = None,
) -> MeasuredRounds:
    """Time rounds of `batch` sequences that draft each of `gammas` tokens, after about `context` tokens.

    Raises OptionError for lengths under 1 and where the model's context is too short for a round."""
    lengths = sorted(set(gammas))
    if not lengths or lengths[0] < 1:
        raise OptionError(f"`gammas` must be lengths of 1 or more, got {list(gammas)}")
    context = min(context, model.context_limit - 2 * lengths[-1] - 3)
    if context < 2:
        raise OptionError(f"`gammas` up to {lengths[-1]} do not fit a context of {model.context_limit}; ask for shorter drafts")
    if isinstance(drafter, PartedDrafter):
        drafter = drafter.parts[-1]
    own = sampling or Sampling()
    width = min(vocab_size or model.vocab_size, model.vocab_size)
    bench = _Bench(
        model,
        drafter,
        context=context,
        batch=batch,
        rule=rule,
        sampling=own,
        width=width,
        stopper=stopper or EndTokens,
        seed=seed,
        clock=clock,
    )
    parts = bench.run([0, *lengths], repeats, clock, patience, progress)
    points = [1, *(1 + n for n in lengths), *(k for k in _LARGER_PASSES if batch == 1 and context + k <= model.context_limit)]
    passes = measure_passes(
        model,
        points,
        context=context,
        batch=batch,
        repeats=repeats,
        in_a_row=_IN_A_ROW,
        seed=seed,
        clock=clock,
        patience=patience,
        progress=progress,
    )
    within = {1 + n: float(np.median(seen)) for n, seen in parts["score"].items() if seen}
    alone = {k: milliseconds / 1e3 for k, milliseconds in passes.milliseconds.items()}
    slower = float(np.median([seconds / alone[k] for k, seconds in within.items()]))
    score = {batch * k: within.get(k, slower * seconds) for k, seconds in alone.items()}
    draft = {0: 0.0} | {n: float(np.median(seen)) for n, seen in parts["draft"].items() if n and seen}
    overhead = {n: float(np.median(seen)) for n, seen in parts["overhead"].items() if seen}
    costs = RoundCosts(
        score=Curve.of(score),
        draft=Curve.of(draft),
        overhead=Curve.of(overhead),
        batch=batch,
        open_per_token=bench.open_seconds(clock) / context,
    )
    spread = {name: {n: _spread(seen) for n, seen in by.items() if seen} for name, by in parts.items()}
    spread["score"] = {batch * k: milliseconds / 1e3 for k, milliseconds in passes.spread.items()}
    plain_pass = within[1]
    return MeasuredRounds(costs=costs, plain_pass=plain_pass, context=context, repeats=repeats, spread=spread)


class _Bench:
    """Requests on the repeating text, begun again whenever their context is used up."""

    def __init__(
        self,
        model: Model,
        drafter: Drafter,
        *,
        context: int,
        batch: int,
        rule: str,
        sampling: Sampling,
        width: int,
        stopper: Callable[[], Stopper],
        seed: int,
        clock: Callable[[], float],
    ) -> None:
        # What is timed here must not be remembered, and be drafted from, later.
        self._drafter = drafter.afresh() if isinstance(drafter, Remembering) else drafter
        self._context, self._batch = context, batch
        self._rule, self._sampling, self._width, self._seed = rule_named(rule, lossy=True), sampling, width, seed
        self._phrase = np.random.default_rng(seed).integers(0, width, _PERIOD).tolist()
        self._limit, self._stopper = model.context_limit, stopper
        self._num_rounds = 0
        self._bent = _Bent(model, self._phrase, clock)
        self._decoder = Decoder(self._bent, self._drafter)
        self._requests: list[Request] = []

    def run(
        self,
        lengths: Sequence[int],
        repeats: int,
        clock: Callable[[], float],
        patience: float,
        progress: Callable[[str, float | None], None] | None,
    ) -> dict[str, dict[int, list[float]]]:
        """part → length → seconds of each counted round; `score` is the target's pass. A round whose drafts came out shorter than
        asked is not counted."""
        seen: dict[str, dict[int, list[float]]] = {part: {n: [] for n in lengths} for part in ("draft", "score", "overhead")}
        begun = clock()
        for repeat in range(-1, repeats):  # the first round of each length warms up
            for n in lengths:
                for turn in range(_IN_A_ROW):
                    spent, drafted = self._round(n)
                    if repeat >= 0 and turn > 0 and drafted == n:
                        for part, seconds in spent.items():
                            seen[part][n].append(seconds)
            if progress:
                progress("timing rounds", (repeat + 1) / repeats)
            if repeat >= 0 and clock() - begun > patience:
                break
        for request in self._requests:
            request.close()
        return seen

    def open_seconds(self, clock: Callable[[], float]) -> float:
        """Seconds in which the drafter reads one sequence of `context` tokens."""
        tokens = self._text(0)
        context = Context(tokens=tokens, num_prompt=len(tokens), processor=self._processor(len(tokens)))
        start = clock()
        self._drafter.open([context])
        return max(0.0, clock() - start)

    def _round(self, num_drafted: int) -> tuple[dict[str, float], int]:
        """Seconds of one round by part, and what was drafted in it."""
        if not self._requests or len(self._requests[0].tokens) + num_drafted + 2 > self._limit:
            self._begin()
        for request in self._requests:
            request.gamma = num_drafted
        self._num_rounds += 1
        self._bent.keep = (num_drafted + self._num_rounds % 2) // 2
        first = self._requests[0]
        before = dict(first.clock.parts)
        self._decoder.round(self._requests)
        spent = {part: first.clock.parts[part] - before[part] for part in before}
        drafted = min(request.rounds[-1].num_drafted for request in self._requests)
        return {"draft": spent["draft"], "score": self._bent.seconds, "overhead": spent["verify"] + spent["other"]}, drafted

    def _begin(self) -> None:
        for request in self._requests:
            request.close()
        self._requests = []
        for place in range(self._batch):
            tokens = self._text(place)
            self._requests.append(
                Request(
                    tokens,
                    rule=self._rule,
                    draws=(KeyedDraws if self._rule.keyed else StreamDraws)(self._seed + place),
                    processor=self._processor(len(tokens)),
                    max_tokens=self._limit,
                    stopper=self._stopper(),
                )
            )
        self._decoder.begin(self._requests)

    def _text(self, place: int) -> list[int]:
        # Every sequence of a batch reads the same phrase: what is bent depends on the position alone.
        del place
        return [self._phrase[i % _PERIOD] for i in range(self._context)]

    def _processor(self, num_prompt: int) -> SamplingProcessor:
        return SamplingProcessor(self._sampling, num_prompt=num_prompt, vocab_size=self._width)


class _Bent:
    """A model whose own choice is the first so many tokens of a draft, then the next token of a phrase that repeats."""

    def __init__(self, model: Model, phrase: Sequence[int], clock: Callable[[], float]) -> None:
        self._model, self._phrase, self._clock = model, phrase, clock
        self.seconds = 0.0  # of the last pass, without the bending
        self.keep = 0  # tokens of a draft
        self.vocab_size, self.context_limit = model.vocab_size, model.context_limit

    def open(self) -> Cache:
        return self._model.open()

    def score(self, asks: Sequence[Ask]) -> list[Scores]:
        starts = [ask.cache.length for ask in asks]
        begun = self._clock()
        answers = self._model.score(asks)
        self.seconds = self._clock() - begun
        return [self._bent(scores, start, ask.tokens) for scores, start, ask in zip(answers, starts, asks, strict=True)]

    def _bent(self, scores: Scores, start: int, tokens: Sequence[int]) -> Scores:
        if not len(scores.logits):
            return scores
        logits = np.array(scores.logits)
        for place, row in enumerate(logits, start=len(tokens) - len(logits)):
            kept = place < min(self.keep, len(tokens) - 1)
            token = tokens[place + 1] if kept else self._phrase[(start + place + 1) % _PERIOD]
            row[token] = float(row.max()) + 20.0
        return Scores(logits=logits, features=scores.features)


def _spread(seconds: Sequence[float]) -> float:
    low, high = np.percentile(np.array(seconds), [25, 75])
    return float(high - low)
