"""The plan on tables: predictions are what the loop does, the best is the best, off included; the page holds what it should."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest

from headstart.costs import MeasuredRounds
from headstart.decode import Decoder
from headstart.drafters import CombinedDrafter, ModelDrafter, NGramDrafter, SuffixDrafter
from headstart.errors import OptionError
from headstart.generation import LLM
from headstart.plan.charts import Series, line_chart
from headstart.plan.exports import export
from headstart.plan.planner import Guesser, make_plan
from headstart.plan.predict import choose, plain_candidate, predict
from headstart.plan.report import report
from headstart.plan.texts import Text, asked_at_every_place, read_by_model, run_and_watched, samples_of
from headstart.plan.trees import TreeSample, best_shape, predict_tree
from headstart.plan.yields import accepted_by_position
from headstart.probs import SamplingProcessor
from headstart.records import Sampling
from headstart.schedule import Curve, RoundCosts
from headstart.shapes import Shape
from headstart.theory import walltime_improvement
from tests.decode.loops import finished, random_model, request

VOCAB, LENGTH = 8, 40
MODEL, SMALL = random_model(1, VOCAB), random_model(2, VOCAB)
RULES = ("token", "block", "match", "coupled")


def costs(draft: float = 0.05, token: float = 0.05, overhead: float = 0.01, batch: int = 1) -> RoundCosts:
    return RoundCosts(
        score=Curve(tokens=(batch, 2 * batch), seconds=(1.0, 1.0 + token)),
        draft=Curve(tokens=(0, 1), seconds=(0.0, draft)),
        overhead=Curve(tokens=(0, 1), seconds=(overhead, 1.5 * overhead)),
        batch=batch,
    )


def measured(given: RoundCosts) -> MeasuredRounds:
    return MeasuredRounds(costs=given, plain_pass=1.0, context=64, repeats=3, spread={"draft": {1: 0.001}})


@cache
def texts(number: int = 6, temperature: float = 1.0, seed: int = 0) -> list[Text]:
    """Texts of the table, with the rows each token was drawn from."""
    made = []
    for place in range(number):
        sampling = Sampling(temperature=temperature)
        one = request((place % VOCAB,), vocab=VOCAB, sampling=sampling, max_tokens=LENGTH, gamma=1, seed=seed + place)
        finished(Decoder(MODEL, NGramDrafter(VOCAB, min_match=9, max_match=9)), one)
        processor = SamplingProcessor(sampling, num_prompt=1, vocab_size=VOCAB)
        logits = [MODEL._logits[token] for token in one.tokens[:-1]]
        rows = tuple(processor.row(one.tokens[: i + 1], row) for i, row in enumerate(logits))
        category = ("code", "prose")[place % 2]
        made.append(
            Text(category=category, num_prompt=1, tokens=tuple(one.tokens), rows=rows, processor=processor, max_tokens=LENGTH)
        )
    return made


def mean_rounds(drafter, rule: str, gamma: int, runs: int = 60) -> tuple[float, float]:
    """Rounds of the loop for LENGTH tokens, and their standard error."""
    counts = []
    for seed in range(runs):
        one = request((seed % VOCAB,), rule=rule, vocab=VOCAB, max_tokens=LENGTH, gamma=gamma, seed=900 + seed)
        finished(Decoder(MODEL, drafter), one)
        counts.append(len(one.rounds))
    return float(np.mean(counts)), float(np.std(counts) / np.sqrt(runs))


@pytest.mark.parametrize("rule", RULES)
def test_a_models_rounds_are_predicted_from_texts_alone(rule) -> None:
    """The sample's expected rounds against rounds that were run, γ 4 of 5: within four standard errors (false alarm 1e-4)."""
    found = [float(read_by_model(text, SMALL, 5, [rule]).at(rule, 4).rounds.sum()) for text in texts(32)]
    mean, error = mean_rounds(ModelDrafter(SMALL), rule, 4)
    assert abs(np.mean(found) - mean) < 4 * np.hypot(error, np.std(found) / np.sqrt(len(found)))


def test_twin_the_wrong_rules_rounds() -> None:
    """The same check tells `match` from `token`."""
    found = [float(read_by_model(text, SMALL, 5, ["token"]).at("token", 4).rounds.sum()) for text in texts(32)]
    mean, error = mean_rounds(ModelDrafter(SMALL), "match", 4)
    assert abs(np.mean(found) - mean) > 4 * np.hypot(error, np.std(found) / np.sqrt(len(found)))


