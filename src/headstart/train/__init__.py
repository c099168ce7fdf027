"""Training of drafters on the target's own rows: prompts, answers, networks, the loop, the report. Needs torch."""

from __future__ import annotations

from headstart.train.answers import EarlierRun, Questions
from headstart.train.draft import DraftOptions, train_draft
from headstart.train.eagle import HeadOptions, train_eagle
from headstart.train.loop import TrainOptions
from headstart.train.medusa import MedusaOptions, train_medusa
from headstart.train.rollouts import Turn

__all__ = [
    "DraftOptions",
    "EarlierRun",
    "HeadOptions",
    "MedusaOptions",
    "Questions",
    "TrainOptions",
    "Turn",
    "train_draft",
    "train_eagle",
    "train_medusa",
]
