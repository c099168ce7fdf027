"""`headstart models`: both views of the listing, and fetching from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart import fetch
from headstart.cli.main import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_MODELS", str(tmp_path))
    return tmp_path


def put_smollm2(folder: Path) -> Path:
    """A file of the right size under the right name; a hole on most disks."""
    path = folder / fetch.KNOWN["smollm2"].file
    with path.open("wb") as file:
        file.truncate(fetch.KNOWN["smollm2"].size)
    return path


def test_json_lists_known_models_and_what_lies_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text("{}")
    assert run(["models", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["folder"] == str(folder)
    known, other = listing["models"]
    assert known == {
        "name": "smollm2",
        "kind": "gguf",
        "size": 98_362_432,
        "path": None,
        "here": False,
        "license": "Apache-2.0",
        "about": "SmolLM2-135M-Instruct, 4-bit",
    }
    assert (other["name"], other["kind"], other["here"]) == (str(folder / "hf"), "folder", True)


def test_the_listing_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    assert "not here: headstart models fetch smollm2" in capsys.readouterr().out
    put_smollm2(folder)
    (folder / "other.gguf").write_bytes(b"x" * 2_000_000)
    assert run(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["name", "smollm2", "other.gguf"]
    assert "98 MB" in lines[1]
    assert lines[1].rstrip().endswith("here")
    assert str(folder) in lines[4]


def test_fetch_prints_the_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put_smollm2(folder)
    assert run(["models", "fetch", "smollm2"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{path}\n", "")
    assert run(["models", "fetch", "smollm2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "smollm2", "path": str(path), "size": 98_362_432}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["fetch", "smollm2", "--offline"], 1, "--offline"),
        (["fetch", "smolm2"], 2, "did you mean 'smollm2'"),
        (["fetch"], 2, "NAME"),
        (["smollm2"], 2, "headstart models fetch NAME"),
        (["fecth", "smollm2"], 2, "did you mean 'fetch'"),
        (["--json", "fetch", "smollm2"], 2, "--json goes after fetch"),
    ],
)
def test_what_goes_wrong_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert run(["models", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1
