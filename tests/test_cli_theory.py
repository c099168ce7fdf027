"""`headstart theory`: JSON shapes, tables, charts, and one line for every impossible value."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headstart.cli.main import run

STEP_KEYS = ["target", "draft", "empirical", "max_error", "standard_error", "acceptance_rate", "overlap", "total_variation"]
STEP_KEYS += ["draws", "seed"]
YIELD_KEYS = ["alpha", "gamma", "formula", "simulated", "standard_error"]
WALLTIME_KEYS = ["alpha", "best_gamma", "walltime_improvement", "ceiling", "break_even_alpha", "curve"]
SEQUENCE_KEYS = ["target_only", "speculative", "exact", "max_difference", "standard_error", "block_efficiency"]
SEQUENCE_KEYS += ["block_efficiency_exact", "block_efficiency_long_run", "block_efficiency_iid", "alpha_stationary"]
SEQUENCE_KEYS += ["target_calls_saved"]
QUICK = {"step": ["--draws", "2000"], "yield": ["--trials", "2000"], "walltime": [], "sequence": ["--trials", "500"]}


def output(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """stdout of a command that succeeds and says nothing on stderr."""
    assert run(["theory", *args]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def document(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """The one JSON document; NaN and infinity are refused."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(output(capsys, *args, "--json"), parse_constant=refuse)


def test_step_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the promised keys; rows may be given."""
    found = document(capsys, "step", "--draws", "1000", "--seed", "7", "--target", "0.5,0.5", "--draft", "1", "--draft", "0")
    assert list(found) == STEP_KEYS
    assert (found["target"], found["draft"], found["overlap"], found["draws"], found["seed"]) == (
        [0.5, 0.5],
        [1, 0],
        0.5,
        1000,
        7,
    )


def test_yield_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A list, one object for each α and γ, lists comma-separated or repeated alike."""
    found = document(capsys, "yield", "--trials", "1000", "--alpha", "0,1", "--gamma", "2", "--gamma", "3")
    assert [list(point) for point in found] == [YIELD_KEYS] * 4
    assert [(point["alpha"], point["gamma"], point["formula"]) for point in found] == [(0, 2, 1), (0, 3, 1), (1, 2, 3), (1, 3, 4)]
    assert [f"{point['formula']:.4f}" for point in document(capsys, "yield", "--trials", "10")][:3] == [
        "1.5000",
        "1.9375",
        "1.9961",
    ]


def test_walltime_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A list of objects; no ceiling at α = 1 and no break-even where nothing pays are null, never infinity."""
    found = document(capsys, "walltime")
    assert [list(point) for point in found] == [WALLTIME_KEYS] * 5
    assert [(point["best_gamma"], round(point["walltime_improvement"], 2)) for point in found] == [
        (2, 1.46),
        (3, 1.67),
        (4, 1.98),
        (6, 2.47),
        (10, 3.43),
    ]
    assert [gamma for gamma, _ in found[0]["curve"]] == list(range(1, 21))
    (certain,) = document(capsys, "walltime", "--alpha", "1", "--cost-ratio", "2")
    assert (certain["ceiling"], certain["break_even_alpha"]) == (None, None)


@pytest.mark.parametrize("cost", ["1:10,2:15,4:19", "10,15,17,19"])
def test_score_cost_in_both_spellings(capsys: pytest.CaptureFixture[str], cost: str) -> None:
    """Points or a plain list, in any unit; dearer scoring shortens the draft and raises the break-even α."""
    (found,) = document(capsys, "walltime", "--alpha", "0.8", "--gamma", "3", "--score-cost", cost)
    assert [round(improvement, 6) for _, improvement in found["curve"]] == [
        round(1.8 / 1.6, 6),
        round(2.44 / 1.9, 6),
        round(2.952 / 2.2, 6),
    ]
    assert found["break_even_alpha"] == pytest.approx((4.6**0.5 - 1) / 2)  # α + α² = 0.2 + 0.7, at γ = 2


def test_sequence_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the promised keys and the exact digits, also when few sequences are played."""
    found = document(capsys, "sequence", "--trials", "100")
    assert list(found) == SEQUENCE_KEYS
    assert [round(share, 4) for share in found["exact"]] == [0.3024, 0.1298, 0.1286, 0.1208, 0.3184]
    exact = [found[f"block_efficiency_{name}"] for name in ("exact", "long_run", "iid")]
    assert [round(value, 4) for value in exact] == [3.5425, 3.6456, 3.6421]


