"""Hugging Face folders on the native engine: the rows of transformers, whatever form the folder has; else refused by name.

Folders are written by transformers. With the same numbers in a GGUF file the rows are the same bit for bit, except for llama,
whose rotary pairs lie elsewhere. Tolerances are those of `test_reference`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant
from numpy.typing import NDArray

from headstart.errors import HeadstartError, ModelError, OptionError
from headstart.interfaces import Ask
from headstart.models.native import NativeModel
from tests.native.conftest import Written
from tests.native.random_folder import change, edit, save
from tests.native.random_gguf import ARCHITECTURES, VOCAB, WINDOW, RandomModel, shape_of, transformers_rows, write
from tests.native.test_bit_exact import PARENTS, PATHS, assert_same_bits, one_by_one
from tests.native.test_reference import TIGHT, distance, rows_of, tokens_for

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

over_architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)
TOKENS = tokens_for(60)


@pytest.fixture(scope="module")
def saved(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, NDArray[np.float32]]]:
    """saved(architecture, kind, **changes of the configuration): a folder, and transformers' rows for TOKENS."""
    made: dict[Any, tuple[Path, NDArray[np.float32]]] = {}

    def get(architecture: str, kind: str = "F32", **changes: Any) -> tuple[Path, NDArray[np.float32]]:
        key = (architecture, kind, repr(changes))
        if key not in made:
            folder = tmp_path_factory.mktemp("folder")
            network = save(written(architecture), folder, kind, **changes)
            made[key] = folder, transformers_rows(network, TOKENS)
        return made[key]

    return get


Saved = Callable[..., tuple[Path, NDArray[np.float32]]]


def off(folder: Path, expected: NDArray[Any], **options: Any) -> float:
    """Distance of a folder's rows to the expected ones."""
    return distance(rows_of(NativeModel.load(folder, **options), TOKENS), expected)


@over_architectures
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_equals_transformers(saved: Saved, architecture: str, kind: str) -> None:
    """Every architecture in every number format, which is kept."""
    folder, expected = saved(architecture, kind)
    model = NativeModel.load(folder)
    assert (model.dtype, model.quantize, model.vocab_size) == (kind, None, VOCAB)
    assert distance(rows_of(model, TOKENS), expected) < TIGHT


@over_architectures
def test_the_same_numbers_in_a_gguf_file(saved: Saved, written: Written, architecture: str) -> None:
    """Rows are those of the file: bit for bit, but for llama's heads, laid out otherwise, and Gemma's norms, kept less one."""
    got = rows_of(NativeModel.load(saved(architecture)[0]), TOKENS)
    expected = rows_of(NativeModel.load(written(architecture).path), TOKENS)
    if architecture in ("llama", "gemma3"):
        assert distance(got, expected) < 1e-3
    else:
        assert_same_bits(got, expected)


@over_architectures
@pytest.mark.parametrize("quantize", [None, "q8_0", "q4_0"])
def test_one_pass_is_one_at_a_time(saved: Saved, architecture: str, quantize: str | None) -> None:
    """Chains and trees, quantised or not, on any number of threads."""
    folder, _ = saved(architecture, "BF16")
    expected = one_by_one(NativeModel.load(folder, threads=1, quantize=quantize), TOKENS[:30])
    model = NativeModel.load(folder, threads=3, quantize=quantize)
    assert_same_bits(rows_of(model, TOKENS[:30]), expected)
    cache, nodes = model.open(), tokens_for(len(PARENTS), 3)
    model.score([Ask(cache=cache, tokens=TOKENS[:9], num_logits=0)])
    rows = model.score([Ask(cache=cache, tokens=nodes, parents=PARENTS)])[0].logits
    for path in PATHS:
        assert_same_bits(rows[list(path)], one_by_one(model, TOKENS[:9] + [nodes[index] for index in path])[9:])


