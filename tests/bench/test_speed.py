"""Measured speed: ways take turns, ratios are paired by prompt, what must agree is checked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headstart import TableModel
from headstart.bench.report import short, speed_report
from headstart.bench.speed import Answer, measure_speed
from headstart.bench.ways import OwnWay, Timer
from headstart.cli.main import run
from headstart.drafters import ModelDrafter
from headstart.errors import OptionError
from headstart.generation import LLM
from headstart.prompts import Prompt
from tests.decode.loops import random_model
from tests.generation.tiny import folder

PROMPTS = [Prompt(text="one", category="chat"), Prompt(text="two", category="chat"), Prompt(text="three", category="code")]


class Fixed:
    """A way of a stated speed, that notes when it was called."""

    def __init__(self, name: str, seconds_by_prompt: dict[str, float], log: list[str], *, exact: bool = False, token: int = 1):
        self.name, self.exact = name, exact
        self._seconds, self._log, self._token = seconds_by_prompt, log, token

    def answer(self, prompt, *, max_tokens, temperature, seed) -> Answer:
        self._log.append(f"{self.name} {prompt}")
        return Answer(token_ids=(self._token,) * 10, seconds=self._seconds[prompt], timed_tokens=10, rounds=5)


def test_ratios_are_paired_and_ways_take_turns() -> None:
    """The speedup of a category is the median of its prompts' own ratios; who goes first changes from prompt to prompt."""
    log: list[str] = []
    plain = Fixed("plain", {"one": 1.0, "two": 100.0, "three": 5.0}, log)
    fast = Fixed("fast", {"one": 0.5, "two": 25.0, "three": 10.0}, log, exact=True)
    found = measure_speed([plain, fast], PROMPTS, repeats=2)
    by = {(each.category, each.way): each for each in found}
    assert by["chat", "fast"].speedup == pytest.approx(3.0)  # of 2 and 4
    assert by["chat", "fast"].tokens_per_second == pytest.approx(40 / 51)
    assert by["chat", "fast"].interval == (pytest.approx(2.0), pytest.approx(4.0))
    assert by["code", "fast"].speedup == pytest.approx(0.5)
    assert by["code", "plain"].speedup == 1.0
    assert (by["chat", "fast"].same_tokens, by["chat", "plain"].same_tokens) == (True, None)
    assert by["chat", "fast"].block_efficiency == 2.0
    calls = log[2:]  # after one call each to warm up
    assert len(calls) == 2 * 3 * 2
    assert [call.split()[0] for call in calls[:6]] == ["plain", "fast", "fast", "plain", "plain", "fast"]


def test_other_tokens_are_noticed() -> None:
    """A way that promises the baseline's tokens and says others."""
    log: list[str] = []
    seconds = dict.fromkeys(("one", "two", "three"), 1.0)
    found = measure_speed([Fixed("plain", seconds, log), Fixed("odd", seconds, log, exact=True, token=2)], PROMPTS)
    assert [each.same_tokens for each in found if each.way == "odd"] == [False, False]
    page = speed_report("table", found, {"processor": "<cpu>"})
    assert "Other tokens than the first way" in page
    assert "&lt;cpu&gt;" in page


def test_the_page_shows_every_way_by_its_file() -> None:
    """Paths are cut to file names, nothing else is; who is left out is said; a peer's text is told by its share and its gap."""
    assert short("model:/a/b.gguf+ngram γ=4") == "model:b.gguf+ngram γ=4"
    assert short("llama.cpp cross:~/x/y.gguf γ=2") == "llama.cpp cross:y.gguf γ=2"
    assert short("ngram+eagle:smollm2 γ=auto") == "ngram+eagle:smollm2 γ=auto"
    seconds = dict.fromkeys(("one", "two", "three"), 1.0)
    peer = Fixed("peer <x>", seconds, [], token=2)
    found = measure_speed([Fixed("plain", seconds, []), peer], PROMPTS, gap=lambda prompt, said, token: 0.25)
    page = speed_report("table", found, {}, ["llama.cpp is not installed"])
    assert page.count("<b>1.00×</b>") == 4
    assert "0 %, gap 0.25" in page
    assert "llama.cpp is not installed." in page
    assert "peer &lt;x&gt;" in page


