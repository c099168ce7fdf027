"""An EAGLE-3 head for a target, from its own answers; in the end `head/` in the run's folder holds it.

Knows the order of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints import EagleConfig, EagleHead, Rope, Tensor, write_head
from headstart.errors import OptionError
from headstart.interfaces import FeatureModel
from headstart.models.torch_extra import torch
from headstart.shipped import fingerprint
from headstart.train.answers import Source, Tell
from headstart.train.distil import Vocabulary, chosen_vocabulary, distil
from headstart.train.loop import TrainOptions
from headstart.train.marks import mark_head
from headstart.train.network import EagleNetwork
from headstart.train.start import fitted_start

__all__ = ["HeadOptions", "train_eagle", "write_eagle_head"]

_FITTED_TOKENS = 60_000
_HEAD_DIM = 64
_MEASURED = 4  # tokens deep


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What kind of head, from how much data."""

    draft_vocab: int = 8192
    intermediate: int = 1024

    def __post_init__(self) -> None:
        for name in ("draft_vocab", "intermediate"):
            if getattr(self, name) < 16:
                raise OptionError(f"`{name.replace('_', '-')}` must be 16 or more, got {getattr(self, name)}")


def train_eagle(
    target: FeatureModel,
    source: Source,
    *,
    out: Path,
    head: HeadOptions,
    options: TrainOptions,
    device: str = "auto",  # that trains: cpu, cuda, cuda:N
    tell: Tell,
) -> dict[str, Any]:
    """Train, or go on training, and write the head; what comes back is the last validation."""
    out.mkdir(parents=True, exist_ok=True)
    layers = (2, target.num_layers // 2, target.num_layers - 3)
    if min(layers) < 0:
        raise OptionError(f"`target` must have 3 layers or more for an EAGLE-3 head, got {target.num_layers}; train medusa")
    stored = (*layers, target.num_layers)
    found = source.answers(target, layers=stored, out=out, seed=options.seed, tell=tell)
    ids = chosen_vocabulary(found.training, target.vocab_size, head.draft_vocab, out)
    vocabulary = Vocabulary.of(target, ids)
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
        rope=Rope(theta=1e5),
        fc_bias=True,
        quantize="q4_0",  # costs 1 % of the overlap (smollm2) and saves a third of a step's memory
    )
    torch.manual_seed(options.seed)
    network = EagleNetwork(config)
    places = tuple(range(len(layers)))

    def begin() -> None:
        tell("fitting where training starts", None)
        fitted_start(network, found.training, places, vocabulary.embeddings, _FITTED_TOKENS)

    result = distil(
        network,
        found,
        vocabulary,
        layers=places,
        options=options,
        depth=_MEASURED,
        out=out,
        begin=begin,
        device=device,
        tell=tell,
    )
    write_eagle_head(network, ids, fingerprint(target), out / "head")
    return result


def write_eagle_head(network: EagleNetwork, ids: NDArray[np.int64], target: dict[str, Any], folder: Path) -> None:
    """The head as float16 safetensors in the published form, the target it belongs to noted in its config."""
    weights = {name: Tensor.of(value.numpy().astype(np.float16)) for name, value in network.folded().items()}
    # A bias folded from large means keeps its full precision; it is a few kilobytes.
    weights |= {name: Tensor.of(value.numpy()) for name, value in network.folded().items() if name == "fc.bias"}
    write_head(EagleHead(config=network.config, weights=weights, token_ids=ids), folder, "eagle3")
    mark_head(folder, target)
