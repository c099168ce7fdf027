"""Other engines as ways to generate: which there are, what each is given, and what is said of those that cannot take part.

Every peer runs the same file with as many threads on the tokens our own tokenizer makes of a prompt, plainly and with its own
speculation where ours has the like: prompt lookup beside `ngram` and `suffix`, a draft model beside `model:REF`. Its seconds
begin with the first token, which leaves the prompt's reading out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from headstart.bench.speed import Way
from headstart.errors import ModelError, OptionError, did_you_mean
from headstart.generation import LLM

__all__ = ["PEERS", "Peer", "Setup", "open_peers"]

# Each module has a function `open_peer(setup)`; it imports its engine when called.
PEERS = {
    "llama.cpp": "headstart.bench.llamacpp",
    "transformers": "headstart.bench.transformers",
    "openvino": "headstart.bench.openvino",
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


def open_peers(names: Sequence[str], setup: Setup, *, progress: Progress | None = None) -> tuple[list[Peer], dict[str, str]]:
    """The peers called `names`, and why each of the others is left out.

    Raises OptionError for a name nobody has, and ModelError where none of those asked for can take part."""
    for name in names:
        if name not in PEERS:
            raise OptionError(f"`against` must be one of {', '.join(PEERS)}, got {name!r}{did_you_mean(name, PEERS)}")
    found: list[Peer] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if progress:
            progress(f"loading {setup.source.name} into {name}", None)
        try:
            found.append(import_module(PEERS[name]).open_peer(setup))
        except ModelError as error:
            left_out[name] = str(error)
    if left_out and not found:
        raise ModelError("; ".join(left_out.values()))
    return found, left_out
