"""README's tables are what the result files say; what stands between the markers comes from nowhere else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benches"))

import table  # noqa: E402 (it lies beside the benches, which are no package)

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_says_what_the_results_say() -> None:
    """Filling it again changes nothing; there are tables to fill, each known."""
    names = re.findall(r"<!-- table (\w+) -->", README)
    assert {"costs", "draft", "generate"} <= set(names) <= set(table.TABLES)
    assert len(names) == README.count("<!-- end -->")
    assert table.filled(README) == README, "run: python benches/table.py"


def test_a_figure_changed_by_hand_is_noticed() -> None:
    """The twin: one digit."""
    figure = re.search(r"SmolLM2-135M Q4_1, Headstart \| ([\d.]+)", README)
    assert figure is not None
    changed = README.replace(figure[0], figure[0][:-1] + ("1" if figure[0][-1] != "1" else "2"))
    assert table.filled(changed) == README


MACHINE = {"processor": "Some CPU", "cores": 2, "threads": 2, "instruction_set": "avx2", "versions": {"headstart": "0.1.0"}}


def cell(value: float) -> dict:
    return {"value": value, "interval": [value - 0.1, value + 0.1]}


def row(drafter: str, length: str, best: bool, speed: float) -> dict:
    whole = {"block_efficiency": cell(2.0), "tokens_per_second": cell(speed), "over_plain": cell(1.5), "over_llama_cpp": None}
    rest = {**whole, "over_plain": cell(1.25)}
    kinds = {"all": whole, "without_loops": rest}
    return {"drafter": drafter, "length": length, "temperature": 0.0, "best": best, **kinds}


def test_the_tables_of_drafters_and_of_other_engines(monkeypatch, tmp_path) -> None:
    """The best length alone; intervals in brackets; a missing result leaves a table as it is; machine and versions beneath."""
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    text = "<!-- table drafters -->\nold\n<!-- end -->\n<!-- table speed -->\nold\n<!-- end -->\n"
    assert table.filled(text) == text
    results = [row("none", "1", True, 300.0), row("ngram", "2", False, 310.0), row("ngram", "4", True, 350.0)]
    drafters = {"prompts": 48, "max_tokens": 96, "results": results, "machine": MACHINE}
    (tmp_path / "drafters-smollm2.json").write_text(json.dumps(drafters), encoding="utf-8")
    filled = table.filled(text)
    assert "| ngram | 0 | 4 | 2.00 | 350 | 1.50× (1.40–1.60) | – | 1.25× (1.15–1.35) |" in filled
    assert "310" not in filled
    assert "*Some CPU avx2, 2 cores, 2 threads, Headstart 0.1.0.*" in filled
    each = {"temperature": 0.0, "speedup": 1.0, "tokens_per_second": 300.0}
    ways = [{**each, "category": c, "way": w} for c in ("code", "chat") for w in ("plain", "llama.cpp")]
    machine = MACHINE | {"max_tokens": 64, "repeats": 3, "peers": {"llama.cpp": {"version": "9.9"}}}
    speed = {"ways": ["plain", "llama.cpp"], "results": ways, "machine": machine}
    (tmp_path / "speed-smollm2.json").write_text(json.dumps(speed), encoding="utf-8")
    filled = table.filled(text)
    assert "| llama.cpp | 0 | 1.00× (300) | 1.00× (300) |" in filled
    assert "Headstart 0.1.0, llama.cpp 9.9.*" in filled
    assert "old" not in filled


def test_an_unknown_table_is_an_error() -> None:
    """A marker that nothing fills would stand there for good."""
    with pytest.raises(KeyError, match="typo"):
        table.filled("<!-- table typo -->\n<!-- end -->")
