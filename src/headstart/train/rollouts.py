"""The target's own answers to prompts, with its hidden states: what heads are trained and measured on.

Answers are written natively or by any other `Model`, many side by side, a shard of prompts at a time; a shard is one
safetensors file that appears whole or not at all, so a killed run goes on where it stopped. A shard depends only on its
number, the prompts and the seed. Knows models, prompts and files; does not know heads or losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints import Tensor, read_safetensors, write_safetensors
from headstart.errors import InputError, ModelError
from headstart.interfaces import Ask, Cache, Model

__all__ = ["TEMPERATURES", "Rollout", "Turn", "own_shard_path", "read_shard", "shard_path", "write_answers", "write_shard"]

# Of ten answers so many at each temperature: greedy ones are what is drafted most, the others keep loops from taking over.
TEMPERATURES = (0.0, 0.7, 1.0, 0.0, 0.7, 0.0, 1.0, 0.0, 0.7, 1.0)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One prompt and the target's answer. `features` are of every token but the last, which was never fed."""

    tokens: NDArray[np.int32]  # [tokens]: prompt + answer
    num_prompt: int
    features: NDArray[np.float16]  # [layers, tokens − 1, hidden]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the target's chat template puts around a user's words: enough for the target to ask itself something.

    A model tuned on conversations goes on from an opened user turn with a request (Xu et al. 2024, "Magpie")."""

    before: tuple[int, ...]
    after: tuple[int, ...]  # ends the user's turn and opens the model's
    longest: int = 64  # tokens of a request; a longer one is cut

    @staticmethod
    def of(encode: Callable[[str], Sequence[int]]) -> Turn | None:
        """From `encode`, a user's words to a prompt's token ids; None where nothing stands before them or after."""
        one, other = encode("cat"), encode("7")
        before, after = _common(one, other), _common(one[::-1], other[::-1])[::-1]
        return Turn(before=before, after=after) if before and after else None


def _common(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The beginning that both have."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return tuple(one[:same])


@dataclass
class _Live:
    """An answer being written, or first the request it answers."""

    cache: Cache
    tokens: list[int]
    num_prompt: int
    temperature: float
    turn: Turn | None = None  # the user's, while it is being written
    features: list[NDArray[np.float16]] = field(default_factory=list)

    def take(self, token: int, end_ids: frozenset[int]) -> None:
        """The next token, drawn. A request is ended as the template ends it, whatever token ended it."""
        if self.turn is None or token not in end_ids:
            self.tokens.append(token)
        if self.turn is not None and (token in end_ids or len(self.tokens) - len(self.turn.before) == self.turn.longest):
            self.tokens += self.turn.after
            self.num_prompt, self.turn = len(self.tokens), None

    def goes_on(self, end_ids: frozenset[int], max_tokens: int, context_limit: int) -> bool:
        """Whether another token is to be drawn."""
        answered = len(self.tokens) - self.num_prompt
        full = len(self.tokens) >= context_limit or answered >= max_tokens
        return self.turn is not None or answered == 0 or not (full or self.tokens[-1] in end_ids)


def write_answers(
    model: Model,
    prompts: Sequence[Sequence[int]],  # token ids; with `turn`, its `before`: the target then first writes the requests
    *,
    layers: Sequence[int],
    max_tokens: int,
    temperatures: Sequence[float],  # one a prompt; 0: greedy
    end_ids: frozenset[int],
    seed: int,
    turn: Turn | None = None,
    tell: Callable[[int], None] = lambda tokens: None,  # called with the number of tokens written in each pass
) -> list[Rollout]:
    """The target's answers to `prompts`, written side by side; requests of its own are drawn at temperature 1."""
    generator = np.random.default_rng(seed)
    everyone = [
        _Live(model.open(), list(prompt), len(prompt), temperature, turn)
        for prompt, temperature in zip(prompts, temperatures, strict=True)
    ]
    live = everyone
    while live:
        asks = [Ask(cache=s.cache, tokens=s.tokens[s.cache.length :], num_logits=1, feature_layers=layers) for s in live]
        scores = model.score(asks)
        for state, scored, uniform in zip(live, scores, generator.random(len(live)), strict=True):
            assert scored.features is not None
            state.features.append(scored.features.reshape(len(scored.features), len(layers), -1).astype(np.float16))
            state.take(_token(scored.logits[-1], 1.0 if state.turn else state.temperature, float(uniform)), end_ids)
        tell(len(live))
        live = [s for s in live if s.goes_on(end_ids, max_tokens, model.context_limit)]
    return [
        Rollout(
            tokens=np.asarray(s.tokens, dtype=np.int32),
            num_prompt=s.num_prompt,
            features=np.concatenate(s.features).swapaxes(0, 1),
        )
        for s in everyone
    ]


def _token(logits: NDArray[Any], temperature: float, uniform: float) -> int:
    """A token of the target's law at this temperature, cut to its likeliest 256 where that is all but a millionth of it."""
    if temperature == 0:
        return int(np.argmax(logits))
    top = float(logits.max())
    near = np.flatnonzero(logits > top - 14 * temperature)  # e^−14: together far less than sampling can show
    mass = np.cumsum(np.exp((logits[near].astype(np.float64) - top) / temperature))
    return int(near[min(int(np.searchsorted(mass, uniform * mass[-1], side="right")), near.size - 1)])


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` lies."""
    return folder / f"shard-{number:05d}.safetensors"


def own_shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` of answers to the target's own requests lies."""
    return folder / f"own-{number:05d}.safetensors"


def write_shard(path: Path, rollouts: Sequence[Rollout]) -> None:
    """All rollouts of a shard in one file, which appears whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([r.tokens for r in rollouts]),
        "lengths": np.array([len(r.tokens) for r in rollouts], dtype=np.int64),
        "num_prompt": np.array([r.num_prompt for r in rollouts], dtype=np.int64),
        "features": np.ascontiguousarray(np.concatenate([r.features for r in rollouts], axis=1)),
    }
    write_safetensors(path, {name: Tensor.of(array) for name, array in arrays.items()})


def read_shard(path: Path) -> list[Rollout]:
    """The rollouts of one shard, left in the file until they are used. Raises InputError for a file that is none."""
    try:
        arrays = {name: tensor.array for name, tensor in read_safetensors(path, mapped=True).items()}
        lengths, num_prompt = arrays["lengths"], arrays["num_prompt"]
        tokens = np.split(arrays["tokens"], np.cumsum(lengths)[:-1])
        features = np.split(arrays["features"], np.cumsum(lengths - 1)[:-1], axis=1)
    except (ModelError, KeyError, ValueError) as error:
        raise InputError(f"{path} is not a shard of rollouts ({error}); delete it, it will be written again") from None
    return [Rollout(tokens=t, num_prompt=int(n), features=f) for t, n, f in zip(tokens, num_prompt, features, strict=True)]
