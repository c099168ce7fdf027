"""One round, and the loop over rounds: draft → score → decide → commit, for one sequence or many.

Prefill runs prompt[:-1]; each round scores the last token together with its draft, so target calls equal rounds and plain
decoding emits exactly one token a call. After every round the target's cache holds prompt + output − 1 tokens, also when a
pass fails or an iterator is abandoned. It works on token ids: text, chat and stop strings are `generation`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from headstart.errors import InputError, ModelError, RowError
from headstart.interfaces import Ask, Cache, Context, Drafter, Draws, Model, Rule, Schedule, Scores
from headstart.probs import SamplingProcessor, overlap
from headstart.records import DEFAULT_GAMMA, Draft, FinishReason, Round, Seconds, Stats, TokenLogprobs
from headstart.rows import FloatArray, Row
from headstart.verify import decide

__all__ = ["Decoder", "EndTokens", "Request", "Stopper"]


class Stopper(Protocol):
    """Says after which token a sequence ends. Asked once for every emitted token, in order."""

    def stops(self, token: int) -> bool:
        """Whether the sequence ends with `token`."""


class EndTokens:
    """Stops at any of the given token ids."""

    def __init__(self, ids: Sequence[int] | frozenset[int] = ()) -> None:
        self._ids = frozenset(ids)

    def stops(self, token: int) -> bool:
        """Whether `token` is an end token."""
        return token in self._ids


class Request:
    """One sequence being decoded: what was asked, what is out, and its own draws. Belongs to whoever runs it."""

    def __init__(
        self,
        prompt: Sequence[int],  # token ids, at least one
        *,
        rule: Rule,
        draws: Draws,
        processor: SamplingProcessor,
        max_tokens: int,
        gamma: int = DEFAULT_GAMMA,
        schedule: Schedule | None = None,  # None: drafts of `gamma` tokens
        stopper: Stopper | None = None,
        num_logprobs: int | None = None,  # alternatives to report; None: no logprobs
    ) -> None:
        if not len(prompt):
            raise InputError("the prompt holds no tokens; give at least one word")
        self.num_prompt = len(prompt)
        self.tokens = list(prompt)  # prompt + output
        self.rule, self.draws, self.processor = rule, draws, processor
        self.max_tokens, self.gamma, self.schedule = max_tokens, gamma, schedule
        self.stopper: Stopper = stopper or EndTokens()
        self.num_logprobs = num_logprobs
        self.rounds: list[Round] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.error: RowError | None = None
        self.clock = _Clock()
        self.cache: Cache | None = None
        self.draft_state: Any = None
        self.drafter_opened = False
        self.drafter_behind = False  # plain rounds went by without it

    @property
    def output(self) -> list[int]:
        """Emitted token ids."""
        return self.tokens[self.num_prompt :]

    @property
    def done(self) -> bool:
        """Whether no further round is due."""
        return self.finish_reason is not None or self.error is not None

    @property
    def stats(self) -> Stats:
        """Counts and times so far."""
        return Stats.of(self.rounds, self.clock.seconds())

    @property
    def context(self) -> Context:
        """What a drafter may see."""
        return Context(tokens=self.tokens, num_prompt=self.num_prompt, processor=self.processor)

    def close(self) -> None:
        """Let go of caches and drafter state."""
        self.cache = self.draft_state = None


class Decoder:
    """Runs requests on one target with one drafter. Keeps nothing between calls: all state is in the requests."""

    def __init__(self, model: Model, drafter: Drafter, *, clock: Callable[[], float] = perf_counter) -> None:
        """`clock` is what schedules learn the price of a round from."""
        self.model, self.drafter, self._clock = model, drafter, clock

    def begin(self, requests: Sequence[Request]) -> None:
        """Prefill, of prompt + output where a request was interrupted. Raises InputError where the context has no room left."""
        limit = self.model.context_limit
        for request in requests:
            if request.num_prompt >= limit:
                raise InputError(
                    f"the prompt is {request.num_prompt} tokens long and the context holds {limit}; "
                    "shorten the prompt or load the model with a larger --context"
                )
        with _timed(requests, "prefill"):
            for request in requests:
                request.cache = self.model.open()
            asks = [Ask(cache=_cache(r), tokens=r.tokens[:-1], num_logits=0) for r in requests if len(r.tokens) > 1]
            if asks:
                self.model.score(asks)
            self._open([request for request in requests if request.schedule is None])

    def round(self, requests: Sequence[Request]) -> None:
        """One round for every request that is not done: each emits at least one token, or ends with its `error` set
        after what was kept before the fault."""
        live = [request for request in requests if not request.done]
        if not live:
            return
        scores: list[Scores] = []
        budgets = [self._budget(request, len(live)) for request in live]
        self._ready(live, budgets)
        start = self._clock()
        with _timed(live, "other"):  # what no part inside claims
            try:
                with _timed(live, "draft"):
                    drafts = self._drafts(live, budgets)
                asks = [Ask(cache=_cache(r), tokens=[r.tokens[-1], *d.tokens]) for r, d in zip(live, drafts, strict=True)]
                with _timed(live, "score"):
                    scores = self.model.score(asks)
                with _timed(live, "verify"):
                    for request, draft, scored in zip(live, drafts, scores, strict=True):
                        self._judge(request, draft, scored)
            finally:
                # Commits what was emitted; after a failure, takes back what was not.
                self._commit(live, budgets, scores)
        seconds, drafted = self._clock() - start, [len(draft) for draft in drafts]
        for request in live:
            if request.schedule is not None:
                request.schedule.saw(request.rounds[-1], drafted=drafted, seconds=seconds)

    def run(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        """Prefill, then a round at a time until all are done; yields the requests each round moved. Frees caches at the end."""
        try:
            self.begin(requests)
            while live := [request for request in requests if not request.done]:
                self.round(live)
                yield live
        finally:
            for request in requests:
                request.close()

    def _open(self, requests: Sequence[Request]) -> None:
        if not requests:
            return
        for request, state in zip(requests, self.drafter.open([r.context for r in requests]), strict=True):
            request.draft_state, request.drafter_opened = state, True

    def _ready(self, live: Sequence[Request], budgets: Sequence[int]) -> None:
        """Open the drafter, or bring it up to date, for sequences whose schedule has it draft after rounds without it."""
        drafting = [request for request, budget in zip(live, budgets, strict=True) if _drafts_in(request, budget)]
        fresh = [request for request in drafting if not request.drafter_opened]
        with _timed(fresh, "prefill"):
            self._open(fresh)
        for request in drafting:
            if request.drafter_behind:
                self.drafter.commit(request.draft_state, request.tokens, None)
                request.drafter_behind = False

    def _drafts(self, live: Sequence[Request], budgets: Sequence[int]) -> list[Draft]:
        """What the drafter proposes. Raises ModelError where it goes past its budget or over another vocabulary."""
        drafts = [Draft()] * len(live)
        asked = [i for i, request in enumerate(live) if _drafts_in(request, budgets[i])]
        if asked:
            proposed = self.drafter.propose(
                [live[i].draft_state for i in asked],
                [live[i].context for i in asked],
                [budgets[i] for i in asked],
                [live[i].draws for i in asked],
            )
            for i, draft in zip(asked, proposed, strict=True):
                drafts[i] = draft
        for request, draft, budget in zip(live, drafts, budgets, strict=True):
            if len(draft) > budget:
                raise ModelError(f"drafter {self.drafter.name!r} proposed {len(draft)} tokens where {budget} were allowed")
            if any(row.vocab_size != request.processor.vocab_size for row in draft.rows):
                raise ModelError(
                    f"drafter {self.drafter.name!r} proposed rows over {draft.rows[0].vocab_size} tokens, "
                    f"the target's rows are over {request.processor.vocab_size}; see Context.processor.vocab_size"
                )
        return drafts

    def _commit(self, live: Sequence[Request], budgets: Sequence[int], scores: Sequence[Scores]) -> None:
        """Bring the target's caches and the drafter's states to the emitted tokens."""
        for request in live:
            cache = _cache(request)
            cache.rewind(min(cache.length, len(request.tokens) - 1))
        with _timed(live, "draft"):
            for place, request in enumerate(live):
                features = scores[place].features if scores else None
                # Features cannot be had later: whoever reads them is told of plain rounds too.
                if _drafts_in(request, budgets[place]) or (request.drafter_opened and features is not None):
                    self.drafter.commit(request.draft_state, request.tokens, features)
                else:
                    request.drafter_behind = request.drafter_opened

    def _budget(self, request: Request, batch: int) -> int:
        """How many tokens may be drafted: one less than may still be emitted, for the extra token. A stopping time."""
        room = min(request.max_tokens + request.num_prompt, self.model.context_limit) - len(request.tokens) - 1
        return min(request.gamma, room) if request.schedule is None else min(request.schedule.length(room, batch), room)

    def _judge(self, request: Request, draft: Draft, scored: Scores) -> None:
        """Decide one draft, cut at the first stop and record the round."""
        rows = _TargetRows(request, draft, scored.logits)
        decision = decide(request.rule, rows, draft, request.draws, len(request.tokens))
        fault = rows.fault(decision.num_accepted)
        # Tokens kept before a fault are the target's own: they are emitted, and may end the sequence before the fault is met.
        num_accepted = decision.num_accepted if fault is None else fault.place
        decided = [*draft.tokens[:num_accepted], *((decision.token,) if fault is None else ())]
        judged = min(len(decided), len(draft))
        overlaps = tuple(overlap(rows[i], draft.rows[i]) for i in range(judged))
        emitted = self._emit(request, decided, scored.logits)
        if fault is not None and not request.finish_reason:
            request.error = RowError(f"no token can be drawn at output position {len(request.output)}: {fault.error}")
        request.rounds.append(
            Round(
                draft=draft.tokens,
                num_accepted=num_accepted,
                emitted=tuple(emitted),
                num_cut=num_accepted + 1 - len(emitted),
                overlaps=overlaps,
            )
        )

    def _emit(self, request: Request, decided: Sequence[int], logits: FloatArray) -> list[int]:
        """Append decided tokens up to the first stop; whatever comes first in the text names the finish reason."""
        emitted = []
        for place, token in enumerate(decided):
            if request.num_logprobs is not None:
                request.logprobs.append(_token_logprobs(request, token, logits[place]))
            request.tokens.append(token)
            emitted.append(token)
            if request.stopper.stops(token):
                request.finish_reason = "stop"
            elif len(request.tokens) >= min(request.num_prompt + request.max_tokens, self.model.context_limit):
                request.finish_reason = "length"
            if request.finish_reason:
                break
        return emitted


class _Fault(NamedTuple):
    """A row no token can be drawn from."""

    place: int  # the drafted tokens before it
    error: RowError


class _TargetRows(Sequence[Row]):
    """The target's rows of one draft, made when first looked at: row i's history is the prefix and X_1 … X_i.

    A row nothing can be drawn from is a fault only if its position is really visited, which is known after deciding. Until
    then a stand-in takes its place; it cannot change the law anywhere else."""

    def __init__(self, request: Request, draft: Draft, logits: FloatArray) -> None:
        self._request, self._draft, self._logits = request, draft, logits
        self._rows: dict[int, Row] = {}
        self._faults: dict[int, _Fault] = {}

    def __len__(self) -> int:
        return len(self._draft) + 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place not in self._rows:
            self._rows[place] = self._made(place)
        return self._rows[place]

    def _made(self, place: int) -> Row:
        history = [*self._request.tokens, *self._draft.tokens[:place]]
        try:
            return self._request.processor.row(history, self._logits[place])
        except RowError as error:
            self._faults[place] = _Fault(place, error)
            if place < len(self._draft):
                return self._draft.rows[place]
            return Row.point(0, self._request.processor.vocab_size)

    def fault(self, num_accepted: int) -> _Fault | None:
        """The first fault among the rows a kept token, or the extra one, was drawn from."""
        return self._faults[min(self._faults)] if self._faults and min(self._faults) <= num_accepted else None


class _Clock:
    """Seconds of one request, by part. Parts nest: time is counted once, for the innermost."""

    def __init__(self) -> None:
        self.parts = dict.fromkeys(("prefill", "draft", "score", "verify", "other"), 0.0)
        self.claimed = 0.0  # seconds any part has taken so far

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] += seconds
        self.claimed += seconds

    def seconds(self) -> Seconds:
        return Seconds(**self.parts)


@contextmanager
def _timed(requests: Sequence[Request], part: str) -> Iterator[None]:
    before = [request.clock.claimed for request in requests]
    start = perf_counter()
    try:
        yield
    finally:
        spent = perf_counter() - start
        for request, claimed in zip(requests, before, strict=True):
            request.clock.add(part, max(0.0, spent - (request.clock.claimed - claimed)))


def _drafts_in(request: Request, budget: int) -> bool:
    """Whether the drafter takes part in a round: always, unless a schedule says that it does not."""
    return request.schedule is None or budget > 0


def _cache(request: Request) -> Cache:
    assert request.cache is not None, "a round before begin()"
    return request.cache


def _token_logprobs(request: Request, token: int, logits: FloatArray) -> TokenLogprobs:
    logprobs = request.processor.logprobs(request.tokens, logits)
    count = min(request.num_logprobs or 0, logprobs.size)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        reach = np.partition(logprobs, logprobs.size - count)[logprobs.size - count]
        near = np.flatnonzero((logprobs >= reach) & np.isfinite(logprobs))
        likeliest = near[np.argsort(-logprobs[near], kind="stable")[:count]]
        top = tuple((int(i), float(logprobs[i])) for i in likeliest)
    return TokenLogprobs(token=token, logprob=float(logprobs[token]), top=top)
