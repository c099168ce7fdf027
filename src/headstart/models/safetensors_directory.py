"""Where the tensors of a Hugging Face folder lie: in one .safetensors file, or in several with an index.

An index may be wrong in any way; the answer is a directory in sound form or a ModelError with one line. Whether the places named
in it lie within the files is the core's to check, and what the names mean is not known here.
"""

from __future__ import annotations

from pathlib import Path

from headstart.errors import ModelError
from headstart.tensor_files import Stored, read_json, stored_in

__all__ = ["stored_tensors"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def stored_tensors(folder: Path) -> list[Stored]:
    """Every tensor of the model in a folder. Raises ModelError where there is none, or a header cannot be read."""
    if (folder / _SINGLE).is_file():
        return list(stored_in(folder / _SINGLE))
    if not (folder / _INDEX).is_file():
        others = sorted(path.name for pattern in ("*.safetensors", "*.bin", "*.pth") for path in folder.glob(pattern))
        found = f"only {', '.join(others[:3])}" if others else "no weights at all"
        raise ModelError(
            f"{folder} has {found}, and the native engine reads {_SINGLE} (or its parts, with {_INDEX}); "
            "write it once with transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)"
        )
    by_file = _weight_map(folder / _INDEX)
    tensors = []
    for name, expected in sorted(by_file.items()):
        held = {tensor.name: tensor for tensor in stored_in(folder / name)}
        for tensor in sorted(expected):
            if tensor not in held:
                raise ModelError(f"{folder / name} lacks the tensor {tensor!r:.200}, which {_INDEX} says it holds")
            tensors.append(held[tensor])
    return tensors


def _weight_map(index: Path) -> dict[str, list[str]]:
    """File name → the tensors that an index places in it."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{index} has no `weight_map` that names tensors; the index is damaged")
    by_file: dict[str, list[str]] = {}
    for tensor, name in places.items():
        # A part lies beside its index and nowhere else.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors") or "\0" in name:
            raise ModelError(
                f"{index} places {tensor!r:.200} in {name!r:.200}, which is not the name of a .safetensors file beside it"
            )
        by_file.setdefault(name, []).append(tensor)
    return by_file
