"""Measured costs: every part is timed for what it is, lengths take turns, and what is kept is only read for the same key."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from headstart.costs import MeasuredRounds, Pacer, find_costs, find_past, keep_costs, measure_passes, measure_rounds
from headstart.decode import Decoder
from headstart.drafters import CombinedDrafter, ModelDrafter, NGramDrafter, NoDrafter, SuffixDrafter
from headstart.errors import OptionError
from headstart.records import Options, Round, Sampling
from headstart.schedule import Curve, RoundCosts
from headstart.verify import rule_named
from tests.decode.loops import random_model, request

VOCAB = 40


class Watch:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """A table whose passes take a stated time on `watch`, and that notes how many tokens each of them scored."""

    def __init__(self, per_pass: float, per_token: float, watch: Watch | None = None, *, context_limit: int = 4096) -> None:
        self._model = random_model(1, VOCAB, context_limit=context_limit)
        self.vocab_size, self.context_limit = VOCAB, context_limit
        self._per_pass, self._per_token, self._watch = per_pass, per_token, watch or Watch()
        self.passes: list[list[int]] = []

    def open(self):
        return self._model.open()

    def score(self, asks):
        self.passes.append([len(ask.tokens) for ask in asks])
        self._watch.now += self._per_pass + self._per_token * sum(len(ask.tokens) for ask in asks)
        return self._model.score(asks)


def test_passes_of_a_batch() -> None:
    """k tokens for each sequence of the batch, in one pass, 1 always among them; caches are left as they were."""
    model = Slow(0.0, 0.0)
    found = measure_passes(model, [3], context=5, batch=2, repeats=2)
    assert sorted(found.milliseconds) == [1, 3]
    assert model.passes == [[5], [5], *[[1, 1], [3, 3]] * 3]
    with pytest.raises(OptionError, match="`batch` must be 1 or more, got 0"):
        measure_passes(model, [3], batch=0)


def test_every_part_is_timed_for_what_it_is(monkeypatch) -> None:
    """A target and a draft model of known prices: exactly their curves, and nothing left over for the rest."""
    watch = Watch()
    monkeypatch.setattr("headstart.decode.perf_counter", watch)
    target, small = Slow(4.0, 0.25, watch), Slow(0.5, 0.125, watch)
    found = measure_rounds(target, ModelDrafter(small), (1, 3), context=20, repeats=3, clock=watch).costs
    assert [found.score(k) for k in (1, 2, 4)] == pytest.approx([4.25, 4.5, 5.0])
    # One token a pass, and now and then the second that a fully accepted draft leaves behind.
    assert found.draft(3) in (pytest.approx(3 * 0.625), pytest.approx(3 * 0.625 + 0.125))
    assert found.overhead(3) == 0.0
    assert found.open_per_token == pytest.approx((0.5 + 19 * 0.125) / 20)
    assert found.round(1) == pytest.approx(4.5 + 0.625, abs=0.126)


@pytest.mark.parametrize("drafter", [NGramDrafter(VOCAB), ModelDrafter(random_model(2, VOCAB))], ids=["ngram", "model"])
@pytest.mark.parametrize(("rule", "temperature"), [("block", 0.0), ("token", 1.0), ("coupled", 1.0)])
def test_full_drafts_are_measured_for_every_drafter(drafter, rule, temperature) -> None:
    """The repeating text gives a look-up something to find at every length; costs are there for each."""
    sampling = Sampling(temperature=temperature)
    found = measure_rounds(random_model(1, VOCAB), drafter, (1, 2, 5), context=60, repeats=2, rule=rule, sampling=sampling)
    assert found.costs.draft.tokens == (0, 1, 2, 5)
    assert found.costs.overhead.tokens == (0, 1, 2, 5)
    assert set(found.spread) == {"draft", "overhead", "score"}


def test_lengths_take_turns() -> None:
    """Rounds of 0, 1 and 4 drafted tokens follow one another, repeat after repeat, for every sequence of the batch at once."""
    model = Slow(0.0, 0.0)
    measure_rounds(model, NGramDrafter(VOCAB), (4, 1), context=60, batch=2, repeats=2)
    rounds = [sizes for sizes in model.passes if len(sizes) == 2 and sizes[0] < 10]
    assert rounds[:27] == [[size] * 2 for size in (1, 1, 1, 2, 2, 2, 5, 5, 5)] * 3


def test_patience_ends_a_measurement(monkeypatch) -> None:
    """After so many seconds no further repeat begins, whatever was asked for; one repeat is always made."""
    watch = Watch()
    monkeypatch.setattr("headstart.decode.perf_counter", watch)
    slow = Slow(100.0, 0.0, watch)
    found = measure_rounds(slow, NGramDrafter(VOCAB), (2,), context=60, repeats=50, clock=watch, patience=1.0)
    assert found.costs.score(1) == 100.0
    assert len(slow.passes) < 50


def test_no_drafter_and_short_contexts() -> None:
    """Plain rounds cost their overhead; a short context is begun again when it is full, one too short is refused."""
    assert measure_rounds(random_model(1, VOCAB), NoDrafter(), (2,), context=9, repeats=2).costs.draft.tokens == (0,)
    short = Slow(0.0, 0.0, context_limit=24)
    found = measure_rounds(short, ModelDrafter(random_model(2, VOCAB)), (1, 8), repeats=4)
    assert found.context == 5
    assert found.costs.draft.tokens == (0, 1, 8)
    with pytest.raises(OptionError, match="`gammas` up to 8 do not fit a context of 20"):
        measure_rounds(Slow(0.0, 0.0, context_limit=20), NoDrafter(), (8,))
    with pytest.raises(OptionError, match="`gammas` must be lengths of 1 or more"):
        measure_rounds(short, NoDrafter(), (0, 1))


GIVEN = RoundCosts(
    score=Curve(tokens=(1, 2), seconds=(1.0, 1.1)),
    draft=Curve(tokens=(0, 1), seconds=(0.0, 0.1)),
    overhead=Curve(tokens=(0,), seconds=(0.0,)),
)
COSTS = MeasuredRounds(costs=GIVEN, plain_pass=1.0, context=9, repeats=3, spread={"score": {1: 0.1, 2: 0.2}})


def test_costs_measured_apart_are_set_side_by_side() -> None:
    """Measured again on a machine that had become half as fast: draft and rest are halved, the pass is the first one's."""
    slow = replace(GIVEN, score=GIVEN.score.scaled(2.0), draft=GIVEN.draft.scaled(2.0), open_per_token=4.0)
    found = replace(COSTS, costs=slow, plain_pass=2.0).beside(COSTS)
    assert found.costs == replace(GIVEN, open_per_token=2.0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADSTART_COSTS", str(tmp_path / "costs"))
    return tmp_path / "costs"


def test_costs_are_kept_by_their_key(folder) -> None:
    """The same key finds them; another file date, thread number or version does not."""
    key = {"target": ["a.gguf", 5, 7], "threads": 2, "version": "1"}
    assert find_costs(key) is None
    keep_costs(key, COSTS)
    assert find_costs(dict(reversed(key.items()))) == COSTS
    for other in ({**key, "target": ["a.gguf", 5, 8]}, {**key, "threads": 1}, {**key, "version": "2"}):
        assert find_costs(other) is None


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"key": 1, "costs": 2}', '{"key": {"a": 1}, "costs": {"batch": 1}}']
)
def test_a_file_that_cannot_be_read_is_not_there(folder, content) -> None:
    """Half a file, another version's file: measured again, never an error."""
    keep_costs({"a": 1}, COSTS)
    (file,) = folder.iterdir()
    file.write_text(content, encoding="utf-8")
    assert find_costs({"a": 1}) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch) -> None:
    """Costs are then measured each time."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HEADSTART_COSTS", str(tmp_path / "file" / "below"))
    keep_costs({"a": 1}, COSTS)
    assert find_costs({"a": 1}) is None


def test_a_pacer_measures_once_and_keeps_by_rule_and_sampling(folder) -> None:
    """Same object for the same kind of generation; kept for the next process; given costs are never measured."""
    pacer = Pacer(random_model(1, VOCAB), NGramDrafter(VOCAB), vocab_size=VOCAB, key={"file": 1})
    one = pacer.costs("block", greedy=True)
    assert pacer.costs("block", greedy=True) is one
    assert pacer.costs("block", greedy=False) is not one
    assert len(list(folder.iterdir())) == 2
    other = Slow(1.0, 1.0)
    again = Pacer(other, NGramDrafter(VOCAB), vocab_size=VOCAB, key={"file": 1})
    assert again.costs("block", greedy=True).measured == one.measured
    given = Pacer(other, NGramDrafter(VOCAB), vocab_size=VOCAB, given=GIVEN)
    running = given.costs("match", greedy=False)
    assert running.measured == GIVEN
    assert other.passes == []  # nothing was measured
    schedule = given.schedule(Options.of(rule="match", temperature=1.0), num_prompt=3, rule=rule_named("match"))
    assert schedule.report().why.startswith("ngram pays here")


def test_what_was_kept_is_where_the_next_run_begins(folder) -> None:
    """A drafter that was never right is not begun with in the next process; measured again, all of it is forgotten."""
    pacer = Pacer(random_model(1, VOCAB), NGramDrafter(VOCAB), vocab_size=VOCAB, key={"file": 1})
    pacer.costs("block", greedy=True)
    for _ in range(9):
        pacer._pasts["block", True][0].saw([0.0, 0.0])
    pacer._pasts["block", True][0].saved = 3.5
    pacer._pasts["block", True][0].saw_walk([True, False], [0.75, 0.75])
    pacer.keep(Options())
    again = Pacer(Slow(1.0, 1.0), NGramDrafter(VOCAB), vocab_size=VOCAB, key={"file": 1})
    again.costs("block", greedy=True)
    assert again._pasts["block", True][0].guess == pytest.approx(6 / 28)
    assert again._pasts["block", True][0].saved == 3.5
    assert again._pasts["block", True][0].kept_of_overlap == pytest.approx(11 / 11.5)
    again.costs("block", greedy=True, refresh=True)
    assert again._pasts["block", True][0].guess == pytest.approx(0.6)
    assert find_past({"file": 2}).tried == 0


def test_of_combined_drafters_the_last_is_timed(monkeypatch) -> None:
    """A look-up in front, which always finds something on the text that rounds are timed on, does not hide a model's price."""
    watch = Watch()
    monkeypatch.setattr("headstart.decode.perf_counter", watch)
    target, small = Slow(4.0, 0.25, watch), Slow(0.5, 0.125, watch)
    drafter = CombinedDrafter(NGramDrafter(VOCAB), ModelDrafter(small))
    found = measure_rounds(target, drafter, (1, 3), context=20, repeats=3, clock=watch).costs
    assert found.draft(3) in (pytest.approx(3 * 0.625), pytest.approx(3 * 0.625 + 0.125))