@pytest.mark.parametrize("drafter", [NGramDrafter(VOCAB, min_match=1), SuffixDrafter(VOCAB)], ids=["ngram", "suffix"])
@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_a_lookups_rounds_on_a_greedy_text_are_exact(drafter, gamma) -> None:
    """At temperature 0 the same prompt gives the same text, so the replay counts the very rounds of the loop, for every γ."""
    for text in texts(4, temperature=0.0):
        sample = asked_at_every_place(text, drafter, 6, ["block"])
        options = {"sampling": Sampling(temperature=0.0), "vocab": VOCAB, "max_tokens": LENGTH, "gamma": gamma}
        (one,) = finished(Decoder(MODEL, drafter), request(text.tokens[:1], **options))
        by_drafted = np.bincount([each.num_drafted for each in one.rounds], minlength=gamma + 1)
        assert sample.at("block", gamma).rounds.tolist() == pytest.approx(by_drafted.tolist())


def test_the_road_is_chosen_by_the_drafter() -> None:
    """A drafter that draws cannot be asked at every place; run and watched, its rounds are those of the run."""
    mixed = CombinedDrafter(NGramDrafter(VOCAB, min_match=4), ModelDrafter(SMALL))
    llm, (text,) = LLM(MODEL), texts(1)
    with pytest.raises(OptionError, match="draws its drafts"):
        asked_at_every_place(text, mixed, 3, RULES)
    sample = run_and_watched(llm, text, mixed, 3, RULES, seed=1)
    assert sample.at("token", 3).rounds.sum() == len(sample.rounds)
    assert accepted_by_position([sample.at("block", 3)])[0] == pytest.approx(
        accepted_by_position([sample.at("token", 3)])[0]
    )  # the first position is kept alike by both
    (same,) = samples_of(llm, [text], mixed, model=None, looks_up=False, gamma=3, rules=RULES, seed=1)
    assert same.at("match", 2).tokens == pytest.approx(sample.at("match", 2).tokens)


@pytest.mark.parametrize("gamma", [2, 3])
def test_a_greedy_run_is_watched_although_no_rule_is_asked(gamma) -> None:
    """At temperature 0 a run at the longest length holds the very rounds of the loop, kept alike by every rule."""
    (text,) = texts(1, temperature=0.0)
    sample = run_and_watched(LLM(MODEL), text, ModelDrafter(SMALL), gamma, RULES, seed=1)
    options = {"sampling": Sampling(temperature=0.0), "vocab": VOCAB, "max_tokens": LENGTH, "gamma": gamma}
    (one,) = finished(Decoder(MODEL, ModelDrafter(SMALL)), request(text.tokens[:1], **options))
    kept = np.mean([[done.num_accepted >= j for j in range(1, gamma + 1)] for done in one.rounds if done.num_drafted == gamma], 0)
    assert 0 < kept[0] < 1
    for rule in RULES:
        assert [len(each[rule]) for each in sample.rounds] == [done.num_drafted for done in one.rounds]
        full = [each[rule] for each in sample.rounds if len(each[rule]) == gamma]
        assert np.mean(full, 0).tolist() == pytest.approx(kept.tolist())


def test_a_prediction_is_tokens_over_seconds() -> None:
    """By hand: two prompts, known rounds, known costs; the interval holds the value; the batch's tokens are all counted."""

    class Fixed:
        category = "x"

        def __init__(self, tokens, rounds):
            self._yield = read_by_model(texts(1)[0], SMALL, 2, ["token"]).at("token", 2)
            self._yield = replace(self._yield, tokens=tokens, rounds=np.array(rounds), kept=np.array([6.0, 2.0]), judged=12.0)

        def at(self, rule, gamma):
            return self._yield

    samples = [Fixed(20.0, [2.0, 0.0, 8.0]), Fixed(30.0, [0.0, 0.0, 10.0])]
    given = costs(0.1, 0.1, 0.0, batch=3)
    found = predict("d", samples, given, plain_candidate(given), rule="token", gamma=2)
    seconds = 2 * 1.1 + 18 * 1.4  # the empty rounds looked for a draft, too
    assert found.predicted_tokens_per_second == pytest.approx(3 * 50 / seconds)
    assert found.walltime_improvement == pytest.approx(50 / seconds)
    assert found.interval[0] <= found.predicted_tokens_per_second <= found.interval[1]
    assert found.closed_form == pytest.approx(float(walltime_improvement(16 / 24, 2, 0.1)))
    assert found.break_even == pytest.approx((np.sqrt(1 + 4 * 0.4) - 1) / 2)  # 1 + α + α² = 1.4
    with pytest.raises(OptionError, match="`samples` must hold"):
        predict("d", [], given, plain_candidate(given), rule="token", gamma=2)


