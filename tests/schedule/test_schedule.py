"""Lengths from estimates and costs: what is chosen, what is learnt, what is never tried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import OptionError
from headstart.records import LONGEST_GAMMA, Round
from headstart.schedule import AdaptiveSchedule, Curve, PastAcceptance, RoundCosts, RunningAcceptance, RunningCosts, break_even


def costs(draft: float = 0.05, token: float = 0.05, *, overhead: float = 0.0, **more) -> RoundCosts:
    """A plain round costs 1; each drafted token `draft` to draft and `token` to score."""
    return RoundCosts(
        score=Curve(tokens=(1, 2), seconds=(1.0, 1.0 + token)),
        draft=Curve(tokens=(0, 1), seconds=(0.0, draft)),
        overhead=Curve(tokens=(0, 1), seconds=(overhead, 2 * overhead)),
        **more,
    )


def adaptive(measured: RoundCosts, *, learns: bool = False, **options) -> AdaptiveSchedule:
    return AdaptiveSchedule(RunningCosts(measured, learns=learns), **options)


def a_round(num_drafted: int, num_accepted: int, overlaps: tuple[float, ...] | None = None) -> Round:
    """As the loop records it; by default each judged position's overlap is whether it was kept."""
    judged = min(num_accepted + 1, num_drafted)
    shares = tuple(float(place < num_accepted) for place in range(judged))
    emitted = (0,) * (num_accepted + 1)
    return Round(
        draft=(0,) * num_drafted,
        num_accepted=num_accepted,
        emitted=emitted,
        num_cut=0,
        overlaps=shares if overlaps is None else overlaps,
    )


def play(schedule: AdaptiveSchedule, alpha: float, rounds: int, *, seed: int = 0, room: int = 1000) -> list[int]:
    """Lengths of `rounds` rounds of drafts of which each token is kept with probability `alpha`."""
    rng, lengths = np.random.default_rng(seed), []
    for _ in range(rounds):
        n = schedule.length(room, 1)
        kept = int(np.argmin([*(rng.random(n) < alpha), False]))
        schedule.saw(a_round(n, kept, (alpha,) * min(kept + 1, n)), drafted=[n], seconds=0.0)
        lengths.append(n)
    return lengths


def test_curves_go_through_their_points_and_beyond() -> None:
    """Linear between, the last slope beyond, level before the first and where the slope falls."""
    curve = Curve.of({4: 6.0, 1: 3.0})
    assert [curve(n) for n in (0, 1, 2, 4, 6)] == [3.0, 3.0, 4.0, 6.0, 8.0]
    assert Curve(tokens=(1, 2), seconds=(3.0, 2.0))(5) == 2.0
    assert Curve(tokens=(1,), seconds=(3.0,))(5) == 3.0
    assert Curve.from_json(curve.to_json()) == curve
    for tokens, seconds in [((), ()), ((1, 1), (1.0, 1.0)), ((-1,), (1.0,)), ((1,), (float("nan"),)), ((1,), (1.0, 2.0))]:
        with pytest.raises(OptionError, match="`curve` must"):
            Curve(tokens=tokens, seconds=seconds)


def test_round_costs_add_up() -> None:
    """Draft, one pass and the rest; a batch scores all its tokens in one pass and pays the rest as its plain pass grows."""
    one = costs(0.3, 0.1, overhead=0.01)
    assert one.plain == pytest.approx(1.01)
    assert one.round(2) == pytest.approx(1.2 + 0.6 + 0.03)
    assert one.round(2, 4) == pytest.approx(1.0 + 1.1 + (0.6 + 0.03) * 1.3)
    assert one.cost_ratio == pytest.approx(0.3)
    assert RoundCosts.from_json(one.to_json()) == one
    with pytest.raises(OptionError, match="`batch` must be 1 or more, got 0"):
        costs(batch=0)
    with pytest.raises(OptionError, match="`open_per_token`"):
        costs(open_per_token=-1.0)


def test_break_even() -> None:
    """1 + α = cost(1)/cost(0) at one token; nothing needed where drafting is free; None where it cannot pay."""
    assert break_even([1.0, 1.25]) == pytest.approx(0.25)
    assert break_even([1.0, 1.9, 1.5]) == pytest.approx(0.3660254)  # 1 + α + α² = 1.5
    assert break_even([1.0, 1.0]) == 0.0
    assert break_even([1.0, 2.0, 3.5]) is None
    assert "from an acceptance rate of 0.10; not tried yet" in adaptive(costs(0.05, 0.05)).report().why


