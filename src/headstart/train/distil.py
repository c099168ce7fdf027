"""An EAGLE-3 head for a target, from its own answers: data, start, training, validation, and a checkpoint at the end.

A folder holds one run: `data/` the rollouts, `held-out.safetensors` those of prompts that never enter training, `state.pt` where
the run stands, `head/` the result, `report.json` and `report.png` how it went. Every file appears whole or not at all, so the
same call goes on after a kill. Knows the order of these steps; each has its own file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints import EagleConfig, EagleHead, Tensor, write_head
from headstart.errors import OptionError
from headstart.interfaces import FeatureModel
from headstart.models.torch_extra import torch
from headstart.shipped import fingerprint
from headstart.train.corpus import draft_vocabulary
from headstart.train.loop import Trainer, TrainOptions
from headstart.train.network import EagleNetwork
from headstart.train.rollouts import TEMPERATURES, Rollout, read_shard, shard_path, write_answers, write_shard
from headstart.train.start import fitted_start
from headstart.train.validation import validate

__all__ = ["HeadOptions", "train_eagle"]

_SHARD = 96  # prompts answered side by side
_FITTED_TOKENS = 60_000
_HEAD_DIM = 64
Tell = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What kind of head, from how much data."""

    draft_vocab: int = 8192
    intermediate: int = 1024
    max_tokens: int = 192  # of each answer

    def __post_init__(self) -> None:
        for name in ("draft_vocab", "intermediate", "max_tokens"):
            if getattr(self, name) < 16:
                raise OptionError(f"`{name.replace('_', '-')}` must be 16 or more, got {getattr(self, name)}")


def train_eagle(
    target: FeatureModel,
    *,
    prompts: Sequence[Sequence[int]],  # token ids
    held_out: Sequence[Sequence[int]],
    end_ids: frozenset[int],
    out: Path,
    head: HeadOptions,
    options: TrainOptions,
    tell: Tell,
) -> dict[str, Any]:
    """Train, or go on training, and write the head; what comes back is the last validation."""
    (out / "data").mkdir(parents=True, exist_ok=True)
    layers = (2, target.num_layers // 2, target.num_layers - 3)
    stored = (*layers, target.num_layers)
    rollouts = _answers(target, prompts, end_ids, stored, out / "data", head, options.seed, tell)
    tests = _held_out(target, held_out, end_ids, stored, out, options.seed, tell)
    ids = _vocabulary(rollouts, target, head, out)
    everyone = np.arange(target.vocab_size)
    embeddings = torch.from_numpy(target.embeddings(everyone))
    full_head = torch.from_numpy(target.head_rows(everyone))
    config = EagleConfig(
        generation=3,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=head.intermediate,
        num_heads=max(1, target.hidden_size // _HEAD_DIM),
        num_kv_heads=max(1, target.hidden_size // _HEAD_DIM),
        head_dim=_HEAD_DIM,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(ids),
        feature_layers=layers,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        fc_bias=True,
    )
    torch.manual_seed(options.seed)
    network = EagleNetwork(config)
    rows = full_head[torch.from_numpy(ids)]
    places = tuple(range(len(layers)))
    trainer = Trainer(network, rollouts, layers=places, embeddings=embeddings, head_rows=rows, options=options, folder=out)
    if not trainer.resume():
        tell("fitting where training starts", None)
        fitted_start(network, rollouts, places, embeddings, _FITTED_TOKENS)

    def measured() -> dict[str, Any]:
        half = len(tests) // 2
        return validate(
            network,
            tests,
            [True] * half + [False] * (len(tests) - half),
            layers=places,
            embeddings=embeddings,
            head_rows=rows,
            full_head=full_head,
            token_ids=ids,
            depth=4,
        )

    trainer.run(tell=tell, record=measured)
    write_eagle_head(network, ids, fingerprint(target), out / "head")
    _report(trainer, out)
    return trainer.history[-1] if trainer.history else measured()


def write_eagle_head(network: EagleNetwork, ids: NDArray[np.int64], target: dict[str, Any], folder: Path) -> None:
    """The head as float16 safetensors in the published form, the target it belongs to noted in its config."""
    weights = {name: Tensor.of(value.numpy().astype(np.float16)) for name, value in network.folded().items()}
    # A bias folded from large means keeps its full precision; it is a few kilobytes.
    weights |= {name: Tensor.of(value.numpy()) for name, value in network.folded().items() if name == "fc.bias"}
    write_head(EagleHead(config=network.config, weights=weights, token_ids=ids), folder, "eagle3")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"headstart_target": target, "headstart_auto": False}, indent=2) + "\n", encoding="utf-8")


def _answers(
    target: FeatureModel, prompts: Any, end_ids: Any, stored: Any, folder: Path, head: HeadOptions, seed: int, tell: Tell
) -> list[Rollout]:
    """Every shard of rollouts, written where it is not there yet."""
    count = -(-len(prompts) // _SHARD)
    rollouts: list[Rollout] = []
    for number in range(count):
        path = shard_path(folder, number)
        if not path.exists():
            tell(f"the target answers prompts, shard {number + 1} of {count}", number / count)
            part = prompts[number * _SHARD : (number + 1) * _SHARD]
            heat = [TEMPERATURES[(i + i // len(TEMPERATURES)) % len(TEMPERATURES)] for i in range(len(part))]
            write_shard(
                path,
                write_answers(
                    target,
                    part,
                    layers=stored,
                    max_tokens=head.max_tokens,
                    temperatures=heat,
                    end_ids=end_ids,
                    seed=seed + number,
                ),
            )
        rollouts += [r for r in read_shard(path) if len(r.tokens) - r.num_prompt >= 8]
    return rollouts


def _held_out(target: FeatureModel, prompts: Any, end_ids: Any, stored: Any, out: Path, seed: int, tell: Tell) -> list[Rollout]:
    """Answers to the held-out prompts: each greedily, then each at temperature 1."""
    path = out / "held-out.safetensors"
    if not path.exists():
        tell("the target answers held-out prompts", None)
        heat = [0.0] * len(prompts) + [1.0] * len(prompts)
        both = [*prompts, *prompts]
        write_shard(
            path,
            write_answers(target, both, layers=stored, max_tokens=128, temperatures=heat, end_ids=end_ids, seed=seed + 1_000_003),
        )
    return read_shard(path)


def _vocabulary(rollouts: Sequence[Rollout], target: FeatureModel, head: HeadOptions, out: Path) -> NDArray[np.int64]:
    """The draft vocabulary, chosen once a run: it may not change when more data joins."""
    path = out / "draft-vocabulary.json"
    if not path.exists():
        chosen = draft_vocabulary(rollouts, target.vocab_size, min(head.draft_vocab, target.vocab_size))
        part = path.with_suffix(".part")
        part.write_text(json.dumps(chosen.tolist()), encoding="utf-8")
        os.replace(part, path)
    return np.asarray(json.loads(path.read_text(encoding="utf-8")), dtype=np.int64)


def _report(trainer: Trainer, out: Path) -> None:
    """What was measured on the way, as JSON and, with matplotlib, as curves."""
    document = {"options": asdict(trainer.options), "history": trainer.history}
    (out / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    try:
        from headstart.plots import plot_training
    except ImportError:
        return
    if trainer.history:
        plot_training(trainer.history, out / "report.png")
