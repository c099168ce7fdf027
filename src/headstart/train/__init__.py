"""Training of draft heads on the target's own rows: prompts, answers, the network, the loop, the report. Needs torch."""

from __future__ import annotations

from headstart.train.distil import HeadOptions, train_eagle
from headstart.train.loop import TrainOptions

__all__ = ["HeadOptions", "TrainOptions", "train_eagle"]
