"""`headstart generate`: its JSON, its text, its summary, one line for every failure, Ctrl-C, pipes and terminals."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headstart import Options
from headstart.cli.main import run
from headstart.cli.view import draft_view, summary
from headstart.generation import Piece
from tests.generation.tiny import core, folder, tiny

KEYS = ["target", "drafter", "engine", "rule", "gamma", "seed", "options", "lossless", "text", "token_ids", "finish_reason"]
LAST_KEYS = ["usage", "stats"]
COMPARE_KEYS = ["plain", "same_tokens", "speedup"]
STATS_KEYS = ["num_rounds", "target_calls", "num_drafted", "num_accepted", "num_rejections", "num_cut", "accepted_histogram"]
STATS_KEYS += ["block_efficiency", "mean_accepted", "acceptance_rate", "draft_utilization", "mean_overlap", "seconds"]
STATS_KEYS += ["tokens_per_second"]
PARTS = ["prefill", "draft", "score", "verify", "other"]
TINY = ["--dtype", "float32", "--device", "cpu", "--threads", "1"]


def target(name: str = "target") -> list[str]:
    return ["--target", str(folder(name)), *TINY]


def fixed(args: Sequence[str]) -> list[str]:
    """Four tokens a round unless `args` say otherwise: what auto chooses depends on the machine."""
    return [*args] if {"--gamma", "--tree"} & set(args) else [*args, "--gamma", "4"]


def generate(capsys: pytest.CaptureFixture[str], *args: str, prompt: str = "hi", code: int = 0) -> tuple[str, str]:
    """stdout and stderr of `generate` on the small network."""
    assert run(["generate", prompt, *target(), *fixed(args)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *args: str, prompt: str = "hi", code: int = 0) -> Any:
    """The one JSON document on stdout, with nothing on stderr; NaN and infinity are refused."""
    out, err = generate(capsys, "--json", *args, prompt=prompt, code=code)
    assert err == ""
    assert out.endswith("}\n")
    assert out.count("\n") == 1

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(out, parse_constant=refuse)


def identities(found: Any) -> None:
    """What must hold between the numbers of any document."""
    stats, seconds, n = found["stats"], found["stats"]["seconds"], len(found["token_ids"])
    assert list(stats) == STATS_KEYS
    assert list(seconds) == [*PARTS, "total"]
    assert sum(seconds[part] for part in PARTS) == pytest.approx(seconds["total"], rel=1e-12)
    assert found["usage"]["completion_tokens"] == n
    assert stats["target_calls"] == stats["num_rounds"] == sum(stats["accepted_histogram"])
    assert stats["num_accepted"] == sum(i * rounds for i, rounds in enumerate(stats["accepted_histogram"]))
    assert n == stats["num_accepted"] + stats["num_rounds"] - stats["num_cut"]
    assert stats["block_efficiency"] == pytest.approx(n / stats["num_rounds"])
    assert stats["mean_accepted"] == pytest.approx(stats["num_accepted"] / stats["num_rounds"])
    assert stats["tokens_per_second"] == pytest.approx(n / (seconds["total"] - seconds["prefill"]))
    judged = stats["num_accepted"] + stats["num_rejections"]
    assert stats["acceptance_rate"] == (pytest.approx(stats["num_accepted"] / judged) if judged else None)
    drafted = stats["num_drafted"]
    assert stats["draft_utilization"] == (pytest.approx(stats["num_accepted"] / drafted) if drafted else None)


# ---- JSON


@pytest.mark.parametrize("drafter", ["none", "ngram", "auto", "model"])
def test_json_has_exactly_the_promised_keys(capsys: pytest.CaptureFixture[str], drafter: str) -> None:
    """Keys in the promised order, counts that agree, and the values in force rather than 'auto'."""
    name = f"model:{folder('drafter')}" if drafter == "model" else drafter
    found = document(capsys, "--drafter", name, "--max-tokens", "60", "--gamma", "3")
    assert list(found) == KEYS + LAST_KEYS
    identities(found)
    assert found["drafter"] == ("suffix" if drafter == "auto" else name)
    assert (found["target"], found["engine"], found["rule"], found["gamma"]) == (
        str(folder("target")),
        "transformers",
        "block",
        3,
    )
    assert (found["seed"], found["lossless"], found["finish_reason"]) == (None, True, "length")
    loaded = {"dtype": "float32", "device": "cpu", "threads": 1, "context": 256}
    assert found["options"] == Options.of(max_tokens=60, gamma=3).to_json() | loaded
    assert found["usage"]["prompt_tokens"] == len(tiny().prompt_ids("hi"))
    assert found["token_ids"] == tiny(drafter="none").generate("hi", max_tokens=60).token_ids
    if drafter == "none":
        assert (found["stats"]["block_efficiency"], found["stats"]["acceptance_rate"]) == (1.0, None)


def test_defaults_are_the_contracts(capsys: pytest.CaptureFixture[str]) -> None:
    """Suffixes, lengths found out, block, greedy, 256 tokens; a seed with a temperature selects coupled, alone it does not."""
    assert run(["generate", "hi", *target(), "--json", "--max-tokens", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["drafter"], found["gamma"], found["rule"], found["seed"]) == ("suffix", "auto", "block", None)
    assert (found["options"]["temperature"], Options().max_tokens) == (0.0, 256)
    found = document(capsys, "--max-tokens", "5", "--seed", "7", "--temperature", "1")
    assert (found["rule"], found["seed"], found["options"]["rule"]) == ("coupled", 7, None)
    assert document(capsys, "--max-tokens", "5", "--seed", "7")["rule"] == "block"
    found = document(capsys, "--max-tokens", "5", "--temperature", "1")
    assert found["rule"] == "block"
    assert isinstance(found["seed"], int)


def test_a_lossy_rule_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """`lossless` is false in JSON and a line says it on the terminal; sampled plain decoding is not called the same law."""
    model = ("--drafter", f"model:{folder('drafter')}", "--max-tokens", "30")
    found = document(capsys, *model, "--rule", "typical")
    assert (found["rule"], found["lossless"]) == ("typical", False)
    assert found["token_ids"] == tiny(drafter="none").generate("hi", max_tokens=30).token_ids  # at temperature 0
    _, err = generate(capsys, *model, "--rule", "typical", "--temperature", "1", "--compare")
    assert "lossy: the rule typical does not keep the target's law" in err
    assert "plain decoding is sampled from the target's law, this text is not" in err
    assert document(capsys, *model, "--rule", "typical", "--temperature", "1", "--compare")["same_tokens"] is None
    assert "lossy" not in generate(capsys, *model, "--temperature", "1")[1]


def test_gamma_auto(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON says whether speculation was active and why; a terminal gets a line before and a line after; the text is plain's."""
    found = document(capsys, "--max-tokens", "40", "--gamma", "auto")
    assert found["gamma"] == "auto"
    assert set(found["schedule"]) == {"active", "why", "rounds_drafted", "rounds_plain", "plain_seconds", "estimated_speedup"}
    assert found["schedule"]["rounds_drafted"] + found["schedule"]["rounds_plain"] == found["stats"]["num_rounds"]
    assert found["token_ids"] == tiny(drafter="none").generate("hi", max_tokens=40).token_ids
    _, err = generate(capsys, "--max-tokens", "40", "--gamma", "auto")
    said = err.splitlines()
    assert said[0].startswith(("speculation on: suffix", "speculation off: suffix"))
    assert any("rounds" in line and "at the end" in line for line in said[1:])


