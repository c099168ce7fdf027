"""What is stated of memory, and what is refused for the lack of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.errors import ModelError, OptionError
from headstart.models import memory
from headstart.models.memory import Needs, available_memory, bytes_text, check_memory

TARGET = Needs(name="target", weight_bytes=600, cache_bytes_per_token=10, context=20)
DRAFT = Needs(name="draft", weight_bytes=100, cache_bytes_per_token=5, context=20)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: request.param)


@pytest.mark.parametrize(
    ("needs", "context", "free"),
    [
        ([TARGET], None, 600),  # a cache grows as it is used; nobody asked for all of it
        ([TARGET], 20, 800),
        ([TARGET, DRAFT], 20, 1000),
        ([TARGET, TARGET], 20, 1000),  # a model that drafts for itself: weights once, caches twice
        ([TARGET, DRAFT], 20, None),  # the system does not say
    ],
    indirect=["free"],
)
def test_what_fits_is_not_refused(free: None, needs: list[Needs], context: int | None) -> None:
    check_memory(needs, context)


@pytest.mark.parametrize(
    ("needs", "context", "free", "kind", "words"),
    [
        ([TARGET], None, 599, ModelError, ["target", "600 bytes", "599 bytes", "smaller"]),
        ([TARGET], 20, 799, OptionError, ["`context` 20", "200 bytes", "600 bytes", "799 bytes", "smaller"]),
        ([TARGET, DRAFT], None, 699, ModelError, ["target and its drafter", "700 bytes"]),
        ([TARGET, DRAFT], 20, 999, OptionError, ["`context` 20", "drafter", "300 bytes", "700 bytes"]),
        ([TARGET, TARGET], 20, 999, OptionError, ["400 bytes", "600 bytes"]),
    ],
    indirect=["free"],
)
def test_what_does_not_fit_is_refused(
    free: None, needs: list[Needs], context: int | None, kind: type[Exception], words: list[str]
) -> None:
    """One byte less than is needed, with every number named."""
    with pytest.raises(kind) as caught:
        check_memory(needs, context)
    for word in words:
        assert word in str(caught.value)


def test_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system has, or what the container leaves where that is less; pages of files can be dropped."""
    files = {Path("/proc/meminfo"): "MemTotal: 9 kB\nMemAvailable:    4096 kB\n"}
    monkeypatch.setattr(memory, "_read", lambda path: files.get(path, ""))
    assert available_memory() == 4096 * 1024
    group = Path("/sys/fs/cgroup")
    files |= {group / "memory.max": "5000000\n", group / "memory.current": "3000000\n"}
    assert available_memory() == 2_000_000
    files[group / "memory.stat"] = "anon 1\ninactive_file 500000\n"
    assert available_memory() == 2_500_000
    files[group / "memory.max"] = "max\n"
    assert available_memory() == 4096 * 1024
    files.clear()
    assert available_memory() is None


def test_available_memory_here() -> None:
    """A number that a machine may have."""
    found = available_memory()
    assert found is None or 2**20 < found < 2**50


def test_bytes_for_people() -> None:
    sizes = {0: "0 bytes", 999: "999 bytes", 1000: "1.0 kB", 23_040: "23 kB", 98_400_000: "98 MB", 1_117_320_768: "1.12 GB"}
    assert {size: bytes_text(size) for size in sizes} == sizes