@pytest.mark.parametrize("verb", list(QUICK))
def test_tables_fit_eighty_columns_and_repeat(capsys: pytest.CaptureFixture[str], verb: str, monkeypatch: Any) -> None:
    """Readable at 80 columns, no colour where nobody can see it, the same twice."""
    monkeypatch.setenv("COLUMNS", "80")
    text = output(capsys, verb, *QUICK[verb])
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" not in text
    assert text == output(capsys, verb, *QUICK[verb])


def test_the_software_says_whether_it_is_worth_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the break-even α the answer is no; above it, how long; at high costs, never."""
    text = output(capsys, "walltime", "--alpha", "0.2,0.9", "--cost-ratio", "0.3")
    assert "Up to α = 0.3 no draft length pays" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith(("0.2", "0.9"))] == ["no", "yes"]
    assert "no draft length pays, whatever α" in output(capsys, "walltime", "--cost-ratio", "1")
    assert "a larger --gamma may find" in output(capsys, "walltime", "--alpha", "0.99", "--gamma", "5")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("verb", list(QUICK))
def test_charts(capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str, suffix: str) -> None:
    """Each chart in each format; stdout stays one JSON document, stderr says what was written."""
    pytest.importorskip("matplotlib")
    file = tmp_path / f"chart{suffix}"
    assert run(["theory", verb, *QUICK[verb], "--json", "--plot", str(file)]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err == f"wrote {file}\n"
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert file.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["yield", "--alpha", "1.5"], "`alpha` must be between 0 and 1, got 1.5"),
        (["yield", "--alpha", "nan"], "`alpha`"),
        (["yield", "--alpha", "0.5,x"], "'x' is not a number"),
        (["yield", "--alpha", "0.5,"], "'' is not a number"),
        (["yield", "--gamma", "0"], "`gamma` must be 1 or more, got 0"),
        (["yield", "--gamma", "1,2.5"], "'2.5' is not a whole number"),
        (["yield", "--trials", "0"], "`trials` must be 2 or more, got 0"),
        (["walltime", "--gamma", "-3"], "`gamma` must be 1 or more, got -3"),
        (["walltime", "--gamma", "1000000000"], "`gamma` must be at most 10000"),
        (["walltime", "--cost-ratio", "-0.1"], "`cost_ratio` must be a finite number, 0 or more, got -0.1"),
        (["walltime", "--cost-ratio", "inf"], "got inf"),
        (["walltime", "--score-cost", "2:1,4:2"], "must start at k = 1"),
        (["walltime", "--score-cost", "1:1,2"], "must be all k:v or all v"),
        (["walltime", "--score-cost", "1:1:1"], "must be numbers"),
        (["walltime", "--score-cost", "1:1,2:x"], "must be numbers"),
        (["walltime", "--score-cost", "1:1,2:nan"], "finite"),
        (["walltime", "--draws", "5"], "No such option"),
        (["step", "--draws", "0"], "`draws` must be 1 or more, got 0"),
        (["step", "--draws", "many"], "'many' is not a valid integer"),
        (["step", "--target", "0.5,0.6", "--draft", "0.5,0.5"], "`target` must sum to 1, got 1.1"),
        (["step", "--target", "0.5,0.5"], "as many entries as `target` (2), got 6"),
        (["step", "--seed", "-1"], "`seed` must be 0 or more"),
        (["sequence", "--length", "0"], "`length` must be 1 or more, got 0"),
        (["sequence", "--gamma", "0"], "`gamma` must be 1 or more, got 0"),
        (["sequence", "--plot", "chart.gif"], "must end in one of .png, .svg, .pdf"),
        (["sequence", "--plot", "nowhere/at/all.png"], "folder that exists"),
        (["sequence", "yield"], "unexpected extra argument"),
    ],
)
def test_impossible_values_are_one_line(capsys: pytest.CaptureFixture[str], args: list[str], part: str) -> None:
    """Exit 2, nothing on stdout, one line that names the option and the value."""
    assert run(["theory", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err


def test_a_missing_matplotlib_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Without the extra, one line with its pip command, exit 1."""
    monkeypatch.setattr("headstart.plots.find_spec", lambda name: None)
    assert run(["theory", "walltime", "--plot", "chart.png"]) == 1
    assert "pip install 'headstart[plot]'" in capsys.readouterr().err


def test_nothing_heavy_is_loaded() -> None:
    """A table needs neither matplotlib nor the packages that run models."""
    heavy = {"matplotlib", "torch", "transformers", "scipy", "tokenizers", "jinja2"}
    code = (
        "import sys; from headstart.cli.main import run; run(['theory', 'walltime']); "
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