def test_acceptance_moves_from_the_guess_to_what_is_seen() -> None:
    """By position, pulled to the pooled share, older rounds counting less."""
    seen = RunningAcceptance(3, guess=0.5, weight=2.0, pull=3.0)
    assert seen.chances() == pytest.approx([0.5, 0.25, 0.125])
    for _ in range(200):
        seen.saw([0.9, 0.2])
    chances = seen.chances()
    assert chances[0] == pytest.approx(0.9, abs=0.04)
    assert chances[1] / chances[0] == pytest.approx(0.2, abs=0.04)
    assert chances[2] / chances[1] == pytest.approx(0.55, abs=0.03)  # never seen there: what is usual elsewhere
    for _ in range(100):
        seen.saw([0.1])
    assert seen.chances()[0] == pytest.approx(0.1, abs=0.1)


def after_a_loop_begins(**options) -> float:
    """The believed chance of a first token, three rounds into a spell in which all is kept, after forty in which little was."""
    seen = RunningAcceptance(4, **options)
    for spell in range(5):
        for _ in range(40):
            seen.saw([0.0])
        for _ in range(3 if spell == 4 else 12):
            seen.saw([1.0, 1.0, 1.0], whole=True)
    return seen.chances()[0]


def test_spells_are_told_apart() -> None:
    """After whole drafts it is believed what was seen after whole drafts; without that, three rounds change little."""
    assert after_a_loop_begins() > 0.65
    assert after_a_loop_begins(spell_pull=1e9) < 0.5


def test_a_position_that_was_never_reached_is_like_the_one_before() -> None:
    """All of three tokens kept, again and again, after much that was not: the fourth is worth a try; where it was tried and
    never kept, it is not."""
    seen, tried = RunningAcceptance(4), RunningAcceptance(4)
    for _ in range(40):
        seen.saw([0.0])
        tried.saw([1.0, 1.0, 1.0, 0.0])
    for _ in range(15):
        seen.saw([1.0, 1.0, 1.0], whole=True)
        tried.saw([1.0, 1.0, 1.0, 0.0])
    assert seen.chances()[3] / seen.chances()[2] > 0.7
    assert tried.chances()[3] / tried.chances()[2] < 0.3


@pytest.mark.parametrize(("alpha", "draft", "token"), [(0.9, 0.05, 0.05), (0.5, 0.05, 0.05), (0.8, 0.2, 0.1), (0.3, 0.02, 0.02)])
def test_the_length_settles_at_the_best(alpha, draft, token) -> None:
    """With a constant chance it ends within one of the length that maximises E/cost, or gives at least 98 % of it."""
    lengths = play(adaptive(costs(draft, token)), alpha, 300)
    rates = [(1 - alpha ** (n + 1)) / (1 - alpha) / (1 + n * (draft + token)) for n in range(LONGEST_GAMMA + 1)]
    assert np.mean([rates[n] for n in lengths[100:]]) >= 0.98 * max(rates)


@pytest.mark.parametrize("draft", [0.05, 0.3, 0.6])
def test_what_does_not_pay_costs_next_to_nothing(draft) -> None:
    """Drafts that are never kept: over 256 rounds the schedule loses under 1.7 % against plain decoding."""
    schedule = adaptive(costs(draft, 0.05))
    lengths = play(schedule, 0.0, 256)
    lost = sum(n * (draft + 0.05) for n in lengths)
    assert 0 < lost < 0.017 * 256
    assert not schedule.report().active
    assert "expected to give" in schedule.report().why or "kept too seldom" in schedule.report().why


