"""A loop is a span that repeats what stands immediately before it; what merely returns later is none. Ratios are by prompt."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.generation.tiny import folder

sys.path.insert(0, str(Path(__file__).parents[2] / "benches"))

from bench_drafters import Answered, chosen, main, overlap, pairs, ratio
from loops import SHORTEST, looping


def brute(tokens: list[int]) -> list[bool]:
    """By the definition, word for word: every span, every period."""
    marks = [False] * len(tokens)
    for period in range(1, len(tokens)):
        for start in range(period, len(tokens)):
            for end in range(start + max(period, SHORTEST), len(tokens) + 1):
                if all(tokens[i] == tokens[i - period] for i in range(start, end)):
                    marks[start:end] = [True] * (end - start)
    return marks


def test_a_loop_is_marked_from_its_second_copy_on() -> None:
    """Ten tokens three times over; one token a dozen times; what returns after others; a near miss."""
    once = list(range(10))
    assert looping([50, 51, *once, *once, *once, 60]) == [False] * 12 + [True] * 20 + [False]
    assert looping([5, *[7] * 12]) == [False] * 2 + [True] * 11
    assert not any(looping([*once, *range(20, 40), *once]))
    assert not any(looping([*once, *once[:9], 99]))
    assert not any(looping([1, 2, 3] * 3))  # six repeated tokens are no loop
    assert looping([]) == []


def test_marks_are_the_definitions() -> None:
    """Against every span and period, on texts of few tokens, which repeat often."""
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 2, 26).tolist() for _ in range(12)]
    texts += [[*rng.integers(0, 9, 5).tolist(), *(rng.integers(0, 9, 6).tolist() * 4)] for _ in range(12)]
    assert any(any(looping(text)) for text in texts)
    for text in texts:
        assert looping(text) == brute(text)


def answered(tokens, seconds, loops) -> Answered:
    return Answered(
        tokens=np.array(tokens),
        seconds=np.array(seconds),
        loops=np.array(loops),
        looping_tokens=0,
        token_ids=(),
        overlaps=((0.5, 0.1), (0.7,), ()),
    )


def test_figures_are_ratios_of_sums_with_and_without_loops() -> None:
    """Tokens over rounds, tokens over seconds, and these over another way's; intervals hold the value."""
    own = [answered([3, 1, 2], [0.1, 0.1, 0.2], [False, False, True]), answered([4, 4, 4], [0.2, 0.2, 0.2], [False] * 3)]
    other = [answered([1, 1], [0.1, 0.1], [False, True]), answered([1, 1], [0.2, 0.2], [False, False])]
    picks = np.random.default_rng(0).integers(0, 2, (500, 2))
    whole = ratio(pairs(own, "rounds", True), picks)
    assert whole["value"] == 3.0
    assert whole["interval"] == [2.0, 4.0]
    assert ratio(pairs(own, "rounds", False), picks)["value"] == pytest.approx(16 / 5)
    both = ratio(pairs(own, "seconds", True), picks, pairs(other, "seconds", True))
    assert both["value"] == pytest.approx((18 / 1.0) / (4 / 0.6), abs=1e-4)
    assert ratio([(0.0, 0.0)], np.zeros((5, 1), dtype=int)) is None
    assert overlap(own) == [0.6, 0.1]


def test_prompts_are_cut_evenly() -> None:
    """Every category in turn; all of them when asked for all."""
    from headstart.train.prompts import CATEGORIES, HELD_OUT

    few = chosen(len(CATEGORIES))
    assert {prompt.category for prompt in HELD_OUT if prompt.text in few} == set(CATEGORIES)
    assert sorted(chosen(len(HELD_OUT))) == sorted(prompt.text for prompt in HELD_OUT)


def test_the_program(capsys, monkeypatch) -> None:
    """Chains, a tree and auto on a small network: every way at both temperatures, one JSON line, plain against itself is 1."""
    args = ["--target", str(folder("target")), "--drafter", "ngram", "--length", "2,2x2,auto", "--prompts", "2", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["bench_drafters.py", *args, "--max-tokens", "6"])
    main()
    out, err = capsys.readouterr()
    found = json.loads(out.splitlines()[-1])
    rows = {(row["drafter"], row["length"], row["temperature"]): row for row in found["results"]}
    lengths = [("none", "1"), ("ngram", "2"), ("ngram", "2x2"), ("ngram", "auto")]
    assert set(rows) == {(drafter, length, t) for drafter, length in lengths for t in (0.0, 1.0)}
    for temperature in (0.0, 1.0):
        plain = rows["none", "1", temperature]["all"]
        assert (plain["over_plain"]["value"], plain["block_efficiency"]["value"]) == (1.0, 1.0)
        assert sum(row["best"] for row in found["results"] if row["temperature"] == temperature) >= 2
    assert found["prompts"] == 2
    assert "| ngram |" in err
