"""Rollouts as batches: which sequences make one, in what order, and as which tensors.

The order of an epoch is a pure function of (seed, epoch, number of sequences), so that a resumed run meets the very batches
the killed one would have met. Knows rollouts and tensors; does not know heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.models.torch_extra import torch
from headstart.train.rollouts import Rollout

__all__ = ["Batch", "batch_of", "draft_vocabulary", "epoch_order"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences side by side, padded at the end."""

    tokens: Any  # [batch, tokens] int64
    features: Any  # [batch, tokens − 1, layers, hidden] float32: the target's hidden states, the final ones not included
    finals: Any  # [rows, hidden]: the target's final hidden state wherever an answer's token comes next
    places: tuple[Any, Any]  # [rows] sequence and index of each of them
    next_tokens: Any  # [rows]: the answer's token after each

    def to(self, device: Any) -> Batch:
        """The same on another device."""
        sequences, indices = self.places
        return Batch(
            tokens=self.tokens.to(device),
            features=self.features.to(device),
            finals=self.finals.to(device),
            places=(sequences.to(device), indices.to(device)),
            next_tokens=self.next_tokens.to(device),
        )

    def gathered(self, outputs: Sequence[Any], *, first: int) -> list[Any]:
        """By depth, what guesses each answer's token, [rows, hidden], of `outputs` [batch, indices, hidden].

        At index t depth k guesses token t + first + k; where there is no such index, index 0 stands in."""
        sequences, indices = self.places
        shifts = range(first - 1, first - 1 + len(outputs))
        return [output[sequences, (indices - shift).clamp(min=0)] for output, shift in zip(outputs, shifts, strict=True)]


def batch_of(rollouts: Sequence[Rollout], layers: Sequence[int]) -> Batch:
    """One batch; `layers` are places within the stored features, whose last is the final hidden state."""
    width = max(len(r.tokens) for r in rollouts)
    num_layers, hidden = len(layers), rollouts[0].features.shape[2]
    tokens = torch.zeros(len(rollouts), width, dtype=torch.int64)
    features = torch.zeros(len(rollouts), width - 1, num_layers, hidden)
    finals, sequences, indices, following = [], [], [], []
    for place, r in enumerate(rollouts):
        fed = len(r.tokens) - 1
        tokens[place, : fed + 1] = torch.from_numpy(r.tokens.astype(np.int64))
        features[place, :fed] = torch.from_numpy(r.features[list(layers)].swapaxes(0, 1)).float()
        finals.append(torch.from_numpy(r.features[-1, r.num_prompt - 1 :].astype(np.float32)))
        indices.append(torch.arange(r.num_prompt - 1, fed))
        sequences.append(torch.full((fed - r.num_prompt + 1,), place))
        following.append(tokens[place, r.num_prompt : fed + 1])
    return Batch(
        tokens=tokens,
        features=features,
        finals=torch.cat(finals),
        places=(torch.cat(sequences), torch.cat(indices)),
        next_tokens=torch.cat(following),
    )


def epoch_order(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of sequence numbers for one epoch: every sequence once, sequences of like length together, batches shuffled."""
    generator = np.random.default_rng([seed, epoch])
    jitter = np.asarray(lengths) * generator.uniform(0.8, 1.25, size=len(lengths))
    batches: list[list[int]] = [[]]
    longest = 0
    for number in np.argsort(jitter, kind="stable"):
        longest = max(longest, lengths[number])
        if batches[-1] and longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = lengths[number]
        batches[-1].append(int(number))
    return [batches[int(i)] for i in generator.permutation(len(batches))]


def draft_vocabulary(rollouts: Sequence[Rollout], vocab_size: int, size: int) -> NDArray[np.int64]:
    """The `size` tokens most frequent in the answers, increasing. Ties, and tokens never seen, by lower id: earlier merges."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for r in rollouts:
        np.add.at(counts, r.tokens[r.num_prompt :], 1)
    return np.sort(np.argsort(-counts, kind="stable")[:size])