def test_json_logprobs(capsys: pytest.CaptureFixture[str]) -> None:
    """One entry a token, with so many alternatives, likeliest first; 0 reports the token alone."""
    found = document(capsys, "--max-tokens", "8", "--logprobs", "2")
    assert list(found) == [*KEYS, "logprobs", *LAST_KEYS]
    assert [at["token"] for at in found["logprobs"]] == found["token_ids"]
    for at in found["logprobs"]:
        assert list(at) == ["token", "logprob", "top"]
        assert [list(one) for one in at["top"]] == [["token", "logprob"]] * 2
        assert at["top"][0]["logprob"] == at["logprob"] <= 0
    assert [at["top"] for at in document(capsys, "--max-tokens", "2", "--logprobs", "0")["logprobs"]] == [[], []]


@pytest.mark.parametrize(
    ("args", "same"),
    [
        ([], True),
        (["--temperature", "1", "--seed", "3"], True),
        (["--temperature", "1"], None),
        (["--temperature", "1", "--seed", "3", "--rule", "token", "--gamma", "2"], None),
        (["--rule", "match"], True),
    ],
    ids=str,
)
def test_json_compare(capsys: pytest.CaptureFixture[str], args: list[str], same: bool | None) -> None:
    """`same_tokens` is null where chance may differ; `speedup` is the ratio of speeds, prefill excluded."""
    found = document(capsys, "--compare", "--max-tokens", "30", "--drafter", f"model:{folder('drafter')}", *args)
    assert list(found) == KEYS + LAST_KEYS + COMPARE_KEYS
    identities(found)
    assert list(found["plain"]) == ["tokens_per_second", "token_ids"]
    assert found["same_tokens"] is same
    assert same is None or found["plain"]["token_ids"] == found["token_ids"]
    assert found["speedup"] == pytest.approx(found["stats"]["tokens_per_second"] / found["plain"]["tokens_per_second"])


