"""One round, and the loop over rounds: draft → score → decide → commit, for one sequence or many.

Prefill runs prompt[:-1]; each round scores the last token together with its draft, so target calls equal rounds and plain
decoding emits exactly one token a call. After every round the target's cache holds prompt + output − 1 tokens, also when a
pass fails or an iterator is abandoned. It works on token ids: text, chat and stop strings are `generation`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, Protocol

from headstart.drafts import NOTHING
from headstart.errors import InputError, ModelError, OptionError, RowError
from headstart.interfaces import (
    Ask,
    Cache,
    Context,
    Drafter,
    Draws,
    FeatureDrafter,
    Model,
    PartedDrafter,
    Rule,
    Schedule,
    Scores,
    TreeDrafter,
)
from headstart.probs import SamplingProcessor
from headstart.records import DEFAULT_GAMMA, Draft, FinishReason, Round, Seconds, Stats, TokenLogprobs
from headstart.rows import FloatArray
from headstart.shapes import Shape
from headstart.target_rows import TargetRows, covered, token_logprobs
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
        tree: Shape | None = None,  # draft trees of this shape instead of chains
        stopper: Stopper | None = None,
        num_logprobs: int | None = None,  # alternatives to report; None: no logprobs
    ) -> None:
        if not len(prompt):
            raise InputError("the prompt holds no tokens; give at least one word")
        if schedule is not None and tree is not None:
            raise OptionError(f"`schedule` chooses lengths and trees, got a tree {tree} as well; give one of the two")
        self.num_prompt = len(prompt)
        self.tokens = list(prompt)  # prompt + output
        self.rule, self.draws, self.processor = rule, draws, processor
        self.max_tokens, self.gamma, self.schedule, self.tree = max_tokens, gamma, schedule, tree
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
        return Context(tokens=self.tokens, num_prompt=self.num_prompt, processor=self.processor, cache=self.cache)

    def close(self) -> None:
        """Let go of caches and drafter state."""
        self.cache = self.draft_state = None


class Decoder:
    """Runs requests on one target with one drafter. Keeps nothing between calls: all state is in the requests."""

    def __init__(self, model: Model, drafter: Drafter, *, clock: Callable[[], float] = perf_counter) -> None:
        """`clock` is what schedules learn the price of a round from."""
        self.model, self.drafter, self._clock = model, drafter, clock
        self._feature_layers = drafter.feature_layers if isinstance(drafter, FeatureDrafter) else ()
        self._parted = drafter if isinstance(drafter, PartedDrafter) else None

    def begin(self, requests: Sequence[Request]) -> None:
        """Prefill, of prompt + output where a request was interrupted. Raises InputError where the context has no room left."""
        limit = self.model.context_limit
        for request in requests:
            if request.num_prompt >= limit:
                raise InputError(
                    f"the prompt is {request.num_prompt} tokens long and the context holds {limit}; "
                    "shorten the prompt or load the model with a larger --context"
                )
        with _Timed(requests, "prefill"):
            for request in requests:
                request.cache = self.model.open()
            long, layers = [request for request in requests if len(request.tokens) > 1], self._feature_layers
            asks = [Ask(cache=_cache(r), tokens=r.tokens[:-1], num_logits=0, feature_layers=layers) for r in long]
            scores = self.model.score(asks) if asks else []
            # Whoever reads hidden states is opened at once: those of the prompt cannot be had later.
            self._open([request for request in requests if request.schedule is None or layers])
            for request, scored in zip(long, scores, strict=True):
                if layers:
                    if scored.features is None:
                        raise ModelError(f"drafter {self.drafter.name!r} reads hidden states, and this target hands out none")
                    self.drafter.commit(request.draft_state, request.tokens, scored.features)

    def round(self, requests: Sequence[Request]) -> None:
        """One round for every request that is not done: each emits at least one token, or ends with its `error` set
        after what was kept before the fault."""
        live = [request for request in requests if not request.done]
        if not live:
            return
        scores: list[Scores] = []
        parts = [0] * len(live)  # whose each draft is, where several drafters stand in a row
        sources: list[list[int]] = []  # of each request judged: the node at which each emitted token was drawn
        budgets = [self._budget(request, len(live)) for request in live]
        self._ready(live, budgets)
        start = self._clock()
        with _Timed(live, "other"):  # what no part inside claims
            try:
                with _Timed(live, "draft"):
                    drafts = self._drafts(live, budgets, parts)
                asks = [_ask(request, draft, self._feature_layers) for request, draft in zip(live, drafts, strict=True)]
                with _Timed(live, "score"):
                    scores = self.model.score(asks)
                with _Timed(live, "verify"):
                    for request, draft, part, scored in zip(live, drafts, parts, scores, strict=True):
                        sources.append(self._judge(request, draft, part, scored))
            finally:
                # Commits what was emitted; after a failure, takes back what was not.
                self._commit(live, budgets, scores, sources)
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
        if self._parted is not None:
            asking = [(one, budget) for one, budget in zip(live, budgets, strict=True) if one.schedule is not None and budget > 0]
            with _Timed([one for one, _ in asking], "prefill"):
                for one, budget in asking:
                    one.draft_state = self._parted.open_parts(one.draft_state, one.context, self._limits(one, budget))
                    one.drafter_opened = True
        fresh = [request for request in drafting if not request.drafter_opened]
        with _Timed(fresh, "prefill"):
            self._open(fresh)
        for request in drafting:
            if request.drafter_behind:
                self.drafter.commit(request.draft_state, request.tokens, None)
                request.drafter_behind = False

    def _drafts(self, live: Sequence[Request], budgets: Sequence[int], parts: list[int]) -> list[Draft]:
        """What the drafter proposes, chains or trees; `parts` is told whose they are. Raises ModelError for what it may not."""
        drafts = [NOTHING] * len(live)
        shapes = {i: shape for i, request in enumerate(live) if (shape := self._shape(request, budgets[i])) is not None}
        chains = [i for i, one in enumerate(live) if i not in shapes and one.tree is None and _drafts_in(one, budgets[i])]
        if chains:
            for i, (part, draft) in zip(chains, self._proposed(live, budgets, chains), strict=True):
                parts[i] = part
                drafts[i] = self._checked(draft, live[i], budgets[i], budgets[i])
        if shapes:
            if not isinstance(self.drafter, TreeDrafter):
                raise OptionError(f"`tree` needs a drafter that grows trees, got {self.drafter.name!r}; drop --tree for chains")
            proposed = self.drafter.propose_trees(
                *_seen([live[i] for i in shapes]), list(shapes.values()), _draws(live, list(shapes))
            )
            for (i, shape), draft in zip(shapes.items(), proposed, strict=True):
                drafts[i] = self._checked(draft, live[i], shape.depth, shape.nodes)
        return drafts

    def _proposed(self, live: Sequence[Request], budgets: Sequence[int], places: Sequence[int]) -> list[tuple[int, Draft]]:
        """The chains of some sequences, each with whose it is."""
        asked, draws = [live[i] for i in places], _draws(live, places)
        if self._parted is not None:
            limits = [self._limits(live[i], budgets[i]) for i in places]
            return self._parted.propose_parts(*_seen(asked), limits, draws)
        return [(0, draft) for draft in self.drafter.propose(*_seen(asked), [budgets[i] for i in places], draws)]

    def _limits(self, request: Request, budget: int) -> list[int]:
        """Tokens that each of several drafters in a row may draft."""
        assert self._parted is not None
        limits = [budget] if request.schedule is None else request.schedule.limits()
        return [min(limit, budget) for limit in (limits if len(limits) > 1 else [budget] * len(self._parted.parts))]

    def _checked(self, draft: Draft, request: Request, depth: int, nodes: int) -> Draft:
        """`draft`, which must keep to its room and to the target's vocabulary."""
        if draft.depth > depth or len(draft) > nodes:
            size = f"{len(draft)} tokens" if draft.parents is None else f"a tree of {len(draft)} tokens, {draft.depth} deep,"
            room = f"{depth}" if depth == nodes else f"{nodes} tokens, {depth} deep,"
            raise ModelError(f"drafter {self.drafter.name!r} proposed {size} where {room} were allowed")
        if any(row.vocab_size != request.processor.vocab_size for row in draft.rows):
            raise ModelError(
                f"drafter {self.drafter.name!r} proposed rows over {draft.rows[0].vocab_size} tokens, "
                f"the target's rows are over {request.processor.vocab_size}; see Context.processor.vocab_size"
            )
        return draft

    def _commit(
        self, live: Sequence[Request], budgets: Sequence[int], scores: Sequence[Scores], sources: Sequence[list[int]]
    ) -> None:
        """Bring the target's caches and the drafter's states to the emitted tokens."""
        for request in live:
            cache = _cache(request)
            cache.rewind(min(cache.length, len(request.tokens) - 1))
        with _Timed(live, "draft"):
            for place, request in enumerate(live):
                features = scores[place].features if place < len(sources) else None
                if features is not None:
                    nodes = sources[place]  # the first ones where a chain was judged: no copy
                    features = features[: len(nodes)] if nodes[-1:] == [len(nodes) - 1] else features[nodes]
                # Features cannot be had later: whoever reads them is told of plain rounds too.
                if _drafts_in(request, budgets[place]) or (request.drafter_opened and features is not None):
                    self.drafter.commit(request.draft_state, request.tokens, features)
                else:
                    request.drafter_behind = request.drafter_opened

    def _budget(self, request: Request, batch: int) -> int:
        """How long a path may be drafted: one less than may still be emitted, for the extra token. A stopping time."""
        room = min(request.max_tokens + request.num_prompt, self.model.context_limit) - len(request.tokens) - 1
        if request.schedule is not None:
            return min(request.schedule.length(room, batch), room)
        return min(request.gamma if request.tree is None else request.tree.depth, room)

    def _shape(self, request: Request, budget: int) -> Shape | None:
        """The tree to draft, cut to what may still be emitted and to what the cache can hold; None: a chain, or nothing."""
        tree = request.tree
        if request.schedule is not None and budget > 0:
            tree = request.schedule.tree()
        return None if tree is None else tree.fitted(budget, self.model.context_limit - len(request.tokens))

    def _judge(self, request: Request, draft: Draft, part: int, scored: Scores) -> list[int]:
        """Decide one draft, cut at the first stop and record the round. Returns the node each emitted token was drawn at."""
        rows = TargetRows(request.tokens, request.processor, draft, scored)
        decision = decide(request.rule, rows, draft, request.draws, len(request.tokens))
        path = [0, *draft.path(decision.node)]
        fault = rows.fault(path)
        # Tokens kept before a fault are the target's own: they are emitted, and may end the sequence before the fault is met.
        if fault is not None:
            path = path[: fault.place + 1]
        decided = [*(draft.tokens[node - 1] for node in path[1:]), *((decision.token,) if fault is None else ())]
        overlaps = tuple(covered(rows[node], draft, node) for node in path[: len(decided)] if draft.children(node))
        if draft.parents is not None:
            _cache(request).keep(path)  # before anything is emitted: whatever happens then, the cache is one chain
        emitted = self._emit(request, decided, path, scored.logits)
        if fault is not None and not request.finish_reason:
            request.error = RowError(f"no token can be drawn at output position {len(request.output)}: {fault.error}")
        request.rounds.append(
            Round(
                draft=draft.tokens,
                num_accepted=len(path) - 1,
                emitted=tuple(emitted),
                num_cut=len(path) - len(emitted),
                overlaps=overlaps,
                parents=draft.parents,
                path=None if draft.parents is None else tuple(node - 1 for node in path[1:]),
                part=part,
            )
        )
        return path[: len(emitted)]

    def _emit(self, request: Request, decided: Sequence[int], path: Sequence[int], logits: FloatArray) -> list[int]:
        """Append decided tokens, each drawn at its node of `path`, up to the first stop; what comes first in the text names the
        finish reason."""
        emitted = []
        for token, node in zip(decided, path, strict=False):  # the node of a fault emits nothing
            if request.num_logprobs is not None:
                count = request.num_logprobs
                request.logprobs.append(token_logprobs(request.processor, request.tokens, token, logits[node], count))
            request.tokens.append(token)
            emitted.append(token)
            if request.stopper.stops(token):
                request.finish_reason = "stop"
            elif len(request.tokens) >= min(request.num_prompt + request.max_tokens, self.model.context_limit):
                request.finish_reason = "length"
            if request.finish_reason:
                break
        return emitted


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


