"""Small random models as GGUF files, of every architecture and weight type, and the same models in transformers.

Quantised tensors are made of random blocks, not by a quantiser: every bit pattern of the integers and of the 6-bit scales occurs.
The `gguf` package writes the files and says what the blocks mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quant
from numpy.typing import NDArray

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

VOCAB = 77  # no multiple of a tile
WINDOW = 8
CONTEXT = 96

# type → byte offsets in a block of its scale and its minimum (half floats), and what the integers range over
_SCALE_AT = {"Q8_0": 0, "Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208}
_MIN_AT = {"Q4_1": 2, "Q5_1": 2, "Q4_K": 2, "Q5_K": 2}


def blocks(kind: str, n: int, k: int, rng: np.random.Generator, deviation: float = 1.0) -> NDArray[np.uint8]:
    """[n, bytes of a row]: a random matrix [n, k] of this type as a file holds it, of about this standard deviation."""
    values = rng.standard_normal((n, k)).astype(np.float32) * np.float32(deviation)
    if kind == "F32":
        return values.view(np.uint8)
    if kind == "F16":
        return values.astype(np.float16).view(np.uint8)
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    size, width = gguf.GGML_QUANT_SIZES[Quant[kind]]
    assert k % size == 0
    data = rng.integers(0, 256, (n, k // size, width), dtype=np.uint8)
    scale = rng.uniform(0.5, 1.5, (n, k // size))
    for _ in range(2):  # once to see how wide random integers are, once as wanted
        minimum = scale * {"Q4_1": -7.5, "Q5_1": -15.5, "Q4_K": 7.5, "Q5_K": 15.5}.get(kind, 0.0)
        _put_halves(data, _SCALE_AT[kind], scale)
        if kind in _MIN_AT:
            _put_halves(data, _MIN_AT[kind], minimum)
        scale = scale * deviation / floats(kind, data.reshape(n, -1), k).std()
    return data.reshape(n, -1)


def _put_halves(data: NDArray[np.uint8], at: int, values: NDArray[Any]) -> None:
    data[..., at : at + 2] = values.astype(np.float16)[..., None].view(np.uint8)


def floats(kind: str, data: NDArray[np.uint8], k: int) -> NDArray[np.float32]:
    """[n, k]: what the `gguf` package reads in rows of this type."""
    if kind in ("F32", "F16"):
        return data.view(np.float32 if kind == "F32" else np.float16).astype(np.float32)
    values: NDArray[np.float32] = gguf.quants.dequantize(data, Quant[kind])
    assert values.shape[-1] == k
    return values


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a random model. The defaults suit every type: widths are multiples of 256, the block of K-quants."""

    architecture: str = "llama"
    layers: int = 2
    hidden: int = 256
    ff: int = 512
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    vocab: int = VOCAB
    context: int = CONTEXT
    tied: bool = True
    biases: bool = False
    rope_base: float = 10_000.0
    extra: Mapping[str, Any] = field(default_factory=dict)  # more metadata, by key without the architecture
    rope_factors: Sequence[float] = ()  # [head_dim/2]: what each rotary frequency is divided by


def shape_of(architecture: str, **changes: Any) -> Shape:
    """A shape that shows what is special about the architecture: biases, head norms, windows, grouped heads."""
    special: dict[str, dict[str, Any]] = {
        "llama": {},
        "qwen2": {"biases": True, "tied": False, "rope_base": 1e6},
        "qwen3": {"head_dim": 64, "tied": False, "rope_base": 1e6},
        "gemma3": {"layers": 7, "heads": 4, "kv_heads": 1, "head_dim": 64, "rope_base": 1e6},  # the sixth layer sees everything
    }
    return Shape(**{"architecture": architecture} | special[architecture] | changes)


@dataclass(frozen=True, kw_only=True)
class RandomModel:
    """A file and what its tensors mean."""

    path: Path
    shape: Shape
    weights: dict[str, NDArray[np.float32]]  # GGUF name → [n, k] or [n], dequantised


