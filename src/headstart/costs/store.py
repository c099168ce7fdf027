"""Measured costs on disk, and how far drafts were kept: one small file for each target, drafter, machine and way of measuring.

The key holds whatever the numbers depend on (files and their dates, threads, context, instruction set, version); another key is
another file, so nothing stale is ever read. A file that cannot be read counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headstart.costs.rounds import MeasuredRounds
from headstart.schedule import PastAcceptance

_PAST = ("kept", "tried", "saved", "walked", "covered")  # what is kept of a `PastAcceptance`

__all__ = ["costs_folder", "find_costs", "find_past", "keep_costs", "keep_past"]


def costs_folder() -> Path:
    """Where measured costs lie: $HEADSTART_COSTS, or ~/.cache/headstart/costs."""
    chosen = os.environ.get("HEADSTART_COSTS")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "headstart" / "costs"


def find_costs(key: Mapping[str, Any]) -> MeasuredRounds | None:
    """What was kept under `key`; None if nothing was."""
    try:
        return MeasuredRounds.from_json(_found(key)["costs"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep_costs(key: Mapping[str, Any], costs: MeasuredRounds) -> None:
    """Keep `costs` under `key`. Where the folder cannot be written they are measured again the next time."""
    _keep(key, {"costs": costs.to_json()})


def find_past(key: Mapping[str, Any]) -> PastAcceptance:
    """How far drafts were kept in earlier runs, under `key`; nothing known yet if nothing was kept."""
    try:
        found = _found(_about_past(key))["acceptance"]
        numbers = {name: float(found.get(name, 0.0)) for name in _PAST}
        past = PastAcceptance(**numbers)
        sane = past.kept <= past.tried and all(0 <= number < math.inf for number in numbers.values())
        return past if sane else PastAcceptance()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return PastAcceptance()


def keep_past(key: Mapping[str, Any], past: PastAcceptance) -> None:
    """Keep `past` for later runs, under `key`."""
    _keep(_about_past(key), {"acceptance": {name: getattr(past, name) for name in _PAST}})


def _about_past(key: Mapping[str, Any]) -> dict[str, Any]:
    return {**key, "about": "acceptance"}


def _found(key: Mapping[str, Any]) -> Any:
    """What was kept under `key`. Raises OSError, ValueError or KeyError where nothing can be read."""
    document = json.loads(_file(key).read_text(encoding="utf-8"))
    if document["key"] != _plain(key):
        raise KeyError("another key with the same digest")
    return document


def _keep(key: Mapping[str, Any], document: dict[str, Any]) -> None:
    file = _file(key)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(f".{os.getpid()}.half")
        half.write_text(json.dumps({"key": _plain(key), **document}), encoding="utf-8")
        half.replace(file)  # never half a file, whoever else writes


def _plain(key: Mapping[str, Any]) -> Any:
    """The key as JSON gives it back."""
    return json.loads(json.dumps(key, sort_keys=True))


def _file(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return costs_folder() / f"{digest[:24]}.json"