# ---- quantised at load ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_quantised_is_the_gguf_package_s_q8_0(saved: Saved, written: Written, tmp_path: Path, architecture: str) -> None:
    """Matrices are what the `gguf` package makes of them; the embedding is not multiplied and keeps its bits."""
    model = written(architecture)
    file = _with_q8_0(model, tmp_path / "q8.gguf")
    quantised = NativeModel.load(saved(architecture)[0], quantize="q8_0")
    assert (quantised.dtype, quantised.quantize) == ("F32", "q8_0")
    got = rows_of(quantised, TOKENS)
    assert_same_bits(got, rows_of(NativeModel.load(file), TOKENS))
    plain = NativeModel.load(saved(architecture)[0])
    assert 1e-4 < distance(got, rows_of(plain, TOKENS)) < 0.06
    assert quantised.weight_bytes < 0.4 * plain.weight_bytes


def _with_q8_0(model: RandomModel, path: Path) -> Path:
    """The file of a random model with every matrix but the embedding in Q8_0."""
    reader = gguf.GGUFReader(model.path)
    writer = gguf.GGUFWriter(path, model.shape.architecture)
    for field in reader.fields.values():
        if field.name.startswith(f"{model.shape.architecture}."):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for name, values in model.weights.items():
        if values.ndim == 1 or name == "token_embd.weight":
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, Quant.Q8_0), raw_dtype=Quant.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_numbers_that_cannot_be_quantised(written: Written, tmp_path: Path) -> None:
    """Infinity and NaN have no 8-bit form; the tensor is named as the folder names it."""
    model = written("llama")
    for value in (np.inf, np.nan, 1e38):
        weights = {name: values.copy() for name, values in model.weights.items()}
        weights["blk.1.ffn_up.weight"][3, 5] = value
        folder = tmp_path / str(value)
        save(RandomModel(path=model.path, shape=model.shape, weights=weights), folder)
        refused(ModelError, folder, "model.layers.1.mlp.up_proj.weight", quantize="q8_0")


# ---- the forms folders have ----------------------------------------------------------------------------------------------------


def test_several_files(written: Written, saved: Saved, tmp_path: Path) -> None:
    """Weights in parts with an index are the same weights."""
    save(written("qwen3"), tmp_path / "parts", shard_size="1MB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 2
    got = rows_of(NativeModel.load(tmp_path / "parts"), TOKENS)
    assert_same_bits(got, rows_of(NativeModel.load(saved("qwen3")[0]), TOKENS))


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("architecture", "rope"),
    [
        ("llama", LINEAR),
        ("qwen2", YARN),
        ("qwen3", YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5}),
        ("llama", LLAMA3),
    ],
    ids=["linear", "yarn", "yarn-all", "llama3"],
)
def test_stretched_positions(saved: Saved, tmp_path: Path, architecture: str, rope: dict[str, Any]) -> None:
    """Every kind in both forms configurations have had; a folder that loses its stretching is far off."""
    base = 500_000.0 if rope["rope_type"] == "llama3" else 10_000.0
    folder, expected = saved(architecture, rope_parameters={"rope_theta": base} | rope)
    assert off(folder, expected) < TIGHT
    old = {key: value for key, value in rope.items() if key != "rope_type"} | {"type": rope["rope_type"]}
    before = change(folder, tmp_path / "before", rope_parameters=None, rope_theta=base, rope_scaling=old)
    assert off(before, expected) < TIGHT
    plain = change(folder, tmp_path / "plain", rope_parameters={"rope_type": "default", "rope_theta": base})
    assert off(plain, expected) > 3 * TIGHT


