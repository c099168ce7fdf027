"""Measured speed: ways take turns, ratios are paired by prompt, what must agree is checked, peers are timed as they should be."""

from __future__ import annotations

import json
import sys
import types

import pytest

from headstart.bench.report import speed_report
from headstart.bench.speed import Answer, measure_speed
from headstart.bench.ways import LlamaCppWay, OwnWay, _Streamer, _Timer, peer
from headstart.cli.main import run
from headstart.drafters import ModelDrafter
from headstart.errors import MissingExtraError, OptionError
from headstart.generation import LLM
from headstart.prompts import Prompt
from tests.decode.loops import random_model
from tests.generation.tiny import folder, tiny

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


def test_timers_begin_with_the_first_token() -> None:
    """n tokens have n − 1 gaps; the prompt that transformers hands over first is no token."""
    ticks = iter([10.0, 11.0, 13.0])
    timer = _Timer(lambda: next(ticks))
    import numpy as np

    streamer = _Streamer(timer)
    streamer.put(np.array([[7, 8, 9]]))
    for token in (1, 2, 3):
        streamer.put(np.array([token]))
    streamer.end()
    answer = timer.answer()
    assert (answer.token_ids, answer.seconds, answer.timed_tokens) == ((1, 2, 3), 3.0, 2)


def test_llama_cpp_is_driven_as_its_binding_wants(monkeypatch, tmp_path) -> None:
    """A stand-in with the binding's names: greedy and unpenalised, our own prompt ids, stopped at the limit."""
    seen: dict = {}

    class Llama:
        def __init__(self, **options) -> None:
            seen["load"] = options

        def set_seed(self, seed) -> None:
            seen["seed"] = seed

        def generate(self, ids, **options):
            seen["ids"], seen["sampling"] = ids, options
            yield from [5, 6, 7, 8]

    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=Llama))
    llm = tiny(drafter="none")
    way = LlamaCppWay(tmp_path / "m.gguf", llm, threads=2, context=64)
    assert way.answer("hi", max_tokens=3, temperature=0.0, seed=4).token_ids == (5, 6, 7)
    assert seen["ids"] == llm.prompt_ids("hi")
    assert (seen["load"]["n_threads"], seen["load"]["n_ctx"], seen["seed"]) == (2, 64, 4)
    assert (seen["sampling"]["temp"], seen["sampling"]["repeat_penalty"]) == (0.0, 1.0)


def test_peers_that_are_not_there(monkeypatch, tmp_path) -> None:
    """Unknown names, folders llama.cpp cannot read, a package that is missing: one line each, with the way out."""
    llm = tiny(drafter="none")
    with pytest.raises(OptionError, match=r"`against` must be one of llama.cpp, transformers, got 'lama.cpp'; did you mean"):
        peer("lama.cpp", tmp_path, llm, threads=1, context=64)
    with pytest.raises(OptionError, match=r"reads .gguf files"):
        peer("llama.cpp", tmp_path, llm, threads=1, context=64)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingExtraError, match="llama-cpp-python"):
        peer("llama.cpp", tmp_path / "m.gguf", llm, threads=1, context=64)


def test_the_command(capsys, tmp_path) -> None:
    """Plain, a fixed length, auto and transformers' own generate, on a small network: one JSON line, a page, the same tokens."""
    prompts, page = tmp_path / "mine.txt", tmp_path / "speed.html"
    prompts.write_text("one two one two\n---\nhello", encoding="utf-8")
    args = ["bench", "speed", "--target", str(folder("target")), "--prompts", str(prompts), "--max-tokens", "8"]
    args += ["--repeats", "1", "--gamma", "2,auto", "--against", "transformers", "--dtype", "float32", "--threads", "1"]
    assert run([*args, "--json", "--report", str(page)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ways"] == ["plain", "ngram γ=2", "ngram γ=auto", "transformers"]
    assert len(document["results"]) == 2 * 4
    assert all(each["same_tokens"] in (True, None) for each in document["results"])
    assert {each["temperature"] for each in document["results"]} == {0.0, 1.0}
    assert "versions" in document["machine"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("args", "word"), [(["--gamma", "0"], "`gamma`"), (["--gamma", "x"], "x"), (["--temperature", "-1"], "`temperature`")]
)
def test_wrong_options_are_refused_before_a_model_is_read(capsys, args, word) -> None:
    """One line."""
    assert run(["bench", "speed", "--target", "./no-such.gguf", *args]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert "no-such" not in error