@pytest.mark.parametrize("reading", [0.0, 0.04])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    kept=st.lists(st.integers(0, 8), min_size=256, max_size=256),
    draft=st.floats(0.0, 0.9),
    token=st.floats(0.0, 0.4),
    least=st.integers(0, 8),
)
def test_whatever_is_kept_the_loss_is_bounded(reading, kept, draft, token, least) -> None:
    """For every text and every cost, at every round: behind plain decoding by 2.5 rounds and 0.7 % of the rounds at most.

    `kept` is chosen by an adversary, who may keep everything until the schedule trusts the drafter (`least`) and nothing then."""
    schedule = adaptive(costs(draft, token, open_per_token=reading))
    behind, missed = 0.0, 0
    for place, most in enumerate(kept):
        n = schedule.length(1000, 1)
        accepted = min(n, 8 if place < least else most if place % 3 else 0)
        schedule.saw(a_round(n, accepted), drafted=[n], seconds=0.0)
        behind += n * (draft + token) + (missed * reading if n else 0.0) - accepted
        missed = 0 if n else missed + 1
        assert behind <= 2.5 + 0.007 * (place + 1) + 1e-9


def test_twin_without_the_account() -> None:
    """A schedule that goes by its estimates alone loses more than that where overlaps promise what the drafts do not keep."""
    bound = 2.5 + 0.007 * 400
    for most_lost, within in ((2.5, True), (1e9, False)):
        schedule = adaptive(costs(0.5, 0.1), most_lost=most_lost)
        schedule._account.begin(1000)
        schedule._account.left = most_lost
        behind = 0.0
        for place in range(400):
            n = schedule.length(1000, 1)
            accepted = n if place % 5 < 2 else 0
            schedule.saw(a_round(n, accepted, (0.9,) * min(n, accepted + 1)), drafted=[n], seconds=0.0)
            behind += n * 0.6 - accepted
        assert (behind <= bound) == within, behind


def test_short_texts_may_lose_less() -> None:
    """An answer of twenty tokens starts with an account of half a plain round: a draft that could cost more is not made."""
    assert [adaptive(costs(0.2, 0.08)).length(room, 1) for room in (20, 500)] == [1, 2]
    assert adaptive(costs(0.6, 0.05)).length(20, 1) == 0


def test_a_reader_too_far_behind_is_given_up() -> None:
    """A drafter that must read what it missed: tried while that is cheap, never again when it costs more than may be lost."""
    schedule = adaptive(costs(0.4, 0.05, open_per_token=0.05))
    lengths = play(schedule, 0.0, 2000)
    tries = [place for place, n in enumerate(lengths) if n]
    assert len(tries) > 1
    assert max(tries) < 200
    assert schedule._parts[0]._pause > 10**8


def test_what_earlier_texts_kept_is_where_a_text_begins() -> None:
    """A drafter that was never right is not begun with; one that always was begins with longer drafts; this text is told of."""
    never, always = PastAcceptance(kept=0.0, tried=100.0), PastAcceptance(kept=100.0, tried=100.0)
    measured = costs(0.2, 0.05)
    assert adaptive(measured, pasts=[never]).length(1000, 1) == 0
    assert adaptive(measured, pasts=[always]).length(1000, 1) > adaptive(measured).length(1000, 1)
    play(adaptive(measured, pasts=[always]), 0.0, 300)
    assert always.guess < 0.9
    assert PastAcceptance().guess == pytest.approx(0.6)
    assert PastAcceptance(kept=300.0, tried=300.0, most=10.0).guess < 1


def test_what_a_text_gained_the_next_may_risk() -> None:
    """After a text in which everything was kept a short one may draft more at first, and so lose 3 % of itself; a text that
    loses leaves nothing."""
    measured = costs(0.4, 0.05)
    past = PastAcceptance(kept=90.0, tried=100.0)
    assert adaptive(measured, pasts=[past]).length(64, 1) < adaptive(measured, pasts=[past]).length(1000, 1)
    for _ in range(3):
        play(adaptive(measured, pasts=[past]), 1.0, 40)
    assert past.saved == pytest.approx(12.0)
    past = PastAcceptance(kept=90.0, tried=100.0, saved=past.saved)
    following = adaptive(measured, pasts=[past])
    assert following.length(64, 1) == adaptive(measured, pasts=[past]).length(1000, 1)
    assert following._account.left == pytest.approx(0.03 * 64)
    play(following, 0.0, 40)
    assert past.saved < 0.5


