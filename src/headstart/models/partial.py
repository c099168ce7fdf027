"""A part of a transformers network: its first layers, or some rows of its head, around the same weights.

Modules are copied as shells: parameters are shared, lists of layers and the head are exchanged. Knows where transformers keeps a
decoder's layers and head; does not know caches or asks.
"""

from __future__ import annotations

import copy
from typing import Any

from headstart.errors import OptionError
from headstart.models.torch_extra import torch
from headstart.rows import IntArray

__all__ = ["network_part"]


def network_part(network: Any, layers: int | None, ids: IntArray | None) -> Any:
    """A network that stops after `layers` layers (None: all), and answers for the tokens `ids` alone (None: all).

    Raises OptionError for a network whose layers or head are not where they usually are."""
    part = _shell(network)
    name = network.base_model_prefix
    decoder = getattr(network, name, None)
    if layers is not None:
        if decoder is None or not isinstance(getattr(decoder, "layers", None), torch.nn.ModuleList):
            raise OptionError(f"`layers` cannot be cut in a {type(network).__name__}; use another drafter than skip")
        inner = _shell(decoder)
        inner._modules["layers"] = torch.nn.ModuleList(list(decoder.layers)[:layers])
        part._modules[name] = inner
    if ids is not None:
        head = network.get_output_embeddings()
        if not isinstance(head, torch.nn.Linear):
            raise OptionError(f"the vocabulary of a {type(network).__name__} cannot be cut; use the drafter whole")
        part._modules[_name_of(network, head)] = _rows_of(head, ids)
    return part


def _shell(module: Any) -> Any:
    """The module with a list of children of its own."""
    shell = copy.copy(module)
    shell._modules = dict(module._modules)
    return shell


def _name_of(network: Any, child: Any) -> str:
    return next(str(name) for name, module in network.named_children() if module is child)


def _rows_of(head: Any, ids: IntArray) -> Any:
    """A head of the rows `ids`: copies of them, a few megabytes."""
    wanted = torch.from_numpy(ids).to(head.weight.device)
    with torch.inference_mode():
        cut = torch.nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
        cut.weight = torch.nn.Parameter(head.weight[wanted].clone(), requires_grad=False)
        if head.bias is not None:
            cut.bias = torch.nn.Parameter(head.bias[wanted].clone(), requires_grad=False)
    return cut
