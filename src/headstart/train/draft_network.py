"""A small draft model made of the target itself: its embeddings, its first layers and its last, its final norm and its head.

Layers and norm are trained; embeddings and head stay the target's. Networks are transformers', so that whatever architecture it
knows can be cut. Knows networks and folders; does not know data.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstart.errors import OptionError
from headstart.models.checkpoint import load_network, quiet
from headstart.models.torch_extra import torch, transformers
from headstart.text import Tokenizer
from headstart.train.corpus import Batch, batch_of
from headstart.train.rollouts import Rollout

__all__ = ["DraftNetwork"]

_FITTED = 24  # rollouts that the start is fitted on


class DraftNetwork(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """The layers and the final norm that are trained; the rest of the network is held beside them."""

    rows = None  # the target's

    def __init__(self, target: Path, num_layers: int) -> None:
        """Reads the target's weights. Raises ModelError where transformers cannot, OptionError for more layers than it has."""
        super().__init__()
        network, _ = load_network(
            str(target),
            revision=None,
            gguf_file=None,
            dtype="float32",
            device="cpu",
            threads=None,
            offline=True,
            context=None,
            progress=lambda stage, fraction: None,
        )
        base, config = network.get_decoder(), network.config
        has = len(base.layers)
        if not 1 <= num_layers < has:
            raise OptionError(f"`layers` must be from 1 to {has - 1}, less than the target has, got {num_layers}")
        chosen = [*range(num_layers - 1), has - 1]  # the last one gives what the head reads
        base.layers = torch.nn.ModuleList(base.layers[place] for place in chosen)
        for place, layer in enumerate(base.layers):
            layer.self_attn.layer_idx = place
        config.num_hidden_layers = num_layers
        kinds = vars(config).get("layer_types")
        if kinds is not None:
            config.layer_types = [kinds[place] for place in chosen]
        self._whole = (network, base)  # in a tuple: its embeddings and head are no part of what is trained and saved
        self.layers, self.norm = base.layers, base.norm
        for name, part in base.named_children():  # what else it computes with, without parameters: how positions turn
            if not any(True for _ in part.parameters()):
                self.add_module(name, part)

    def outputs(self, batch: Batch, embeddings: Any, depth: int) -> list[Any]:
        """By depth, [rows, hidden]: the same at each. Along a draft that is accepted the text is the target's, so what the model
        sees at any depth is what it sees here."""
        _, base = self._whole
        hidden = base(inputs_embeds=embeddings[batch.tokens[:, :-1]], use_cache=False).last_hidden_state
        return batch.gathered([hidden.float()], first=1) * depth

    def begin(self, rollouts: Sequence[Rollout], embeddings: Any) -> None:
        """Scale the final norm so that each number of the output comes nearest, by least squares, to the target's own.

        Layers that were taken out of their places are sure of what is wrong; this takes their certainty and little else."""
        own, both = torch.zeros_like(self.norm.weight), torch.zeros_like(self.norm.weight)
        with torch.inference_mode():
            for rollout in rollouts[:_FITTED]:
                batch = batch_of([rollout], (-1,))
                (seen,) = self.outputs(batch, embeddings, 1)
                own, both = own + (seen * seen).sum(0), both + (seen * batch.finals).sum(0)
        network, _ = self._whole
        added = 1.0 if network.config.model_type.startswith("gemma") else 0.0  # what its norms add to their weights
        with torch.no_grad():
            self.norm.weight.add_(added).mul_(both / own.clamp(min=1e-9)).sub_(added)

    def write(self, folder: Path, tokenizer: Tokenizer) -> None:
        """A Hugging Face folder in float16 with the target's tokenizer; it appears whole. The network is float16 afterwards."""
        network, _ = self._whole
        part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        network.generation_config = transformers.GenerationConfig()  # the tokenizer's file takes its place
        with quiet():
            network.to(torch.float16).save_pretrained(part)
        tokenizer.save(part)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
