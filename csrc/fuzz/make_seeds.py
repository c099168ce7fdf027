"""Small, valid GGUF files for the fuzzer: `python make_seeds.py FOLDER`.

`kinds.gguf` has every kind of value and of tensor, `wide.gguf` an alignment of its own. `model-*.gguf` are models a loader
accepts; `model-parts` is one in parts, and so is `model-bare`, whose first part holds metadata alone.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType, GGUFWriter, RopeScalingType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quantize

PLAIN = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
HALVES = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}  # where a block has float scales; other bytes may be anything
RNG = np.random.default_rng(1)


def add(writer: GGUFWriter, name: str, shape: tuple[int, ...], kind: Kind) -> None:
    """A random tensor; `shape` as numpy has it, inputs last."""
    if kind in HALVES:
        size, width = GGML_QUANT_SIZES[kind]
        blocks = RNG.integers(0, 256, (*shape[:-1], shape[-1] // size, width), dtype=np.uint8)
        for at in HALVES[kind]:
            blocks[..., at : at + 2] = np.frombuffer(np.float16(0.001).tobytes(), dtype=np.uint8)
        data = blocks.reshape(*shape[:-1], -1)
    else:
        data = quantize((RNG.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32), kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def kinds(path: Path, alignment: int | None = None) -> None:
    writer = GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    numbers = [kind for kind in GGUFValueType if kind not in (GGUFValueType.ARRAY, GGUFValueType.STRING)]
    for kind in numbers:
        writer.add_key_value(f"one.{kind.name.lower()}", 1, kind)
        writer.add_key_value(f"many.{kind.name.lower()}", [0, 1, 1], GGUFValueType.ARRAY, sub_type=kind)
    writer.add_string("text", "naïve\n" * 3)
    writer.add_array("texts", ["a", "bc", "", "def"])
    for kind in [*PLAIN, *HALVES]:
        add(writer, f"t.{kind.name}", (3, 256), kind)
    add(writer, "t.four", (2, 3, 2, 32), Kind.Q8_0)
    add(writer, "t.row", (5,), Kind.F32)
    writer.add_tensor("t.unknown", np.zeros((2, 84), dtype=np.uint8), raw_dtype=Kind.Q2_K)
    finish(writer)


def model(path: Path, kind: Kind, width: int, arch: str = "llama", split: int = 0, bare: bool = False) -> None:
    """One layer, two heads; in parts of `split` tensors each where asked."""
    writer = GGUFWriter(path, arch, split_max_tensors=split, small_first_shard=bare)
    head = 32
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(32)])
    writer.add_token_types([1] * 32)
    matrices = {"token_embd": (32, width), "blk.0.attn_q": (2 * head, width), "blk.0.attn_k": (head, width)}
    matrices |= {"blk.0.attn_v": (head, width), "blk.0.attn_output": (width, 2 * head)}
    matrices |= {f"blk.0.ffn_{name}": (width, width) for name in ("gate", "up", "down")}
    vectors = {"output_norm.weight": width, "blk.0.attn_norm.weight": width, "blk.0.ffn_norm.weight": width}
    if arch == "qwen2":
        vectors |= {"blk.0.attn_q.bias": 2 * head, "blk.0.attn_k.bias": head, "blk.0.attn_v.bias": head}
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)
    if arch in ("qwen3", "gemma3"):
        vectors |= {"blk.0.attn_q_norm.weight": head, "blk.0.attn_k_norm.weight": head}
    if arch == "gemma3":
        vectors |= {"blk.0.post_attention_norm.weight": width, "blk.0.post_ffw_norm.weight": width}
        writer.add_sliding_window(2)
    else:
        matrices["output"] = (32, width)
    if arch == "llama":
        vectors["rope_freqs.weight"] = head // 2
    for name, shape in matrices.items():
        add(writer, f"{name}.weight", shape, kind if shape[-1] % GGML_QUANT_SIZES[kind][0] == 0 else Kind.Q8_0)
    for name, size in vectors.items():
        add(writer, name, (size,), Kind.F32)
    finish(writer)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kinds(folder / "kinds.gguf")
    kinds(folder / "wide.gguf", alignment=128)
    version_2 = bytearray((folder / "kinds.gguf").read_bytes())
    version_2[4:8] = struct.pack("<I", 2)
    (folder / "version2.gguf").write_bytes(version_2)
    model(folder / "model-llama.gguf", Kind.Q4_0, 64)
    model(folder / "model-qwen2.gguf", Kind.F16, 32, arch="qwen2")
    model(folder / "model-qwen3.gguf", Kind.Q4_1, 32, arch="qwen3")
    model(folder / "model-gemma3.gguf", Kind.Q5_0, 32, arch="gemma3")
    model(folder / "model-k.gguf", Kind.Q4_K, 256)
    model(folder / "model-parts.gguf", Kind.Q8_0, 64, split=4)
    model(folder / "model-bare.gguf", Kind.Q5_1, 32, split=6, bare=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