def write(
    path: Path, shape: Shape, kind: str = "F32", *, kinds: Mapping[str, str] | None = None, seed: int = 0, deviation: float = 1.0
) -> RandomModel:
    """A random model whose matrices are of type `kind`, or `kinds[name]` for a part of the name such as 'ffn_down'.

    Weights have a standard deviation of about `deviation`/√k, so that attention and gates are neither flat nor saturated."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, shape.architecture)
    _metadata(writer, shape)
    weights: dict[str, NDArray[np.float32]] = {}
    for name, size in _tensors(shape).items():
        if len(size) == 1:
            center = 0.0 if name.endswith("bias") else 1.0
            values = (center + 0.3 * rng.standard_normal(size)).astype(np.float32)
            writer.add_tensor(name, values)
            weights[name] = values
            continue
        n, k = size
        type_name = next((t for part, t in (kinds or {}).items() if part in name), kind)
        data = blocks(type_name, n, k, rng, deviation * (1.0 if name.startswith("token_embd") else 2.0) / np.sqrt(k))
        weights[name] = floats(type_name, data, k)
        if type_name in ("F32", "F16"):
            writer.add_tensor(name, data.view(np.float32 if type_name == "F32" else np.float16))
        else:
            writer.add_tensor(name, data, raw_dtype=Quant[type_name])
    if shape.rope_factors:
        writer.add_tensor("rope_freqs.weight", np.array(shape.rope_factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return RandomModel(path=path, shape=shape, weights=weights)


def _metadata(writer: Any, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab)
    if shape.architecture == "gemma3":
        writer.add_sliding_window(WINDOW)
    for key, value in shape.extra.items():
        name = f"{shape.architecture}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)


def _tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """GGUF name → [n, k] or [n]."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocab, shape.hidden)}
    for layer in range(shape.layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (shape.hidden,),
            "attn_q.weight": (q, shape.hidden),
            "attn_k.weight": (kv, shape.hidden),
            "attn_v.weight": (kv, shape.hidden),
            "attn_output.weight": (shape.hidden, q),
            "ffn_norm.weight": (shape.hidden,),
            "ffn_gate.weight": (shape.ff, shape.hidden),
            "ffn_up.weight": (shape.ff, shape.hidden),
            "ffn_down.weight": (shape.hidden, shape.ff),
        }
        if shape.biases:
            block |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if shape.architecture in ("qwen3", "gemma3"):
            block |= {"attn_q_norm.weight": (shape.head_dim,), "attn_k_norm.weight": (shape.head_dim,)}
        if shape.architecture == "gemma3":
            block |= {"post_attention_norm.weight": (shape.hidden,), "post_ffw_norm.weight": (shape.hidden,)}
        sizes |= {f"blk.{layer}.{name}": size for name, size in block.items()}
    sizes["output_norm.weight"] = (shape.hidden,)
    if not shape.tied:
        sizes["output.weight"] = (shape.vocab, shape.hidden)
    return sizes


# ---- the same model in transformers --------------------------------------------------------------------------------------------

_CONFIGS = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "gemma3": "Gemma3TextConfig"}

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_NAMES = _NAMES | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def as_transformers(model: RandomModel, **changes: Any) -> Any:
    """The network transformers makes of the same numbers, in float32; `changes` go into its configuration."""
    import torch
    import transformers

    shape = model.shape
    arguments: dict[str, Any] = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ff,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_base,
        "tie_word_embeddings": shape.tied,
        "attn_implementation": "eager",
    }
    if shape.architecture == "gemma3":
        arguments |= {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": shape.head_dim,
            "rope_local_base_freq": 10_000.0,
            "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(shape.layers)],
            "hidden_activation": "gelu_pytorch_tanh",
        }
    config = getattr(transformers, _CONFIGS[shape.architecture])(**arguments | changes)
    network = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    state = {_name(name, shape): torch.from_numpy(_values(name, values, shape)) for name, values in model.weights.items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if shape.tied else set())
    network.tie_weights()
    return network


def _name(name: str, shape: Shape) -> str:
    fixed = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    stem, kind = name.rsplit(".", 1)
    if stem in fixed:
        return f"{fixed[stem]}.{kind}"
    _, layer, part = stem.split(".")
    names = _GEMMA_NAMES if shape.architecture == "gemma3" else _NAMES
    return f"model.layers.{layer}.{names[part]}.{kind}"


def _values(name: str, values: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """As transformers holds them: Llama's rotary pairs half a head apart, Gemma's norms less one."""
    if shape.architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        pairs = values.reshape(-1, shape.head_dim // 2, 2, *values.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
    if shape.architecture == "gemma3" and "norm" in name:
        return values - 1.0
    return values.copy()


def transformers_rows(network: Any, tokens: list[int]) -> NDArray[np.float32]:
    """[tokens, vocab]: transformers' logits in one pass without a cache."""
    import torch

    with torch.inference_mode():
        rows: NDArray[np.float32] = network(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    return rows
