"""EAGLE-3 heads in the `speculators` form that vLLM reads. What would change the output's law is refused, not read past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.checkpoints.eagle import TARGET_HEAD, layer_json, third_head
from headstart.checkpoints.heads import EagleHead
from headstart.checkpoints.names import d2t_of, renamed, t2d_of
from headstart.checkpoints.tensors import Tensor
from headstart.errors import ModelError

__all__ = ["read_speculators", "write_speculators"]


def read_speculators(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> EagleHead:
    """A head from its config.json and its weights. Raises ModelError, also for a config that asks for lossy acceptance."""
    kind = config.get("speculators_model_type")
    if kind != "eagle3":
        raise ModelError(f"speculators_model_type of config.json is {kind!r:.40}; of this format only eagle3 heads are read")
    _refuse_lossy(config)
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise ModelError("config.json has no transformer_layer_config, which a speculators head needs")
    return third_head(config, layer, weights)


def write_speculators(head: EagleHead, verifier: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and weights; `verifier` names the target. Raises ModelError for a head of another generation."""
    c = head.config
    if c.generation != 3:
        raise ModelError("the speculators format holds EAGLE-3 heads here; an EAGLE-1 head computes something else")
    method = {"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    config: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.1.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [method],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "transformer_layer_config": layer_json(c) | {"vocab_size": c.vocab_size},
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.target_hidden_size,
        "norm_before_residual": c.norm_before_residual,
        "tie_word_embeddings": False,
    }
    if c.feature_layers is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(c.feature_layers)
    weights = renamed(head.weights, "midlayer.", "layers.0.")
    if "lm_head.weight" not in weights:
        config[TARGET_HEAD] = True
    if head.token_ids is not None:
        weights |= {"d2t": d2t_of(head.token_ids), "t2d": t2d_of(head.token_ids, c.vocab_size)}
    return config, weights


def _refuse_lossy(config: Mapping[str, Any]) -> None:
    settings = config.get("speculators_config")
    methods = settings.get("proposal_methods") if isinstance(settings, Mapping) else None
    for method in methods if isinstance(methods, list) else []:
        if not isinstance(method, Mapping):
            continue
        for name, exact in (("verifier_accept_k", 1), ("accept_tolerance", 0)):
            value = method.get(name)
            if value is not None and value > exact:
                raise ModelError(
                    f"{name} of config.json is {value}: it accepts drafted tokens the target would not have drawn, so the output "
                    f"would no longer be the target's own; set it to {exact} to use this head exactly"
                )
