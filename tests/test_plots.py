"""Curves of a training run: what was measured once shows too, and the last values are written beside the curves."""

from __future__ import annotations

import pytest

from headstart.plots import plot_training

pytest.importorskip("matplotlib")


def entry(step: int, greedy: float | None) -> dict:
    return {"step": step, "overlap": [0.4, 0.25], "greedy_block_efficiency": greedy, "sampled_block_efficiency": greedy}


@pytest.mark.parametrize("steps", [1, 3])
def test_last_values_are_written_beside_the_curves(tmp_path, steps) -> None:
    """Two depths and two ways of drawing, each with its value; matplotlib notes its texts as comments."""
    plot_training([entry(10 * step, 1.5) for step in range(1, steps + 1)], tmp_path / "report.svg")
    drawn = (tmp_path / "report.svg").read_text(encoding="utf-8")
    for text in ("token 1: 0.40", "token 2: 0.25", "greedy: 1.50", "sampled: 1.50"):
        assert f"<!-- {text} -->" in drawn


def test_a_run_without_yields_is_drawn(tmp_path) -> None:
    """Where tokens per target call were not measured, the panel stays empty."""
    plot_training([entry(10, None)], tmp_path / "report.svg")
    drawn = (tmp_path / "report.svg").read_text(encoding="utf-8")
    assert "token 1: 0.40" in drawn
    assert "greedy" not in drawn
