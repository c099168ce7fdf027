"""Logits → probabilities from the definitions, in plain Python: slow, short, and written without looking at `probs`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from headstart.records import Sampling

_ROUNDING = 1e-12  # a prefix that misses its mass by less holds it


class NoRowError(Exception):
    """Nothing can be drawn."""


def slow_logits(
    logits: Sequence[float], s: Sampling, history: Sequence[int] = (), num_prompt: int = 0, end_ids: Collection[int] = ()
) -> list[float]:
    """After bias, bans, minimum length and penalties."""
    values = [float(value) for value in logits]
    for token, bias in s.logit_bias.items():
        values[token] += bias
    for token in s.ban:
        values[token] = -math.inf
    if len(history) - num_prompt < s.min_tokens:
        for token in end_ids:
            values[token] = -math.inf
    for token in set(history):
        values[token] = values[token] / s.repetition_penalty if values[token] > 0 else values[token] * s.repetition_penalty
    for token, count in Counter(history[num_prompt:]).items():
        values[token] -= s.presence_penalty + s.frequency_penalty * count
    return values


def slow_logprobs(logits: Sequence[float], s: Sampling, *rest, **more) -> list[float]:
    """What is reported: log-softmax of `slow_logits`."""
    values = slow_logits(logits, s, *rest, **more)
    top = max(values)
    total = math.log(math.fsum(math.exp(value - top) for value in values))
    return [value - top - total for value in values]


def slow_row(logits: Sequence[float], s: Sampling, *rest, **more) -> list[float]:
    """The row that is sampled from. Raises NoRowError."""
    values = slow_logits(logits, s, *rest, **more)
    if any(math.isnan(value) or value == math.inf for value in values) or max(values) == -math.inf:
        raise NoRowError
    top = max(values)
    if s.temperature == 0:
        return [float(token == values.index(top)) for token in range(len(values))]
    probs = _normal([math.exp(_ratio(value - top, s.temperature)) for value in values])
    if s.top_k:
        probs = _cut(probs, _likeliest(probs)[: s.top_k])
    if s.top_p < 1:
        probs = _cut(probs, _holding(probs, _likeliest(probs), s.top_p))
    if s.min_p > 0:
        probs = _cut(probs, [token for token, p in enumerate(probs) if p >= s.min_p * max(probs)])
    if s.typical_p < 1:
        entropy = math.fsum(-p * math.log(p) for p in probs if p > 0)
        alive = [token for token, p in enumerate(probs) if p > 0]
        order = sorted(alive, key=lambda token: (abs(-math.log(probs[token]) - entropy), token))
        probs = _cut(probs, _holding(probs, order, s.typical_p))
    return probs


def _ratio(value: float, temperature: float) -> float:
    if value == -math.inf:
        return value
    try:
        return value / temperature
    except OverflowError:
        return -math.inf


def _normal(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _cut(probs: Sequence[float], keep: Sequence[int]) -> list[float]:
    kept = set(keep)
    return _normal([p if token in kept else 0.0 for token, p in enumerate(probs)])


def _likeliest(probs: Sequence[float]) -> list[int]:
    return sorted(range(len(probs)), key=lambda token: (-probs[token], token))


def _holding(probs: Sequence[float], order: Sequence[int], mass: float) -> list[int]:
    """The shortest prefix of `order` that holds `mass`."""
    held: list[int] = []
    for token in order:
        held.append(token)
        if math.fsum(probs[each] for each in held) >= mass - _ROUNDING:
            break
    return held