def test_nothing_to_compare_is_refused() -> None:
    """No way, no prompt, two of one name."""
    way = Fixed("plain", {"one": 1.0}, [])
    for ways, prompts, word in (([], PROMPTS, "ways"), ([way], [], "prompts"), ([way, way], PROMPTS, "ways")):
        with pytest.raises(OptionError, match=f"`{word}`"):
            measure_speed(ways, prompts)
    with pytest.raises(OptionError, match="`repeats` must be 1 or more"):
        measure_speed([way], PROMPTS, repeats=0)


class Ids:
    """Hands an LLM without a tokenizer its prompt as token ids."""

    def __init__(self, way: OwnWay) -> None:
        self._way, self.name, self.exact = way, way.name, way.exact

    def answer(self, prompt, **options):
        return self._way.answer([len(prompt)], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("gamma", [3, "auto"])
def test_our_own_ways_say_the_same(gamma) -> None:
    """Plain and drafted, greedy and with a seed: token for token; names tell them apart."""
    plain = LLM(random_model(1, 9))
    drafted = plain.with_drafter(ModelDrafter(random_model(2, 9), "model:small"))
    ways = [Ids(OwnWay(plain)), Ids(OwnWay(drafted, gamma=gamma))]
    assert [way.name for way in ways] == ["plain", f"model:small γ={gamma}"]
    found = measure_speed(ways, PROMPTS, temperatures=(0.0, 1.0), max_tokens=24, repeats=1)
    assert [each.same_tokens for each in found] == [True] * 8
    assert not OwnWay(plain, rule="block").exact


class Saying(Fixed):
    """A way that says given tokens."""

    def __init__(self, name: str, tokens: dict[str, tuple[int, ...]]):
        super().__init__(name, {}, [])
        self._tokens = tokens

    def answer(self, prompt, *, max_tokens, temperature, seed) -> Answer:
        return Answer(token_ids=self._tokens[prompt], seconds=1.0, timed_tokens=len(self._tokens[prompt]))


def test_how_far_a_peer_goes_along() -> None:
    """Greedy: tokens before the first other one, and the farthest of these; a text cut short is no difference."""
    plain = Saying("plain", {"one": (1, 2, 3, 4), "two": (5, 6), "three": (7, 8)})
    peer = Saying("peer", {"one": (1, 2, 9, 4), "two": (6, 6), "three": (7,)})
    asked: list[tuple] = []

    def gap(prompt, said, token) -> float:
        asked.append((prompt, tuple(said), token))
        return {"one": 0.25, "two": 2.0}[prompt]

    found = measure_speed([plain, peer], PROMPTS, temperatures=(0.0, 1.0), repeats=1, gap=gap)
    by = {(each.category, each.way, each.temperature): each for each in found}
    assert (by["chat", "peer", 0.0].same_prefix, by["chat", "peer", 0.0].largest_gap) == (2 / 6, 2.0)
    assert (by["code", "peer", 0.0].same_prefix, by["code", "peer", 0.0].largest_gap) == (0.5, None)
    assert (by["chat", "plain", 0.0].same_prefix, by["chat", "plain", 0.0].largest_gap) == (1.0, None)
    assert (by["chat", "peer", 1.0].same_prefix, by["chat", "peer", 1.0].largest_gap) == (None, None)
    assert asked == [("one", (1, 2), 9), ("two", (), 6)]


def test_a_gap_is_the_targets_own() -> None:
    """Nothing below the highest logit for the token it would say itself; what a row says for another."""
    llm = LLM(TableModel([[0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.8, 0.1, 0.1]]))
    way = OwnWay(llm)
    assert way.gap([0], [1], 2) == pytest.approx(0.0)  # type: ignore[arg-type]
    assert way.gap([0], [1], 0) == pytest.approx(np.log(3))  # type: ignore[arg-type]


def test_timers_begin_with_the_first_round() -> None:
    """What comes with the first round is not timed: n single tokens have n − 1 gaps, a first round of two leaves the rest."""
    ticks = iter([10.0, 11.0, 13.0, 20.0, 24.0])
    one, two = Timer(lambda: next(ticks)), Timer(lambda: next(ticks))
    for token in (1, 2, 3):
        one.add([token])
    two.add([1, 2])
    two.add([])
    two.add([3, 4, 5])
    answer = one.answer(max_tokens=8)
    assert (answer.token_ids, answer.seconds, answer.timed_tokens, answer.rounds) == ((1, 2, 3), 3.0, 2, 3)
    answer = two.answer(max_tokens=4)
    assert (answer.token_ids, answer.seconds, answer.timed_tokens, answer.rounds) == ((1, 2, 3, 4), 4.0, 3, 2)
    assert two.answer(max_tokens=4, counts_rounds=False).rounds is None


def test_the_command(capsys, tmp_path) -> None:
    """Plain, a fixed length, auto and transformers' own generate, on a small network: one JSON line, a page, the same tokens."""
    prompts, page = tmp_path / "mine.txt", tmp_path / "speed.html"
    prompts.write_text("one two one two\n---\nhello", encoding="utf-8")
    args = ["bench", "speed", "--target", str(folder("target")), "--prompts", str(prompts), "--max-tokens", "8"]
    args += ["--repeats", "1", "--gamma", "2,auto", "--against", "transformers,llama.cpp", "--dtype", "float32", "--threads", "1"]
    assert run([*args, "--json", "--report", str(page)]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["ways"] == ["plain", "ngram γ=2", "ngram γ=auto", "transformers", "transformers ngram γ=2"]
    assert len(document["results"]) == 2 * 5
    assert all(each["same_tokens"] in (True, None) for each in document["results"])
    theirs = [each for each in document["results"] if each["way"].startswith("transformers") and each["temperature"] == 0]
    assert all(each["same_prefix"] == 1.0 or each["largest_gap"] < 1e-3 for each in theirs)
    assert "llama.cpp reads .gguf files" in err
    assert document["left_out"] == [line for line in err.splitlines() if "llama.cpp" in line]
    assert document["machine"]["peers"]["transformers"]["dtype"] == "float32"
    assert {each["temperature"] for each in document["results"]} == {0.0, 1.0}
    assert "versions" in document["machine"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_draft_model_drafts_in_transformers_too(capsys, tmp_path) -> None:
    """As its assistant, at the same length: the same greedy text up to rounding, in fewer rounds than tokens where it agrees."""
    prompts = tmp_path / "mine.txt"
    prompts.write_text("one two one two", encoding="utf-8")
    own = str(folder("target"))  # drafts for itself
    args = [
        "bench",
        "speed",
        "--target",
        own,
        "--drafter",
        f"model:{own}",
        "--gamma",
        "3",
        "--temperature",
        "0",
        "--repeats",
        "1",
    ]
    args += ["--prompts", str(prompts), "--max-tokens", "9", "--against", "transformers", "--dtype", "float32", "--threads", "1"]
    assert run([*args, "--json"]) == 0
    by = {each["way"]: each for each in json.loads(capsys.readouterr().out)["results"]}
    theirs = by[f"transformers model:{own} γ=3"]
    assert theirs["block_efficiency"] > 1.5
    assert theirs["same_prefix"] == 1.0 or theirs["largest_gap"] < 1e-3


@pytest.mark.parametrize(
    ("args", "word"), [(["--gamma", "0"], "`gamma`"), (["--gamma", "x"], "x"), (["--temperature", "-1"], "`temperature`")]
)
def test_wrong_options_are_refused_before_a_model_is_read(capsys, args, word) -> None:
    """One line."""
    assert run(["bench", "speed", "--target", "./no-such.gguf", *args]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert "no-such" not in error
