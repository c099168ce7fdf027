"""config.json of a Hugging Face folder → GGUF metadata: what the core needs to know of a llama, qwen2, qwen3 or gemma3 model.

Every key is known here, as used, as without effect on logits, or as having one permitted value; any other is refused by name,
since what it changes cannot be told. Does not know tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import ModelError
from headstart.models.config_keys import Keys
from headstart.models.folder_rope import rope_metadata
from headstart.tensor_files import read_json

__all__ = ["CONFIG_NAMES", "FolderConfig", "folder_config"]

# GGUF key without the architecture → config.json's; messages of the core are told in the latter.
CONFIG_NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "attention.sliding_window": "sliding_window",
}

_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3_text": ("gemma3", "Gemma3ForCausalLM"),
    "gemma3": ("gemma3", "Gemma3ForConditionalGeneration"),
}

# No effect on logits: training, bookkeeping, generation defaults, what other programs wrote down.
_WITHOUT_EFFECT = (
    "_attn_implementation_autoset", "_model_name_or_path", "_name_or_path", "attention_dropout", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range",
    "is_llama_config", "label2id", "max_window_layers", "output_attentions", "output_hidden_states", "pad_token_id",
    "pretraining_tp", "problem_type", "return_dict", "torch_dtype", "transformers.js_config", "transformers_version",
    "unk_token_id", "unsloth_fixed", "unsloth_version", "unsloth_tied_weights", "use_cache",
)  # fmt: skip
# Of a model that also sees: what lies beside its text part.
_SIGHT = ("boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image", "vision_config")

_GEMMA_SIZES = {  # Gemma's configurations leave out what equals these
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256,
}  # fmt: skip
_CONTEXT = {"llama": 2048, "qwen2": 32_768, "qwen3": 32_768, "gemma3": 131_072}


@dataclass(frozen=True, kw_only=True)
class FolderConfig:
    """A model as config.json describes it."""

    architecture: str  # llama, qwen2, qwen3 or gemma3
    metadata: dict[str, Any]  # by GGUF key
    layers: int
    vocab_size: int
    tied: bool  # the head is the embedding
    sees: bool  # has a vision part beside the text part


def folder_config(folder: Path) -> FolderConfig:
    """The configuration of a folder. Raises ModelError for an architecture, a key or a value that is not known."""
    source = folder / "config.json"
    whole = Keys(read_json(source), str(source))
    kind = whole.text("model_type", None)
    if kind not in _ARCHITECTURES:
        raise ModelError(
            f"{source} is of a {kind!r:.60} model, and the native engine knows llama, qwen2, qwen3 "
            "and gemma3; use --engine transformers"
        )
    architecture, network = _ARCHITECTURES[kind]
    _check_network(whole, network)
    text = whole
    if kind == "gemma3":
        text = whole.table("text_config") or Keys({}, f"{source}: text_config")
        text.only("model_type", "gemma3_text")
        _check_network(text, _ARCHITECTURES["gemma3_text"][1])
    tied = whole.truth("tie_word_embeddings", text.truth("tie_word_embeddings", architecture == "gemma3"))
    found = _sizes(text, architecture) | _details(text, architecture)
    found |= _windows(text, architecture, found["block_count"])
    found |= rope_metadata(text, architecture, found["attention.key_length"], found["context_length"])
    vocab_size = text.whole("vocab_size", _GEMMA_SIZES["vocab_size"] if architecture == "gemma3" else None)
    text.finish(_WITHOUT_EFFECT)
    if text is not whole:
        whole.finish({*_WITHOUT_EFFECT, *_SIGHT})
    metadata = {f"{architecture}.{key}": value for key, value in found.items()} | {"general.architecture": architecture}
    return FolderConfig(
        architecture=architecture,
        metadata=metadata,
        layers=found["block_count"],
        vocab_size=vocab_size,
        tied=tied,
        sees=text is not whole,
    )


def _check_network(config: Keys, network: str) -> None:
    """Refuse networks that put something else on top of the same layers."""
    if config.texts("architectures") not in ([], [network]):
        config.refuse(f"'architectures' {config.texts('architectures')!r:.200}, and the native engine knows {network}")
    config.only("is_encoder_decoder", False)


def _sizes(text: Keys, architecture: str) -> dict[str, Any]:
    usual = _GEMMA_SIZES if architecture == "gemma3" else {}
    hidden, heads = (text.whole(key, usual.get(key)) for key in ("hidden_size", "num_attention_heads"))
    kv_heads = text.whole("num_key_value_heads", usual.get("num_key_value_heads", heads if architecture == "llama" else None))
    head_dim = text.whole(
        "head_dim", usual.get("head_dim", 128 if architecture == "qwen3" else max(1, hidden // heads)), most=1024
    )
    return {
        "block_count": text.whole("num_hidden_layers", usual.get("num_hidden_layers"), most=1000),
        "embedding_length": hidden,
        "feed_forward_length": text.whole("intermediate_size", usual.get("intermediate_size")),
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "context_length": text.whole("max_position_embeddings", _CONTEXT[architecture]),
    }


def _details(text: Keys, architecture: str) -> dict[str, Any]:
    """Norms, activations and scales; biases show in the tensors themselves."""
    found: dict[str, Any] = {"attention.layer_norm_rms_epsilon": text.real("rms_norm_eps", 1e-6)}
    text.truth("attention_bias", False)
    text.only("partial_rotary_factor", 1.0)
    if architecture == "gemma3":
        text.only("hidden_activation", "gelu_pytorch_tanh")
        text.only("hidden_act", "gelu_pytorch_tanh")
        text.only("use_bidirectional_attention", False)
        found["attention.scale"] = text.real("query_pre_attn_scalar", 256.0) ** -0.5
    else:
        text.only("hidden_act", "silu")
    if architecture == "llama":
        text.truth("mlp_bias", False)
        text.only("rope_interleaved", False)
    return found


def _windows(text: Keys, architecture: str, layers: int) -> dict[str, Any]:
    """Which layers see only the last tokens."""
    types = text.texts("layer_types")
    if types and (len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}):
        text.refuse(
            f"'layer_types' {types!r:.200}, and the native engine knows full_attention and sliding_attention, one a layer"
        )
    windowed = [kind == "sliding_attention" for kind in types]
    if architecture == "gemma3":
        period = text.whole("sliding_window_pattern", text.whole("_sliding_window_pattern", 6))
        windowed = windowed or [bool((layer + 1) % period) for layer in range(layers)]
        window = text.whole("sliding_window", 4096)
    elif architecture in ("qwen2", "qwen3"):
        window = text.whole("sliding_window", 4096, least=0)
        first = text.whole("max_window_layers", 28, least=0)
        if text.truth("use_sliding_window", False):
            windowed = windowed or [layer >= first for layer in range(layers)]
        elif any(windowed):
            text.refuse("'layer_types' with sliding_attention but no 'use_sliding_window'")
    elif any(windowed):
        text.refuse("'layer_types' with sliding_attention, which llama models have not")
    if not any(windowed):
        # The core wants gemma3's window in any case.
        return (
            {"attention.sliding_window": window, "attention.sliding_window_pattern": [0.0] * layers}
            if architecture == "gemma3"
            else {}
        )
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": [float(yes) for yes in windowed]}
