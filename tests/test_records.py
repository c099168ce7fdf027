"""Frozen values: every bad value is one clear line naming its parameter; defaults are written once."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from headstart.errors import HeadstartError, OptionError
from headstart.records import Decision, Draft, Options, Round, Sampling, Seconds
from headstart.rows import Row

NAN, INF = float("nan"), float("inf")
ROW = Row.dense([0.5, 0.5, 0.0])

BAD = [
    *[("temperature", value) for value in (-0.1, NAN, INF, "1", None, True)],
    *[("top_k", value) for value in (-1, 2.0, "5", None, True)],
    *[("top_p", value) for value in (0, 0.0, 1.1, -0.2, NAN, "x", None)],
    *[("min_p", value) for value in (-0.1, 1.01, NAN, None)],
    *[("typical_p", value) for value in (0, 1.5, NAN, None)],
    *[("repetition_penalty", value) for value in (0, -1.0, INF, NAN, None)],
    *[("presence_penalty", value) for value in (INF, NAN, "1", None)],
    *[("frequency_penalty", value) for value in (INF, NAN, "1", None)],
    *[("min_tokens", value) for value in (-1, 1.5, None, True)],
    *[("ban", value) for value in ((-1,), (1.5,), "abc", ("a",), {1: 2}, None, 2.5, True)],
    *[("logit_bias", value) for value in ({-1: 1.0}, {"a": 1.0}, {1: NAN}, {1: -INF}, {1: "x"}, [(1, 2.0)], None)],
    *[("gamma", value) for value in (0, -3, 1.5, "four", True)],
    *[("rule", value) for value in ("tokens", "", 3)],
    *[("seed", value) for value in (-1, 2**63, 1.0, "7", True)],
    *[("max_tokens", value) for value in (0, -1, 1.5, None, True)],
    *[("stop", value) for value in (("",), (3,), 5, {"a": 1}, None, "")],
    *[("logprobs", value) for value in (-1, 1.5, True, "2")],
    *[("chat", value) for value in (1, "yes", 0)],
    *[("system", value) for value in (1, ("a",), True)],
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_every_bad_value_is_named(name, value) -> None:
    """One OptionError, one line, the parameter in backquotes; a ValueError too; the command line exits with 2."""
    with pytest.raises(OptionError, match=f"^`{name}` must be") as caught:
        Options.of(**{name: value})
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, HeadstartError)
    assert caught.value.exit_code == 2


def test_bad_values_are_shown_with_a_way_out() -> None:
    """The message holds the value, and says what to do instead where that is known."""
    with pytest.raises(OptionError, match=r"`gamma` must be 1 or more or 'auto', got 0; use --drafter none for plain decoding"):
        Options(gamma=0)
    with pytest.raises(OptionError, match=r"got -1; 0 is greedy"):
        Sampling(temperature=-1)
    with pytest.raises(OptionError, match=r"got -inf; use `ban` to forbid a token"):
        Sampling(logit_bias={3: -INF})


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("temprature", "temperature"),
        ("topk", "top_k"),
        ("max_token", "max_tokens"),
        ("gama", "gamma"),
        ("logitbias", "logit_bias"),
    ],
)
def test_unknown_options_suggest(wrong, hint) -> None:
    """A misspelt option is refused by name, with the nearest one."""
    for ask in (Options.of, Options().changed):
        with pytest.raises(OptionError, match=f"`{wrong}` is not an option; did you mean '{hint}'"):
            ask(**{wrong: 1})
    with pytest.raises(OptionError, match=r"`zzz` is not an option$"):
        Options.of(zzz=1)
    with pytest.raises(OptionError, match="`sampling` is not an option"):
        Options.of(sampling=Sampling())


def test_good_values_are_taken() -> None:
    """Limits of every range, single values for lists, and lists for tuples."""
    options = Options.of(temperature=2, top_p=1, min_p=1, typical_p=1.0, top_k=0, ban=[3, 4], stop="END", logprobs=0, seed=0)
    assert options.stop == ("END",)
    assert options.sampling.ban == (3, 4)
    assert Options.of(ban=7).sampling.ban == (7,)
    assert sorted(Options.of(ban={1, 2}).sampling.ban) == [1, 2]
    assert Options.of(stop=["a", "b"], gamma="auto").longest_draft == 8
    assert (Options().resolved_gamma, Options().longest_draft) == ("auto", 8)
    assert Options.of(seed=2**63 - 1, gamma=1, max_tokens=1).gamma == 1


def test_a_seed_that_needs_fixed_lengths_gets_them() -> None:
    """Automatic lengths follow the clock: with seed and temperature, a rule other than coupled drafts 4 unless told otherwise,
    and refuses auto; greedily, and under coupled, lengths change nothing."""
    for rule in ("token", "block", "match"):
        assert Options.of(seed=1, temperature=1.0, rule=rule).resolved_gamma == 4
        assert Options.of(seed=1, temperature=1.0, rule=rule, gamma=2).resolved_gamma == 2
        assert Options.of(seed=1, rule=rule).resolved_gamma == Options.of(temperature=1.0, rule=rule).resolved_gamma == "auto"
        with pytest.raises(OptionError, match=r"`seed` with rule .* and gamma 'auto' cannot promise the same text twice"):
            Options.of(seed=1, temperature=1.0, rule=rule, gamma="auto")
    assert Options.of(seed=1, temperature=1.0).resolved_gamma == "auto"
    assert Options.of(seed=1, temperature=1.0, rule="coupled").resolved_gamma == "auto"


def test_numbers_of_numpys_are_numbers() -> None:
    """They are taken where they fit, come out as Python's, and are refused where they do not."""
    options = Options.of(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint32(7), ban=np.array([1, 2]).tolist())
    assert options == Options.of(temperature=0.5, top_k=3, seed=7, ban=(1, 2))
    assert type(options.seed) is int
    json.dumps(options.to_json())
    for name, value in (
        ("top_k", np.float64(2)),
        ("temperature", np.float64("nan")),
        ("gamma", np.int64(0)),
        ("seed", np.bool_(1)),
    ):
        with pytest.raises(OptionError, match=f"`{name}`"):
            Options.of(**{name: value})


