"""Samples of what a target says, and of how far a drafter's guesses at it would be kept.

Three roads, the cheapest that is exact for the drafter: a draft model reads each text once, for every rule and length at the same
time; a drafter without chance is asked at every place of the text; any other is run, at the longest length, and watched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.decode import Decoder, Request
from headstart.draws import StreamDraws
from headstart.errors import OptionError, RowError
from headstart.generation import LLM
from headstart.interfaces import Ask, Context, Drafter, Model
from headstart.plan.acceptance import Place, Watched, kept_along, place_of
from headstart.plan.yields import RoundSample, Sample, TextSample
from headstart.probs import SamplingProcessor
from headstart.prompts import Prompt
from headstart.rows import FloatArray, Row
from headstart.verify import rule_named

__all__ = ["Text", "asked_at_every_place", "read_by_model", "run_and_watched", "sample_texts", "samples_of"]

Progress = Callable[[str, float | None], None]
_CHUNK = 32  # tokens scored at once: what their logits weigh is read back whole


@dataclass(frozen=True, kw_only=True)
class Text:
    """One prompt with what the target said after it, and the target's rows along that."""

    category: str
    num_prompt: int
    tokens: tuple[int, ...]  # prompt + output
    rows: tuple[Row, ...]  # [output]: what each output token was drawn from
    processor: SamplingProcessor
    max_tokens: int

    @property
    def output(self) -> tuple[int, ...]:
        """What the target said."""
        return self.tokens[self.num_prompt :]


def sample_texts(
    llm: LLM, prompts: Sequence[Prompt], *, max_tokens: int, temperature: float, seed: int, progress: Progress | None = None
) -> list[Text]:
    """What the target says to each prompt, by plain decoding. `llm` must have no drafter."""
    texts = []
    for place, prompt in enumerate(prompts):
        asked = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed + place, "gamma": 1}
        with llm.stream(prompt.text, **asked) as stream:
            for _ in stream.steps():
                pass
            request = stream.request
        tokens, num_prompt, processor = tuple(request.tokens), request.num_prompt, request.processor
        if temperature == 0:  # the target's rows are the text itself
            rows = tuple(Row.point(token, llm.vocab_size) for token in tokens[num_prompt:])
        else:
            rows = tuple(row for row in _rows_along(llm.model, tokens, num_prompt, processor) if row is not None)
        texts.append(
            Text(
                category=prompt.category,
                num_prompt=num_prompt,
                tokens=tokens,
                rows=rows,
                processor=processor,
                max_tokens=max_tokens,
            )
        )
        if progress:
            progress("generating sample texts", (place + 1) / len(prompts))
    return texts


def read_by_model(text: Text, model: Model, gamma: int, rules: Sequence[str]) -> TextSample:
    """How far drafts of a small model would be kept, from one pass of it over the text."""
    rows = _rows_along(model, text.tokens, text.num_prompt, text.processor)
    places: list[Place | None] = [
        None if q is None else place_of(rules, p, q, token) for p, q, token in zip(text.rows, rows, text.output, strict=True)
    ]
    length = len(places)
    drafted, kept = np.zeros(length, dtype=np.int64), _empty(rules, length, gamma)
    for start in range(length):
        # A row nothing can be drawn from, or the drafter's own context limit, ends a draft; the text's end does not.
        stop = next((i for i in range(start, min(start + gamma, length)) if places[i] is None), None)
        drafted[start] = gamma if stop is None else stop - start
        window = [place for place in places[start : start + drafted[start]] if place is not None]
        for rule in rules:
            kept[rule][start, : len(window)] = kept_along(rule, window)
    return TextSample(category=text.category, max_tokens=text.max_tokens, drafted=drafted, kept=kept)