def test_rounds_that_are_timed_leave_nothing_in_a_memory() -> None:
    """A drafter that remembers earlier outputs has none after its rounds were timed, alone and combined; in the loop it has."""
    for drafter in (SuffixDrafter(VOCAB, memory=100), CombinedDrafter(NGramDrafter(VOCAB), SuffixDrafter(VOCAB, memory=100))):
        one = drafter if isinstance(drafter, SuffixDrafter) else drafter.parts[-1]
        measure_rounds(random_model(1, VOCAB), drafter, (1, 2), context=40, repeats=2)
        assert one._memory.automata[0].num_tokens == 0
        for _ in Decoder(random_model(1, VOCAB), drafter).run([request((1, 2), vocab=VOCAB, max_tokens=9)]):
            pass
        assert one._memory.automata[0].num_tokens > 0


def test_each_drafter_in_a_row_has_costs_and_a_past_of_its_own(folder, monkeypatch) -> None:
    """A look-up that costs nothing, a model that does; both are measured once and kept, as is how far each was kept here."""
    watch = Watch()
    monkeypatch.setattr("headstart.decode.perf_counter", watch)
    monkeypatch.setattr("headstart.costs.pacer.measure_rounds", partial(measure_rounds, clock=watch))
    target, small = Slow(4.0, 0.25, watch), Slow(0.5, 0.125, watch)

    def pacer() -> Pacer:
        return Pacer(target, CombinedDrafter(NGramDrafter(VOCAB), ModelDrafter(small)), vocab_size=VOCAB, key={"file": 1})

    one = pacer()
    first, second = one.costs("block", greedy=True).parts
    assert (first.draft(4), second.draft(4) > 4 * 0.6) == (0.0, True)
    assert first.score == second.score
    schedule = one.schedule(Options(), num_prompt=3, rule=rule_named("block"))
    assert "ngram pays here" in schedule.report().why
    assert "; model pays here" in schedule.report().why
    for past, share in zip(one._pasts["block", True], (1.0, 0.0), strict=True):
        for _ in range(30):
            past.saw([share])
    one.keep(Options())
    passes = len(target.passes)
    again = pacer()
    assert again.costs("block", greedy=True).parts == (first, second)
    assert len(target.passes) == passes
    guesses = [past.guess for past in again._pasts["block", True]]
    assert guesses == [pytest.approx(36 / 40), pytest.approx(6 / 40)]
    trees = again.schedule(Options(tree="auto"), num_prompt=3, rule=rule_named("token"))
    assert trees.report().why.startswith("ngram+model pays here")


