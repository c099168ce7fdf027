"""Text in, text out: prompts and chats to token ids, rounds to text that streams, results with their counts.

`LLM` is what users call. It knows tokenizers and options; it does not know which engine runs the model or how a draft is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any, Literal, final

import numpy as np

from headstart.costs import Pacer
from headstart.decode import Decoder, Request
from headstart.drafters import NoDrafter
from headstart.draws import KeyedDraws, StreamDraws, derived_seed, fresh_seed
from headstart.errors import InputError, OptionError, RowError
from headstart.interfaces import Drafter, Model, TreeDrafter
from headstart.probs import SamplingProcessor
from headstart.records import FinishReason, Options, Round, Stats, TokenLogprobs
from headstart.schedule import AdaptiveSchedule, RoundCosts, RunningCosts, ScheduleReport
from headstart.text import TextStopper, Tokenizer
from headstart.verify import rule_named

__all__ = ["LLM", "Output", "Piece", "Settings", "Stream"]

Message = Mapping[str, str]
Prompt = str | Sequence[Message] | Sequence[int]
Progress = Callable[[str, float | None], None]

MAX_BATCH = 8  # sequences decoded side by side when a list of prompts is given; the others wait their turn


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a result was made with."""

    target: str
    drafter: str
    engine: str
    options: Options
    loaded: Mapping[str, Any] = field(default_factory=dict)  # how the model was loaded: dtype, device, threads, context


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Text that became final with one emitted token, and why that token is there."""

    text: str  # may be empty: half a character, or the beginning of what may be a stop string
    token: int | None  # None: text held back until the end
    # plain: nothing was drafted in its round; branch: accepted, from another branch of a tree than the first
    kind: Literal["accepted", "branch", "correction", "bonus", "plain"]


@dataclass(frozen=True, kw_only=True)
class Output:
    """One generated text and how it came about."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None  # None: interrupted
    stats: Stats
    rounds: list[Round]
    num_prompt_tokens: int
    seed: int | None
    settings: Settings
    logprobs: list[TokenLogprobs] | None = None
    schedule: ScheduleReport | None = None  # with gamma "auto": whether speculation is active, and why
    lossless: bool = True  # the emitted law is the target's own under the same options

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, as `generate --json` prints it."""
        s = self.settings
        document: dict[str, Any] = {
            "target": s.target,
            "drafter": s.drafter,
            "engine": s.engine,
            "rule": s.options.resolved_rule,
            "gamma": s.options.resolved_gamma,
            "seed": self.seed,
            "options": {**s.options.to_json(), **s.loaded},
            "lossless": self.lossless,
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
        }
        if self.logprobs is not None:
            document["logprobs"] = [
                {"token": t.token, "logprob": t.logprob, "top": [{"token": i, "logprob": x} for i, x in t.top]}
                for t in self.logprobs
            ]
        if self.schedule is not None:
            document["schedule"] = self.schedule.to_json() | {"estimated_speedup": self.estimated_speedup}
        document["usage"] = {"prompt_tokens": self.num_prompt_tokens, "completion_tokens": len(self.token_ids)}
        document["stats"] = self.stats.to_json()
        return document

    @property
    def estimated_speedup(self) -> float | None:
        """With gamma "auto": measured tokens per second over what plain rounds give here; None where either is not known."""
        fast = self.stats.tokens_per_second
        plain = self.schedule.plain_seconds if self.schedule else None
        return fast * plain if fast and plain else None


@final
class LLM:
    """A target with a drafter and a tokenizer. Threads may share one: each call keeps its own state, passes take turns."""

    def __init__(
        self,
        model: Model,
        drafter: Drafter | None = None,
        *,
        tokenizer: Tokenizer | None = None,  # None: prompts are token ids and there is no text
        target: str = "model",
        engine: str = "custom",
        loaded: Mapping[str, Any] | None = None,
        lock: threading.Lock | None = None,
        costs_key: Mapping[str, Any] | None = None,  # what measured costs are kept under; None: they are not kept
        costs: RoundCosts | None = None,  # for gamma "auto"; None: measured when first needed
    ) -> None:
        self.model, self.drafter, self.tokenizer = model, drafter or NoDrafter(), tokenizer
        self.target, self.engine, self.loaded = target, engine, dict(loaded or {})
        self.vocab_size = min(model.vocab_size, tokenizer.vocab_size) if tokenizer else model.vocab_size
        self._holes = [i for i, t in enumerate(tokenizer.tokens()) if t is None] if tokenizer else []
        self._lock = lock or threading.Lock()
        self._decoder = Decoder(model, self.drafter)
        self.stopper = partial(TextStopper, tokenizer, (), frozenset())  # looks at tokens as in any generation, and ends none
        self._pacer = Pacer(model, self.drafter, vocab_size=self.vocab_size, key=costs_key, given=costs, stopper=self.stopper)

    def with_drafter(self, drafter: Drafter, *, costs_key: Mapping[str, Any] | None = None) -> LLM:
        """The same model in memory with another drafter (`NoDrafter()`: plain decoding); the two may be used side by side.

        `costs_key` is what costs measured with it are kept under; None: they are not kept."""
        return LLM(
            self.model,
            drafter,
            tokenizer=self.tokenizer,
            target=self.target,
            engine=self.engine,
            loaded=self.loaded,
            lock=self._lock,
            costs_key=costs_key,
        )

    def round_costs(
        self, options: Options | None = None, *, refresh: bool = False, progress: Progress | None = None
    ) -> RunningCosts:
        """What rounds cost here under `options`: given, kept from an earlier run, or measured now (a few seconds).

        Every generation with gamma "auto" reads them, and corrects them by the rounds it runs. `refresh`: measured again, and
        what was learnt of how far drafts are kept is forgotten."""
        asked = options or Options()
        with self._lock:
            greedy = asked.sampling.temperature == 0
            return self._pacer.costs(asked.resolved_rule, greedy=greedy, refresh=refresh, progress=progress)

    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Any:
        """Generate from a text, a chat (list of messages) or token ids; or from a list of such, decoded side by side.

        Comes back as an `Output`, or a list of them for a list of prompts. Options are those of `records.Options`; unknown or
        impossible ones raise OptionError. Sequence i of a list uses a seed derived from (seed, i), reported with it."""
        asked = Options.of(**options)
        many = _is_list_of_prompts(prompt)
        prompts: Sequence[Any] = prompt if many else [prompt]
        base = self._base_seed(asked)
        streams = [self._stream(p, asked, base, i, f"prompt {i}: " if many else "") for i, p in enumerate(prompts)]
        waiting = list(streams)
        running: list[Stream] = []
        try:
            while waiting or running:
                joining = [waiting.pop(0) for _ in range(min(len(waiting), MAX_BATCH - len(running)))]
                running = self._advance([*running, *joining], joining)
                for stream in streams:
                    stream.raise_error()
        finally:
            for stream in streams:
                stream.close()
        outputs = [stream.output for stream in streams]
        return outputs if many else outputs[0]

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Generate from one prompt and hand out text as it becomes final: `for piece in llm.stream("…")`."""
        asked = Options.of(**options)
        if _is_list_of_prompts(prompt):
            raise OptionError("`prompt` must be one prompt to be streamed, got a list; call stream once for each")
        return self._stream(prompt, asked, self._base_seed(asked), 0, "")

    def prompt_ids(self, prompt: Prompt, options: Options | None = None) -> list[int]:
        """The token ids a prompt becomes. Raises InputError for prompts that cannot be used."""
        asked = options or Options()
        if _is_token_ids(prompt):
            return self._checked_ids(prompt, asked)
        if self.tokenizer is None:
            raise InputError(f"`prompt` must be a list of token ids for a model without a tokenizer, got {prompt!r:.60}")
        if not isinstance(prompt, str):
            return self._chat_ids(list(prompt), asked)  # type: ignore[arg-type]
        if asked.chat or (asked.chat is None and self.tokenizer.has_chat_template):
            if not prompt.strip():
                raise InputError("the prompt is empty; give at least one word")
            return self._chat_ids([{"role": "user", "content": prompt}], asked)
        if asked.system is not None:
            raise OptionError(f"`system` needs a chat, got {asked.system!r:.60} with a raw prompt; drop it or use --chat")
        ids = self.tokenizer.encode(prompt) if prompt else []
        if not ids:
            raise InputError("the prompt is empty; give at least one word")
        return ids

    def _checked_ids(self, prompt: Any, asked: Options) -> list[int]:
        if asked.chat or asked.system is not None:
            raise OptionError("`chat` and `system` need text or messages, got a list of token ids")
        for token in prompt:
            if not 0 <= token < self.vocab_size:
                raise InputError(f"`prompt` holds token id {token!r:.30}; ids go from 0 to {self.vocab_size - 1}")
        return [int(token) for token in prompt]

    def _chat_ids(self, messages: list[Message], asked: Options) -> list[int]:
        assert self.tokenizer is not None
        if asked.chat is False:
            raise OptionError("`chat` must not be off for a list of messages; give the prompt as one text")
        if not self.tokenizer.has_chat_template:
            raise OptionError(f"`chat` needs a chat template, and {self.target} has none; use --raw")
        if asked.system is not None:
            messages = [{"role": "system", "content": asked.system}, *messages]
        return self.tokenizer.encode_chat(messages)

    def _base_seed(self, asked: Options) -> int | None:
        return fresh_seed() if asked.seed is None and asked.sampling.temperature > 0 else asked.seed

    def _stream(self, prompt: Prompt, asked: Options, base: int | None, index: int, label: str) -> Stream:
        """A stream that has not started; `label` opens the message of whatever is wrong with this prompt."""
        try:
            ids = self.prompt_ids(prompt, asked)
        except InputError as error:
            raise InputError(f"{label}{error}") from None
        for token in ids:
            if token >= self.model.vocab_size:
                raise InputError(f"{label}the prompt becomes token {token}, which {self.target} has no row for")
        if asked.tree is not None and not isinstance(self.drafter, TreeDrafter):
            raise OptionError(f"`tree` needs a drafter that grows trees, got {self.drafter.name!r}; drop --tree for chains")
        seed = None if base is None else derived_seed(base, index)
        rule = rule_named(asked.resolved_rule, lossy=True)
        schedule = None
        if asked.resolved_gamma == "auto" and self.drafter.name != "none":
            self.round_costs(asked)
            schedule = self._pacer.schedule(asked, num_prompt=len(ids), rule=rule)
        end_ids = self.tokenizer.end_ids if self.tokenizer else frozenset[int]()
        text = TextStopper(self.tokenizer, asked.stop, end_ids)
        request = Request(
            ids,
            rule=rule,
            draws=(KeyedDraws if rule.keyed else StreamDraws)(seed or 0),
            processor=SamplingProcessor(
                asked.sampling, num_prompt=len(ids), vocab_size=self.vocab_size, end_ids=end_ids, holes=self._holes
            ),
            max_tokens=asked.max_tokens,
            gamma=asked.longest_draft,
            tree=asked.fixed_tree,
            schedule=schedule,
            stopper=text,
            num_logprobs=asked.logprobs,
        )
        settings = Settings(target=self.target, drafter=self.drafter.name, engine=self.engine, options=asked, loaded=self.loaded)
        return Stream(self, request, text, settings, seed, label, schedule)

    def _advance(self, streams: Sequence[Stream], joining: Sequence[Stream]) -> list[Stream]:
        """Prefill those that join, one round for all; the ones still running come back."""
        # The model is what threads share; requests are their own. Holding the lock for one round keeps streams fair.
        with self._lock:
            if joining:
                self._decoder.begin([stream.request for stream in joining])
            self._decoder.round([stream.request for stream in streams])
        return [stream for stream in streams if not stream.request.done]


