"""What scoring k tokens in one pass costs: the curve that decides whether speculation pays.

Passes of every k are timed in turn, round after round, so that a machine that slows down slows all of them; the median and the
interquartile range over rounds are reported. It does not know engines: any `Model` will do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headstart import _core
from headstart.errors import OptionError
from headstart.interfaces import Ask, Cache, Model

__all__ = ["PassCosts", "measure_bandwidth", "measure_passes"]


@dataclass(frozen=True, kw_only=True)
class PassCosts:
    """Milliseconds of one pass by the number of tokens it scores for each sequence, after `context` tokens of each."""

    context: int
    batch: int
    repeats: int
    milliseconds: dict[int, float]  # k → median
    spread: dict[int, float]  # k → interquartile range

    def ratio(self, k: int) -> float:
        """v(k) = t(k)/t(1)."""
        return self.milliseconds[k] / self.milliseconds[1]


def measure_passes(
    model: Model,
    ks: Sequence[int],
    *,
    context: int = 256,
    batch: int = 1,
    repeats: int = 9,
    in_a_row: int = 1,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    patience: float = math.inf,  # seconds after which no further repeat begins; one is always made
    progress: Callable[[str, float | None], None] | None = None,
) -> PassCosts:
    """Time passes of `ks` tokens for each of `batch` sequences, all logits read back. 1 is always among them.

    `in_a_row`: passes of one length run one after the other; with more than one the first is not counted, as what others left in
    the caches slows it.

    Raises OptionError for lengths under 1 or past the model's context, and for a `batch` under 1."""
    lengths = sorted({1, *ks})
    for k in lengths:
        if k < 1:
            raise OptionError(f"`k` must be 1 or more, got {k}")
    if context < 1 or context + lengths[-1] > model.context_limit:
        raise OptionError(
            f"`context` must leave room for {lengths[-1]} tokens within the model's {model.context_limit}, got {context}"
        )
    if batch < 1:
        raise OptionError(f"`batch` must be 1 or more, got {batch}")
    rng = np.random.default_rng(seed)
    caches = [model.open() for _ in range(batch)]
    for cache in caches:
        model.score([Ask(cache=cache, tokens=rng.integers(0, model.vocab_size, context).tolist(), num_logits=0)])
    times: dict[int, list[float]] = {k: [] for k in lengths}
    begun = clock()
    for repeat in range(-1, repeats):  # the first round warms up and is not counted
        for k in lengths:
            for turn in range(in_a_row):
                tokens = rng.integers(0, model.vocab_size, (batch, k)).tolist()
                elapsed = _timed_pass(model, caches, tokens, clock)
                if repeat >= 0 and turn >= min(1, in_a_row - 1):
                    times[k].append(elapsed)
        if progress:
            progress("timing passes", (repeat + 1) / repeats)
        if repeat >= 0 and clock() - begun > patience:
            break
    quartiles = {k: np.percentile(np.array(values) * 1e3, [25, 50, 75]) for k, values in times.items()}
    return PassCosts(
        context=context,
        batch=batch,
        repeats=repeats,
        milliseconds={k: float(q[1]) for k, q in quartiles.items()},
        spread={k: float(q[2] - q[0]) for k, q in quartiles.items()},
    )


def _timed_pass(model: Model, caches: Sequence[Cache], tokens: Sequence[list[int]], clock: Callable[[], float]) -> float:
    asks = [Ask(cache=cache, tokens=own) for cache, own in zip(caches, tokens, strict=True)]
    lengths = [cache.length for cache in caches]
    start = clock()
    model.score(asks)
    elapsed = clock() - start
    for cache, length in zip(caches, lengths, strict=True):
        cache.rewind(length)
    return elapsed


def measure_bandwidth(threads: int, *, megabytes: int = 512, repeats: int = 5) -> float:
    """Gigabytes per second that `threads` threads together read from memory, the best of `repeats`, read as the kernels do."""
    return _core.read_bandwidth(threads, megabytes, repeats) / 1e9
