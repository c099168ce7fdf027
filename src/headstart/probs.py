"""Logits → rows.

`process` turns one vector of logits into the row that is sampled from, in a fixed order: logit bias, bans and minimum length
→ repetition penalty (prompt + output) → presence and frequency penalties (output) → temperature → top-k → top-p → min-p →
typical-p. Each truncation sees the renormalised row the one before left. Ties always go to the lower token id. The row keeps
the precision of the logits, float32 at least; sums are made in float64.

It does not know models, rounds or chance; what can be said of two rows is `pairs`'.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from headstart import _core
from headstart.errors import OptionError, RowError
from headstart.records import Sampling
from headstart.rows import FloatArray, IntArray, Row

__all__ = [
    "SamplingProcessor",
    "biased_logits",
    "log_softmax",
    "process",
    "softmax",
]


def softmax(logits: ArrayLike, temperature: float = 1.0) -> FloatArray:
    """Probabilities from logits along the last axis; temperature 0 puts all mass on the first largest logit.

    Raises RowError when a row holds NaN or +inf, or nothing above −inf."""
    values: FloatArray = _floats(logits)
    sampling = Sampling(temperature=temperature)
    rows = [process(row, sampling).to_array() for row in values.reshape(-1, values.shape[-1])]
    stacked: FloatArray = np.reshape(np.asarray(rows), values.shape)
    return stacked


def log_softmax(logits: FloatArray) -> FloatArray:
    """Natural log-probabilities of a [vocab] vector of logits, float64."""
    shifted = logits.astype(np.float64) - float(np.max(logits))
    normalised: FloatArray = shifted - np.log(np.exp(shifted).sum())
    return normalised


def biased_logits(
    logits: FloatArray,  # [vocab]
    sampling: Sampling,
    history: Sequence[int] = (),
    *,
    num_prompt: int = 0,
    end_ids: Collection[int] = (),
) -> FloatArray:
    """Logits after bias, bans, minimum length and penalties: what reported log-probabilities are made from.

    `history` is prompt + output before this token, its first `num_prompt` tokens being the prompt. Comes back as a new
    array, or as `logits` itself where no option touches it."""
    s, num_output = sampling, len(history) - num_prompt
    if not _touches(s, num_output, end_ids):
        return logits
    banned = [*s.ban, *(end_ids if num_output < s.min_tokens else ())]
    out = logits.copy()
    vocab = out.size
    for token, bias in s.logit_bias.items():
        out[_inside(token, vocab, "logit_bias")] += bias
    for token in banned:
        out[_inside(token, vocab, "ban")] = -np.inf
    if _penalises(s):
        _penalise(out, s, np.asarray(history, dtype=np.int64), num_prompt)
    return out


def process(
    logits: ArrayLike,  # [vocab]
    sampling: Sampling,
    history: Sequence[int] = (),
    *,
    num_prompt: int = 0,
    end_ids: Collection[int] = (),
    best: int | None = None,
) -> Row:
    """The row that is sampled from. A pure function of (history, logits); `logits` is not changed.

    `best` is the place of the largest logit where it is known (of the first NaN, where there is one): it only saves time.
    Raises RowError for NaN or +inf logits and where no token is left."""
    given = _floats(logits)
    values = biased_logits(given, sampling, history, num_prompt=num_prompt, end_ids=end_ids)
    best = _best(values, best if values is given else None)
    if sampling.temperature == 0:
        return Row.point(best, values.size)
    row = _softmax_row(values, float(values[best]), sampling.temperature)
    if sampling.top_k:
        row = _top_k(row, sampling.top_k)
    if sampling.top_p < 1:
        row = _top_p(row, sampling.top_p)
    if sampling.min_p > 0:
        row = _normalised(row, np.flatnonzero(row.probs >= sampling.min_p * row.probs.max()))
    if sampling.typical_p < 1:
        row = _mass_prefix(row, _surprise(row.probs), sampling.typical_p)
    return row


class SamplingProcessor:
    """The processor of one sequence: `process` with its options, prompt length and end tokens filled in.

    `vocab_size` cuts padded logits: ids at or over it have no text and are never emitted; `holes` are such ids below it."""

    def __init__(
        self, sampling: Sampling, *, num_prompt: int, vocab_size: int, end_ids: Collection[int] = (), holes: Collection[int] = ()
    ) -> None:
        for name, tokens in (("logit_bias", sampling.logit_bias), ("ban", sampling.ban)):
            for token in tokens:
                _inside(token, vocab_size, name)
        self.sampling, self.num_prompt, self.vocab_size = sampling, num_prompt, vocab_size
        self.end_ids = frozenset(token for token in end_ids if token < vocab_size)
        self._gone = frozenset(token for token in holes if token < vocab_size)
        self._holes = np.array(sorted(self._gone), dtype=np.int64)
        self._subset: _Subset | None = None  # the last one used

    def fitted(self, logits: FloatArray) -> FloatArray:
        """[vocab] logits over exactly `vocab_size` tokens: padding cut off, missing tokens and holes at −inf."""
        if logits.size == self.vocab_size and not self._holes.size:
            return logits
        out = np.full(self.vocab_size, -np.inf, dtype=logits.dtype)
        width = min(logits.size, self.vocab_size)
        out[:width] = logits[:width]
        out[self._holes] = -np.inf
        return out

    def row(self, history: Sequence[int], logits: FloatArray, ids: IntArray | None = None, *, best: int | None = None) -> Row:
        """See `process`. Where `ids` are given, `logits` is of those tokens alone and the others are as if at −inf."""
        if ids is not None:
            return self._row_of(history, logits, ids, best)
        if best is not None and (best >= self.vocab_size or best in self._gone):
            best = None
        if best is not None and self._takes_the_largest(history):
            return Row.point(_usable(logits, best), self.vocab_size)  # without a look at the others, or a copy of padded ones
        values = self.fitted(logits)
        return process(values, self.sampling, history, num_prompt=self.num_prompt, end_ids=self.end_ids, best=best)

    def law(self, history: Sequence[int], logits: FloatArray) -> Row:
        """The row after bias, bans and penalties, before temperature and truncation."""
        values = self.fitted(_floats(logits))
        values = biased_logits(values, self.sampling, history, num_prompt=self.num_prompt, end_ids=self.end_ids)
        return _softmax_row(values, float(values[_best(values)]), 1.0)

    def _takes_the_largest(self, history: Sequence[int]) -> bool:
        """Whether the row after `history` is the largest logit as it comes, and nothing else."""
        s = self.sampling
        return s.temperature == 0 and not _touches(s, len(history) - self.num_prompt, self.end_ids)

    def _only_heats(self, history: Sequence[int]) -> bool:
        """Whether the row after `history` is a softmax at some temperature, and nothing else."""
        s = self.sampling
        cuts = s.top_k or s.top_p < 1 or s.min_p > 0 or s.typical_p < 1
        return s.temperature > 0 and not cuts and not _touches(s, len(history) - self.num_prompt, self.end_ids)

    def _row_of(self, history: Sequence[int], logits: FloatArray, ids: IntArray, best: int | None) -> Row:
        """`process` in the places of `ids`: a cut vocabulary never costs the time of the whole one."""
        if self._subset is None or self._subset.given is not ids:
            self._subset = _Subset(ids, self.vocab_size, self.sampling, self.end_ids, self._holes)
        subset, s = self._subset, self.sampling
        known = best if best is not None and subset.holds(best) else None
        if known is not None and self._takes_the_largest(history):
            return Row.point(int(ids[_usable(logits, known)]), self.vocab_size)
        if known is not None and subset.whole and self._only_heats(history):
            row = _softmax_row(logits[: ids.size], float(logits[_usable(logits, known)]), s.temperature)
            return Row(row.probs, ids, self.vocab_size)
        penalised = _penalises(s)
        places = subset.places(history).tolist() if penalised else history
        fitted, end_ids = subset.fitted(logits), subset.ends.tolist()
        row = process(fitted, subset.sampling, places, num_prompt=self.num_prompt, end_ids=end_ids, best=known)
        return subset.back(row)

    def logprobs(self, history: Sequence[int], logits: FloatArray) -> FloatArray:
        """[vocab] reported log-probabilities: after bias, bans and penalties, before temperature and truncation."""
        values = self.fitted(logits)
        return log_softmax(biased_logits(values, self.sampling, history, num_prompt=self.num_prompt, end_ids=self.end_ids))


class _Subset:
    """Some tokens of a vocabulary, in places 0 … n − 1, and place n for all others, which stays at −inf."""

    def __init__(self, ids: IntArray, vocab_size: int, sampling: Sampling, end_ids: Collection[int], holes: IntArray) -> None:
        self.given, self._vocab_size = ids, vocab_size
        self._ids = ids[: int(np.searchsorted(ids, vocab_size))]  # padding has no tokens
        gone = np.flatnonzero(np.isin(self._ids, holes))
        self.whole = not gone.size and self._ids.size == ids.size  # each of them may be emitted
        self._gone, self._dead = frozenset(gone.tolist()), np.append(gone, self._ids.size)
        biased = self.places(list(sampling.logit_bias)).tolist()
        biases = dict(zip(biased, sampling.logit_bias.values(), strict=True))
        self.sampling = replace(sampling, logit_bias=biases, ban=tuple(self.places(sampling.ban).tolist()))
        self.ends = self.places(sorted(end_ids))

    def places(self, tokens: Sequence[int]) -> IntArray:
        """Where each token stands."""
        wanted = np.asarray(tokens, dtype=np.int64)
        if not self._ids.size:
            return np.zeros(wanted.size, dtype=np.int64)
        found = np.searchsorted(self._ids, wanted)
        there = self._ids[np.minimum(found, self._ids.size - 1)] == wanted
        return np.where(there, found, self._ids.size)

    def holds(self, place: int) -> bool:
        """Whether a place is a token that may be emitted."""
        return place < self._ids.size and place not in self._gone

    def fitted(self, logits: FloatArray) -> FloatArray:
        """[n + 1] logits by place."""
        out = np.empty(self._ids.size + 1, dtype=logits.dtype)
        out[:-1] = logits[: self._ids.size]
        out[self._dead] = -np.inf
        return out

    def back(self, row: Row) -> Row:
        """A row over places as one over the vocabulary."""
        if row.ids is None:
            return Row(row.probs[:-1], self._ids, self._vocab_size)
        inside = int(np.searchsorted(row.ids, self._ids.size))
        return Row(row.probs[:inside], self._ids[row.ids[:inside]], self._vocab_size)


def _floats(values: ArrayLike) -> FloatArray:
    """Floating point of 32 bits or more: half precision cannot hold the sum of a large vocabulary."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return array.astype(np.float64)
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _inside(token: int, vocab_size: int, name: str) -> int:
    if token >= vocab_size:
        raise OptionError(f"`{name}` names token {token}, outside the vocabulary; ids go from 0 to {vocab_size - 1}")
    return token


