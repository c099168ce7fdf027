"""What every kind of training shares: options, loop, validation and report, for one learner in one folder.

A folder holds one run: the answers (see `answers`), `state.pt` where the run stands, `report.json` and `report.png` how it went.
Every file appears whole or not at all, so the same call goes on after a kill. Knows the order of these steps; what is trained is
for the files named after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, OptionError
from headstart.interfaces import FeatureModel
from headstart.models.checkpoint import device_of
from headstart.models.torch_extra import torch
from headstart.train.answers import Answers, Tell
from headstart.train.corpus import draft_vocabulary
from headstart.train.loop import Learner, Trainer, TrainOptions
from headstart.train.rollouts import Rollout
from headstart.train.validation import validate

__all__ = ["Vocabulary", "chosen_vocabulary", "distil", "write_json"]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The target's embeddings and vocabulary head, and the tokens that are drafted."""

    embeddings: Any  # [vocab, hidden]
    full_head: Any  # [vocab, hidden]
    ids: NDArray[np.int64]  # [draft_vocab], increasing

    @property
    def rows(self) -> Any:
        """[draft_vocab, hidden]: the head's rows of the drafted tokens."""
        return self.full_head[torch.from_numpy(self.ids).to(self.full_head.device)]

    def to(self, device: Any) -> Vocabulary:
        """The same on another device."""
        return replace(self, embeddings=self.embeddings.to(device), full_head=self.full_head.to(device))

    @staticmethod
    def of(target: FeatureModel, ids: NDArray[np.int64]) -> Vocabulary:
        """The target's."""
        everyone = np.arange(target.vocab_size)
        embeddings, head = (torch.from_numpy(part(everyone)) for part in (target.embeddings, target.head_rows))
        return Vocabulary(embeddings=embeddings, full_head=head, ids=ids)


def distil(
    learner: Learner,
    answers: Answers,
    vocabulary: Vocabulary,
    *,
    layers: Sequence[int],  # places of the features it reads within the stored ones
    options: TrainOptions,
    depth: int,  # measured
    out: Path,
    begin: Callable[[], None],  # sets the weights a new run starts from
    device: str,  # auto, cpu, cuda or cuda:N
    tell: Tell,
) -> dict[str, Any]:
    """Train, or go on training; what comes back is the last validation. `learner` is then trained, and the report is written.

    Raises OptionError for a device there is not."""
    place = device_of(device)
    if not Trainer.begun(out):
        begin()
    learner.to(place)
    vocabulary = vocabulary.to(place)
    rows = vocabulary.rows
    trainer = Trainer(
        learner,
        answers.training,
        layers=layers,
        embeddings=vocabulary.embeddings,
        head_rows=rows,
        options=options,
        folder=out,
    )
    trainer.resume()

    def measured() -> dict[str, Any]:
        return validate(
            learner,
            answers.held_out,
            answers.greedy,
            layers=layers,
            embeddings=vocabulary.embeddings,
            head_rows=rows if learner.rows is None else learner.rows,
            full_head=vocabulary.full_head,
            token_ids=vocabulary.ids,
            depth=depth,
        )

    trainer.run(tell=tell, record=measured)
    _report(trainer, out)
    last = trainer.history[-1] if trainer.history else measured()
    learner.to("cpu")
    return last


def chosen_vocabulary(rollouts: Sequence[Rollout], vocab_size: int, wanted: int, out: Path) -> NDArray[np.int64]:
    """The draft vocabulary, chosen once a run: it may not change when more data joins. Raises OptionError for another size."""
    path, size = out / "draft-vocabulary.json", min(wanted, vocab_size)
    if not path.exists():
        write_json(path, draft_vocabulary(rollouts, vocab_size, size).tolist())
    try:
        ids = np.asarray(json.loads(path.read_text(encoding="utf-8")), dtype=np.int64)
    except ValueError:
        raise InputError(f"{path} holds no list of tokens; use another --out") from None
    if len(ids) != size:
        raise OptionError(f"`draft-vocab` was {len(ids)} when {out} was begun, got {wanted}; use another --out")
    return ids


def write_json(path: Path, value: Any) -> None:
    """A file that appears whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=None if isinstance(value, list) else 1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _report(trainer: Trainer, out: Path) -> None:
    """What was measured on the way, as JSON and, with matplotlib, as curves."""
    write_json(out / "report.json", {"options": asdict(trainer.options), "history": trainer.history})
    try:
        from headstart.plots import plot_training
    except ImportError:
        return
    if trainer.history:
        plot_training(trainer.history, out / "report.png")