def a_plan(given: RoundCosts, **more):
    guessers = [
        Guesser(llm=LLM(MODEL, ModelDrafter(SMALL, "model:small")), model=SMALL),
        Guesser(llm=LLM(MODEL, NGramDrafter(VOCAB)), looks_up=True),
    ]
    options = {"rules": RULES[:2], "gammas": (1, 2, 4), "machine": {"processor": "test <cpu>"}, **more}
    return make_plan(LLM(MODEL, target="table"), guessers, texts(), lambda llm, rule: measured(given), **options)


def test_the_document_keeps_its_contract() -> None:
    """Keys as promised; every drafter × γ × rule once, and plain decoding; the best is among them."""
    document = json.loads(json.dumps(a_plan(costs()).to_json(), allow_nan=False))
    assert set(document) >= {"target", "machine", "costs", "candidates", "plain", "best", "export"}
    keys = ["drafter", "gamma", "tree", "rule", "predicted_tokens_per_second", "interval"]
    keys += ["walltime_improvement", "closed_form", "break_even"]
    assert all(list(each) == keys for each in document["candidates"])
    assert len(document["candidates"]) == 1 + 2 * 3 * 2
    assert document["best"] in document["candidates"]
    assert set(document["export"]) == {"vllm", "llama_cpp", "transformers"}
    assert document["plain"]["tokens_per_second"] == pytest.approx(1 / 1.01)
    assert {each["category"] for each in document["acceptance"]} == {None, "code", "prose"}
    assert list(document["costs"]) == ["none", "model:small", "ngram"]


def test_block_is_predicted_to_keep_no_less_than_token() -> None:
    """On the same texts, at every length."""
    found = {(c.rule, c.gamma): c.predicted_tokens_per_second for c in a_plan(costs()).candidates if c.drafter == "model:small"}
    assert all(found["block", n] >= found["token", n] * (1 - 1e-9) for n in (2, 4))
    assert found["block", 1] == pytest.approx(found["token", 1])


def test_off_is_an_answer() -> None:
    """With a draft as dear as the target the best is none at γ 0, and so it is said, on the page and for other engines."""
    plan = a_plan(costs(draft=1.0, token=1.0))
    best = plan.to_json()["best"]
    assert (best["drafter"], best["gamma"], best["walltime_improvement"]) == ("none", 0, 1.0)
    assert export(plan.best) == {"vllm": None, "llama_cpp": ["--spec-type", "none"], "transformers": {}}
    assert "Do not speculate" in report(plan)
    assert choose(plan.candidates) == plan.candidates[0]


# Trees


def test_trees_are_candidates_under_rules_that_judge_them() -> None:
    """Each tree once, under token where block was asked for; auto only for drafters that look nothing up."""
    wide = Shape.parse("2x2")
    plan = a_plan(costs(draft=0.6, token=0.001), rules=("block", "token", "coupled"), gammas=(1,), trees=(wide, "auto"))
    found = [(each.drafter, each.rule) for each in plan.candidates if each.tree == "2x2"]
    assert sorted(found) == [(d, r) for d in ("model:small", "ngram") for r in ("coupled", "token")]
    others = [each for each in plan.candidates if each.tree not in (None, "2x2")]
    assert {each.drafter for each in others} == {"model:small"}
    # A table scores so fast that the seconds of these trees are Python's: what a best tree is called is told by a faster one.
    faster = replace(plan.candidates[-1], drafter="model:small", tree="2x2", predicted_tokens_per_second=9.0)
    plan = replace(plan, candidates=(*plan.candidates, faster))
    document = plan.to_json()
    assert document["best"] in document["candidates"]
    assert f"a tree of {plan.best.tree}" in report(plan)
    assert [each.tree for each in a_plan(costs(), trees=()).candidates if each.tree] == []


