"""Prompts to measure with: a built-in mixed set in five categories, and files of a user's own.

A file is text, prompts separated by lines of three dashes, or .jsonl with a text or {"prompt": …, "category": …} a line.
The built-in prompts are written for this purpose; edit and summary prompts hold the text they are about, as real ones do.
It does not know models: what a prompt becomes in tokens is for whoever runs it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from headstart.errors import InputError, OptionError, did_you_mean

__all__ = ["CATEGORIES", "OWN", "Prompt", "builtin_prompts", "read_prompts"]

CATEGORIES = ("code", "edit", "chat", "summary", "prose")
OWN = "own"  # category of a user's prompts that name none


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt and the kind of work it stands for."""

    text: str
    category: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InputError("`text` of a prompt must not be empty; give at least one word")
        if not self.category:
            raise InputError("`category` of a prompt must not be empty; leave it out instead")


def builtin_prompts(categories: Sequence[str] = CATEGORIES, *, each: int | None = None) -> list[Prompt]:
    """The built-in prompts of `categories`, at most `each` of a category, one category after the other.

    Raises OptionError for an unknown category or `each` under 1."""
    if each is not None and each < 1:
        raise OptionError(f"`each` must be 1 or more, got {each}")
    found = []
    for category in categories:
        if category not in CATEGORIES:
            hint = did_you_mean(category, CATEGORIES)
            raise OptionError(f"`category` must be one of {', '.join(CATEGORIES)}, got {category!r}{hint}")
        text = (files(__package__) / f"{category}.txt").read_text(encoding="utf-8")
        found += [Prompt(text=part, category=category) for part in _parts(text)[:each]]
    return found


def read_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a file. Raises InputError where it holds none or cannot be understood, naming the line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeError:
        raise InputError(f"`prompts` must be a UTF-8 file, got {str(path)!r}; convert it first, e.g. with iconv") from None
    if Path(path).suffix.lower() == ".jsonl":
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        prompts = [_from_json(line, f"{path}, line {number}") for number, line in lines]
    else:
        prompts = [Prompt(text=part, category=OWN) for part in _parts(text)]
    if not prompts:
        raise InputError(f"`prompts` must hold at least one prompt, got the empty file {str(path)!r}")
    return prompts


def _parts(text: str) -> list[str]:
    """The texts between lines of three dashes, without blank lines around them; empty ones are left out."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.rstrip() == "---":
            parts.append([])
        else:
            parts[-1].append(line)
    return [part for part in ("\n".join(lines).strip("\n") for lines in parts) if part.strip()]


def _from_json(line: str, place: str) -> Prompt:
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON ({error}); write one text or object a line") from None
    fields = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
        raise InputError(f'{place}: must be a text or an object with "prompt", got {line.strip()!r:.60}')
    category = fields.get("category", OWN)
    if not isinstance(category, str):
        raise InputError(f'{place}: "category" must be a text, got {category!r:.60}')
    try:
        return Prompt(text=fields["prompt"], category=category)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