def test_lists_are_separated_or_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """`--ban 1,2 --ban 3` and `--logit-bias 4=1,5=-2` are lists; options reach the model."""
    first = document(capsys, "--max-tokens", "1")["token_ids"][0]
    found = document(
        capsys, "--max-tokens", "20", "--ban", f"{first},2", "--ban", "3", "--logit-bias", "4=1, 5=-2.5", "--logit-bias", "6=0"
    )
    assert found["options"]["ban"] == [first, 2, 3]
    assert found["options"]["logit_bias"] == {"4": 1.0, "5": -2.5, "6": 0.0}
    assert first not in found["token_ids"]


def test_json_survives_a_narrow_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stdout cannot take 😀, the document is still JSON and still says 😀."""
    from headstart.cli.options import write_json

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1", errors="backslashreplace"))
    write_json({"text": "naïve 😀"})
    sys.stdout.flush()
    assert json.loads(raw.getvalue().decode("latin-1")) == {"text": "naïve 😀"}


# ---- text


@pytest.mark.parametrize(
    "args", [[], ["--temperature", "1", "--seed", "2"], ["--stop", "U"], ["--raw"], ["--system", "Be brief."]]
)
def test_text_on_stdout_is_the_text_of_json(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    """stdout is the text and a line end; the talk is on stderr."""
    found = document(capsys, "--max-tokens", "40", *args)
    out, err = generate(capsys, "--max-tokens", "40", *args)
    assert out == (found["text"] if found["text"].endswith("\n") else found["text"] + "\n")
    assert err.startswith(f"── {len(found['token_ids'])} tokens in {found['stats']['num_rounds']} target calls · ")


def test_no_text_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An end token at once: stdout is empty, the summary counts one token."""
    end = core().token_to_id("<|end|>")
    out, err = generate(capsys, "--logit-bias", f"{end}=1000")
    assert out == ""
    assert err.startswith("── 1 token in 1 target call · ")


def test_prompt_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads UTF-8 from stdin; the same text as an argument gives the same tokens."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("naïve 東京".encode())))
    piped = document(capsys, "--max-tokens", "5", prompt="-")
    assert piped["token_ids"] == document(capsys, "--max-tokens", "5", prompt="naïve 東京")["token_ids"]


def unmarked() -> list[str]:
    """Bans every token whose text could be mistaken for a mark."""
    tokenizer = tiny().tokenizer
    assert tokenizer is not None
    marks = [i for i in range(tokenizer.vocab_size) if set(tokenizer.token_bytes(i)) & set(b"[]{}<>\x1b")]
    return ["--ban", ",".join(map(str, marks))]


@pytest.mark.parametrize("colour", [True, False])
def test_show_draft_marks_can_be_taken_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, colour: bool
) -> None:
    """Without its marks the marked text is the text; the legend is talk."""
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    args = ["--max-tokens", "60", "--drafter", f"model:{folder('drafter')}", *unmarked()]
    plain, _ = generate(capsys, *args)
    marked, err = generate(capsys, *args, "--show-draft")
    marks = r"\x1b\[[0-9;]*m" if colour else r"[\[\]{}<>]"
    assert re.sub(marks, "", marked) == plain
    assert ("\x1b" in marked) is colour
    for word in ("accepted", "correction", "bonus"):
        assert word in err
    assert ("\x1b[32m" if colour else "[") in marked
    assert ("\x1b[31;1m" if colour else "{") in marked


