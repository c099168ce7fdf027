"""The training loop: batches in, a trained network out, and nothing lost when it is killed.

The loss at each depth compares the network's row with the target's whole row (not its token alone), cut to the draft
vocabulary: cross-entropy at first, which teaches most while rows are far apart, and more and more their overlap itself, which is
what is accepted. Deeper predictions weigh less, as they are reached less often. The learning rate rises, stays, and falls over
the last part of the run; the state before it falls is kept, so that a run can be made longer later. Knows networks, batches
and its own files; does not know where rollouts come from.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from headstart.errors import InputError, OptionError
from headstart.models.torch_extra import torch
from headstart.train.corpus import Batch, batch_of, epoch_order
from headstart.train.rollouts import Rollout

__all__ = ["Learner", "TrainOptions", "Trainer"]


class Learner(Protocol):
    """What is trained: a torch module, whose outputs a vocabulary head turns into rows."""

    rows: Any  # [draft vocab, hidden]: a vocabulary head of its own, trained too; None: the target's, which is not

    def outputs(self, batch: Batch, embeddings: Any, depth: int) -> list[Any]:
        """By depth, [rows, hidden] wherever an answer's token is guessed. `embeddings` [vocab, hidden] are the target's."""

    def to(self, device: Any) -> Any:
        """Move everything it computes with."""

    def parameters(self) -> Iterator[Any]:
        """What is trained of it."""

    def state_dict(self) -> Any:
        """Everything it has to remember."""

    def load_state_dict(self, state: Any) -> Any:
        """Remember it again."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a network is trained. Everything that changes the result is here."""

    steps: int = 2000
    depth: int = 4
    batch_tokens: int = 2048
    learning_rate: float = 1.2e-3
    depth_weight: float = 0.8  # a depth weighs so much times the one before
    warmup: int = 40
    decay: float = 0.4  # the part of the run over which the rate falls
    seed: int = 0
    bfloat16: bool = True

    def rate(self, step: int) -> float:
        """The learning rate of one step as a part of the highest."""
        falling = max(1, self.steps - self.decay_start)
        return min(1.0, (step + 1) / self.warmup, 0.02 + 0.98 * (self.steps - step) / falling)

    @property
    def weights(self) -> list[float]:
        """How much each depth counts, summing to 1."""
        raw = [self.depth_weight**depth for depth in range(self.depth)]
        return [weight / sum(raw) for weight in raw]

    @property
    def decay_start(self) -> int:
        """The first step at which the rate falls."""
        return round(self.steps * (1 - self.decay))


class Trainer:
    """A network, its optimizers and where it stands in the data. `state.pt` in its folder is always whole."""

    def __init__(
        self,
        network: Learner,
        rollouts: Sequence[Rollout],
        *,
        layers: Sequence[int],  # places of the features it reads within the stored ones
        embeddings: Any,  # [vocab, hidden]: the target's
        head_rows: Any,  # [draft_vocab, hidden]: rows of the vocabulary head, where the network and the embeddings are too
        options: TrainOptions,
        folder: Path,
    ) -> None:
        self.network, self.rollouts, self.layers = network, rollouts, tuple(layers)
        self.embeddings, self.head_rows, self.device = embeddings, head_rows, head_rows.device
        self.options, self.folder = options, folder
        # Rows of a vocabulary are vectors of their own, not a map.
        matrices = [p for p in network.parameters() if p.ndim == 2 and p is not network.rows]
        others = [p for p in network.parameters() if p.ndim != 2 or p is network.rows]
        rate = options.learning_rate
        self.optimizers = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=rate, weight_decay=0.0, betas=(0.9, 0.95)),
        ]
        self.step = self.epoch = self.place = 0
        self._order, self._order_of = list[list[int]](), -1  # batches of an epoch, and of which
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []  # one entry a recorded step

    def run(self, *, tell: Callable[[str, float], None], every: int = 50, record: Callable[[], dict[str, Any]] = dict) -> None:
        """Train to the last step, saving and recording every so many. `record` measures; its values join the history."""
        losses: list[list[float]] = []
        while self.step < self.options.steps:
            start = perf_counter()
            losses.append(self._one_step())
            self.step += 1
            self.seconds += perf_counter() - start
            text = " ".join(f"{loss:.3f}" for loss in losses[-1])
            tell(f"step {self.step}/{self.options.steps}, loss by depth {text}", self.step / self.options.steps)
            last = self.step == self.options.steps
            if self.step == self.options.decay_start:
                self.save("stable.pt")
            if self.step % every == 0 or last:
                means = [sum(column) / len(losses) for column in zip(*losses, strict=True)]
                entry = {"step": self.step, "seconds": round(self.seconds, 1), "epoch": self.epoch, "loss": means}
                self.history.append(entry | record())
                losses = []
                self.save("state.pt")

    def save(self, name: str) -> None:
        """Everything needed to go on, in a file that appears whole or not at all."""
        state = {
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "place": [self.step, self.epoch, self.place, len(self.rollouts)],
            "seconds": self.seconds,
            "history": self.history,
            "options": asdict(self.options),
        }
        path = self.folder / name
        part = path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)

    @staticmethod
    def begun(folder: Path) -> bool:
        """Whether there is a run to go on with."""
        return (folder / "state.pt").exists()

    def resume(self) -> None:
        """Go on from the folder's state, if it has one. A run made longer goes on from before its learning rate fell.

        Raises OptionError where the options are not those of the saved run."""
        path = self.folder / "state.pt"
        if not self.begun(self.folder):
            return
        state = _state(path)
        saved, now = state["options"], asdict(self.options)
        changed = [name for name in now if name != "steps" and saved.get(name) != now[name]]
        if changed:
            name = changed[0]
            raise OptionError(
                f"`{name}` was {saved.get(name)!r} when {self.folder} was begun, got {now[name]!r}; use another --out"
            )
        if saved["steps"] != now["steps"] and state["place"][0] > round(saved["steps"] * (1 - saved["decay"])):
            state = _state(self.folder / "stable.pt")
        try:
            self.network.load_state_dict(state["network"])
        except RuntimeError:
            raise OptionError(f"`out` {self.folder} was begun with another kind or size of network; use another --out") from None
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.step, self.epoch, self.place, sequences = state["place"]
        if len(self.rollouts) != sequences:  # other answers than then: they join at once
            self.epoch, self.place = self.epoch + 1, 0
        self.seconds, self.history = state["seconds"], state["history"]

    def _one_step(self) -> list[float]:
        """One batch; its loss by depth."""
        rate = self.options.learning_rate * self.options.rate(self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        outputs = self._outputs(batch := self._next_batch())
        own = self.network.rows
        losses, gradients, rows_gradient = soft_losses(
            outputs, batch.finals, self.head_rows, self.options.weights, self.options.bfloat16, own_rows=own
        )
        if own is not None:
            outputs, gradients = [*outputs, own], [*gradients, rows_gradient]
        torch.autograd.backward(outputs, gradients)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        return losses

    def _outputs(self, batch: Batch) -> list[Any]:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.options.bfloat16):
            return self.network.outputs(batch, self.embeddings, self.options.depth)

    def _next_batch(self) -> Batch:
        if self._order_of != self.epoch:
            lengths = [len(r.tokens) for r in self.rollouts]
            self._order = epoch_order(lengths, self.options.batch_tokens, self.options.seed, self.epoch)
            self._order_of = self.epoch
        order = self._order
        batch = batch_of([self.rollouts[number] for number in order[self.place]], self.layers).to(self.device)
        self.place += 1
        if self.place == len(order):
            self.epoch, self.place = self.epoch + 1, 0
        return batch


