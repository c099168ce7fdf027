"""Costs learnt from the clock: what is told apart, what is believed, and how soon. All chance is from fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.schedule import RunningCosts, clock
from tests.schedule.test_schedule import costs

ROUNDS = 500


def relative(running: RunningCosts, batch: int = 1, part: int = 0) -> np.ndarray:
    """[lengths]: cost beside a plain round's."""
    seconds = np.array(running.rounds(8, batch, part)[:9])
    return seconds / seconds[0]


def test_a_slow_machine_slows_everything() -> None:
    """Plain rounds that take twice as long say so of all others; the first one is believed at once."""
    running = RunningCosts(costs(0.1, 0.1))
    assert running.rounds(2, 1)[:3] == pytest.approx([1.0, 1.2, 1.4])
    for _ in range(3):
        assert running.wants_plain(1)
        running.saw([0], 2.0)
        assert running.rounds(2, 1)[:3] == pytest.approx([2.0, 2.4, 2.8])
    assert not running.wants_plain(1)
    assert running.rounds(12, 1)[12] == pytest.approx(2 * running.measured.round(12, 1))


def test_rounds_that_differ_within_a_pass_teach_nothing() -> None:
    """Nor do those of no length, and each batch size is its own."""
    running = RunningCosts(costs(0.1, 0.1))
    for _ in range(9):
        running.saw([2, 1], 99.0)
        running.saw([2], 0.0)
    assert running.rounds(2, 2)[:3] == pytest.approx([running.measured.round(n, 2) for n in range(3)])
    assert running.rounds(2, 1)[:3] == pytest.approx([1.0, 1.2, 1.4])
    for _ in range(9):
        running.saw([0, 0], 7.0)
    assert running.rounds(2, 1)[0] == 1.0


def test_curves_that_stand() -> None:
    """With `learns` off the clock is not looked at, and no plain round is asked for."""
    fixed = RunningCosts(costs(0.1, 0.1), learns=False)
    for _ in range(9):
        fixed.saw([0], 9.0)
    assert fixed.rounds(1, 1)[:2] == pytest.approx([1.0, 1.2])
    assert not fixed.wants_plain(1)


def played(seed: int, *, wrong: float, minutes: float) -> tuple[float, int]:
    """Mean error of what rounds of one to three tokens are believed to cost beside plain ones (logarithms), and plain rounds.

    What was measured is wrong by a factor e^`wrong` in what drafts add. The machine changes its speed every `minutes` rounds by
    some 15 %, rounds are noisy and one in 25 takes half as long again."""
    rng = np.random.default_rng(seed)
    true = 1.0 + 0.16 * np.arange(9)
    running = RunningCosts(costs(0.08 * float(np.exp(wrong)), 0.08 * float(np.exp(wrong))))
    slowness, length, num_plain, errors = 0.0, 2, 0, []
    for turn in range(ROUNDS):
        if minutes and rng.random() < 1 / minutes:
            slowness = rng.normal(0, 0.15)
        if rng.random() < 0.1:
            length = int(rng.integers(1, 5))
        drafted = 0 if running.wants_plain(1) else length
        num_plain += drafted == 0
        outlier = 1.5 if rng.random() < 0.04 else 1.0
        running.saw([drafted], float(true[drafted] * np.exp(slowness + rng.normal(0, 0.06)) * outlier))
        if turn > 100:
            errors.append(np.abs(np.log(relative(running)[1:4] / true[1:4])).mean())
    return float(np.mean(errors)), num_plain


def errors(**case: float) -> tuple[float, float]:
    """Means over six machines."""
    found = np.array([played(seed, **case) for seed in range(6)])
    return float(found[:, 0].mean()), float(found[:, 1].mean())


@pytest.mark.parametrize("minutes", [0.0, 150.0], ids=["steady", "changing"])
@pytest.mark.parametrize("wrong", [0.1, -0.4, 0.7])
def test_what_drafts_cost_is_told_apart_from_how_slow_the_machine_is(wrong: float, minutes: float) -> None:
    """Within 4 % whatever was measured at first and however the machine changes, with one round in 25 plain at most."""
    error, num_plain = errors(wrong=wrong, minutes=minutes)
    assert error < 0.04
    assert num_plain < ROUNDS / 25