@pytest.mark.parametrize(("gamma", "kept"), [(1, {0, 1}), (3, {1, 2}), (4, {2})])
def test_half_of_what_a_model_drafts_is_kept_while_it_is_timed(monkeypatch, gamma: int, kept: set[int]) -> None:
    """It reads what was kept, as in any text; what a look-up finds in the text that repeats is kept whole."""
    seen: dict[str, set[int]] = {"model": set(), "ngram": set()}
    run = Decoder.round

    def noting(self, requests) -> None:
        run(self, requests)
        if requests[0].rounds[-1].draft:
            seen[self.drafter.name].add(requests[0].rounds[-1].num_accepted)

    monkeypatch.setattr(Decoder, "round", noting)
    for drafter in (ModelDrafter(random_model(2, VOCAB)), NGramDrafter(VOCAB)):
        measure_rounds(random_model(1, VOCAB), drafter, (gamma,), context=60, repeats=4, sampling=Sampling(temperature=0.0))
    assert seen == {"model": kept, "ngram": {gamma}}


def test_a_drafter_that_is_short_is_asked_for_no_more(folder) -> None:
    """Heads that can draft two tokens are not believed to draft eight."""

    class Two(ModelDrafter):
        longest = 2

    for drafter, most in (
        (Two(random_model(2, VOCAB)), 2),
        (CombinedDrafter(NGramDrafter(VOCAB), Two(random_model(2, VOCAB))), 2),
    ):
        pacer = Pacer(random_model(1, VOCAB), drafter, vocab_size=VOCAB, given=GIVEN)
        schedule = pacer.schedule(Options(), num_prompt=3, rule=rule_named("block"))
        for _ in range(30):
            schedule.length(1000, 1)
            n = schedule.limits()[-1]
            done = Round(draft=(0,) * n, num_accepted=n, emitted=(0,) * (n + 1), num_cut=0, part=len(schedule.limits()) - 1)
            schedule.saw(done, drafted=[n], seconds=0.0 if n else 1.0)
            assert n <= most
        assert schedule.limits()[-1] == most