def test_marks_say_where_tokens_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a kind share a mark, a round ends it, and tokens without text leave no empty mark."""
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    view = draft_view(out, marked=True)
    kinds: Any = {"a": "accepted", "c": "correction", "b": "bonus", "p": "plain"}
    for words in (["a:the ", "a:cat", "c: sat"], ["p: on"], ["a: the", "c:"], ["a: mat", "b:."]):
        view.show([Piece(text=word[2:], token=1, kind=kinds[word[0]]) for word in words])
    view.end()
    assert out.getvalue() == "[the cat]{ sat} on[ the][ mat]<.>\n"
    assert view.shown == len("the cat sat on the mat.")


@pytest.mark.parametrize(
    ("no_color", "force_color", "term", "tty", "colours"),
    [
        ("", "", "xterm", True, True),
        ("1", "", "xterm", True, False),
        ("1", "1", "xterm", True, False),
        ("", "", "xterm", False, False),
        ("", "1", "xterm", False, True),
        ("", "", "dumb", True, False),
    ],
)
def test_when_there_is_colour(
    monkeypatch: pytest.MonkeyPatch, no_color: str, force_color: str, term: str, tty: bool, colours: bool
) -> None:
    """On terminals that have it and where it is forced; NO_COLOR has the last word."""
    for name, value in (("NO_COLOR", no_color), ("FORCE_COLOR", force_color), ("TERM", term)):
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    out.isatty = lambda: tty  # type: ignore[method-assign]
    draft_view(out, marked=True).show([Piece(text="x", token=1, kind="accepted")])
    assert out.getvalue() == ("\x1b[32mx\x1b[0m" if colours else "[x]")


def test_the_summary_says_what_speculation_did(capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers are those of JSON; the seed is shown; plain decoding is called that; nothing drafted is said."""
    args = ["--max-tokens", "50", "--drafter", f"model:{folder('drafter')}"]
    stats = document(capsys, *args)["stats"]
    _, err = generate(capsys, *args, "--compare")
    assert f"{stats['block_efficiency']:.2f} tokens per call" in err
    assert f"{stats['num_accepted']} of {stats['num_drafted']} drafted tokens accepted" in err
    judged = stats["num_accepted"] + stats["num_rejections"]
    assert f"acceptance rate {stats['acceptance_rate']:.2f} of {judged} judged" in err
    assert "× plain decoding's" in err
    assert "the same tokens" in err
    _, err = generate(capsys, "--max-tokens", "3", "--drafter", "none")
    assert "plain decoding" in err
    _, err = generate(capsys, "--max-tokens", "1", "--temperature", "1", "--seed", "12", "--compare", "--rule", "coupled")
    assert "1 token in 1 target call ·" in err
    assert "nothing was drafted" in err
    assert "seed 12" in err
    assert "interrupted" not in err


# ---- failures

