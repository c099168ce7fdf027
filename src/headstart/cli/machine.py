"""What a measurement was made on and with: the same lines in every report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from headstart.generation import LLM

__all__ = ["machine", "versions"]

_PACKAGES = ("headstart", "numpy", "torch", "transformers", "llama_cpp_python", "openvino_genai")


def machine(llm: LLM) -> dict[str, Any]:
    """Processor, cores, threads, engine and versions."""
    from headstart.cli.doctor import processor_name

    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "engine": llm.engine,
        "threads": llm.loaded.get("threads"),
        "instruction_set": llm.loaded.get("instruction_set"),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of Python and of every package that may have had a part."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
