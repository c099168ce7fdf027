"""Option types and small helpers that several verbs share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click

__all__ = ["JSON", "listed", "say", "write_json"]


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