def test_gemma_s_two_rotations(saved: Saved, tmp_path: Path) -> None:
    """Layers that see everything may be stretched, windowed ones have a base of their own; in both forms."""
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
    }
    folder, expected = saved("gemma3", rope_parameters=rope)
    assert off(folder, expected) < TIGHT
    old = {"rope_theta": 1e6, "rope_local_base_freq": 2000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert off(change(folder, tmp_path / "old", rope_parameters=None, **old), expected) < TIGHT
    for index, wrong in enumerate(({"rope_local_base_freq": None}, {"rope_scaling": None})):
        assert off(change(folder, tmp_path / str(index), rope_parameters=None, **old | wrong), expected) > 3 * TIGHT


def test_windows(saved: Saved, tmp_path: Path) -> None:
    """Layer types as listed, from a layer on, or every n-th: the windows of transformers."""
    types = ["full_attention", "sliding_attention"]
    windowed = {"use_sliding_window": True, "sliding_window": WINDOW}
    for architecture in ("qwen2", "qwen3"):
        folder, expected = saved(architecture, **windowed, layer_types=types)
        assert off(folder, expected) < TIGHT
        last = change(folder, tmp_path / f"{architecture}-last", layer_types=None, max_window_layers=1)
        assert off(last, expected) < TIGHT
        for index, wrong in enumerate(({"max_window_layers": 0}, {"use_sliding_window": False}, {"sliding_window": 9})):
            twin = change(folder, tmp_path / f"{architecture}-{index}", **{"layer_types": None, "max_window_layers": 1} | wrong)
            assert off(twin, expected) > 3 * TIGHT
    pattern = ["full_attention" if (i + 1) % 3 == 0 else "sliding_attention" for i in range(7)]
    folder, expected = saved("gemma3", layer_types=pattern)
    assert off(folder, expected) < TIGHT
    assert off(change(folder, tmp_path / "third", layer_types=None, sliding_window_pattern=3), expected) < TIGHT
    assert off(change(folder, tmp_path / "sixth", layer_types=None), expected) > 3 * TIGHT


def test_biases_and_scales(written: Written, saved: Saved, tmp_path: Path) -> None:
    """Llama with biases where the engine has them; Gemma's own scale of attention; a head beside a tied embedding."""
    folder, expected = saved("gemma3", query_pre_attn_scalar=40)
    assert off(folder, expected) < TIGHT
    assert off(change(folder, tmp_path / "scale", query_pre_attn_scalar=64), expected) > 3 * TIGHT
    folder, expected = saved("llama", rms_norm_eps=0.3)
    assert off(folder, expected) < TIGHT
    untied, rows = saved("qwen3")
    tied = change(untied, tmp_path / "tied", tie_word_embeddings=True)
    assert off(tied, rows) > 3 * TIGHT
    network = save(written("qwen3"), tmp_path / "of-tied")
    network.lm_head.weight = network.model.embed_tokens.weight
    assert off(tied, transformers_rows(network, TOKENS)) < TIGHT


@pytest.mark.parametrize("names", ["new", "old"])
def test_the_text_part_of_a_model_that_sees(saved: Saved, tmp_path: Path, names: str) -> None:
    """Nested configuration, names with a prefix, a vision part beside: the text part alone is run."""
    import safetensors.numpy

    folder, expected = saved("gemma3")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    prefix = {"new": "model.language_model.", "old": "language_model.model."}[names]
    tensors = {prefix + name.removeprefix("model."): values for name, values in tensors.items()}
    sight = {"new": "model.vision_tower.", "old": "vision_tower."}[names]
    tensors[f"{sight}embeddings.weight"] = np.zeros((2, 3, 4, 5, 6), np.float32)
    text = json.loads((folder / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"vision_config": {"hidden_size": 8}, "image_token_index": 5}))
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    assert off(tmp_path, expected) < TIGHT


def test_what_gemma_s_configurations_leave_out() -> None:
    """Sizes and values that are absent are those of transformers' own class."""
    import transformers

    from headstart.models.config_keys import Keys
    from headstart.models.folder_config import _CONTEXT, _GEMMA_SIZES, _details, _windows

    usual = transformers.Gemma3TextConfig()
    assert {key: getattr(usual, key) for key in _GEMMA_SIZES} == _GEMMA_SIZES
    for name, architecture in (("LlamaConfig", "llama"), ("Qwen2Config", "qwen2"), ("Qwen3Config", "qwen3")):
        own = getattr(transformers, name)()
        assert own.max_position_embeddings == _CONTEXT[architecture]
        assert _details(Keys({}, "x"), architecture)["attention.layer_norm_rms_epsilon"] == own.rms_norm_eps
    found = _details(Keys({}, "x"), "gemma3") | _windows(Keys({}, "x"), "gemma3", usual.num_hidden_layers)
    assert found["attention.scale"] == usual.query_pre_attn_scalar**-0.5
    assert found["attention.sliding_window"] == usual.sliding_window
    assert found["attention.sliding_window_pattern"] == [kind == "sliding_attention" for kind in usual.layer_types]
    assert _CONTEXT["gemma3"] == usual.max_position_embeddings