def _penalises(s: Sampling) -> bool:
    return s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0


def _penalise(out: FloatArray, s: Sampling, history: IntArray, num_prompt: int) -> None:
    if s.repetition_penalty != 1.0:
        seen = np.unique(history)
        seen = seen[seen < out.size]  # a prompt may hold ids whose logits were cut off as padding
        values = out[seen]
        out[seen] = np.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
    if s.presence_penalty != 0.0 or s.frequency_penalty != 0.0:
        emitted, counts = np.unique(history[num_prompt:], return_counts=True)
        out[emitted] -= (s.presence_penalty + s.frequency_penalty * counts).astype(out.dtype)


def _touches(s: Sampling, num_output: int, end_ids: Collection[int]) -> bool:
    """Whether bias, bans, minimum length or penalties change a row after so many tokens of output."""
    return bool(s.logit_bias or s.ban or (end_ids and num_output < s.min_tokens) or _penalises(s))


def _best(logits: FloatArray, best: int | None = None) -> int:
    """The first largest logit, which may be known. `argmax` stops at the first NaN, so one look at its value tells every kind
    of bad row."""
    return _usable(logits, int(np.argmax(logits)) if best is None else best)


def _usable(logits: FloatArray, best: int) -> int:
    """`best` again. Raises RowError where what is largest there is nothing to draw from."""
    top = float(logits[best])
    if math.isnan(top):
        raise RowError(f"the logit of token {best} is NaN")
    if top == np.inf:
        raise RowError(f"the logit of token {best} is +inf")
    if top == -np.inf:
        raise RowError("no token is left: every logit is −inf (everything banned?)")
    return best