def test_min_tokens_fit_into_max_tokens() -> None:
    """A minimum over the maximum cannot be honoured."""
    assert Options.of(min_tokens=3, max_tokens=3).sampling.min_tokens == 3
    with pytest.raises(OptionError, match=r"`min_tokens` must be at most max_tokens \(2\), got 3"):
        Options.of(min_tokens=3, max_tokens=2)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({}, "block"),
        ({"temperature": 1.0}, "block"),
        ({"seed": 1}, "block"),
        ({"seed": 1, "temperature": 1.0}, "coupled"),
        ({"seed": 1, "temperature": 1.0, "gamma": 3}, "coupled"),
        ({"seed": 1, "temperature": 1.0, "gamma": 3, "rule": "token"}, "token"),
        ({"seed": 1, "temperature": 0.0, "rule": "match"}, "match"),
        ({"temperature": 1.0, "rule": "coupled"}, "coupled"),
    ],
)
def test_which_rule_is_in_force(asked, rule) -> None:
    """Block, unless a seed with temperature > 0 asks for the same text: then coupled."""
    assert Options.of(**asked).resolved_rule == rule


@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_a_seed_with_an_automatic_length_is_refused(rule) -> None:
    """The length of a draft moves the stream of draws: name `coupled` or a fixed gamma as the way out."""
    with pytest.raises(
        OptionError, match=r"`seed` with rule '" + rule + r"' and gamma 'auto'.*--rule coupled or a fixed --gamma"
    ):
        Options.of(seed=1, temperature=1.0, rule=rule, gamma="auto")
    assert Options.of(seed=1, temperature=1.0, rule=rule, gamma=4).resolved_rule == rule
    assert Options.of(seed=1, temperature=0.0, rule=rule, gamma="auto").resolved_rule == rule


def test_changed_keeps_the_rest() -> None:
    """Flat names reach both halves; the original is untouched."""
    first = Options.of(temperature=1.0, max_tokens=9)
    second = first.changed(top_k=5, gamma=2)
    assert (second.sampling.temperature, second.sampling.top_k, second.max_tokens, second.gamma) == (1.0, 5, 9, 2)
    assert first.sampling.top_k == 0


def test_json_is_flat_and_complete() -> None:
    """Every option by its flat name, in one order, ready for json."""
    flat = json.loads(json.dumps(Options.of(logit_bias={5: -1.0}, ban=[1], stop="x").to_json()))
    assert set(flat) == set(Options.names())
    assert flat["logit_bias"] == {"5": -1.0}
    assert (flat["ban"], flat["stop"]) == ([1], ["x"])
    assert len(Options.names()) == len(set(Options.names()))


def test_values_are_frozen_and_their_own() -> None:
    """No field can be set, and what was passed in can be changed afterwards without changing them."""
    bias = {1: 2.0}
    sampling = Sampling(logit_bias=bias)
    bias[1] = NAN
    assert sampling.logit_bias == {1: 2.0}
    for value, name in ((sampling, "top_k"), (Options(), "gamma"), (Draft(), "tokens"), (Seconds(), "draft")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 1)
    with pytest.raises(TypeError):
        Sampling(1.0)  # type: ignore[misc]


def test_a_draft_carries_the_rows_it_was_drawn_from() -> None:
    """One row a token, each giving its token a probability."""
    draft = Draft().then(ROW, 1).then(ROW, 0)
    assert (draft.tokens, len(draft)) == ((1, 0), 2)
    assert Draft.points([2, 0], 3).rows[0].to_array().tolist() == [0, 0, 1]
    with pytest.raises(OptionError, match="`draft` must carry one row a token, got 2 tokens and 1 rows"):
        Draft(tokens=(0, 1), rows=(ROW,))
    for token in (2, 3, -1):
        with pytest.raises(OptionError, match=f"`draft` token {token} at index 1 has no probability in its own row"):
            Draft().then(ROW, 0).then(ROW, token)


def test_a_round_knows_what_it_was() -> None:
    """Rejected: some drafted token was turned down. An empty draft rejects nothing."""
    assert Round(draft=(1, 2), num_accepted=1, emitted=(1, 5), num_cut=0).rejected
    assert not Round(draft=(1, 2), num_accepted=2, emitted=(1, 2, 5), num_cut=0).rejected
    assert not Round(draft=(), num_accepted=0, emitted=(5,), num_cut=0).rejected
    assert Round(draft=(1, 2), num_accepted=0, emitted=(3,), num_cut=0).num_drafted == 2
    assert Decision(node=1, num_accepted=1, token=3) == Decision(node=1, num_accepted=1, token=3)