def test_a_guess_from_many_texts_is_not_given_up_for_one_round() -> None:
    """One miss at the beginning of a text moves a guess that rests on 200 positions less than one that rests on none."""
    known, unknown = PastAcceptance(kept=120.0, tried=200.0), PastAcceptance()
    assert known.guess == pytest.approx(unknown.guess)
    assert (known.weight, unknown.weight) == (30.0, 10.0)
    after = []
    for past in (known, unknown):
        accepted = RunningAcceptance(8, guess=past.guess, weight=past.weight)
        accepted.saw([0.0])
        after.append(accepted.chances()[1])
    assert after[0] > after[1]


def test_it_comes_back_when_the_text_changes() -> None:
    """After 200 rounds in which nothing is kept, everything is: within 150 rounds it drafts nearly always."""
    schedule = adaptive(costs(0.1, 0.05))
    play(schedule, 0.0, 200)
    assert np.mean([n > 0 for n in play(schedule, 1.0, 200)[150:]]) > 0.9
    assert schedule.report().active


def test_what_cannot_pay_is_never_tried() -> None:
    """A draft step as dear as a plain one: not one draft, at any batch, and the report says why."""
    schedule = adaptive(costs(1.0, 0.05), names=["model:twin"])
    assert play(schedule, 1.0, 100) == [0] * 100
    assert schedule.report().why == "model:twin cannot pay here, even if every drafted token were kept"


def test_a_batch_changes_what_pays() -> None:
    """Where scoring is nearly free for one sequence and not for eight, eight draft nothing."""
    measured = RoundCosts(
        score=Curve(tokens=(1, 8, 64), seconds=(1.0, 1.1, 16.0)),
        draft=Curve(tokens=(0, 1), seconds=(0.0, 0.02)),
        overhead=Curve(tokens=(0,), seconds=(0.0,)),
    )
    schedule = adaptive(measured)
    assert schedule.length(100, 1) > 0
    assert schedule.length(100, 8) == 0


def test_reading_the_prompt_must_be_worth_it() -> None:
    """A drafter that needs ten plain rounds to read the prompt is not opened for a short answer, but for a long one."""
    measured = costs(0.1, 0.05, open_per_token=0.1)
    assert adaptive(measured, num_prompt=100).length(8, 1) == 0
    assert adaptive(measured, num_prompt=100).length(200, 1) > 0
    assert adaptive(measured, num_prompt=0).length(8, 1) > 0


def test_room_is_kept_to() -> None:
    """Never more than may still be emitted, never more than the longest."""
    schedule = adaptive(costs(0.0, 0.01), longest=5)
    assert [schedule.length(room, 1) for room in (-1, 0, 1, 2, 5, 50)] == [0, 0, 1, 2, 5, 5]
    with pytest.raises(OptionError, match="`longest` must be 1 or more, got 0"):
        adaptive(costs(), longest=0)


def test_a_lossy_rule_is_learnt_from_what_was_kept() -> None:
    """`counts`: overlaps are not what it accepts by."""
    by_count, by_overlap = adaptive(costs(), counts=True), adaptive(costs())
    for schedule in (by_count, by_overlap):
        for _ in range(30):
            schedule.saw(a_round(2, 0, (0.9,)), drafted=[2], seconds=0.0)
    assert not by_count.report().active
    assert by_overlap.report().active


def test_rules_that_walk_keep_a_learnt_share_of_the_overlap() -> None:
    """`match` and `coupled` keep less than rows overlap: by how much is learnt, over texts, and then each overlap tells more than
    one token kept or not. Nothing is learnt of it where nothing was judged."""
    past = PastAcceptance()
    assert past.kept_of_overlap == 1.0
    for _ in range(100):  # half of what overlaps by .8 is kept: .625 of it
        for kept in (1, 0):
            adaptive(costs(), pasts=[past], walks=True).saw(a_round(1, kept, (0.8,)), drafted=[1], seconds=0.0)
    assert past.kept_of_overlap == pytest.approx((10 + 100) / (10 + 160))
    assert past.guess == pytest.approx(0.5, abs=0.07)
    before = past.kept_of_overlap
    adaptive(costs(), pasts=[past], walks=True).saw(a_round(0, 0, ()), drafted=[0], seconds=0.0)
    assert past.kept_of_overlap == before
    past.saw_walk([True] * 1000, [0.9] * 1000)
    assert past.kept_of_overlap == 1.0  # never more than all
    assert past.covered == pytest.approx(200.0)
    learnt = []
    for schedule in (adaptive(costs(), walks=True), adaptive(costs(), counts=True)):  # ten misses of rows that nearly agree
        for _ in range(10):
            schedule.saw(a_round(1, 0, (0.9,)), drafted=[1], seconds=0.0)
        learnt.append(schedule._parts[0].accepted.chances()[0])
    assert learnt[0] > learnt[1] + 0.15