FAILURES: list[tuple[list[str], int, list[str]]] = [
    (["generate"], 2, ["PROMPT", "stdin"]),
    (["generate", "write", "a", "haiku"], 2, ["one argument", "quotes", "'write'"]),
    (["generate", "hi", "--temprature", "1"], 2, ["--temprature", "--temperature"]),
    (["generate", "hi", "--gamma", "0"], 2, ["gamma", "0", "none"]),
    (["generate", "hi", "--gamma", "-1"], 2, ["gamma", "-1"]),
    (["generate", "hi", "--gamma", "x"], 2, ["--gamma", "'x'", "auto"]),
    (["generate", "hi", "--top-p", "0"], 2, ["top_p", "0"]),
    (["generate", "hi", "--top-p", "nan"], 2, ["top_p", "nan"]),
    (["generate", "hi", "--temperature", "inf"], 2, ["temperature", "inf"]),
    (["generate", "hi", "--temperature", "-1"], 2, ["temperature", "-1"]),
    (["generate", "hi", "--top-k", "-1"], 2, ["top_k", "-1"]),
    (["generate", "hi", "--min-p", "2"], 2, ["min_p", "2"]),
    (["generate", "hi", "--typical-p", "0"], 2, ["typical_p", "0"]),
    (["generate", "hi", "--repetition-penalty", "0"], 2, ["repetition_penalty", "0"]),
    (["generate", "hi", "--presence-penalty", "inf"], 2, ["presence_penalty", "inf"]),
    (["generate", "hi", "--frequency-penalty", "nan"], 2, ["frequency_penalty", "nan"]),
    (["generate", "hi", "--logit-bias", "3"], 2, ["--logit-bias", "'3'", "ID=BIAS"]),
    (["generate", "hi", "--logit-bias", "3=inf"], 2, ["logit_bias", "inf", "ban"]),
    (["generate", "hi", "--logit-bias", "3=1,3=2"], 2, ["logit_bias", "3=1", "3=2"]),
    (["generate", "hi", "--ban", "x"], 2, ["--ban", "'x'"]),
    (["generate", "hi", "--ban", "-4"], 2, ["ban", "-4"]),
    (["generate", "hi", "--seed", "-1"], 2, ["seed", "-1"]),
    (["generate", "hi", "--seed", str(2**63)], 2, ["seed", str(2**63)]),
    (
        ["generate", "hi", "--seed", "1", "--temperature", "1", "--rule", "block", "--gamma", "auto"],
        2,
        ["seed", "--rule coupled", "--gamma"],
    ),
    (["generate", "hi", "--rule", "blok"], 2, ["--rule", "'blok'", "'block'"]),
    (["plan", "--rule", "typical"], 2, ["--rule", "'typical'", "'block'"]),
    (["bench", "speed", "--rule", "typical"], 2, ["--rule", "'typical'", "'block'"]),
    (["generate", "hi", "--max-tokens", "0"], 2, ["max_tokens", "0"]),
    (["generate", "hi", "--min-tokens", "9", "--max-tokens", "5"], 2, ["min_tokens", "9", "5"]),
    (["generate", "hi", "--stop", ""], 2, ["stop"]),
    (["generate", "hi", "--stop", "caf\udce9"], 2, ["--stop", "UTF-8", "iconv"]),
    (["generate", "hi", "--system", "caf\udce9"], 2, ["--system", "UTF-8", "iconv"]),
    (["generate", "caf\udce9"], 1, ["prompt", "UTF-8", "iconv"]),
    (["generate", "hi", "--logprobs", "2"], 2, ["--logprobs", "--json"]),
    (["generate", "hi", "--logprobs", "-1", "--json"], 2, ["logprobs", "-1"]),
    (["generate", "hi", "--show-draft", "--json"], 2, ["--show-draft", "--json"]),
    (["generate", "hi", "--engine", "x"], 2, ["engine", "'x'", "transformers"]),
    (["generate", "hi", "--dtype", "x"], 2, ["dtype", "'x'", "float32"]),
    (["generate", "hi", "--threads", "0"], 2, ["threads", "0"]),
    (["generate", "hi", "--threads", "x"], 2, ["--threads", "'x'"]),
    (["generate", "hi", "--context", "1"], 2, ["context", "1"]),
    (["generate", "hi", "--drafter", "ngrm"], 2, ["drafter", "'ngrm'", "'ngram'"]),
    (["generate", "hi", "--drafter", "model:"], 2, ["drafter", "model:smollm2"]),
    (["generate", "hi", "--target", ""], 2, ["target", "smollm2"]),
    (["generate", "hi", "--target", "/no/such"], 1, ["/no/such", "smollm2"]),
    (["genrate", "hi"], 2, ["'genrate'", "'generate'"]),
    (["frob"], 2, ["'frob'", "--help"]),
    (["--frob"], 2, ["--frob"]),
]
WITH_MODEL: list[tuple[list[str], int, list[str]]] = [
    ([""], 1, ["prompt is empty"]),
    (["  \n"], 1, ["prompt is empty"]),
    (["", "--raw"], 1, ["prompt is empty"]),
    (["hi", "--raw", "--system", "x"], 2, ["system", "--chat"]),
    (["hi", "--ban", "308"], 2, ["ban", "308", "307"]),
    (["hi", "--ban", ",".join(map(str, range(308)))], 1, ["output position 0", "banned"]),
    (["hi", "--logit-bias", "308=1"], 2, ["logit_bias", "308", "307"]),
    (["hi", "--context", "16"], 1, ["tokens long", "16", "--context"]),
    (["hi", "--context", "257"], 2, ["context", "257", "256"]),
    (["hi", "--device", "gpu"], 2, ["device", "'gpu'", "cpu"]),
    (["hi", "--dtype", "float16"], 2, ["dtype", "float16", "float32"]),
    (["hi", "--drafter", "model:./nothing"], 1, ["./nothing"]),
]


