"""Generations side by side: each in turn goes on for a few tokens, so that whatever slows the machine for a moment slows all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.generation import LLM, Output

SLICE = 12  # tokens at a time: some 30 ms of a small model


def side_by_side(
    ways: Mapping[Any, tuple[LLM, dict[str, Any]]], prompt: str, *, first: int = 0, tokens: int = SLICE
) -> dict[Any, Output]:
    """What each way, a model and its options, answers. Waiting for others is not part of its seconds.

    `first` is whose turn comes first; from slice to slice, of `tokens` at least, the order turns. The first round of a slice
    finds the caches full of what others left: small slices compare ways on a machine that changes its speed, large ones are as
    fast as a generation alone."""
    streams = {label: llm.stream(prompt, **options) for label, (llm, options) in ways.items()}
    steps = {label: stream.steps() for label, stream in streams.items()}
    try:
        going = list(ways)
        while going:
            turn = first % len(going)
            for label in [*going[turn:], *going[:turn]]:
                before = len(streams[label].request.output)
                for _ in steps[label]:
                    if len(streams[label].request.output) >= before + tokens:
                        break
                else:
                    going.remove(label)
            first += 1
        return {label: stream.output for label, stream in streams.items()}
    finally:
        for stream in streams.values():
            stream.close()
