"""Medusa heads as a torch module: head k guesses the token k + 2 after the hidden state it reads (Cai et al. 2024, Medusa-1).

The target is frozen and its rows of the vocabulary head serve every head; a head is residual blocks x + SiLU(Wx + b) alone, and
starts as the identity. Knows tensors; does not know files, data or the target.
"""

from __future__ import annotations

from typing import Any

from headstart.models.torch_extra import torch
from headstart.train.corpus import Batch

__all__ = ["MedusaNetwork"]


class MedusaNetwork(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Parameters are named as in the authors' checkpoints: `{head}.{layer}.linear.weight` and `.bias`."""

    def __init__(self, *, hidden_size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.num_heads, self.num_layers = num_heads, num_layers
        for head in range(num_heads):
            blocks = torch.nn.Module()
            for layer in range(num_layers):
                block = torch.nn.Module()
                block.linear = torch.nn.Linear(hidden_size, hidden_size)
                torch.nn.init.zeros_(block.linear.weight)
                torch.nn.init.zeros_(block.linear.bias)
                blocks.add_module(str(layer), block)
            self.add_module(str(head), blocks)

    def outputs(self, batch: Batch, embeddings: Any, depth: int) -> list[Any]:
        """By head, [rows, hidden]; the embeddings of tokens are not looked at."""
        seen = batch.gathered([batch.features.flatten(2)] * depth, first=2)
        return [self._head(self.get_submodule(str(head)), x) for head, x in enumerate(seen)]

    def _head(self, blocks: Any, x: Any) -> Any:
        for block in blocks.children():
            x = x + torch.nn.functional.silu(block.linear(x)).float()
        return x