def asked_at_every_place(text: Text, drafter: Drafter, gamma: int, rules: Sequence[str]) -> TextSample:
    """How far drafts made from the text alone, without chance, would be kept. Raises OptionError where a draft was drawn."""
    length, known = len(text.output), list(text.tokens[: text.num_prompt])
    (state,) = drafter.open([_context(text, known)])
    drafted, agreed = np.zeros(length, dtype=np.int64), np.zeros((length, gamma))
    for start in range(length):
        (draft,) = drafter.propose([state], [_context(text, known)], [gamma], [StreamDraws(0)])
        if not all(row.probs.size == 1 for row in draft.rows):
            raise OptionError(f"`drafter` {drafter.name} draws its drafts; run it and watch")
        drafted[start] = len(draft)
        for place, (guess, token) in enumerate(zip(draft.tokens, text.output[start:], strict=False)):
            if guess != token:
                break
            agreed[start, place] = 1.0
        known.append(text.output[start])
        drafter.commit(state, known, None)
    return TextSample(category=text.category, max_tokens=text.max_tokens, drafted=drafted, kept=dict.fromkeys(rules, agreed))


def run_and_watched(llm: LLM, text: Text, drafter: Drafter, gamma: int, rules: Sequence[str], *, seed: int) -> RoundSample:
    """How far drafts were kept, and would have been under every rule, in one run at the longest length."""
    watched = Watched(rule_named("token"), rules)
    request = Request(
        text.tokens[: text.num_prompt],
        rule=watched,
        draws=StreamDraws(seed),
        processor=text.processor,
        max_tokens=text.max_tokens,
        gamma=gamma,
    )
    rounds: list[Mapping[str, FloatArray]] = []
    for _ in Decoder(llm.model, drafter).run([request]):
        done = request.rounds[-1]
        # No rule is asked where nothing is left to chance, and all keep the same.
        certain = (np.arange(len(done.draft)) < done.num_accepted).astype(np.float64)
        rounds.append(watched.seen.pop() if watched.seen else dict.fromkeys(rules, certain))
    return RoundSample(category=text.category, rounds=rounds)


def samples_of(
    llm: LLM,
    texts: Sequence[Text],
    drafter: Drafter,
    *,
    model: Model | None,
    looks_up: bool,
    gamma: int,
    rules: Sequence[str],
    seed: int,
    progress: Progress | None = None,
) -> list[Sample]:
    """A sample for each text, by the cheapest road. `model`: the one the drafter drafts with, if that is all it does;
    `looks_up`: it drafts from the text alone, without chance."""
    found: list[Sample] = []
    for place, text in enumerate(texts):
        if model is not None:
            found.append(read_by_model(text, model, gamma, rules))
        elif looks_up:
            found.append(asked_at_every_place(text, drafter, gamma, rules))
        else:
            found.append(run_and_watched(llm, text, drafter, gamma, rules, seed=seed + place))
        if progress:
            progress(f"sampling {drafter.name}", (place + 1) / len(texts))
    return found


def _rows_along(model: Model, tokens: Sequence[int], num_prompt: int, processor: SamplingProcessor) -> list[Row | None]:
    """[output]: the model's row for each output token; None where nothing can be drawn, and past its context."""
    cache = model.open()
    rows: list[Row | None] = []
    if num_prompt > 1 and num_prompt <= model.context_limit:
        model.score([Ask(cache=cache, tokens=tokens[: num_prompt - 1], num_logits=0)])
    for start in range(num_prompt - 1, len(tokens) - 1, _CHUNK):
        chunk = tokens[start : min(start + _CHUNK, len(tokens) - 1)]
        if start + len(chunk) > model.context_limit:
            break
        (scores,) = model.score([Ask(cache=cache, tokens=chunk)])
        for place, logits in enumerate(scores.logits):
            rows.append(_row(processor, tokens[: start + place + 1], logits))
    return rows + [None] * (len(tokens) - num_prompt - len(rows))


def _row(processor: SamplingProcessor, history: Sequence[int], logits: FloatArray) -> Row | None:
    try:
        return processor.row(history, logits)
    except RowError:
        return None


def _context(text: Text, tokens: Sequence[int]) -> Context:
    return Context(tokens=tokens, num_prompt=text.num_prompt, processor=text.processor)


def _empty(rules: Sequence[str], length: int, gamma: int) -> dict[str, FloatArray]:
    return {rule: np.zeros((length, gamma)) for rule in rules}
