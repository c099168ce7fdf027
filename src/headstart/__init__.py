"""Headstart: language models generate faster without changing what they say.

    llm = headstart.load("smollm2", drafter="ngram")
    out = llm.generate("Why is the sky blue?", max_tokens=64)

Importing this package loads numpy and nothing heavier; names are resolved when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# public name → the module that defines it
_PUBLIC: dict[str, str] = {}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headstart' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