def test_a_tree_is_priced_by_what_its_rounds_scored() -> None:
    """Two rounds of three nodes and one of none for seven tokens; drafting took half as long as scoring did."""
    sample = TreeSample(nodes=(3, 3, 0), tokens=7, judged=(), score_seconds=2.0, other_seconds=1.0)
    own = costs(token=0.1)
    found = predict_tree("m", [sample, sample], own, plain_candidate(own), rule="token", shape=Shape.parse("2x2"))
    assert found.predicted_tokens_per_second == pytest.approx(7 / (1.5 * (1.3 + 1.3 + 1.0)))
    assert found.walltime_improvement == pytest.approx(found.predicted_tokens_per_second * own.plain)
    assert (found.gamma, found.tree, found.interval[0]) == (2, "2x2", pytest.approx(found.interval[1]))
    with pytest.raises(OptionError, match="`samples` must hold at least one"):
        predict_tree("m", [], own, plain_candidate(own), rule="token", shape=Shape.parse("2x2"))


def test_the_best_shape_follows_costs() -> None:
    """Wide where drafting is dear and scoring free; no tree where every scored token costs a round."""
    plain, drafter = LLM(MODEL, target="table"), ModelDrafter(SMALL, "model:small")
    wide = best_shape(plain, texts(), drafter, costs(draft=0.6, token=0.001), "token")
    assert wide is not None
    assert wide.nodes > wide.depth
    assert wide.paths is None
    assert best_shape(plain, texts(), drafter, costs(draft=0.6, token=1.0), "token") is None


class Checker(HTMLParser):
    """Every element is closed, nothing is fetched or run."""

    VOID = ("meta", "line", "circle", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag in self.VOID:
            return
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def test_the_page_stands_alone() -> None:
    """Well formed, no script, nothing fetched; names and numbers are escaped; curves, optima and the parity line are drawn."""
    plan = a_plan(costs())
    html, checker = report(plan), Checker()
    checker.feed(html)
    assert checker.open == []
    assert "test <cpu>" in checker.text
    assert f"{plan.best.predicted_tokens_per_second:.1f} tokens/s" in checker.text
    assert html.count('class="parity"') == 1
    assert html.count("<circle") >= 4  # an optimum for each drafter and rule
    assert 'name="viewport"' in html


def test_charts_of_odd_data() -> None:
    """No points, one point, level and steep curves: ticks inside the axes, no division by nothing."""
    assert line_chart([], x_label="x", y_label="y") == ""
    for points in [((1.0, 0.0),), ((1.0, 5.0), (2.0, 5.0)), ((1.0, 1e-9), (900.0, 1e9))]:
        drawn = line_chart([Series(name="a<b", points=points, mark=0)], x_label="x", y_label="y", parity=1.0)
        assert "nan" not in drawn
        assert "a&lt;b" in drawn


@pytest.mark.parametrize(
    ("drafter", "vllm", "llama_cpp", "transformers"),
    [
        (
            "model:org/small",
            {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 3},
            ["--spec-type", "draft-simple", "--spec-draft-model", "org/small", "--spec-draft-n-max", "3"],
            {"assistant_model", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"},
        ),
        (
            "ngram",
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 32},
            ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "3"],
            {"prompt_lookup_num_tokens"},
        ),
        ("ngram+model:small", None, None, None),
        ("eagle:a/head", {"method": "eagle3", "model": "a/head", "num_speculative_tokens": 3}, None, None),
        ("medusa:heads", {"method": "medusa", "model": "heads", "num_speculative_tokens": 3}, None, None),
        ("eagle:of another plan", None, None, None),
    ],
)
def test_exports(drafter, vllm, llama_cpp, transformers) -> None:
    """In each engine's own words; None where it has none."""
    methods = {"eagle:a/head": "eagle3", "medusa:heads": "medusa"}
    found = export(replace(plain_candidate(costs()), drafter=drafter, gamma=3, rule="block"), methods)
    assert (found["vllm"], found["llama_cpp"]) == (vllm, llama_cpp)
    assert (None if found["transformers"] is None else set(found["transformers"])) == transformers


def test_transformers_knows_the_names() -> None:
    """Every exported name is one that generation there takes."""
    config = pytest.importorskip("transformers").GenerationConfig()
    for drafter in ("model:small", "ngram"):
        found = export(replace(plain_candidate(costs()), drafter=drafter, gamma=3))["transformers"]
        assert all(name == "assistant_model" or hasattr(config, name) for name in found)


@pytest.mark.parametrize("empty", ["rules", "gammas"])
def test_an_empty_comparison_is_refused(empty) -> None:
    """There must be something to compare."""
    with pytest.raises(OptionError, match=f"`{empty}` must not be empty"):
        a_plan(costs(), **{empty: ()})
