"""`gamma="auto"` from the outside: what is reported, who measures, what is the same."""

from __future__ import annotations

import json

import pytest

from headstart.drafters import ModelDrafter, NGramDrafter
from headstart.generation import LLM
from headstart.schedule import Curve, RoundCosts
from tests.decode.loops import random_model

VOCAB = 12


def costs(draft: float) -> RoundCosts:
    return RoundCosts(
        score=Curve(tokens=(1, 2), seconds=(1e-4, 1.05e-4)),
        draft=Curve(tokens=(0, 1), seconds=(0.0, draft * 1e-4)),
        overhead=Curve(tokens=(0,), seconds=(1e-6,)),
    )


def llm(draft: float = 0.05, **more) -> LLM:
    return LLM(random_model(1, VOCAB), ModelDrafter(random_model(2, VOCAB), "model:small"), costs=costs(draft), **more)


def test_the_report_says_whether_and_why() -> None:
    """In the output and its JSON: rounds with and without drafts add up, the reason names the drafter."""
    out = llm().generate([0], gamma="auto", max_tokens=60, temperature=1.0)
    document = json.loads(json.dumps(out.to_json()))
    assert document["gamma"] == "auto"
    assert document["schedule"]["rounds_drafted"] + document["schedule"]["rounds_plain"] == out.stats.num_rounds
    assert "model:small" in document["schedule"]["why"]
    assert document["schedule"]["estimated_speedup"] == pytest.approx(out.stats.tokens_per_second * out.schedule.plain_seconds)
    fixed = llm().generate([0], gamma=3, max_tokens=6)
    assert fixed.schedule is None
    assert "schedule" not in fixed.to_json()


def test_off_from_the_start() -> None:
    """A draft that cannot pay: plain rounds, and the reason."""
    out = llm(draft=2.0).generate([0], gamma="auto", max_tokens=30)
    assert out.stats.num_drafted == 0
    assert out.schedule.why == "model:small cannot pay here, even if every drafted token were kept"
    assert not out.schedule.active


def test_greedy_and_seeded_text_is_plain_decodings() -> None:
    """Same tokens as without a drafter, at temperature 0 and with a seed."""
    one = llm()
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 4}):
        plain = one.with_drafter(NGramDrafter(VOCAB)).generate([0, 1], gamma=1, max_tokens=80, **options)
        assert one.generate([0, 1], gamma="auto", max_tokens=80, **options).token_ids == plain.token_ids


def test_every_sequence_of_a_list_has_its_own_schedule() -> None:
    """Side by side; each report counts its own rounds."""
    outs = llm().generate([[0], [1, 2], [3]], gamma="auto", max_tokens=20)
    for out in outs:
        assert out.schedule.rounds_drafted + out.schedule.rounds_plain == out.stats.num_rounds


def test_without_costs_they_are_measured_once() -> None:
    """At the first generation that needs them; fixed lengths need none."""
    calls = []
    one = LLM(random_model(1, VOCAB), NGramDrafter(VOCAB))
    one.generate([0], gamma=2, max_tokens=4)
    running = one.round_costs(progress=lambda stage, fraction: calls.append(stage))
    assert set(calls) == {"timing rounds", "timing passes"}
    assert one.round_costs() is running
    one.generate([0], gamma="auto", max_tokens=4)
    assert running.measured.draft.tokens == (0, 1, 2, 4, 7, 8)


def test_plain_decoding_needs_no_costs() -> None:
    """With no drafter there is nothing to schedule."""
    out = LLM(random_model(1, VOCAB)).generate([0], gamma="auto", max_tokens=4)
    assert out.schedule is None
