"""A Hugging Face folder as weights for the native engine: its configuration, and its tensors under GGUF's names.

Numbers stay as they are, in F32, F16 or BF16; what the files of one form have converted (rotary pairs, Gemma's norms) the core
knows of. A tensor that the architecture does not have, and one that is missing, are refused by name.
"""

from __future__ import annotations

import re
from pathlib import Path

from headstart import _core
from headstart.errors import ModelError
from headstart.models.folder_config import CONFIG_NAMES, FolderConfig, folder_config
from headstart.models.safetensors_directory import stored_tensors
from headstart.tensor_files import Stored

__all__ = ["Folder"]

_TYPES = {"F32": 0, "F16": 1, "BF16": 30}  # by GGUF's numbers
_SIGHT = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")

_TOP = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_BIASES = {f"self_attn.{name}_proj.bias": f"attn_{name}.bias" for name in "qkv"}
_HEAD_NORMS = {"self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight"}
_GEMMA = {
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}


class Folder:
    """Weights in Hugging Face form, opened for the core."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError, or the core's FileError, for what cannot be read or is not known."""
        config = folder_config(path)
        stored = {tensor.name: tensor for tensor in stored_tensors(path)}
        self._names = _gguf_names(config, stored, path)
        self._config = config
        files = sorted({stored[name].file for name in self._names.values()})
        listing = []
        for gguf, name in self._names.items():
            tensor = stored[name]
            if tensor.dtype not in _TYPES:
                raise ModelError(
                    f"{tensor.file}: tensor {name!r} is of type {tensor.dtype!r:.60}, and the native engine reads F32, F16 "
                    "and BF16; use --engine transformers"
                )
            place = files.index(tensor.file)
            listing.append((gguf, _TYPES[tensor.dtype], list(tensor.shape[::-1]), place, tensor.offset, tensor.size))
        embedding = stored[self._names["token_embd.weight"]]
        if embedding.shape[:1] != (config.vocab_size,):
            raise ModelError(
                f"{path}: 'vocab_size' is {config.vocab_size} in config.json, and the embedding has the shape "
                f"{list(embedding.shape)}"
            )
        try:
            self.file = _core.list_tensors(str(path), [str(file) for file in files], listing, config.metadata)
        except _core.FileError as error:
            raise ModelError(self.told(str(error))) from None

    def told(self, message: str) -> str:
        """A message of the core with the names this folder's files have."""
        names = {gguf: name for gguf, name in self._names.items() if gguf != name}
        names |= {f"{self._config.architecture}.{key}": name for key, name in CONFIG_NAMES.items()}
        for gguf in sorted(names, key=len, reverse=True):
            message = message.replace(gguf, names[gguf])
        return message


def _gguf_names(config: FolderConfig, stored: dict[str, Stored], path: Path) -> dict[str, str]:
    """GGUF name → name in the folder. Raises ModelError for a tensor that is not known, is there twice, or is missing."""
    optional = dict(_BIASES)
    layer = dict(_LAYER)
    if config.architecture in ("qwen3", "gemma3"):
        layer |= _HEAD_NORMS
    if config.architecture == "gemma3":
        layer |= _GEMMA
    wanted = {gguf: f"model.{name}" for name, gguf in _TOP.items()}
    wanted |= {f"blk.{i}.{gguf}": f"model.layers.{i}.{name}" for i in range(config.layers) for name, gguf in layer.items()}
    if not config.tied:
        wanted["output.weight"] = "lm_head.weight"
    possible = {f"model.layers.{i}.{name}": f"blk.{i}.{gguf}" for i in range(config.layers) for name, gguf in optional.items()}
    possible |= {name: gguf for gguf, name in wanted.items()}
    names: dict[str, str] = {}
    for name in stored:
        plain = re.sub(r"^(?:language_model\.(?=model\.|lm_head\.)|model\.(?=language_model\.))", "", name)
        plain = re.sub(r"^language_model\.", "model.", plain)
        if plain in possible:
            if possible[plain] in names:
                raise ModelError(f"{path} holds {name!r} and {names[possible[plain]]!r}, which are one and the same tensor")
            names[possible[plain]] = name
        elif not _ignored(name, plain, config):
            raise ModelError(
                f"{path} holds the tensor {name!r:.200}, which a {config.architecture} model as the native engine knows it "
                "has not; use --engine transformers"
            )
    missing = [name for gguf, name in wanted.items() if gguf not in names]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{path} lacks the tensor {missing[0]!r}{more}; is the download complete?")
    return names


def _ignored(name: str, plain: str, config: FolderConfig) -> bool:
    """Tensors that no logit depends on: a head beside a tied embedding, angles that old versions saved, a vision part."""
    if plain == "lm_head.weight" and config.tied:
        return True
    return plain.endswith(".rotary_emb.inv_freq") or (config.sees and name.startswith(_SIGHT))
