"""Option types and small helpers that several verbs share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click

__all__ = ["DRAFT_OPTIONS", "JSON", "draft_options", "listed", "say", "write_json"]


def listed(
    convert: Callable[[str], Any], kind: str
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[Any, ...]]:
    """A callback for a repeatable option (`multiple=True`) that also takes comma-separated values.

    `convert` turns one piece of text into a value and raises ValueError; `kind` names what was expected in the error."""

    def callback(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Any, ...]:
        found = []
        for piece in (piece.strip() for value in values for piece in value.split(",")):
            try:
                found.append(convert(piece))
            except ValueError:
                raise click.BadParameter(f"{piece!r} is not {kind}", ctx, param) from None
        return tuple(found)

    return callback


DRAFT_OPTIONS = ("memory", "draft_vocab", "draft_quantize")


def draft_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a drafter's name leaves open: `DRAFT_OPTIONS`, as `headstart.load` takes them."""
    decorators = [
        click.option(
            "--draft-vocab",
            type=int,
            default=None,
            show_default="all",
            metavar="N",
            help="Let a model draft its N most frequent tokens alone.",
        ),
        click.option(
            "--draft-quantize",
            metavar="q4_0|q8_0",
            help="Make wider matrices of models and heads that only draft 4- or 8-bit at load (native only).",
        ),
        click.option(
            "--memory",
            type=int,
            default=0,
            show_default="off",
            metavar="N",
            help="Let suffix also look through the last N tokens of this process's earlier outputs.",
        ),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


JSON = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document on stdout.")


def write_json(document: Any) -> None:
    """One JSON document on stdout; NaN and infinity never appear in it."""
    # Where stdout cannot take every character, JSON's own escapes stand in.
    unicode = str(getattr(sys.stdout, "encoding", "utf-8")).lower().replace("-", "").startswith("utf")
    sys.stdout.write(json.dumps(document, allow_nan=False, ensure_ascii=not unicode) + "\n")


def say(*lines: str) -> None:
    """Talk, on stderr. Where nobody can listen (a full disk, a closed pipe) the work goes on."""
    try:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for the rest of the process)