def test_a_draft_found_too_dear_on_the_way_is_turned_off() -> None:
    """Measured cheap, but on the clock a drafted token costs more than it can give: soon plain."""
    schedule = adaptive(costs(0.01, 0.01), learns=True)
    lengths = []
    for _ in range(120):
        n = schedule.length(1000, 1)
        schedule.saw(a_round(n, n), drafted=[n], seconds=1.0 + 1.5 * n)
        lengths.append(n)
    assert np.mean([n > 0 for n in lengths[60:]]) < 0.1


def two(first: RoundCosts, second: RoundCosts, **options) -> AdaptiveSchedule:
    return AdaptiveSchedule(RunningCosts(first, second, learns=False), names=["a", "b"], **options)


def drafted_by(part: int, num_drafted: int, num_accepted: int) -> Round:
    return replace(a_round(num_drafted, num_accepted), part=part)


def test_each_of_two_drafters_finds_its_own_length() -> None:
    """One is kept to the end and costs nothing, the other is right every other time and is dear: long drafts and short ones."""
    schedule = two(costs(0.0, 0.05), costs(0.15, 0.05))
    rng = np.random.default_rng(0)
    for turn in range(200):
        longest = schedule.length(1000, 1)
        limits = schedule.limits()
        assert longest == max(limits)
        part = turn % 2
        n = limits[part]
        kept = n if part == 0 else int(np.argmin([*(rng.random(n) < 0.5), False]))
        schedule.saw(drafted_by(part, n, kept), drafted=[n], seconds=0.0)
    assert schedule.limits()[0] >= 6
    assert 1 <= schedule.limits()[1] <= 2
    assert schedule.report().why.startswith("a is expected to give")
    assert "; b is expected to give" in schedule.report().why
    assert schedule.report().rounds_drafted == 200


def test_one_of_two_drafters_is_turned_off() -> None:
    """What is never kept is asked for a few times only; the other goes on."""
    schedule = two(costs(0.0, 0.05), costs(0.3, 0.05))
    asked = 0
    for turn in range(200):
        schedule.length(1000, 1)
        part = turn % 2
        n = schedule.limits()[part]
        asked += part == 1 and n > 0
        schedule.saw(drafted_by(part, n, n if part == 0 else 0), drafted=[n], seconds=0.0)
    assert asked < 20
    assert schedule.limits()[0] > 3
    assert schedule.report().active


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    kept=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8)), min_size=256, max_size=256),
    draft=st.tuples(st.floats(0.0, 0.9), st.floats(0.0, 0.9)),
    token=st.floats(0.0, 0.4),
    reading=st.sampled_from([0.0, 0.04]),
    least=st.integers(0, 8),
)
def test_two_drafters_share_one_account(kept, draft, token, reading, least) -> None:
    """The bound of one drafter, whoever drafts: behind plain decoding by 2.5 rounds and 0.7 % of the rounds at most. The second
    reads what was emitted while the first drafted."""
    schedule = two(costs(draft[0], token), costs(draft[1], token, open_per_token=reading))
    behind, missed = 0.0, 0
    for place, (part, most) in enumerate(kept):
        schedule.length(1000, 1)
        n = schedule.limits()[part]
        accepted = min(n, 8 if place < least else most if place % 3 else 0)
        schedule.saw(drafted_by(part, n, accepted), drafted=[n], seconds=0.0)
        reads = n > 0 and part == 1
        behind += n * (draft[part] + token) + (missed * reading if reads else 0.0) - accepted
        missed = 0 if reads else missed + accepted + 1
        assert behind <= 2.5 + 0.007 * (place + 1) + 1e-9


def test_names_must_match_the_costs() -> None:
    """One name for each drafter with costs."""
    with pytest.raises(OptionError, match="`names` must name the 2 drafters with costs, one with trees, got 1"):
        AdaptiveSchedule(RunningCosts(costs(), costs()))
