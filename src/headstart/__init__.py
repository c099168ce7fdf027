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
_PUBLIC: dict[str, str] = {
    "load": "headstart.loading",
    "LLM": "headstart.generation",
    "Output": "headstart.generation",
    "Options": "headstart.records",
    "Sampling": "headstart.records",
    "Draft": "headstart.records",
    "Row": "headstart.rows",
    "process": "headstart.probs",
    "softmax": "headstart.probs",
    "residual": "headstart.pairs",
    "overlap": "headstart.pairs",
    "total_variation": "headstart.pairs",
    "StreamDraws": "headstart.draws",
    "KeyedDraws": "headstart.draws",
    "RULES": "headstart.verify",
    "decide": "headstart.verify",
    "Decoder": "headstart.decode",
    "Request": "headstart.decode",
    "NoDrafter": "headstart.drafters",
    "NGramDrafter": "headstart.drafters",
    "SuffixDrafter": "headstart.drafters",
    "ModelDrafter": "headstart.drafters",
    "CombinedDrafter": "headstart.drafters",
    "TableModel": "headstart.models.table",
    "HeadstartError": "headstart.errors",
    "compare": "headstart.comparison",
}
_MODULES = ("errors", "theory")

__all__ = ["__version__", *_MODULES, *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"headstart.{name}")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headstart' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