def _softmax_row(logits: FloatArray, top: float, temperature: float) -> Row:
    kind = logits.dtype.type
    temperature = min(temperature, float(np.finfo(logits.dtype).max))  # never an infinity: −inf/inf is NaN
    if kind(temperature) == 0:  # over 0, but nothing in this precision: the limit of the law
        probs = (logits == top).astype(logits.dtype)
    else:
        if logits.dtype == np.float32:
            out = np.empty(logits.size, dtype=np.float32)
            _core.softmax(np.ascontiguousarray(logits), top, temperature, out)
            return Row(out, None, logits.size)
        with np.errstate(over="ignore"):
            probs = np.exp((logits - kind(top)) / kind(temperature))
    total = probs.sum(dtype=np.float64)
    return Row(probs / kind(total), None, logits.size)


def _ids(row: Row) -> IntArray:
    return np.arange(row.vocab_size) if row.ids is None else row.ids


def _normalised(row: Row, keep: IntArray) -> Row:
    """The row cut to the places `keep` (increasing), renormalised."""
    probs = row.probs[keep]
    ids = keep if row.ids is None else row.ids[keep]
    return Row(probs / probs.dtype.type(probs.sum(dtype=np.float64)), ids, row.vocab_size).compact()


def _top_k(row: Row, k: int) -> Row:
    probs = row.probs
    if k >= probs.size:
        return row
    places = _head(probs, k, 0.0)
    near = probs if places is None else probs[places]
    threshold = np.partition(near, near.size - k)[near.size - k]
    above = np.flatnonzero(near > threshold)
    ties = np.flatnonzero(near == threshold)[: k - above.size]  # the lower ids
    kept = np.sort(np.concatenate([above, ties]))
    return _normalised(row, kept if places is None else places[kept])


