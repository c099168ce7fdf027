"""The native engine computes what transformers computes in float32 on the same (dequantised) numbers.

Two kinds of rounding are its own. Keys and values are kept as half floats (2⁻¹¹ each): with unquantised weights logits agree to
about 1e-3 of their spread. Where weights are quantised, activations go through 8 bits, one scale per 32: an error of about 0.5 %
of a product's spread (2.1σ/127/√12 for normal numbers), which the layers of a random model add up to a few per cent. The
products themselves are held to float32 rounding in `test_kernels`, so what is left to show here is that the parts are put
together right; twins with one part changed are far off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.interfaces import Ask
from headstart.models.native import NativeModel
from tests.native.conftest import Loaded, Written
from tests.native.random_gguf import (
    ARCHITECTURES,
    K_QUANTS,
    TYPES,
    VOCAB,
    RandomModel,
    as_transformers,
    shape_of,
    transformers_rows,
    write,
)

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

UNQUANTISED = ("F32", "F16", "BF16")
TIGHT, LOOSE = 3e-3, 0.06


def tokens_for(count: int, seed: int = 1, vocab: int = VOCAB) -> list[int]:
    """`count` random token ids."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, count)]


def rows_of(model: NativeModel, tokens: list[int]) -> NDArray[np.float32]:
    """[tokens, vocab] in one pass."""
    return model.score([Ask(cache=model.open(), tokens=tokens)])[0].logits


def distance(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """Root mean square difference over the spread of the expected rows (a constant a row does not count)."""
    difference = (got - got.mean(axis=1, keepdims=True)) - (expected - expected.mean(axis=1, keepdims=True))
    return float(np.sqrt((difference**2).mean() / (expected - expected.mean(axis=1, keepdims=True)).var()))


def far(model: RandomModel, native: NativeModel, **changes: Any) -> float:
    """Distance to transformers, with `changes` in its configuration."""
    tokens = tokens_for(60)
    return distance(rows_of(native, tokens), transformers_rows(as_transformers(model, **changes), tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", TYPES)
def test_equals_transformers(written: Written, loaded: Loaded, architecture: str, kind: str) -> None:
    """Every architecture with every weight type, far beyond the window of 8."""
    assert far(written(architecture, kind), loaded(architecture, kind)) < (TIGHT if kind in UNQUANTISED else LOOSE)


ODD = [
    shape_of("llama", hidden=96, ff=160, heads=6, kv_heads=6, head_dim=32, vocab=33),
    shape_of("llama", hidden=64, ff=96, heads=4, kv_heads=1, head_dim=16, vocab=50, tied=False, layers=1),
    shape_of("qwen2", hidden=224, ff=352, heads=14, kv_heads=2, head_dim=32, vocab=129, tied=True),
    shape_of("qwen3", hidden=96, ff=64, heads=2, kv_heads=1, head_dim=128, vocab=16, biases=False),
    shape_of("gemma3", hidden=160, ff=96, heads=4, kv_heads=2, head_dim=48, vocab=300, layers=13),
]


@pytest.mark.parametrize("shape", ODD, ids=lambda shape: f"{shape.architecture}-{shape.hidden}")
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in K_QUANTS])
def test_odd_sizes(tmp_path: Path, shape: Any, kind: str) -> None:
    """Widths that are no multiples of anything but 32, vocabularies of any size, every way of sharing heads."""
    model = write(tmp_path / "odd.gguf", shape, kind)
    tokens = tokens_for(40, vocab=shape.vocab)
    got = rows_of(NativeModel.load(model.path), tokens)
    assert distance(got, transformers_rows(as_transformers(model), tokens)) < (TIGHT if kind in UNQUANTISED else LOOSE)


def test_types_may_be_mixed(tmp_path: Path) -> None:
    """Each matrix has its own type, as files made by llama.cpp do; `dtype` names that of most weights."""
    kinds = {"token_embd": "Q6_K", "attn_v": "Q8_0", "attn_q": "Q5_0", "ffn_down": "Q5_K", "attn_output": "F16"}
    for architecture in ARCHITECTURES:
        model = write(tmp_path / f"{architecture}.gguf", shape_of(architecture), "Q4_K", kinds=kinds)
        native = NativeModel.load(model.path)
        assert native.dtype == "Q4_K"
        assert native.num_parameters == sum(values.size for values in model.weights.values())
        assert far(model, native) < LOOSE


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {"rope_theta": 11_000.0}),
        ("llama", {"rms_norm_eps": 0.3}),
        ("qwen2", {"rope_theta": 11_000.0}),
        ("qwen3", {"rope_theta": 11_000.0}),
        ("gemma3", {"sliding_window": 7}),
        ("gemma3", {"rope_theta": 1e5}),
        ("gemma3", {"rope_local_base_freq": 2_000.0}),
        ("gemma3", {"query_pre_attn_scalar": 60}),
        ("gemma3", {"layer_types": ["sliding_attention"] * 7}),
    ],
)
def test_twins_with_one_part_changed_are_caught(
    written: Written, loaded: Loaded, architecture: str, changes: dict[str, Any]
) -> None:
    """Another rotary base, epsilon, window or scale is beyond the tolerance of unquantised weights."""
    assert far(written(architecture), loaded(architecture), **changes) > 3 * TIGHT


