"""Other engines as ways to generate: which there are, what each is given, and what is said of those that cannot take part.

Every peer runs the same file with as many threads on the tokens our own tokenizer makes of a prompt, plainly and with its own
speculation where ours has the like: prompt lookup beside `ngram` and `suffix`, a draft model beside `model:REF`. Its seconds
begin with the first token, which leaves the prompt's reading out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart.bench.speed import Way
from headstart.errors import MissingExtraError, ModelError, OptionError, did_you_mean
from headstart.generation import LLM

__all__ = ["PEERS", "Peer", "Setup", "check_peers", "open_peers"]


@dataclass(frozen=True, kw_only=True)
class _Known:
    module: str  # ours, with a function `open_peer(setup)` that imports the engine
    package: str  # the engine's
    pip: str
    extra: str


PEERS = {
    "llama.cpp": _Known(module="headstart.bench.llamacpp", package="llama_cpp", pip="llama-cpp-python", extra="bench"),
    "transformers": _Known(
        module="headstart.bench.transformers", package="transformers", pip="transformers", extra="transformers"
    ),
    "openvino": _Known(module="headstart.bench.openvino", package="openvino_genai", pip="openvino-genai", extra="openvino"),
}
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every peer is given."""

    source: Path  # the target: a GGUF file or a folder
    llm: LLM  # turns prompts into tokens, so that all read the same
    threads: int
    context: int
    dtype: str = "auto"
    gammas: tuple[int, ...] = ()  # the lengths peers draft; empty: they only decode plainly
    looks_up: bool = False  # draft by prompt lookup
    drafts: tuple[tuple[str, Path], ...] = ()  # draft with these models: as ours names the drafter, and where it lies

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self.llm.tokenizer.end_ids if self.llm.tokenizer else frozenset()


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An engine that takes part."""

    name: str
    ways: tuple[Way, ...]  # plain decoding first
    about: dict[str, Any]  # its version, and in what numbers it computes where that is not the file's
    lacks: tuple[str, ...] = field(default=())  # what it was asked for and cannot do, a line each


def check_peers(names: Sequence[str]) -> None:
    """Before a model is read: raises OptionError for a name nobody has, MissingExtraError where none of them is installed."""
    for name in names:
        if name not in PEERS:
            raise OptionError(f"`against` must be one of {', '.join(PEERS)}, got {name!r}{did_you_mean(name, PEERS)}")
    if names and not any(find_spec(PEERS[name].package) for name in names):
        first = PEERS[names[0]]
        raise MissingExtraError(first.pip, first.extra, f"--against {names[0]}")


def open_peers(names: Sequence[str], setup: Setup, *, progress: Progress | None = None) -> tuple[list[Peer], dict[str, str]]:
    """The peers called `names` (see `check_peers`), and why each of the others is left out.

    Raises ModelError where none of those asked for can take part."""
    found: list[Peer] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if progress:
            progress(f"loading {setup.source.name} into {name}", None)
        try:
            found.append(import_module(PEERS[name].module).open_peer(setup))
        except ModelError as error:
            left_out[name] = str(error)
    if left_out and not found:
        raise ModelError("; ".join(left_out.values()))
    return found, left_out
