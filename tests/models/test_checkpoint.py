"""Finding and refusing models: one clear line that names the value and the way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstart.errors import HeadstartError, ModelError, OptionError
from headstart.interfaces import Ask
from tests.models.conftest import NETWORKS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

from headstart.models.gguf_reader import QuickReader  # noqa: E402  (only where torch is installed)
from headstart.models.transformers import TransformersModel  # noqa: E402


def refusal(ref: Any, **options: Any) -> str:
    """The one line with which loading is refused."""
    with pytest.raises(HeadstartError) as caught:
        TransformersModel.load(ref, offline=True, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


_TINY = NETWORKS["llama"][1]

STATEFUL = {
    "mamba": ("MambaConfig", {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}, "recurrent"),
    "jamba": ("JambaConfig", _TINY | {"num_hidden_layers": 8}, "recurrent"),
    "lfm2": ("Lfm2Config", _TINY | {"layer_types": ["conv", "full_attention", "conv"]}, "recurrent"),
    "t5": ("T5Config", {"vocab_size": 50, "d_model": 32, "num_layers": 1}, "encoder"),
    "bert": (
        "BertConfig",
        {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "architectures": ["BertForMaskedLM"]},
        "not as a causal",
    ),
    "vit": ("ViTConfig", {"hidden_size": 32, "num_hidden_layers": 1}, "not a causal language model"),
    "bloom": ("BloomConfig", {"vocab_size": 50, "hidden_size": 32, "n_layer": 1, "n_head": 2}, "attention be replaced"),
    "gemma3": ("Gemma3TextConfig", NETWORKS["gemma3"][1] | {"use_bidirectional_attention": True}, "looks ahead"),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_what_cannot_roll_back_is_refused_before_its_weights(save_network: Callable[..., Path], name: str) -> None:
    """From the configuration alone: these folders hold no weights, and the message gives the reason."""
    config, arguments, reason = STATEFUL[name]
    folder = save_network(config, arguments, weights=False)
    message = refusal(folder)
    assert reason in message
    assert str(folder) in message
    assert "use a decoder-only model" in message


def test_own_code_is_never_run(tmp_path: Path) -> None:
    """A model that needs code of its own is refused and the code is not touched."""
    trap = tmp_path / "ran"
    (tmp_path / "modeling_x.py").write_text(f"open({str(trap)!r}, 'w')\nclass XConfig: pass\nclass XModel: pass\n")
    auto = {"AutoConfig": "modeling_x.XConfig", "AutoModelForCausalLM": "modeling_x.XModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x-model", "auto_map": auto}))
    message = refusal(tmp_path)
    assert "code of its own" in message
    assert not trap.exists()


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    """The message carries the model type and the version that does not know it."""
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    message = refusal(tmp_path)
    assert "nonesuch" in message
    assert transformers.__version__ in message


@pytest.mark.parametrize("ref", ["no/such/folder/here", "./nowhere", "missing.gguf", "/absent", "~/absent.gguf", "a b", ""])
def test_missing_paths_are_said_to_be_missing(ref: str) -> None:
    """What can only be a path is not looked for elsewhere."""
    assert repr(ref) in refusal(ref)


def test_uncached_hub_id_offline() -> None:
    """Offline, an id that is not in the cache is refused, naming the option that forbids the download."""
    message = refusal("someone/nothing-of-this-name")
    assert "someone/nothing-of-this-name" in message
    assert "--offline" in message


def test_folders_without_a_model(tmp_path: Path, folders: dict[str, Path]) -> None:
    """Nothing there; a configuration without weights; a GGUF file that is not there."""
    assert "no config.json" in refusal(tmp_path)
    shutil.copy(folders["llama"] / "config.json", tmp_path)
    assert "cannot be read" in refusal(tmp_path)
    assert "'x.gguf' is not in" in refusal(tmp_path, gguf_file="x.gguf")
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt" in refusal(tmp_path / "notes.txt")


def test_damaged_folders(tmp_path: Path, folders: dict[str, Path]) -> None:
    """Truncated weights, missing weights, a broken configuration: never random numbers in their place."""
    folder = shutil.copytree(folders["qwen2"], tmp_path / "copy")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refusal(folder)

    from safetensors.torch import load, save_file

    tensors = load(whole)
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    save_file({key: value for key, value in tensors.items() if key != name}, weights, metadata={"format": "pt"})
    assert name in refusal(folder)
    save_file(tensors | {name: tensors[name][:-1].contiguous()}, weights, metadata={"format": "pt"})
    assert name in refusal(folder)
    (folder / "config.json").write_text('{"model_type": ')
    assert str(folder) in refusal(folder)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "tpu"}, "'tpu'"),
        ({"device": "cuda:99"}, "'cuda:99'"),
        ({"dtype": "int3"}, "'int3'"),
        ({"dtype": "float16", "device": "cpu"}, "'float16'"),
        ({"threads": 0}, "`threads`"),
        ({"context": 0}, "`context`"),
        ({"context": 65}, "64"),
    ],
)
def test_impossible_options_are_refused_by_name(folders: dict[str, Path], options: dict[str, Any], named: str) -> None:
    """Nothing falls back to another device, format or length."""
    with pytest.raises(OptionError, match=named):
        TransformersModel.load(folders["llama"], **options)


def test_positions_that_stretch_bound_the_context(save_network: Callable[..., Path]) -> None:
    """Rotary scaling that changes with the length of the text would spoil cached keys: the limit is where it begins."""
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
    folder = save_network("LlamaConfig", _TINY)
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling, "rope_theta": 10000.0}))
    assert TransformersModel.load(folder, dtype="float32", device="cpu").context_limit == 32


# GGUF files


def write_gguf(path: Path, *, arch: str = "llama", kind: Any = None) -> Path:
    """A small random model of llama.cpp's layout, with an F32 or quantised body."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"t{i}" for i in range(40)])
    writer.add_token_types([1] * 40)
    writer.add_token_scores([0.0] * 40)

    def add(name: str, *shape: int) -> None:
        values = (0.3 * rng.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
        if kind is None or len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", 40, 64)
    add("output_norm.weight", 64)
    add("output.weight", 40, 64)
    for block in range(2):
        for name, shape in {
            "attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
            "ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96),
        }.items():  # fmt: skip
            add(f"blk.{block}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", [None, "F16", "Q8_0", "Q4_1", "Q5_0"])
def test_gguf_equals_transformers_own_reading(tmp_path: Path, kind: str | None) -> None:
    """The quick reader gives the network that transformers reads by itself, whatever the number format."""
    path = write_gguf(tmp_path / "m.gguf", kind=None if kind is None else gguf.GGMLQuantizationType[kind])
    model = TransformersModel.load(path, dtype="float32", device="cpu")
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    assert (model.vocab_size, model.context_limit) == (40, 64)
    tokens = [3, 1, 4, 1, 5]
    with torch.inference_mode():
        rows = expected(input_ids=torch.tensor([tokens])).logits[0].numpy()
    got = model.score([Ask(cache=model.open(), tokens=tokens)])[0].logits
    np.testing.assert_allclose(got, rows, atol=1e-5)


def test_quick_reader_reads_what_gguf_reads(smollm2_path: Path) -> None:
    """On a real file: every tensor, and every field but the contents of the tokenizer's lists."""
    quick, slow = QuickReader(smollm2_path), gguf.GGUFReader(smollm2_path)
    counts = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    assert set(quick.fields) == set(slow.fields) - counts
    for name, field in quick.fields.items():
        if name == "tokenizer.ggml.tokens":
            assert len(field.data) == len(slow.fields[name].data)
        elif field.data or not name.startswith("tokenizer."):
            assert field.contents() == slow.fields[name].contents()
    for mine, theirs in zip(quick.tensors, slow.tensors, strict=True):
        assert (mine.name, mine.tensor_type, list(mine.shape)) == (theirs.name, theirs.tensor_type, list(theirs.shape))
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_damaged_gguf_files(tmp_path: Path) -> None:
    """Cut at any place, or not GGUF at all: one line, never a network of something else."""
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    for size in (0, 3, 20, 200, 900, len(whole) // 2, len(whole) - 1):
        path = tmp_path / f"cut{size}.gguf"
        path.write_bytes(whole[:size])
        assert "cannot be read" in refusal(path)
    assert "cut0.gguf" in refusal(tmp_path)
    (tmp_path / "text.gguf").write_text("not a model " * 100)
    assert "text.gguf" in refusal(tmp_path / "text.gguf")
    assert "`gguf_file`" in refusal(tmp_path / "whole.gguf", gguf_file="whole.gguf")


def test_gguf_architecture_transformers_cannot_read(tmp_path: Path) -> None:
    """The architecture is named."""
    message = refusal(write_gguf(tmp_path / "m.gguf", arch="plamo"))
    assert "plamo" in message


def test_refusals_are_model_errors(tmp_path: Path) -> None:
    """What cannot be found or read is a ModelError: exit code 1, not 2."""
    with pytest.raises(ModelError):
        TransformersModel.load(tmp_path / "absent")