def _head(probs: FloatArray, count: int, mass: float) -> IntArray | None:
    """Places (increasing) of the largest probabilities, ties included: at least `count` of them holding more than `mass`.

    None where that would be a good part of the row, or the row is short: then it is as well to sort it all."""
    if probs.dtype != np.float32 or probs.size < 4096:
        return None
    numbers = np.ascontiguousarray(probs)
    threshold = float(numbers.max())
    for _ in range(8):
        threshold /= 16
        found, held = _core.at_least(numbers, threshold)
        if found * 4 > probs.size:
            return None
        if found >= count and held > mass:
            return np.flatnonzero(numbers >= np.float32(threshold))
    return None


def _top_p(row: Row, mass: float) -> Row:
    """The smallest set of likeliest tokens (ties: lower id) that holds at least `mass`."""
    head = _head(row.probs, 1, mass * (1 + 1e-5))
    if head is None:
        return _mass_prefix(row, -row.probs, mass)
    order = head[np.argsort(-row.probs[head], kind="stable")]
    return _normalised(row, np.sort(order[: _reach(row.probs[order], mass)]))


_HEAD = 512  # sorted first, then eight times as many, …: far cheaper than sorting a vocabulary for the mass that is kept


def _mass_prefix(row: Row, cost: FloatArray, mass: float) -> Row:
    """The smallest set of tokens in order of `cost` (ties: lower id) that holds at least `mass`; top-p and typical-p."""
    probs = row.probs
    size = _HEAD
    while probs.size > 2 * size:
        # Every token that costs no more than the size-th: a prefix of the full order, ties included.
        head = np.flatnonzero(cost <= np.partition(cost, size)[size])
        if probs[head].sum(dtype=np.float64) > mass * (1 + 1e-6):
            order = head[np.argsort(cost[head], kind="stable")]
            return _normalised(row, np.sort(order[: _reach(probs[order], mass)]))
        size *= 8
    order = np.argsort(cost, kind="stable")
    return _normalised(row, np.sort(order[: _reach(probs[order], mass)]))


def _reach(probs: FloatArray, mass: float) -> int:
    """How many of the leading `probs` it takes to hold `mass`; rounding never asks for one more than needed."""
    cumulative = np.cumsum(probs, dtype=np.float64)
    slack = max(8 * float(np.finfo(probs.dtype).eps), 1e-12)
    return min(int(np.searchsorted(cumulative, mass - slack)) + 1, probs.size)


def _surprise(probs: FloatArray) -> FloatArray:
    """|−log p − H|: distance from the entropy (Meister et al. 2023, locally typical sampling)."""
    with np.errstate(divide="ignore"):
        info = -np.log(probs)
    entropy = float((probs * np.where(probs > 0, info, 0)).sum(dtype=np.float64))
    return np.abs(info - probs.dtype.type(entropy))
