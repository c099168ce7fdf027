"""Medusa heads as a torch module: head k guesses the token k + 2 after the hidden state it reads (Cai et al. 2024, Medusa-1).

The target is frozen. A head is residual blocks x + SiLU(Wx + b), and one vocabulary projection, trained with them, serves all
heads: so all of them together cost a draft one product. (The authors train a projection for each.) Knows tensors; does not know
files, data or the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headstart.models.torch_extra import torch
from headstart.train.corpus import Batch
from headstart.train.rollouts import Rollout

__all__ = ["MedusaNetwork"]

_RIDGE = 1e-2  # of each input's size


class MedusaNetwork(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Parameters are named as in the authors' checkpoints, `{head}.{layer}.linear.weight` and `.bias`; the projection: `rows`."""

    def __init__(self, *, num_heads: int, num_layers: int, rows: Any) -> None:
        """`rows` [draft vocab, hidden]: the target's, where the projection starts."""
        super().__init__()
        self.num_heads, self.num_layers = num_heads, num_layers
        self.rows = torch.nn.Parameter(rows.clone())
        hidden_size = rows.shape[1]
        for head in range(num_heads):
            blocks = torch.nn.Module()
            for layer in range(num_layers):
                block = torch.nn.Module()
                block.linear = torch.nn.Linear(hidden_size, hidden_size)
                torch.nn.init.zeros_(block.linear.weight)
                torch.nn.init.zeros_(block.linear.bias)
                blocks.add_module(str(layer), block)
            self.add_module(str(head), blocks)

    def begin(self, rollouts: Sequence[Rollout], tokens: int) -> None:
        """Put into the projection the linear map nearest, by least squares on about so many tokens, from a final hidden state to
        the next one: a block can raise a number by much and lower it by little, so what makes heads sure of the very next token,
        which is not theirs to guess, has to go first."""
        inner: Any = 0.0
        outer: Any = 0.0
        count = 0
        for rollout in rollouts:
            seen = torch.from_numpy(rollout.features[-1, rollout.num_prompt - 1 :].astype(np.float64))
            inner, outer, count = inner + seen[:-1].T @ seen[:-1], outer + seen[:-1].T @ seen[1:], count + len(seen)
            if count >= tokens:
                break
        ridge = _RIDGE * torch.diag(inner.diagonal().clamp(min=1e-6))
        nearest = torch.linalg.solve(inner + ridge, outer).float()  # y = x @ nearest
        with torch.no_grad():
            self.rows.copy_(self.rows @ nearest.T)

    def outputs(self, batch: Batch, embeddings: Any, depth: int) -> list[Any]:
        """By head, [rows, hidden]; the embeddings of tokens are not looked at."""
        seen = batch.gathered([batch.features.flatten(2)] * depth, first=2)
        return [self._head(self.get_submodule(str(head)), x) for head, x in enumerate(seen)]

    def _head(self, blocks: Any, x: Any) -> Any:
        for block in blocks.children():
            x = x + torch.nn.functional.silu(block.linear(x)).float()
        return x
