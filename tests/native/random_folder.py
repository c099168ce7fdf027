"""Small random models as Hugging Face folders, written by transformers, and their configurations changed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.native.random_gguf import RandomModel, as_transformers

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def save(model: RandomModel, folder: Path, kind: str = "F32", *, shard_size: str = "1GB", **changes: Any) -> Any:
    """Save the network transformers makes of a random model, in a number format; gives the same numbers in float32."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    network = as_transformers(model, **changes).to(getattr(torch, DTYPES[kind]))
    network.save_pretrained(folder, max_shard_size=shard_size)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def change(folder: Path, to: Path, **keys: Any) -> Path:
    """A folder with the same tensors and a configuration with other values; None removes a key."""
    return edit(folder, to, lambda config: {key: value for key, value in (config | keys).items() if value is not None})


def edit(folder: Path, to: Path, rewrite: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """A folder with the same tensors and its configuration rewritten."""
    to.mkdir()
    for file in folder.iterdir():
        if file.name != "config.json":
            (to / file.name).symlink_to(file)
    (to / "config.json").write_text(json.dumps(rewrite(json.loads((folder / "config.json").read_text()))))
    return to


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """A file written by hand: name → type, shape, bytes."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