def test_twin_a_steady_machine_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where slowness is not believed to wander, plain rounds of a slow minute are held against drafts of a fast one."""
    for name in ("_WANDERS", "_JUMP"):
        monkeypatch.setattr(clock, name, 1e-6)
    assert errors(wrong=0.1, minutes=150.0)[0] > 0.05


@pytest.mark.parametrize("slope", [1.5, 0.6])
def test_costs_measured_far_too_low(slope: float) -> None:
    """Drafts that cost many times what was measured are found out within some sixty rounds."""
    running = RunningCosts(costs(0.01, 0.01))
    for _ in range(60):
        drafted = 0 if running.wants_plain(1) else 4
        running.saw([drafted], 1.0 + slope * drafted)
    assert relative(running)[4] == pytest.approx(1.0 + 4 * slope, rel=0.15)
    assert 1.0 + 2 * slope < relative(running)[3] < 1.0 + 4 * slope  # its neighbours are corrected, too
    assert running.rounds(8, 1)[0] == pytest.approx(1.0, rel=0.15)


def test_one_slow_moment_is_no_verdict() -> None:
    """A round that took five times as long changes little, also right after."""
    running = RunningCosts(costs(0.1, 0.1))
    for turn in range(30):
        running.saw([0 if turn < 6 else 2], 1.0 if turn < 6 else 1.4)
    before = relative(running)
    running.saw([2], 7.0)
    assert relative(running) == pytest.approx(before, rel=0.05)
    for _ in range(5):
        running.saw([2], 1.4)
    assert relative(running) == pytest.approx(before, rel=0.03)
    assert running.rounds(8, 1)[0] == pytest.approx(1.0, rel=0.15)


def test_reports_of_one_batch_count_as_one_round() -> None:
    """Four sequences that tell of the same rounds teach about as much as one that tells of them."""
    found = []
    for told in (1, 4):
        running = RunningCosts(costs(0.1, 0.1))
        first = [running.measured.round(n, told) for n in (0, 2)]
        for turn in range(24):
            for _ in range(told):
                running.saw([2 * (turn % 2)] * told, first[turn % 2] * (1.25 if turn % 2 else 1.0))
        found.append(relative(running, told)[2] * first[0] / first[1])
    assert found[0] == pytest.approx(found[1], rel=0.05)
    assert found[0] > 1.1


def test_every_drafter_has_costs_of_its_own() -> None:
    """A dear round with the second drafter says more of the second than of the first, and nothing of plain rounds."""
    running = RunningCosts(costs(0.0, 0.1), costs(0.2, 0.1))
    assert [round(running.rounds(2, 1, part)[2], 6) for part in (0, 1)] == [1.2, 1.6]
    for turn in range(60):
        plain = turn % 2 == 0
        running.saw([0 if plain else 2], 1.0 if plain else 2.0, part=1)
    first, second = relative(running, part=0)[2] / 1.2, relative(running, part=1)[2] / 1.6
    assert second == pytest.approx(1.25, rel=0.05)
    assert 1.0 < first < second
    assert running.rounds(8, 1, 0)[0] == pytest.approx(1.0, rel=0.05)
    assert running.measured is running.parts[1]


def test_a_batch_is_plain_as_seldom_as_one_sequence() -> None:
    """Every sequence of a batch reports each round: they are counted as one."""
    due = []
    for batch in (1, 8):
        running = RunningCosts(costs(0.1, 0.02))
        rounds = [running.measured.round(n, batch) for n in (0, 2)]
        for turn in range(200):
            drafted = 0 if running.wants_plain(batch) else 2
            if drafted == 0:
                due.append((batch, turn))
            for _ in range(batch):
                running.saw([drafted] * batch, rounds[drafted > 0])
    one, many = ([turn for size, turn in due if size == batch] for batch in (1, 8))
    assert one[:3] == many[:3] == [0, 1, 2]
    assert len(one) == pytest.approx(len(many), abs=3)
    assert len(one) < 12


def test_drafts_are_never_believed_cheaper_than_plain_rounds() -> None:
    """Plain rounds while something else had the machine, and none after: a draft is not four times as fast for it."""
    running = RunningCosts(costs(0.1, 0.1))
    for turn in range(40):
        running.saw([0 if turn < 3 else 2], 5.0 if turn < 3 else 1.4)
    assert min(relative(running)[1:]) >= 1.0
