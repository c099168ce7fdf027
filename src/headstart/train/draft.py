"""A small draft model for a target, from its own answers; in the end `draft/` in the run's folder holds it.

Knows the order of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import OptionError
from headstart.interfaces import FeatureModel
from headstart.text import Tokenizer
from headstart.train.answers import Source, Tell
from headstart.train.distil import Vocabulary, distil
from headstart.train.draft_network import DraftNetwork
from headstart.train.loop import TrainOptions

__all__ = ["DraftOptions", "train_draft"]

_MEASURED = 4  # tokens deep


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """What kind of model."""

    num_layers: int = 2
    draft_vocab: int | None = None  # trained for its most frequent tokens alone, as `--draft-vocab` runs it; None: all

    def __post_init__(self) -> None:
        for name, least in (("num_layers", 1), ("draft_vocab", 16)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"`{name.removeprefix('num_').replace('_', '-')}` must be {least} or more, got {value}")


def train_draft(
    target: FeatureModel,
    source: Source,
    *,
    weights: Path,  # the target's file or folder
    tokenizer: Tokenizer,  # the target's
    out: Path,
    draft: DraftOptions,
    options: TrainOptions,
    device: str = "auto",  # that trains: cpu, cuda, cuda:N
    tell: Tell,
) -> dict[str, Any]:
    """Train, or go on training, and write the model; what comes back is the last validation.

    Raises OptionError unless `options.depth` is 1: a model's row depends on the text alone."""
    if options.depth != 1:
        raise OptionError(f"`depth` must be 1 for a draft model, whose rows depend on the text alone, got {options.depth}")
    out.mkdir(parents=True, exist_ok=True)
    found = source.answers(target, layers=(target.num_layers,), out=out, seed=options.seed, tell=tell)
    every = range(target.vocab_size)
    drafted = every if draft.draft_vocab is None else [token for token in tokenizer.frequent(draft.draft_vocab) if token in every]
    tell("reading the target's layers", None)
    network = DraftNetwork(weights, draft.num_layers)
    vocabulary = Vocabulary.of(target, np.array(drafted, dtype=np.int64))
    result = distil(
        network,
        found,
        vocabulary,
        layers=(-1,),
        options=options,
        depth=_MEASURED,
        out=out,
        begin=lambda: network.begin(found.training, vocabulary.embeddings),
        device=device,
        tell=tell,
    )
    network.write(out / "draft", tokenizer)
    return result
