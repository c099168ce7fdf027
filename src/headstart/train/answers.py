"""The answers a run trains and is measured on: written where they are missing, read where they are not.

They lie in a run's folder, `data/` the training shards, `held-out.safetensors` those of prompts that never enter training, and
depend on target, prompts and seed alone: another head for the same target may use them again. Every file appears whole or not
at all. Knows rollouts and files; does not know what is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from headstart.errors import InputError, OptionError
from headstart.interfaces import FeatureModel
from headstart.train.rollouts import (
    TEMPERATURES,
    Rollout,
    Turn,
    own_shard_path,
    read_shard,
    shard_path,
    write_answers,
    write_shard,
)

__all__ = ["Answers", "EarlierRun", "Questions", "Source", "Tell"]

_SHARD = 96  # prompts answered side by side
_SHORTEST = 8  # shorter answers teach nothing
_HELD_OUT, _HELD_OUT_TOKENS = "held-out.safetensors", 128
Tell = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Rollouts to train on and to measure on, the final hidden state last among their features."""

    training: list[Rollout]
    held_out: list[Rollout]

    @property
    def greedy(self) -> list[bool]:
        """By held-out rollout, whether it was written greedily: the first half."""
        half = len(self.held_out) // 2
        return [True] * half + [False] * (len(self.held_out) - half)


class Source(Protocol):
    """Where answers come from."""

    def answers(self, target: FeatureModel, *, layers: Sequence[int], out: Path, seed: int, tell: Tell) -> Answers:
        """Every answer, for the run in `out`. `layers`: hidden states that are needed, the number of layers (after the final
        norm) the last of them. Raises InputError where there are answers without them."""


@final
@dataclass(frozen=True, kw_only=True)
class Questions:
    """Prompts as token ids, and how many requests the target makes up; its answers are kept in the folder of the run."""

    prompts: Sequence[Sequence[int]]
    held_out: Sequence[Sequence[int]]
    end_ids: frozenset[int]
    max_tokens: int = 192  # of each answer that is trained on
    own: int = 0  # requests the target makes up itself, answered after `prompts`; rounded up to whole shards
    turn: Turn | None = None  # what stands around them

    def __post_init__(self) -> None:
        if self.own and self.turn is None:
            raise OptionError(
                f"`own-prompts` must be 0 for a target without a chat template, which cannot make up requests, got {self.own}"
            )

    def answers(self, target: FeatureModel, *, layers: Sequence[int], out: Path, seed: int, tell: Tell) -> Answers:
        """Shards that are there already are used as they are."""
        (out / "data").mkdir(parents=True, exist_ok=True)
        given, made_up = -(-len(self.prompts) // _SHARD), -(-self.own // _SHARD)
        training: list[Rollout] = []
        for number in range(given + made_up):
            part, turn = self.prompts[number * _SHARD : (number + 1) * _SHARD], None
            path, first = shard_path(out / "data", number), seed + number
            if number >= given:
                assert self.turn is not None
                part, turn = [self.turn.before] * _SHARD, self.turn
                path, first = own_shard_path(out / "data", number - given), seed + 2_000_003 + number - given
            if not path.exists():
                tell(f"the target answers prompts, shard {number + 1} of {given + made_up}", number / (given + made_up))
                self._write(path, target, layers, part, _heat(len(part)), self.max_tokens, first, turn)
            training += _read(path, layers, target)
        path = out / _HELD_OUT
        if not path.exists():
            tell("the target answers held-out prompts", None)
            both = [*self.held_out, *self.held_out]  # each greedily, then each at temperature 1
            heat = [0.0] * len(self.held_out) + [1.0] * len(self.held_out)
            self._write(path, target, layers, both, heat, _HELD_OUT_TOKENS, seed + 1_000_003)
        return Answers(training=_long_enough(training, out), held_out=_read(path, layers, target))

    def _write(
        self,
        path: Path,
        target: FeatureModel,
        layers: Sequence[int],
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        max_tokens: int,
        seed: int,
        turn: Turn | None = None,
    ) -> None:
        written = write_answers(
            target,
            prompts,
            layers=layers,
            max_tokens=max_tokens,
            temperatures=temperatures,
            end_ids=self.end_ids,
            seed=seed,
            turn=turn,
        )
        write_shard(path, written)


@final
@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """The answers of a run for the same target, whole as they are."""

    folder: Path

    def answers(self, target: FeatureModel, *, layers: Sequence[int], out: Path, seed: int, tell: Tell) -> Answers:
        """Nothing is asked and nothing written."""
        shards, held_out = _shards(self.folder / "data"), self.folder / _HELD_OUT
        if not shards or not held_out.exists():
            raise InputError(f"`answers` {self.folder} holds no answers of a run; name the --out of one, or leave it out")
        training: list[Rollout] = []
        for place, path in enumerate(shards):
            tell("reading earlier answers", place / len(shards))
            training += _read(path, layers, target)
        return Answers(training=_long_enough(training, self.folder), held_out=_read(held_out, layers, target))


def _heat(count: int) -> list[float]:
    """The temperature of each answer of a shard."""
    return [TEMPERATURES[(i + i // len(TEMPERATURES)) % len(TEMPERATURES)] for i in range(count)]


def _shards(folder: Path) -> list[Path]:
    """All there are, the target's own requests last."""
    return [*sorted(folder.glob("shard-*.safetensors")), *sorted(folder.glob("own-*.safetensors"))]


def _read(path: Path, layers: Sequence[int], target: FeatureModel) -> list[Rollout]:
    rollouts = read_shard(path)
    for rollout in rollouts:
        kept, _, width = rollout.features.shape
        if kept < len(layers) or width != target.hidden_size:
            raise InputError(
                f"{path} holds {kept} hidden states a token, {width} wide, wanted {len(layers)}, {target.hidden_size} wide; "
                "it is of another target or for another kind of head; use another folder"
            )
    return rollouts


def _long_enough(rollouts: Sequence[Rollout], folder: Path) -> list[Rollout]:
    found = [r for r in rollouts if len(r.tokens) - r.num_prompt >= _SHORTEST]
    if not found:
        raise InputError(f"{folder} holds no answer of {_SHORTEST} tokens or more to train on; give other prompts")
    return found
