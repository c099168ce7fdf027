"""Which target a head was trained for, noted in its config.json (see `shipped`). Knows that one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["mark_head"]


def mark_head(folder: Path, target: dict[str, Any]) -> None:
    """Note the fingerprint of a target in the config of the head in `folder`."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    marks = {"headstart_target": target, "headstart_auto": False}
    path.write_text(json.dumps(config | marks, indent=2) + "\n", encoding="utf-8")
