"""Small, valid GGUF files for the fuzzer: `python make_seeds.py FOLDER`.

`kinds.gguf` has every kind of value and of tensor, `wide.gguf` an alignment of its own, `llama*.gguf` are models a loader
accepts (one of them in parts), `bare-*.gguf` is a split model whose first part holds metadata alone.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType, GGUFWriter
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


def llama(path: Path, kind: Kind, width: int, split: int = 0, bare: bool = False) -> None:
    """One layer, two heads; in parts of `split` tensors each where asked."""
    writer = GGUFWriter(path, "llama", split_max_tensors=split, small_first_shard=bare)
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
    for name, shape in [("token_embd", (32, width)), ("blk.0.attn_q", (2 * head, width)), ("blk.0.attn_k", (head, width)),
                        ("blk.0.attn_v", (head, width)), ("blk.0.ffn_gate", (width, width)), ("blk.0.ffn_up", (width, width)),
                        ("blk.0.ffn_down", (width, width))]:  # fmt: skip
        add(writer, f"{name}.weight", shape, kind)
    add(writer, "blk.0.attn_output.weight", (width, 2 * head), kind if kind not in HALVES else Kind.Q8_0)
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]:
        add(writer, f"{name}.weight", (width,), Kind.F32)
    finish(writer)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kinds(folder / "kinds.gguf")
    kinds(folder / "wide.gguf", alignment=128)
    version_2 = bytearray((folder / "kinds.gguf").read_bytes())
    version_2[4:8] = struct.pack("<I", 2)
    (folder / "version2.gguf").write_bytes(version_2)
    llama(folder / "llama-q4_0.gguf", Kind.Q4_0, 64)
    llama(folder / "llama-f16.gguf", Kind.F16, 32)
    llama(folder / "llama-q4_k.gguf", Kind.Q4_K, 256)
    llama(folder / "llama-parts.gguf", Kind.Q8_0, 64, split=4)
    llama(folder / "bare.gguf", Kind.Q5_1, 32, split=6, bare=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