# ---- refused by name -----------------------------------------------------------------------------------------------------------


def refused(kind: type[HeadstartError], folder: Path, *words: str, **options: Any) -> None:
    """One line that holds these words."""
    with pytest.raises(HeadstartError) as caught:
        NativeModel.load(folder, **options)
    assert type(caught.value) is kind, caught.value
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "mistral"}, ["'mistral'", "gemma3", "--engine transformers"]),
        ({"model_type": None}, ["'model_type'"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification"]),
        ({"some_new_scale": 0.5}, ["'some_new_scale'", "--engine transformers"]),
        ({"quantization_config": {"bits": 4}}, ["'quantization_config'"]),
        ({"hidden_act": "gelu"}, ["'hidden_act' 'gelu'", "silu"]),
        ({"hidden_size": None}, ["'hidden_size'"]),
        ({"hidden_size": "256"}, ["'hidden_size' '256'"]),
        ({"hidden_size": 10**9}, ["hidden_size", "1000000000"]),
        ({"num_hidden_layers": 10**9}, ["'num_hidden_layers'", "1000"]),
        ({"num_hidden_layers": 3}, ["lacks the tensor 'model.layers.2."]),
        ({"num_hidden_layers": 1}, ["'model.layers.1."]),
        ({"intermediate_size": 480}, ["model.layers.0.mlp.gate_proj.weight", "[256, 512]", "[256, 480]"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads", "num_key_value_heads 3"]),
        ({"vocab_size": 78}, ["'vocab_size' is 78", "77"]),
        ({"tie_word_embeddings": False}, ["lm_head.weight"]),
        ({"rms_norm_eps": -1.0}, ["'rms_norm_eps'"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["'longrope'", "yarn"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["'factor'"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "odd": 1}}, ["'odd'"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, ["'mscale'"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["'partial_rotary_factor'"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["`rope_scaling` and `rope_parameters`"]),
        ({"layer_types": ["full_attention"]}, ["'layer_types'"]),
        ({"layer_types": ["linear_attention"] * 2}, ["'layer_types'", "linear_attention"]),
        ({"layer_types": ["sliding_attention"] * 2}, ["'layer_types'"]),
        ({"is_encoder_decoder": True}, ["'is_encoder_decoder'"]),
    ],
    ids=str,
)
def test_configurations_that_are_not_known(saved: Saved, tmp_path: Path, keys: dict[str, Any], words: list[str]) -> None:
    """The key is named, with its value."""
    refused(ModelError, change(saved("llama")[0], tmp_path / "changed", **keys), *words)


def _gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _held(name: str, data: bytes) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)

    return rewrite


def _cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    _held("model.safetensors", data[: len(data) // 2])(folder)


def _header(rewrite: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """The header rewritten; data stay where they are as seen from its end."""

    def damage(folder: Path) -> None:
        data = (folder / "model.safetensors").read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = rewrite(data[8:end])
        _held("model.safetensors", len(header).to_bytes(8, "little") + header + data[end:])(folder)

    return damage


def _index(**places: Any) -> Callable[[Path], None]:
    def write_index(folder: Path) -> None:
        _held("model.safetensors.index.json", json.dumps({"weight_map": places}).encode())(folder)
        (folder / "model.safetensors").rename(folder / "part.safetensors")

    return write_index


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_gone("model.safetensors"), ["model.safetensors", "no weights at all"]),
        (_held("config.json", b"{"), ["config.json", "JSON"]),
        (_held("config.json", b"[" * 100_000), ["config.json", "JSON"]),
        (_held("config.json", b'{"a": 1, "a": 2}'), ["config.json", "twice"]),
        (_held("config.json", b"[]"), ["config.json", "object"]),
        (_held("model.safetensors", b""), ["model.safetensors", "cut short"]),
        (_held("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid"), ["git lfs pull"]),
        (_held("model.safetensors", (2**63).to_bytes(8, "little") + b"{}"), ["model.safetensors", str(2**63)]),
        (_cut, ["model.safetensors", "cut short"]),
        (_header(lambda text: b"\xff" + text[1:]), ["model.safetensors", "JSON"]),
        (_header(lambda text: text.replace(b'"F32"', b'"I32"', 1)), ["'I32'", "BF16"]),
        (_header(lambda text: text.replace(b'"F32"', b'"F16"', 1)), ["its shape and type need"]),
        (_header(lambda text: text.replace(b'"F32"', b"5", 1)), ["damaged"]),
        (_header(lambda text: text.replace(b"[0,", b"[4,", 1)), ["its shape and type need"]),
        (_header(lambda text: text.replace(b"[0,", b"[-4,", 1)), ["damaged"]),
        (_header(lambda text: text.replace(b"q_proj", b"z_proj", 1)), ["z_proj"]),
        (_index(), ["weight_map"]),
        (_index(a="../part.safetensors"), ["'../part.safetensors'", "beside"]),
        (_index(a="other.safetensors"), ["other.safetensors", "missing"]),
        (_index(a="part.safetensors"), ["part.safetensors", "'a'"]),
        (_index(**{"model.norm.weight": "part.safetensors"}), ["lacks the tensor 'model.embed_tokens.weight'"]),
    ],
)
def test_folders_that_cannot_be_used(saved: Saved, tmp_path: Path, damage: Callable[[Path], None], words: list[str]) -> None:
    """What is wrong, and in which file."""
    folder = edit(saved("llama")[0], tmp_path / "damaged", lambda config: config)
    damage(folder)
    refused(ModelError, folder, *words)


def test_tensors_that_share_bytes(saved: Saved, tmp_path: Path) -> None:
    """A small file cannot stand for any amount of weights."""
    folder = edit(saved("llama")[0], tmp_path / "overlap", lambda config: config)

    def overlap(text: bytes) -> bytes:
        header = json.loads(text)
        header["model.layers.0.mlp.up_proj.weight"] = header["model.layers.0.mlp.gate_proj.weight"]
        return json.dumps(header).encode()

    _header(overlap)(folder)
    refused(ModelError, folder, "up_proj", "gate_proj", "overlap")


def test_a_folder_that_was_a_gguf_file(saved: Saved, tmp_path: Path) -> None:
    """What transformers notes in config.json of a model it read from a GGUF file changes nothing."""
    folder = change(saved("llama")[0], tmp_path / "noted", _model_name_or_path="SmolLM2", unk_token_id=0)
    assert NativeModel.load(folder, threads=1).num_layers == NativeModel.load(saved("llama")[0], threads=1).num_layers


def test_quantise_is_refused_where_it_means_nothing(saved: Saved) -> None:
    """A form that is not known."""
    refused(OptionError, saved("llama")[0], "`quantize`", "q8_0", "q4_0", "q4_1", quantize="q4_1")


def test_odd_sizes(tmp_path: Path) -> None:
    """Widths of 32, one head a key, a vocabulary of any size."""
    shape = shape_of("qwen2", hidden=224, ff=352, heads=14, kv_heads=2, head_dim=32, vocab=129, tied=True)
    network = save(write(tmp_path / "odd.gguf", shape), tmp_path / "odd", "F16")
    tokens = tokens_for(40, vocab=129)
    got = rows_of(NativeModel.load(tmp_path / "odd"), tokens)
    assert distance(got, transformers_rows(network, tokens)) < TIGHT