class _Timed:
    """Adds the seconds inside to a part of each request. No generator: that would cost more than most parts of a round."""

    __slots__ = ("_before", "_part", "_requests", "_start")

    def __init__(self, requests: Sequence[Request], part: str) -> None:
        self._requests, self._part = requests, part

    def __enter__(self) -> None:
        self._before = [request.clock.claimed for request in self._requests]
        self._start = perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = perf_counter() - self._start
        for request, claimed in zip(self._requests, self._before, strict=True):
            request.clock.add(self._part, max(0.0, spent - (request.clock.claimed - claimed)))


def _drafts_in(request: Request, budget: int) -> bool:
    """Whether the drafter takes part in a round: always, unless a schedule says that it does not."""
    return request.schedule is None or budget > 0


def _ask(request: Request, draft: Draft, layers: Sequence[int]) -> Ask:
    """The last token and the draft after it: a node of the draft is a place in the ask."""
    parents = None if draft.parents is None else [-1, *(parent + 1 for parent in draft.parents)]
    return Ask(cache=_cache(request), tokens=[request.tokens[-1], *draft.tokens], parents=parents, feature_layers=layers)


def _seen(requests: Sequence[Request]) -> tuple[list[Any], list[Context]]:
    """What a drafter is shown: its states and their contexts."""
    return [request.draft_state for request in requests], [request.context for request in requests]


def _draws(live: Sequence[Request], places: Sequence[int]) -> list[Draws]:
    return [live[i].draws for i in places]


def _cache(request: Request) -> Cache:
    assert request.cache is not None, "a round before begin()"
    return request.cache