def test_twins_with_a_tensor_changed_are_caught(written: Written, loaded: Loaded) -> None:
    """A bias or a norm left out is beyond any tolerance."""
    for architecture, name in (
        ("qwen2", "attn_q.bias"),
        ("qwen2", "attn_v.bias"),
        ("qwen3", "attn_k_norm"),
        ("gemma3", "post_ffw_norm"),
    ):
        model = written(architecture)
        neutral = 0.0 if name.endswith("bias") else 1.0
        weights = {key: np.full_like(w, neutral) if name in key else w for key, w in model.weights.items()}
        changed = RandomModel(path=model.path, shape=model.shape, weights=weights)
        assert far(changed, loaded(architecture)) > 3 * TIGHT


# ---- rotary embeddings as files stretch them -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "extra", "rope"),
    [
        ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            "qwen2",
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 24},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
        ),
        (
            "qwen3",
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 48},
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 48},
        ),
    ],
)
def test_stretched_positions(tmp_path: Path, architecture: str, extra: dict[str, Any], rope: dict[str, Any]) -> None:
    """Linear scaling and YaRN are transformers' own; leaving them out is caught."""
    model = write(tmp_path / "stretched.gguf", shape_of(architecture, extra=extra))
    native = NativeModel.load(model.path)
    rope = {"rope_theta": model.shape.rope_base} | rope
    assert far(model, native, rope_parameters=rope) < TIGHT
    assert far(model, native) > 3 * TIGHT


def test_llama3_positions(tmp_path: Path) -> None:
    """Llama 3 stretches its slow frequencies; a file holds the factors as a tensor."""
    base, rope = 500_000.0, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"rope_theta": base, "original_max_position_embeddings": 32}
    plain = write(tmp_path / "plain.gguf", shape_of("llama", rope_base=base))
    inverse = as_transformers(plain, rope_parameters=rope).model.rotary_emb.inv_freq.numpy()
    factors = base ** (-np.arange(0, plain.shape.head_dim, 2) / plain.shape.head_dim) / inverse
    assert factors.min() == pytest.approx(1.0)
    assert factors.max() == pytest.approx(8.0)
    model = write(tmp_path / "llama3.gguf", shape_of("llama", rope_base=base, rope_factors=[float(f) for f in factors]))
    native = NativeModel.load(model.path)
    assert far(model, native, rope_parameters=rope) < TIGHT
    assert far(model, native) > 3 * TIGHT


# ---- hidden states -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_are_hidden_states(written: Written, loaded: Loaded, architecture: str) -> None:
    """Layer i's input for i < layers, the normed output for i = layers; for long asks and several sequences, too."""
    model, native = written(architecture, context=700), loaded(architecture, context=700)
    network = as_transformers(model)
    texts = [tokens_for(290), tokens_for(9, 2)]
    layers = [0, 1, model.shape.layers]
    asks = [(native.open().core, text, None, 1) for text in texts]
    for (_, features, _), text in zip(native.core.score(asks, layers), texts, strict=True):
        with torch.inference_mode():
            states = network(input_ids=torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
        assert features is not None
        assert features.shape == (len(text), 3, model.shape.hidden)
        for got, layer in zip(features.swapaxes(0, 1), layers, strict=True):
            assert distance(got, states[layer][0].numpy()) < TIGHT


# ---- a real model --------------------------------------------------------------------------------------------------------------


def test_smollm2_is_close_to_float32(smollm2_path: Path, smollm2_float32: Any) -> None:
    """On real text the law is nearly that of the dequantised model: 8-bit activations cost under 0.01 nats a token."""
    from headstart.text import Tokenizer

    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")[:1500]
    tokens = Tokenizer.from_gguf(smollm2_path).encode(text)
    native = NativeModel.load(smollm2_path)
    assert (native.vocab_size, native.context_limit, native.dtype) == (49152, 8192, "Q4_1")
    got = rows_of(native, tokens).astype(np.float64)
    expected = smollm2_float32.score([Ask(cache=smollm2_float32.open(), tokens=tokens)])[0].logits.astype(np.float64)
    p, q = (
        rows - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) - rows.max(1, keepdims=True)
        for rows in (expected, got)
    )
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    assert (divergence > -1e-6).all()
    assert divergence.mean() < 0.01
    assert (got.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.93
