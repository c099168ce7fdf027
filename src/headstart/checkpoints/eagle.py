"""EAGLE-1, EAGLE-2 and EAGLE-3 checkpoints as their authors publish them.

EAGLE-2 drafts with EAGLE-1's weights. A head of generation 1 is kept in memory under EAGLE-3's names, `midlayer.` for
`layers.0.`; the two differ in what they compute, which the generation says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from headstart.checkpoints.heads import EagleConfig, EagleHead
from headstart.checkpoints.names import d2t_of, number, renamed, t2d_of, token_ids_of
from headstart.checkpoints.rope import read_rope
from headstart.checkpoints.tensors import Tensor
from headstart.errors import ModelError

__all__ = ["QUANTIZE", "TARGET_HEAD", "layer_json", "read_eagle", "third_head", "write_eagle"]

# A key of ours: the vocabulary head is the target's own rows, which EAGLE-3 files otherwise bring themselves.
TARGET_HEAD = "headstart_target_lm_head"
# Another: 4 bits are enough for the layer of this head, as was measured.
QUANTIZE = "headstart_quantize"


def read_eagle(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> EagleHead:
    """A head from its config.json and its weights. Raises ModelError."""
    weights = renamed(weights, "model.", "")
    third = any(key in weights for key in ("midlayer.hidden_norm.weight", "norm.weight", "d2t")) or "draft_vocab_size" in config
    return third_head(config, config, weights) if third else _read_first(config, dict(weights))


def write_eagle(head: EagleHead) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and weights in the published form of the head's generation."""
    c = head.config
    config = layer_json(c) | {"vocab_size": c.vocab_size, "torch_dtype": _torch_dtype(head), "tie_word_embeddings": False}
    if c.quantize != "q8_0":
        config[QUANTIZE] = c.quantize
    weights = dict(head.weights)
    if c.generation == 1:
        return config | {"architectures": ["LlamaForCausalLMEagle"], "bias": c.fc_bias}, renamed(
            weights, "midlayer.", "layers.0."
        )
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.target_hidden_size,
        "norm_before_residual": c.norm_before_residual,
    }
    if c.feature_layers is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(c.feature_layers)
    if "lm_head.weight" not in weights:
        config[TARGET_HEAD] = True
    if head.token_ids is not None:
        weights |= {"d2t": d2t_of(head.token_ids), "t2d": t2d_of(head.token_ids, c.vocab_size)}
    return config, weights


def _eagle_config(
    generation: Literal[1, 3], config: Mapping[str, Any], layer: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> EagleConfig:
    """Sizes from `config`, which may be nested, and from `layer`, the part of it that describes the decoder layer."""
    activation = layer.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act of config.json is {activation!r:.40}; heads with another activation than silu are not run")
    if config.get("norm_output"):
        raise ModelError("norm_output of config.json is true; heads that norm what they feed back are not run")
    hidden, heads = number(layer, "hidden_size"), number(layer, "num_attention_heads")
    target = number(config, "target_hidden_size", hidden) if config.get("target_hidden_size") is not None else hidden
    vocab = number(layer, "vocab_size")
    draft = config.get("draft_vocab_size")
    layers = config.get("eagle_aux_hidden_state_layer_ids")
    if layers is None and isinstance(config.get("eagle_config"), Mapping):
        layers = config["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
    fc = weights.get("fc.weight")
    if fc is None or len(fc.shape) != 2:
        raise ModelError(f"the checkpoint has no fc.weight, wanted with {hidden} rows")
    if generation == 3 and fc.shape[1] % target:
        raise ModelError(f"fc.weight has shape {list(fc.shape)}, wanted [{hidden}, a multiple of {target}]")
    return EagleConfig(
        generation=generation,
        hidden_size=hidden,
        target_hidden_size=target,
        intermediate_size=number(layer, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=number(layer, "num_key_value_heads", heads),
        head_dim=number(layer, "head_dim", hidden // heads) if layer.get("head_dim") is not None else hidden // heads,
        vocab_size=vocab,
        draft_vocab_size=vocab if draft is None else number(config, "draft_vocab_size"),
        num_features=1 if generation == 1 else fc.shape[1] // target,
        feature_layers=None if layers is None else tuple(int(layer) for layer in layers),
        rms_norm_eps=float(number(layer, "rms_norm_eps", 1e-6)),
        rope=read_rope(layer),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        fc_bias="fc.bias" in weights,
        attention_bias="midlayer.self_attn.q_proj.bias" in weights,
        quantize="q4_0" if config.get(QUANTIZE) == "q4_0" else "q8_0",
    )


def layer_json(c: EagleConfig) -> dict[str, Any]:
    """The decoder layer as a Llama config describes it."""
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        **c.rope.to_json(),
        "attention_bias": c.attention_bias,
    }


def third_head(config: Mapping[str, Any], layer: Mapping[str, Any], weights: Mapping[str, Tensor]) -> EagleHead:
    """An EAGLE-3 head; `layer` is the config of its decoder layer. Raises ModelError."""
    held = renamed(weights, "layers.0.", "midlayer.")
    sizes = _eagle_config(3, config, layer, held)
    ids = token_ids_of(held, sizes.draft_vocab_size, sizes.vocab_size)
    if "lm_head.weight" not in held and config.get(TARGET_HEAD) is not True:
        wanted = [sizes.draft_vocab_size, sizes.hidden_size]
        raise ModelError(f"the checkpoint has no lm_head.weight, wanted with shape {wanted}")
    return EagleHead(config=sizes, weights=held, token_ids=ids)


def _read_first(config: Mapping[str, Any], weights: dict[str, Tensor]) -> EagleHead:
    weights = renamed(weights, "layers.0.", "midlayer.")
    sizes = _eagle_config(1, config, config, weights)
    if config.get("bias") is True and not sizes.fc_bias:
        raise ModelError(f"the checkpoint has no fc.bias, wanted with shape [{sizes.hidden_size}]")
    return EagleHead(config=sizes, weights=weights)


def _torch_dtype(head: EagleHead) -> str:
    names = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
    return names[head.weights["fc.weight"].dtype]
