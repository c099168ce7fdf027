"""`headstart plan` on a small network: the document, the page, what is kept, and one line for what cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headstart.cli.main import run
from headstart.costs import costs_folder
from tests.generation.tiny import folder

QUICK = ["--max-tokens", "10", "--context", "20"]
QUICK += ["--repeats", "3", "--gamma", "1,3", "--dtype", "float32", "--threads", "1"]


@pytest.fixture
def prompts(tmp_path) -> str:
    """Prompts short enough for the small network's context."""
    file = tmp_path / "mine.jsonl"
    lines = [{"prompt": "one two one two one", "category": "copies"}, {"prompt": "hello there", "category": "chat"}]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(file)


def plan(capsys: pytest.CaptureFixture[str], prompts: str, *args: str) -> Any:
    """The one JSON document."""
    quick = [*QUICK, "--prompts", prompts]
    assert run(["plan", "--target", str(folder("target")), *quick, "--json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_drafter_length_and_rule(capsys, prompts, tmp_path) -> None:
    """A look-up and a small model, sampled: candidates for each rule, acceptance by the prompts' own categories, a page."""
    page = tmp_path / "plan.html"
    model = f"model:{folder('drafter')}"
    found = plan(capsys, prompts, "--drafter", "ngram", "--drafter", model, "--temperature", "1", "--report", str(page))
    asked = {(each["drafter"], each["gamma"], each["rule"]) for each in found["candidates"]}
    rules, drafters = ("block", "coupled"), ("ngram", model)
    assert asked >= {("none", 0, None), *((d, n, r) for d in drafters for n in (1, 3) for r in rules)}
    chains = [each for each in found["candidates"] if each["tree"] is None]
    assert len(chains) == 1 + 2 * 2 * 2
    assert found["sample"]["prompts"] == 2
    assert {each["category"] for each in found["acceptance"]} == {None, "copies", "chat"}
    assert found["machine"]["engine"] == "transformers"
    assert found["best"]["predicted_tokens_per_second"] == max(c["predicted_tokens_per_second"] for c in found["candidates"])
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_costs_are_kept_until_refreshed(capsys, prompts) -> None:
    """The second plan measures nothing; --refresh measures again; another context is another measurement."""
    first = plan(capsys, prompts)
    assert plan(capsys, prompts)["costs"] == first["costs"]
    kept = set(costs_folder().iterdir())
    assert plan(capsys, prompts, "--refresh")["costs"] != first["costs"]
    assert set(costs_folder().iterdir()) == kept
    plan(capsys, prompts, "--context", "24")
    assert len(set(costs_folder().iterdir()) - kept) == 2


def test_greedy_and_a_batch(capsys, prompts) -> None:
    """At temperature 0 one rule says it all; a batch's costs are the batch's."""
    found = plan(capsys, prompts, "--batch", "2")
    assert {each["rule"] for each in found["candidates"]} == {None, "block"}
    assert found["costs"]["none"]["block"]["batch"] == 2


def test_trees(capsys, prompts) -> None:
    """A tree for a look-up is compared where it is named, and can be left out; what is no tree is refused."""
    found = plan(capsys, prompts, "--tree", "2x2", "--tree", "3x2:4")
    assert [(each["tree"], each["rule"]) for each in found["candidates"] if each["tree"]] == [
        ("2x2", "token"),
        ("3x2:4", "token"),
    ]
    assert not any(each["tree"] for each in plan(capsys, prompts, "--tree", "none")["candidates"])
    assert run(["plan", "--target", "smollm2", "--tree", "wide"]) == 2
    assert "`tree` must be WIDTHxDEPTH" in capsys.readouterr().err


def test_the_table(capsys, prompts) -> None:
    """Without --json a table and a line that can be pasted."""
    assert run(["plan", "--target", str(folder("target")), *QUICK, "--prompts", prompts]) == 0
    out = capsys.readouterr().out
    assert "predicted" in out
    assert "Best:" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gamma", "0"], ["`gamma`", "0"]),
        (["--drafter", "ngrm"], ["`drafter`", "ngrm", "ngram"]),
        (["--prompts", "./no-such-folder/x.txt"], ["no-such-folder"]),
        (["--prompts", "x.txt", "--category", "code"], ["`category`", "--prompts"]),
        (["--report", "./no-such-folder/plan.html"], ["`report`", "no-such-folder"]),
        (["--temperature", "-1"], ["`temperature`", "-1"]),
    ],
)
def test_what_cannot_be_is_one_line(capsys, args, words) -> None:
    """Refused before a model is read."""
    assert run(["plan", "--target", "smollm2", *args]) != 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words)
