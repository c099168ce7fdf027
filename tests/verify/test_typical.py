"""Typical acceptance: the law it has, summed over; that it is not the target's; and that nothing exact lets it in."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter
from headstart.draws import StreamDraws
from headstart.errors import OptionError
from headstart.plan.acceptance import Watched, kept_given_draft
from headstart.records import Draft, Sampling
from headstart.rows import Row
from headstart.verify import LOSSY_RULES, RULES, TypicalRule, decide, rule_named
from headstart.verify.typical import typical_threshold
from tests.decode.loops import finished, random_model, request
from tests.exact import TOLERANCE, Law, distance, drafts, iid, judged, round_law, sequence_law, target_rows
from tests.trees import COUNTS, KINDS, trees
from tests.verify.cases import PAIRS, random_pairs

TYPICAL = TypicalRule()


def is_typical(probs: np.ndarray, token: int) -> bool:
    """The definition, term by term."""
    entropy = -sum(p * math.log(p) for p in probs.tolist() if p > 0)
    return bool(probs[token] > min(0.09, 0.3 * math.exp(-entropy)))


def test_the_threshold_by_hand() -> None:
    """n equally likely tokens: min(.09, .3/n); a certain one: .09; a token of probability zero changes nothing."""
    for count in (2, 3, 4, 10, 1000):
        assert typical_threshold(Row.dense(np.full(count, 1 / count))) == pytest.approx(min(0.09, 0.3 / count), abs=TOLERANCE)
    assert typical_threshold(Row.point(3, 9)) == 0.09
    assert typical_threshold(Row.dense([0.25] * 4 + [0.0])) == pytest.approx(0.075, abs=TOLERANCE)


def test_a_token_at_the_threshold_is_not_typical() -> None:
    """More than, not at least: .09 in a row whose threshold is .09."""
    row = Row.dense([0.91, 0.09])
    draft = Draft(tokens=(1,), rows=(Row.dense([0.5, 0.5]),))
    assert typical_threshold(row) == 0.09
    assert TYPICAL.outcome_probs([row, row], draft).tolist() == [1, 0]


def test_it_is_not_the_targets_law() -> None:
    """p = (.5, .3, .2), q = (.2, .2, .6), one drafted token: every token is typical, so it follows q, total variation .4."""
    target, draft = PAIRS["ordinary"]
    law = round_law(TYPICAL, target, draft, 1)
    first: dict[int, float] = defaultdict(float)
    for tokens, weight in law.items():
        first[tokens[0]] += weight
    assert [first[token] for token in range(3)] == pytest.approx([0.2, 0.2, 0.6], abs=TOLERANCE)
    off = distance(first, {0: 0.5, 1: 0.3, 2: 0.2})
    assert off == pytest.approx(0.4, abs=TOLERANCE)
    for rule in RULES.values():
        assert distance(round_law(rule, target, draft, 1), sequence_law(target, 2)) <= TOLERANCE
    # With draft = target it keeps typical tokens with the target's chances, and still picks the likeliest after them.
    assert distance(round_law(TYPICAL, target, target, 1), sequence_law(target, 2)) > 0.4


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_the_law_it_has(gamma) -> None:
    """Tokens of the drafter's law for as long as they are typical, then the target's likeliest: the whole round, summed."""
    for target, draft in [*PAIRS.values(), *random_pairs(20, seed=41)]:
        stated: Law = defaultdict(float)
        for weight, made in drafts(draft, gamma):
            for chance, kept, token in judged(TYPICAL, target, made):
                stated[(*made.tokens[:kept], token)] += weight * chance
        wanted: Law = defaultdict(float)

        def walk(tokens, weight, target=target, draft=draft, wanted=wanted) -> None:
            probs = target(tokens).to_array()
            likeliest = int(probs.argmax())
            if len(tokens) == gamma:
                wanted[(*tokens, likeliest)] += weight
                return
            for token, chance in enumerate(draft(tokens).to_array().tolist()):
                if is_typical(probs, token):
                    walk((*tokens, token), weight * chance)
                else:
                    wanted[(*tokens, likeliest)] += weight * chance

        walk((), 1.0)
        assert distance(stated, wanted) <= TOLERANCE


@pytest.mark.parametrize("shape", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_on_trees_the_longest_path_wins_then_the_likeliest(shape, kind) -> None:
    """Against a search over all nodes, for every shape and kind of children."""
    for target, draft in random_pairs(9, seed=42):
        for _, tree in list(trees(draft, COUNTS[shape], kind))[:40]:
            rows, best = target_rows(target, tree), (0, 0.0)
            scores = {0: best}
            for node in range(1, len(tree) + 1):
                path = [0, *tree.path(node)]
                steps = [(rows[parent].to_array(), tree.tokens[child - 1]) for parent, child in pairwise(path)]
                if all(is_typical(probs, token) for probs, token in steps):
                    scores[node] = len(steps), sum(math.log(probs[token]) for probs, token in steps)
            (kept,) = np.flatnonzero(TYPICAL.outcome_probs(rows, tree))
            assert scores[int(kept)] == pytest.approx(max(scores.values()), abs=TOLERANCE)


def test_likelihood_decides_between_equal_lengths() -> None:
    """The second child is likelier; a longer path under the first beats both."""
    p, q = Row.dense([0.5, 0.3, 0.2]), Row.dense([0.2, 0.2, 0.6])
    pair = Draft(tokens=(1, 0), rows=(q, q.without(1)), parents=(-1, -1))
    assert TYPICAL.outcome_probs([p] * 3, pair).tolist() == [0, 0, 1]
    longer = Draft(tokens=(1, 0, 2), rows=(q, q.without(1), q), parents=(-1, -1, 0))
    assert TYPICAL.outcome_probs([p] * 4, longer).tolist() == [0, 0, 0, 1]
    decision = decide(TYPICAL, [p] * 4, longer, StreamDraws(0))
    assert (decision.node, decision.num_accepted, decision.token) == (3, 2, 0)


def test_deciding_leaves_nothing_to_chance() -> None:
    """`decide` gives the stated outcome whatever is drawn, and the likeliest token where nothing was drafted."""
    for target, draft in random_pairs(12, seed=43):
        for _, made in drafts(draft, 2):
            rows = target_rows(target, made)
            ((_, kept, token),) = judged(TYPICAL, target, made)
            for seed in range(3):
                decision = decide(TYPICAL, rows, made, StreamDraws(seed))
                assert (decision.num_accepted, decision.token) == (kept, token)
        for seed in range(3):
            assert decide(TYPICAL, [target(())], Draft(), StreamDraws(seed)).token == int(target(()).to_array().argmax())


def test_in_the_loop_it_follows_the_drafter_or_greedy_decoding() -> None:
    """At temperature 0 the text is the greedy one, on chains and trees; with a temperature and no matching n-gram too."""
    model, drafter = random_model(1, 6, order=2), ModelDrafter(random_model(2, 6, order=1))
    greedy = Sampling(temperature=0.0)
    for seed in range(6):
        options = {"prompt": (seed,), "vocab": 6, "max_tokens": 20, "seed": seed}
        (plain,) = finished(Decoder(model, drafter), request(rule="token", sampling=greedy, **options))
        for how in ({"gamma": 3}, {"tree": "2x3"}):
            (one,) = finished(Decoder(model, drafter), request(rule="typical", sampling=greedy, **how, **options))
            assert one.output == plain.output
        warm = Sampling(temperature=1.0)
        never = NGramDrafter(6, min_match=30, max_match=30)
        (one,) = finished(Decoder(model, never), request(rule="typical", sampling=warm, gamma=3, **options))
        assert one.output == plain.output
    (one,) = finished(Decoder(model, drafter), request((0,), rule="typical", vocab=6, sampling=warm, gamma=3, max_tokens=40))
    (exact,) = finished(Decoder(model, drafter), request((0,), rule="token", vocab=6, sampling=warm, gamma=3, max_tokens=40))
    assert one.stats.num_accepted > exact.stats.num_accepted


def test_what_promises_the_targets_law_refuses_it() -> None:
    """By name, unless a lossy rule is allowed on purpose; no exact rule is among the lossy ones."""
    for call in (
        lambda: rule_named("typical"),
        lambda: kept_given_draft("typical", [iid([0.5, 0.5])(())], Draft()),
        lambda: Watched(TYPICAL, ("token",)),
    ):
        with pytest.raises(OptionError, match="typical"):
            call()
    assert rule_named("typical", lossy=True) is LOSSY_RULES["typical"]
    assert not set(RULES) & set(LOSSY_RULES)
    assert all(rule.lossless for rule in RULES.values())
    assert not any(rule.lossless for rule in LOSSY_RULES.values())