def _state(path: Path) -> Any:
    """A saved state. Raises InputError where the file is not whole, as after a full disk."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is not a whole state of a run ({told:.120}); use another --out") from None


_CHUNK = {"cpu": 128}  # rows whose logits are worked on at a time: they stay in the processor's cache
_LARGE_CHUNK = 2048  # elsewhere
_TURN = 3.0  # cross-entropy counts e^(−3 · overlap) of the loss, the overlap the rest


def soft_losses(
    outputs: Sequence[Any],  # by depth, [rows, hidden]
    finals: Any,  # [rows, hidden]: the target's
    head_rows: Any,  # [draft vocab, hidden]
    weights: Sequence[float],  # by depth, summing to 1
    bfloat16: bool,
    *,
    own_rows: Any = None,  # [draft vocab, hidden]: what outputs are multiplied by, where it is not `head_rows`
) -> tuple[list[float], list[Any], Any]:
    """Mean cross-entropy against the target's rows at each depth, and the gradient of the weighted sum of losses by
    `outputs`, and by `own_rows`.

    The loss of rows p (the target's) and q with overlap α = Σ min(p, q) is λ · cross-entropy + (1 − λ)(1 − α), λ = e^(−3 α) with
    the mean α of the rows worked on together, and itself not differentiated. Written out by hand, as the rows of all depths are
    too many to hold at once. The target's rows are not trained."""
    kind = torch.bfloat16 if bfloat16 else torch.float32
    matrix = head_rows.to(kind)
    own = matrix if own_rows is None else own_rows.detach().to(kind)
    own_gradient = None if own_rows is None else torch.zeros_like(own_rows)
    count, chunk = len(finals), _CHUNK.get(head_rows.device.type, _LARGE_CHUNK)
    losses = [0.0 for _ in outputs]
    gradients = [torch.empty_like(output) for output in outputs]
    with torch.no_grad():
        for first in range(0, count, chunk):
            part = slice(first, first + chunk)
            rows = torch.softmax((finals[part].to(kind) @ matrix.T).float(), dim=-1)
            for depth, output in enumerate(outputs):
                logs = torch.log_softmax((output[part].to(kind) @ own.T).float(), dim=-1)
                losses[depth] -= float(torch.dot(rows.view(-1), logs.view(-1))) / count
                drafted = logs.exp_()
                under = torch.where(drafted < rows, drafted, 0.0)  # the overlap grows with these
                sums = under.sum(-1, keepdim=True)
                overlap = float(torch.minimum(drafted, rows).sum()) / len(rows)
                share = math.exp(-_TURN * overlap)
                # by the logits: q − p of the cross-entropy, q Σ(q where q < p) − (q where q < p) of 1 − α
                slope = drafted.mul_(sums.mul_(1 - share).add_(share)).sub_(rows, alpha=share).sub_(under, alpha=1 - share)
                slope = slope.mul_(weights[depth] / count).to(kind)
                gradients[depth][part] = slope @ own
                if own_gradient is not None:
                    own_gradient += slope.T @ output[part].to(kind)
    return losses, gradients, own_gradient