def short(value: Any) -> str:
    """An id that a terminal can show."""
    return ascii(value)[:60]


def one_line(err: str, words: list[str]) -> None:
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize(("args", "code", "words"), FAILURES, ids=short)
def test_a_wrong_command_line_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, words: list[str]
) -> None:
    """Refused before a model is loaded: one line with the name, the value and the way out; nothing on stdout."""
    monkeypatch.setenv("HEADSTART_MODELS", "/nonexistent")  # what would load smollm2 says so
    assert run(args) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    one_line(captured.err, words)


@pytest.mark.parametrize(("args", "code", "words"), WITH_MODEL, ids=short)
def test_what_a_model_cannot_do_is_one_line(
    capsys: pytest.CaptureFixture[str], args: list[str], code: int, words: list[str]
) -> None:
    """One line, the right exit code, nothing on stdout, with --json or without."""
    for more in ([], ["--json"]):
        assert run(["generate", args[0], *target(), *fixed([*args[1:], *more])]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        one_line(captured.err, words)


def test_stdin_that_is_not_utf8(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same line as for an argument."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    _, err = generate(capsys, prompt="-", code=1)
    one_line(err, ["prompt", "UTF-8", "iconv"])


def test_a_failure_midway_comes_after_the_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said stays on stdout with a line end; then one line says at which position no token could be drawn."""
    whole = tiny().generate("hi", max_tokens=5).text
    scores_nan_after(monkeypatch, 6)
    out, err = generate(capsys, "--drafter", "none", code=1)
    one_line(err, ["output position 5", "NaN"])
    assert out == whole + "\n"


def scores_nan_after(monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    """From this round on the network answers NaN."""
    after_rounds(monkeypatch, passes, lambda scores: [s.logits.fill(float("nan")) for s in scores])


def interrupt_after(monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    """Ctrl-C inside the pass of this round."""

    def interrupt(scores: Any) -> None:
        raise KeyboardInterrupt

    after_rounds(monkeypatch, passes, interrupt)


def after_rounds(monkeypatch: pytest.MonkeyPatch, passes: int, act: Callable[[Any], object]) -> None:
    from headstart.models.transformers import TransformersModel

    score, count = TransformersModel.score, 0

    def counted(self: Any, asks: Any) -> Any:
        nonlocal count
        scores = score(self, asks)
        # Passes that load or prefill ask for no logits, or for two sequences at once.
        count += len(asks) == 1 and asks[0].num_logits is None
        if count >= passes:
            act(scores)
        return scores

    monkeypatch.setattr(TransformersModel, "score", counted)


# ---- Ctrl-C


def test_ctrl_c_keeps_the_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 130; what was said is on stdout, text held back for a stop string included, and the summary says so."""
    whole = tiny().generate("hi", max_tokens=5).text
    interrupt_after(monkeypatch, 6)
    out, err = generate(capsys, "--drafter", "none", "--stop", whole[-3:] + "never", code=130)
    assert out == whole + "\n"
    assert err.startswith("── interrupted after 5 tokens in 5 target calls")


def test_ctrl_c_with_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 130 and one document: finish_reason is null, counts agree."""
    interrupt_after(monkeypatch, 6)
    found = document(capsys, "--drafter", "none", code=130)
    assert list(found) == KEYS + LAST_KEYS
    identities(found)
    assert (found["finish_reason"], len(found["token_ids"])) == (None, 5)


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_while_comparing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """The speculative run is finished and is kept; there is nothing to compare."""
    args = ["--drafter", "none", "--max-tokens", "8", "--compare"]
    whole = tiny().generate("hi", max_tokens=8)
    interrupt_after(monkeypatch, 12)
    if as_json:
        found = document(capsys, *args, code=130)
        assert list(found) == KEYS + LAST_KEYS
        assert (found["finish_reason"], found["token_ids"]) == ("length", whole.token_ids)
    else:
        out, err = generate(capsys, *args, code=130)
        assert out == whole.text + "\n"
        assert "8 tokens in 8 target calls" in err


def test_ctrl_c_while_loading(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 130, nothing on stdout, one word on stderr."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headstart.loading.load", interrupt)
    assert generate(capsys, code=130) == ("", "interrupted\n")


# ---- processes

HEADSTART = [sys.executable, "-c", "from headstart.cli.main import main; main()"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def endless() -> list[str]:
    """A generation that lasts: no end token, and room for more than a test waits for."""
    end = core().token_to_id("<|end|>")
    return [*HEADSTART, "generate", "hi", *target("long"), "--max-tokens", "900000", "--ban", str(end), "--drafter", "none"]


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    """A shell line in which $H is headstart."""
    command = f'H() {{ {sys.executable} -c "from headstart.cli.main import main; main()" "$@"; }}; {line}'
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60, env=ENVIRONMENT)


def test_a_real_ctrl_c() -> None:
    """SIGINT in the middle of a text: exit 130, the text so far with a line end, no traceback."""
    process = subprocess.Popen(
        endless(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        # Tests that run in the background of a shell are born with SIGINT ignored, and so would this process be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (first + out).endswith(b"\n")
    assert err.decode().startswith("── interrupted after ")
    assert b"Traceback" not in err


def test_a_reader_that_leaves() -> None:
    """`| head -c 3`: quiet, and nothing is generated for nobody."""
    process = subprocess.Popen(endless(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    assert process.stdout is not None
    process.stdout.read(3)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("line", "code", "err"),
    [
        ("H generate --help | true", 0, None),
        ("H generate --help > /dev/full", 1, "stdout cannot be written: No space left on device"),
        ("H --version >&-", 1, "stdout is closed"),
        ("H generate hi --gamma 0 2>&-", 2, None),
        ("H generate hi --gamma 0 2>/dev/full", 2, None),
        ("H generate - --gamma 0 <&-", 2, "gamma"),
    ],
)
def test_streams_that_are_closed_or_full(line: str, code: int, err: str | None) -> None:
    """A closed pipe is quiet; what stdout cannot take is one line; talk that nobody can hear changes nothing."""
    if "/dev/full" in line and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = shell(line)
    assert done.returncode == code, done.stderr
    if err is None:
        assert done.stderr == b""
    else:
        one_line(done.stderr.decode(), [err])


def on_a_terminal(command: list[str]) -> tuple[str, list[str]]:
    """What a command writes to a terminal of 200 columns, and the lines that are left on its screen."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment | {"TERM": "xterm-256color"})
    os.close(slave)
    seen = b""
    while select.select([master], [], [], 60)[0]:
        try:
            new = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not new:
            break
        seen += new
    os.close(master)
    assert process.wait(timeout=30) == 0
    return seen.decode(errors="replace"), left_on_screen(seen.decode(errors="replace"))


def left_on_screen(written: str) -> list[str]:
    """A terminal in twenty lines: text, line ends, cursor up, erase line; colours have no width."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?0-9;]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.startswith("\x1b") and part.endswith("A"):
            row -= int(part[2:-1] or 1)
        elif not part.startswith("\x1b"):
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


def test_on_a_terminal() -> None:
    """Colours; a progress line while it loads and compares, which leaves nothing behind and wipes out no text."""
    tokenizer = tiny().tokenizer
    assert tokenizer is not None
    odd = [
        i for i in range(tokenizer.vocab_size) if not tokenizer.token_text(i).isprintable() or "\ufffd" in tokenizer.token_text(i)
    ]
    args = ["--max-tokens", "40", "--show-draft", "--compare", "--ban", ",".join(map(str, odd))]
    command = [*HEADSTART, "generate", "hi", *target(), *fixed(args), "--drafter", f"model:{folder('drafter')}"]
    written, screen = on_a_terminal(command)
    assert "reading the weights" in written
    assert "plain decoding, to compare" in written
    assert "\x1b[32m" in written
    left = [line for line in screen if line.strip()]
    assert left[0] == tiny().generate("hi", max_tokens=40, ban=odd).text
    assert [line[:8] for line in left[1:3]] == ["   accep", "── 40 to"]
    assert left[-1].endswith("the same tokens")
    assert len(left) == 5


def test_summary_of_nothing() -> None:
    """Interrupted before the first round there is still something to say, and no division by zero."""
    stream = tiny().stream("hi", max_tokens=3)
    stream.close()
    assert summary(stream.output)[0].startswith("── interrupted after 0 tokens in 0 target calls · too short to time")
