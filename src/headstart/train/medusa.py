"""Medusa heads for a target, from its own answers; in the end `head/` in the run's folder holds them. Knows the order of steps.

They are written in vLLM's dialect, which has a place for a cut vocabulary and for one projection that serves all heads. The
authors' form, which would repeat the whole vocabulary for every head, has neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.checkpoints import MedusaHead, Tensor, write_head
from headstart.errors import OptionError
from headstart.interfaces import FeatureModel
from headstart.shipped import fingerprint
from headstart.train.answers import Source, Tell
from headstart.train.distil import Vocabulary, chosen_vocabulary, distil
from headstart.train.loop import TrainOptions
from headstart.train.marks import mark_head
from headstart.train.medusa_network import MedusaNetwork

__all__ = ["MedusaOptions", "train_medusa"]


_FITTED_TOKENS = 60_000


@dataclass(frozen=True, kw_only=True)
class MedusaOptions:
    """What kind of heads. How many there are is the depth of `TrainOptions`: head k guesses k tokens on."""

    draft_vocab: int = 8192
    num_layers: int = 1  # residual blocks in each head

    def __post_init__(self) -> None:
        for name, least in (("draft_vocab", 16), ("num_layers", 1)):
            if getattr(self, name) < least:
                raise OptionError(f"`{name.replace('_', '-')}` must be {least} or more, got {getattr(self, name)}")


def train_medusa(
    target: FeatureModel,
    source: Source,
    *,
    out: Path,
    heads: MedusaOptions,
    options: TrainOptions,
    device: str = "auto",  # that trains: cpu, cuda, cuda:N
    tell: Tell,
) -> dict[str, Any]:
    """Train, or go on training, and write the heads; what comes back is the last validation."""
    out.mkdir(parents=True, exist_ok=True)
    found = source.answers(target, layers=(target.num_layers,), out=out, seed=options.seed, tell=tell)
    ids = chosen_vocabulary(found.training, target.vocab_size, heads.draft_vocab, out)
    vocabulary = Vocabulary.of(target, ids)
    network = MedusaNetwork(num_heads=options.depth, num_layers=heads.num_layers, rows=vocabulary.rows)

    def begin() -> None:
        tell("fitting where training starts", None)
        network.begin(found.training, _FITTED_TOKENS)

    result = distil(
        network,
        found,
        vocabulary,
        layers=(-1,),
        options=options,
        depth=options.depth,
        out=out,
        begin=begin,
        device=device,
        tell=tell,
    )
    weights = {name: Tensor.of(value.detach().numpy().astype(np.float16)) for name, value in network.named_parameters()}
    projection = weights.pop("rows")
    weights |= {f"{head}.{heads.num_layers}.weight": projection for head in range(options.depth)}
    head = MedusaHead(
        num_heads=options.depth,
        num_layers=heads.num_layers,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(ids),
        weights=weights,
        token_ids=ids,
    )
    write_head(head, out / "head", "vllm-medusa")
    mark_head(out / "head", fingerprint(target))
    return result
