"""The loop on tables: requests in one line, its exact law, and the law of plain decoding it must have."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from headstart.decode import Decoder, EndTokens, Request
from headstart.draws import KeyedDraws, StreamDraws
from headstart.interfaces import Draws, Schedule
from headstart.models.table import TableModel
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from headstart.shapes import Shape
from headstart.verify import rule_named
from tests.exact import Script, Tokens, every, random_table
from tests.slow import NoRowError, slow_row

AS_IS = Sampling(temperature=1.0)
Outcome = tuple[Tokens, str | None]  # (output, finish reason); None: the sequence ended with an error


def request(
    prompt: Sequence[int] = (0,),
    *,
    rule: str = "block",
    draws: Draws | None = None,
    seed: int = 0,
    sampling: Sampling = AS_IS,
    vocab: int = 3,
    gamma: int = 3,
    tree: Shape | str | None = None,
    max_tokens: int = 4,
    end_ids: Collection[int] = (),
    num_logprobs: int | None = None,
    processor: SamplingProcessor | None = None,
    schedule: Schedule | None = None,
) -> Request:
    """A request with everything filled in; draws of the kind its rule needs, from `seed`, unless given."""
    judged_by = rule_named(rule, lossy=True)
    return Request(
        prompt,
        rule=judged_by,
        draws=draws or (KeyedDraws(seed) if judged_by.keyed else StreamDraws(seed)),
        processor=processor or SamplingProcessor(sampling, num_prompt=len(prompt), vocab_size=vocab, end_ids=end_ids),
        max_tokens=max_tokens,
        gamma=gamma,
        tree=Shape.parse(tree) if isinstance(tree, str) else tree,
        schedule=schedule,
        stopper=EndTokens(list(end_ids)),
        num_logprobs=num_logprobs,
    )


def finished(decoder: Decoder, *requests: Request) -> list[Request]:
    """The requests, run together to their ends."""
    for _ in decoder.run(list(requests)):
        pass
    return list(requests)


def plain_law(model: TableModel, start: Request) -> dict[Outcome, float]:
    """The law of plain decoding, from the definitions: table, slow processor, end tokens, max tokens, context limit."""
    law: dict[Outcome, float] = defaultdict(float)
    processor = start.processor
    limit = min(start.num_prompt + start.max_tokens, model.context_limit)

    def walk(tokens: Tokens, weight: float) -> None:
        order = model.order
        logits = model._logits[((0,) * order + tokens)[len(tokens) :]] if order else model._logits
        try:
            row = slow_row(logits, processor.sampling, tokens, processor.num_prompt, processor.end_ids)
        except NoRowError:
            law[tokens[start.num_prompt :], None] += weight
            return
        for token, chance in enumerate(row):
            longer = (*tokens, token)
            if chance == 0:
                continue
            if start.stopper.stops(token):
                law[longer[start.num_prompt :], "stop"] += weight * chance
            elif len(longer) >= limit:
                law[longer[start.num_prompt :], "length"] += weight * chance
            else:
                walk(longer, weight * chance)

    walk(tuple(start.tokens), 1.0)
    return dict(law)


def loop_law(decoder: Decoder, start: Request, script: Any = Script) -> dict[Outcome, float]:
    """The law of the loop: every branch of every draw of every round. `script(choices, draws before)` makes the draws.

    Rounds are enumerated one at a time; states that agree in *everything* the next round can see are merged."""
    law: dict[Outcome, float] = defaultdict(float)
    decoder.begin([start])
    states = {_visible(start): (1.0, start)}
    while states:
        later: dict[Any, tuple[float, Request]] = {}
        for weight, before in states.values():
            for chance, after in _rounds(decoder, before, script):
                if after.done:
                    law[tuple(after.output), None if after.error else after.finish_reason] += weight * chance
                else:
                    known = later.get(_visible(after), (0.0, after))[0]
                    later[_visible(after)] = known + weight * chance, after
        states = later
    return dict(law)


def _rounds(decoder: Decoder, before: Request, script: Any) -> Iterator[tuple[float, Request]]:
    def run(draws: Script) -> Request:
        after = forked(before)
        after.draws = draws
        decoder.round([after])
        return after

    return every(run, lambda choices: script(choices, before.draws))


def forked(one: Request) -> Request:
    """An independent copy in the middle of decoding: cache and drafter state are copied, models are shared."""
    other = copy.copy(one)
    other.tokens, other.rounds, other.logprobs = list(one.tokens), list(one.rounds), list(one.logprobs)
    other.clock, other.schedule = copy.deepcopy(one.clock), copy.deepcopy(one.schedule)
    other.cache = one.cache.fork() if one.cache else None
    other.draft_state = copy.deepcopy(one.draft_state, {id(model): model for model in _models(one.draft_state)})
    return other


def _models(state: Any) -> list[TableModel]:
    """The models a drafter's state refers to through its caches; a combined drafter's state is a tuple of states."""
    if isinstance(state, list):
        return [model for part in state for model in _models(part)]
    cache = getattr(state, "cache", None)
    return [] if cache is None else [cache.model]


def _visible(state: Request) -> Any:
    """Everything the next round depends on: tokens, both caches, what drafter and schedule remember, what is known of noise."""
    noise = sorted(getattr(state.draws, "known", {}).items())
    opened = state.drafter_opened, state.drafter_behind, memory_of(state.schedule)
    return tuple(state.tokens), state.cache.tokens, repr(_remembered(state.draft_state)), tuple(noise), opened


def memory_of(value: Any) -> Any:
    """Everything an object holds, down to plain values, as text."""
    if hasattr(value, "__dict__"):
        return repr({name: memory_of(inner) for name, inner in vars(value).items()})
    if isinstance(value, (list, tuple)):
        return repr([memory_of(inner) for inner in value])
    if isinstance(value, dict):
        return repr({name: memory_of(inner) for name, inner in value.items()})
    return repr(value)


def _remembered(state: Any) -> Any:
    if isinstance(state, list):
        return [_remembered(part) for part in state]
    drafter = {} if state is None else vars(state)
    return {name: getattr(value, "tokens", value) for name, value in drafter.items()}


def random_model(seed: int, vocab: int = 3, order: int = 1, zeros: float = 0.0, **more: Any) -> TableModel:
    """A random `TableModel`."""
    return TableModel(random_table(np.random.default_rng(seed), vocab, order, zeros), **more)