@final
class Stream:
    """One generation under way: iterate for text as it becomes final, or over `steps()`; then read `output`."""

    def __init__(
        self,
        llm: LLM,
        request: Request,
        text: TextStopper,
        settings: Settings,
        seed: int | None,
        label: str,
        schedule: AdaptiveSchedule | None = None,
    ) -> None:
        self._llm, self.request, self.label, self._schedule = llm, request, label, schedule
        self._text, self._settings, self._seed, self._ended = text, settings, seed, False
        self._steps = self._run()

    def __iter__(self) -> Iterator[str]:
        for step in self.steps():
            text = "".join(piece.text for piece in step)
            if text:
                yield text

    def steps(self) -> Iterator[list[Piece]]:
        """The pieces of one round at a time."""
        return self._steps

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop here: caches are freed, `output` holds what was emitted so far, held-back text included."""
        self._steps.close()
        self._text.finish()
        self._end()

    @property
    def output(self) -> Output:
        """The result so far; final once the stream is exhausted."""
        request = self.request
        return Output(
            text=self._text.so_far(final=request.done),
            token_ids=request.output,
            finish_reason=request.finish_reason,
            stats=request.stats,
            rounds=list(request.rounds),
            num_prompt_tokens=request.num_prompt,
            seed=self._seed,
            settings=self._settings,
            logprobs=None if request.num_logprobs is None else list(request.logprobs),
            schedule=self._schedule.report() if self._schedule else None,
            lossless=request.rule.lossless,
        )

    def raise_error(self) -> None:
        """Raise RowError where a row that had to be drawn from could not be."""
        if self.request.error:
            raise RowError(f"{self.label}{self.request.error}")

    def _run(self) -> Generator[list[Piece], None, None]:
        try:
            joining = [self]
            while not self.request.done:
                self._llm._advance([self], joining)
                joining = []
                yield self._pieces(self.request.rounds[-1])
            self.raise_error()
            if rest := self._text.finish():
                yield [Piece(text=rest, token=None, kind="plain")]
        finally:
            self._end()

    def _end(self) -> None:
        self.request.close()
        if self._schedule is not None and not self._ended:
            self._ended = True
            self._llm._pacer.keep(self._settings.options)

    def _pieces(self, last: Round) -> list[Piece]:
        texts = self._text.taken()
        extra: Literal["correction", "bonus"] = "correction" if last.rejected else "bonus"
        pieces = []
        for place, (token, text) in enumerate(zip(last.emitted, texts, strict=True)):
            kind: Any = "plain" if not last.draft else extra
            if place < last.num_accepted:
                kind = "branch" if last.branches[place] else "accepted"
            pieces.append(Piece(text=text, token=token, kind=kind))
        return pieces


def _is_token_ids(prompt: Any) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and all(map(_is_token_id, prompt))


def _is_token_id(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_sequence(value: Any) -> bool:
    """Whether it may be a prompt: a text, or a list of messages or token ids."""
    return (isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray))) or (
        isinstance(value, np.ndarray) and value.ndim > 0
    )


def _is_list_of_prompts(prompt: Any) -> bool:
    """A list of texts, of chats or of lists of token ids; a single chat is a list of messages, a single prompt a list of ids."""
    if isinstance(prompt, str):
        return False
    if _is_sequence(prompt) and not len(prompt):
        raise InputError("`prompt` must not be an empty list; give at least one prompt")
    if _is_sequence(prompt) and all(isinstance(part, Mapping) or _is_token_id(part) for part in prompt):
        return False
    if _is_sequence(prompt) and all(map(_is_sequence, prompt)):
        return True
    raise InputError(f"`prompt` must be a text, a list of messages or token ids, or a list of these, got {prompt!r:.60}")
