"""Memory: what models will hold, told before it is asked for, and what this process may still have.

Knows Linux and its control groups; elsewhere what is available is not known, and nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import ModelError, OptionError

__all__ = ["SMALLER", "Needs", "available_memory", "bytes_text", "check_memory"]

SMALLER = "use a smaller or more strongly quantised model"
_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one model holds in memory. Its caches grow with their sequences, up to `cache_bytes` each."""

    name: str
    weight_bytes: int
    cache_bytes_per_token: int
    context: int  # tokens a sequence may hold

    @property
    def cache_bytes(self) -> int:
        """Of one sequence that fills the context."""
        return self.cache_bytes_per_token * self.context

    def __str__(self) -> str:
        return (
            f"{bytes_text(self.weight_bytes)}; cache {bytes_text(self.cache_bytes_per_token)} a token, "
            f"{bytes_text(self.cache_bytes)} for {self.context}"
        )


def check_memory(needs: Sequence[Needs], context: int | None) -> None:
    """Refuse what cannot be held: weights (ModelError), or weights and one full cache each of a context that was asked for
    (OptionError). A name that occurs twice is a model that drafts for itself: its weights count once, its caches twice."""
    free = available_memory()
    if free is None:
        return
    weights = sum({each.name: each.weight_bytes for each in needs}.values())
    whose = f"{needs[0].name} and its drafter need" if len(needs) > 1 else f"{needs[0].name} needs"
    if weights > free:
        raise ModelError(f"{whose} {bytes_text(weights)} for weights, and {bytes_text(free)} of memory is available; {SMALLER}")
    cache = sum(each.cache_bytes for each in needs)
    if context is not None and weights + cache > free:
        raise OptionError(
            f"`context` {context} cannot be held: {whose} {bytes_text(cache)} for keys and values and {bytes_text(weights)} for "
            f"weights, and {bytes_text(free)} of memory is available; ask for a smaller context"
        )


def available_memory() -> int | None:
    """Bytes this process may still take without swapping, its container's limit counted; None where the system does not say."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(Path("/proc/meminfo")), re.MULTILINE)
    free = int(match[1]) * 1024 if match else None
    most, used = _read(_GROUP / "memory.max").strip(), _read(_GROUP / "memory.current").strip()
    if most.isdigit() and used.isdigit():
        # Pages of files can be dropped; they count as used but stand in nobody's way.
        files = re.search(r"^inactive_file (\d+)$", _read(_GROUP / "memory.stat"), re.MULTILINE)
        left = max(0, int(most) - int(used) + (int(files[1]) if files else 0))
        free = left if free is None else min(free, left)
    return free


def bytes_text(size: int) -> str:
    """Bytes for people: 1.12 GB, 98 MB, 23 kB."""
    for unit, width in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= width:
            value = size / width
            return f"{value:.2f} {unit}" if unit == "GB" else f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{size} bytes"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
