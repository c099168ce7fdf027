"""`Parts` from a Hugging Face folder: tokenizer.json, and the small files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headstart.errors import ModelError
from headstart.text.decoding import Decoding
from headstart.text.parts import Parts

__all__ = ["parts_from_folder"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def parts_from_folder(path: str | Path) -> Parts:
    """The tokenizer of a folder. Raises ModelError if there is none, or none in tokenizer.json form."""
    folder = Path(path)
    source = str(folder)
    core = _core(folder)
    config = _json(folder / "tokenizer_config.json")
    named = _named_tokens(config, _json(folder / "special_tokens_map.json"))
    return Parts(
        source=source,
        core=core,
        decoding=Decoding.of(core, source),
        start_ids=_start_ids(core),
        end_ids=_end_ids(folder, core, named),
        chat_template=_chat_template(folder, config),
        template_tokens=named,
    )


def _core(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        if not folder.is_dir():
            raise ModelError(f"{folder}: no such folder; name a Hugging Face folder, or see `headstart models`")
        others = [name for name in ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt") if (folder / name).is_file()]
        found = f"only {', '.join(others)}" if others else "no tokenizer at all"
        raise ModelError(
            f"{folder} has {found}, and Headstart reads tokenizer.json; write it once with transformers: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    try:
        core = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises bare Exception
        raise ModelError(f"{file} cannot be read as a tokenizer: {error}") from None
    # Settings of training time; a prompt is never cut or padded.
    core.no_truncation()
    core.no_padding()
    return core


def _json(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # broken JSON or not UTF-8
        raise ModelError(f"{file} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file} must hold a JSON object, got a {type(value).__name__}")
    return value


def _named_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, …; written as a string or as an object with `content`. The first source that names one wins."""
    named: dict[str, str] = {}
    for source in sources:
        for name in _NAMED:
            value = source.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                named.setdefault(name, value)
    return named


def _start_ids(core: Tokenizer) -> tuple[int, ...]:
    """Ids before a raw prompt: what the post-processor of tokenizer.json puts there.

    It alone decides, as in transformers 5: an `add_bos_token` in tokenizer_config.json is a remnant of slow tokenizers."""
    plain = core.encode("a", add_special_tokens=False).ids
    whole = core.encode("a", add_special_tokens=True).ids
    for place in range(len(whole) - len(plain) + 1):
        if whole[place : place + len(plain)] == plain:
            return tuple(whole[:place])
    return ()


def _end_ids(folder: Path, core: Tokenizer, named: Mapping[str, str]) -> frozenset[int]:
    """The tokenizer's own end token, and those of generation_config.json (config.json in folders without it)."""
    generation = _json(folder / "generation_config.json") or _json(folder / "config.json")
    value = generation.get("eos_token_id")
    ends = set(value) if isinstance(value, list) else {value}
    ends.add(core.token_to_id(named.get("eos_token", "")))
    return frozenset(end for end in ends if isinstance(end, int) and not isinstance(end, bool))


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get("default")
    return template if isinstance(template, str) else None
