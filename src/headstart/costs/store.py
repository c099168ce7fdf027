"""Measured costs on disk: one small file for each target, drafter, machine and way of measuring.

The key holds whatever the numbers depend on (files and their dates, threads, context, instruction set, version); another key is
another file, so nothing stale is ever read. A file that cannot be read counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headstart.costs.rounds import MeasuredRounds

__all__ = ["costs_folder", "find_costs", "keep_costs"]


def costs_folder() -> Path:
    """Where measured costs lie: $HEADSTART_COSTS, or ~/.cache/headstart/costs."""
    chosen = os.environ.get("HEADSTART_COSTS")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "headstart" / "costs"


def find_costs(key: Mapping[str, Any]) -> MeasuredRounds | None:
    """What was kept under `key`; None if nothing was."""
    try:
        document = json.loads(_file(key).read_text(encoding="utf-8"))
        return MeasuredRounds.from_json(document["costs"]) if document["key"] == _plain(key) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep_costs(key: Mapping[str, Any], costs: MeasuredRounds) -> None:
    """Keep `costs` under `key`. Where the folder cannot be written they are measured again the next time."""
    file = _file(key)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(f".{os.getpid()}.half")
        half.write_text(json.dumps({"key": _plain(key), "costs": costs.to_json()}), encoding="utf-8")
        half.replace(file)  # never half a file, whoever else writes


def _plain(key: Mapping[str, Any]) -> Any:
    """The key as JSON gives it back."""
    return json.loads(json.dumps(key, sort_keys=True))


def _file(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return costs_folder() / f"{digest[:24]}.json"
