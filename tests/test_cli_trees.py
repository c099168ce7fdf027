"""`headstart generate --tree`: the same text, a JSON that says what was drafted, marks for side branches, refusals."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from headstart.cli.main import run
from headstart.cli.view import draft_view
from headstart.generation import Piece
from tests.generation.tiny import folder, tiny
from tests.test_cli_generate import KEYS, LAST_KEYS, document, generate, identities, target, unmarked

MODEL = ["--drafter", f"model:{folder('drafter')}"]


@pytest.mark.parametrize("drafter", [[], MODEL], ids=["ngram", "model"])
def test_greedy_text_is_plain_and_json_says_what_was_drafted(capsys: pytest.CaptureFixture[str], drafter: list[str]) -> None:
    """Tokens of plain decoding; the usual keys and identities; the tree, its depth as gamma, and token as its rule."""
    found = document(capsys, *drafter, "--tree", "3x4", "--max-tokens", "60")
    assert list(found) == KEYS + LAST_KEYS
    identities(found)
    assert (found["options"]["tree"], found["gamma"], found["rule"], found["lossless"]) == ("3x4", 4, "token", True)
    assert found["token_ids"] == tiny(drafter="none").generate("hi", max_tokens=60).token_ids
    assert found["stats"]["num_drafted"] > 0
    assert document(capsys, "--tree", "none", "--max-tokens", "3")["options"]["tree"] is None


def test_a_seed_gives_the_text_without_a_draft(capsys: pytest.CaptureFixture[str]) -> None:
    """With a seed and a temperature the rule is coupled, and the tree changes nothing; another unkeyed rule repeats itself."""
    sampled = ["--temperature", "1", "--seed", "5", "--max-tokens", "40"]
    found = document(capsys, *MODEL, "--tree", "3x3", *sampled)
    assert found["rule"] == "coupled"
    assert found["token_ids"] == document(capsys, "--drafter", "none", *sampled)["token_ids"]
    again = [document(capsys, *MODEL, "--tree", "3x3", "--rule", "token", *sampled)["token_ids"] for _ in range(2)]
    assert again[0] == again[1]


def test_compare_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary names the tree; plain decoding to compare drafts nothing and emits the same tokens."""
    _, err = generate(capsys, *MODEL, "--tree", "2x3", "--max-tokens", "30", "--compare")
    assert ", tree 2x3, token rule" in err
    assert "the same tokens" in err


@pytest.mark.parametrize("colour", [True, False])
def test_show_draft_marks_side_branches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, colour: bool
) -> None:
    """Without its marks the marked text is the text; side branches have a mark of their own, in the legend only with trees."""
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    bans = unmarked()
    tokenizer = tiny().tokenizer
    assert tokenizer is not None
    bans[1] += "," + ",".join(str(i) for i in range(tokenizer.vocab_size) if set(tokenizer.token_bytes(i)) & set(b"()"))
    args = ["--max-tokens", "100", *MODEL, "--tree", "4x2", *bans]
    plain, _ = generate(capsys, *args)
    marked, err = generate(capsys, *args, "--show-draft")
    assert re.sub(r"\x1b\[[0-9;]*m" if colour else r"[\[\]{}<>()]", "", marked) == plain
    assert ("\x1b[36m" if colour else "(") in marked, "no token came from a side branch"
    assert "branch" in err
    _, err = generate(capsys, "--max-tokens", "10", "--show-draft")
    assert "branch" not in err


def test_marks_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted from the first branch, from another, then the correction."""
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    view = draft_view(out, marked=True, trees=True)
    kinds: list[Any] = ["accepted", "branch", "branch", "correction"]
    view.show([Piece(text=text, token=1, kind=kind) for text, kind in zip(("the ", "cat", " sat", " on"), kinds, strict=True)])
    assert out.getvalue() == "[the ](cat sat){ on}"
    assert view.legend == "   [accepted] · (accepted from a side branch) · {correction} · <bonus> · no draft"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tree", "auto", "--gamma", "3"], ["gamma", "auto", "3", "WIDTHxDEPTH"]),
        (["--tree", "auto", "--rule", "block"], ["rule", "block", "token", "chains"]),
        (["--tree", "auto", "--drafter", "skip:1"], ["tree", "skip:1", "grows trees"]),
        (["--tree", "4"], ["tree", "'4'", "WIDTHxDEPTH", "none"]),
        (["--tree", "2x2", "--rule", "block"], ["rule", "block", "token", "chains"]),
        (["--tree", "2x2", "--gamma", "3"], ["gamma", "tree", "3"]),
        (["--tree", "2x2", "--drafter", "none"], ["tree", "none", "grows trees"]),
        (["--tree", "2x2", "--drafter", "skip:1"], ["tree", "skip:1", "grows trees"]),
    ],
)
def test_refusals_are_one_line(capsys: pytest.CaptureFixture[str], args: list[str], words: list[str]) -> None:
    """What cannot be honoured is refused by name, with exit code 2 and nothing on stdout."""
    assert run(["generate", "hi", *target(), *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    for word in words:
        assert word in captured.err
