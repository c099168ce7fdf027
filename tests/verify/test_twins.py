"""Known ways to be wrong, each made on purpose and caught by summing: a test that cannot fail proves nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from headstart.draws import inverse_cdf
from headstart.probs import softmax
from headstart.records import Draft
from headstart.rows import Row
from headstart.verify import RULES, BlockRule, CoupledRule, MatchRule, TokenRule, decide
from headstart.verify.block import joint_ratios
from tests.exact import (
    TOLERANCE,
    Chain,
    Law,
    Script,
    SharedScript,
    completed,
    distance,
    drafts,
    emitted_law,
    every,
    iid,
    random_table,
    round_law,
    sequence_law,
    support,
    table,
)
from tests.verify.cases import PAIRS

TOKEN, BLOCK = TokenRule(), BlockRule()
ratio_rules = pytest.mark.parametrize("rule", [TOKEN, BLOCK], ids=["token", "block"])
P, Q = PAIRS["ordinary"]
P_ROW, Q_ROW = P(()), Q(())


def bias(rule, target: Chain, weighted, length: int) -> float:
    """Distance between the target's law and what a round emits on the given drafts."""
    return distance(completed(emitted_law(rule, target, weighted), target, length), sequence_law(target, length))


def claimed(drawn_from: Chain, rows: Chain, gamma: int):
    """Drafts drawn from one chain that carry the rows of another."""
    for weight, draft in drafts(drawn_from, gamma):
        yield weight, Draft(tokens=draft.tokens, rows=tuple(rows(draft.tokens[:i]) for i in range(len(draft))))


@ratio_rules
def test_raw_rows_against_processed_rows(rule) -> None:
    """Drawn at temperature 0.5, judged with the row at temperature 1."""
    raw = Q_ROW.to_array()
    sharp = iid(raw**2 / (raw**2).sum())
    assert bias(rule, P, drafts(sharp, 2), 3) <= TOLERANCE
    assert bias(rule, P, claimed(sharp, Q, 2), 3) > 0.05


@ratio_rules
def test_an_argmax_draft_with_a_softmax_row(rule) -> None:
    """The likeliest token is drafted, the whole row is claimed."""
    best = int(Q_ROW.to_array().argmax())
    point = iid(np.eye(3)[best])
    assert bias(rule, P, drafts(point, 2), 3) <= TOLERANCE
    assert bias(rule, P, claimed(point, Q, 2), 3) > 0.1


@ratio_rules
def test_a_low_precision_draw_with_a_full_precision_row(rule) -> None:
    """Logits rounded to 8 bits of mantissa (bfloat16) before the draw, not before the ratio."""
    logits = np.array([3.017, 2.506, 3.991])
    bits = logits.astype(np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    full, low = iid(softmax(logits)), iid(softmax(rounded))
    assert bias(rule, P, drafts(low, 2), 3) <= TOLERANCE
    assert bias(rule, P, claimed(low, full, 2), 3) > 1e-4


class SoftmaxResidual:
    """The correction drawn from the softmax of the clamped difference."""

    name = "softmax residual"

    def __init__(self, rule) -> None:
        self.outcome_probs = rule.outcome_probs

    def next_probs(self, rows: Sequence[Row], draft: Draft, node: int) -> Row:
        if node == len(draft):
            return rows[node]
        return Row.dense(softmax(np.maximum(rows[node].to_array() - draft.rows[node].to_array(), 0)))


class LateRejection:
    """The replacement drawn at the row after the rejected token."""

    name = "late"

    def __init__(self, rule) -> None:
        self.outcome_probs = rule.outcome_probs
        self._next_probs = rule.next_probs

    def next_probs(self, rows: Sequence[Row], draft: Draft, node: int) -> Row:
        return rows[min(node + 1, len(draft))]


class FirstFailure:
    """Block verification that stops at the first failed test."""

    name = "first failure"
    next_probs = staticmethod(BLOCK.next_probs)

    def outcome_probs(self, rows: Sequence[Row], draft: Draft) -> np.ndarray:
        gamma, ratios = len(draft), joint_ratios(rows, draft)
        passes = []
        for i in range(1, gamma + 1):
            left = float(np.maximum(ratios[i] * rows[i].to_array() - draft.rows[i].to_array(), 0).sum()) if i < gamma else 0.0
            whole = left + (1 - ratios[i])
            passes.append(float(ratios[i]) if i == gamma else left / whole if whole else 1.0)
        reached = np.concatenate([[1.0], np.cumprod(passes)])
        return reached * np.concatenate([1 - np.array(passes), [1.0]])


@ratio_rules
@pytest.mark.parametrize("twin", [SoftmaxResidual, LateRejection])
def test_a_wrong_correction(rule, twin) -> None:
    """Softmax instead of normalising; and the row after the rejected token, in context."""
    target = table(random_table(np.random.default_rng(5), 3, 1))
    for chain in (P, target):
        assert distance(round_law(rule, chain, Q, 2), sequence_law(chain, 3)) <= TOLERANCE
        assert distance(round_law(twin(rule), chain, Q, 2), sequence_law(chain, 3)) > 0.05


def test_late_rejection_costs_up_to_a_half() -> None:
    """A coin, then repetition, under a draft that says 1: the late replacement turns every rejected 1 into a 1."""
    coin, one = table(np.array([[0.5, 0.5], [0.0, 1.0]])), iid([0.0, 1.0])
    assert distance(round_law(LateRejection(TOKEN), coin, one, 1), sequence_law(coin, 2)) == pytest.approx(0.5)


def test_stopping_at_the_first_failed_block_test() -> None:
    """The largest index whose test passes wins; the last before a failure does not keep the law."""
    target, draft = PAIRS["two tokens"]
    assert distance(round_law(FirstFailure(), target, draft, 2), sequence_law(target, 3)) > 0.05
    assert distance(round_law(FirstFailure(), P, Q, 3), sequence_law(P, 4)) > 0.01


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rows_with_the_wrong_history(rule) -> None:
    """Row i judged as if X_1 … X_{i−1} had not been drafted."""
    target = table(random_table(np.random.default_rng(6), 3, 1))
    law: Law = defaultdict(float)
    for weight, draft in drafts(Q, 2):
        stale = [target(())] * 3
        for kept, chance in enumerate(rule.outcome_probs(stale, draft)):
            for token, share in support(rule.next_probs(stale, draft, kept)) if chance else ():
                law[(*draft.tokens[:kept], token)] += weight * chance * share
    assert distance(completed(law, target, 3), sequence_law(target, 3)) > 0.05
    assert distance(round_law(rule, target, Q, 2), sequence_law(target, 3)) <= TOLERANCE


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_unprocessed_rows_at_verified_positions(rule) -> None:
    """Only the bonus row is cut to its two likeliest tokens; the verified rows are raw."""
    raw = P_ROW
    cut = Row.dense([0.625, 0.375, 0.0])
    law: Law = defaultdict(float)
    for weight, draft in drafts(Q, 2):
        rows = [raw, raw, cut]
        for kept, chance in enumerate(rule.outcome_probs(rows, draft)):
            for token, share in support(rule.next_probs(rows, draft, kept)) if chance else ():
                law[(*draft.tokens[:kept], token)] += weight * chance * share
    wanted = lambda tokens: cut  # noqa: E731 - a chain is a function
    assert distance(completed(law, wanted, 3), sequence_law(wanted, 3)) > 0.1


def test_one_stream_for_drafting_and_judging() -> None:
    """The uniform that drew X also judges it, u·q(X) < p(X): integrated over u exactly, the law is off by more than 0.1."""
    p, q = P_ROW.to_array(), Q_ROW.to_array()
    cuts = np.unique(np.concatenate([[0.0, 1.0], np.cumsum(q)[:-1], np.minimum(1, p / q)]))
    left = np.maximum(p - q, 0)
    shared, fresh = np.zeros(3), np.zeros(3)
    for low, high in pairwise(cuts):
        token = inverse_cdf(q, (low + high) / 2)
        shared += (high - low) * (np.eye(3)[token] if (low + high) / 2 * q[token] < p[token] else left / left.sum())
        for low2, high2 in pairwise(cuts):
            kept = (low2 + high2) / 2 * q[token] < p[token]
            fresh += (high - low) * (high2 - low2) * (np.eye(3)[token] if kept else left / left.sum())
    assert np.abs(fresh - p).sum() / 2 <= TOLERANCE
    assert np.abs(shared - p).sum() / 2 > 0.1


def _block_by_hand(draws: SharedScript, target: Chain, draft: Chain, length: int, key) -> tuple[int, ...]:
    """Rounds of block verification, γ = 2, whose η and draft draws are keyed by key(round, position); extra tokens are fresh."""
    out: tuple[int, ...] = ()
    rounds = 0
    while len(out) < length:
        made = Draft()
        for _ in range(2):
            row = draft((*out, *made.tokens))
            made = made.then(row, draws.keyed(row, ("draft", key(rounds, len(out) + len(made)))))
        rows = [target((*out, *made.tokens[:place])) for place in range(3)]
        ratios, kept = joint_ratios(rows, made), 0
        for i in (1, 2):
            left = float(np.maximum(ratios[i] * rows[i].to_array() - made.rows[i].to_array(), 0).sum()) if i < 2 else 0.0
            passes = left / (left + (1 - ratios[i])) if i < 2 and ratios[i] < 1 else ratios[i]
            if draws.keyed(Row.dense([1 - passes, passes]), ("test", key(rounds, len(out) + i))) == 1:
                kept = i
        token = draws.keyed(BLOCK.next_probs(rows, made, kept), ("extra", rounds))
        out, rounds = (*out, *made.tokens[:kept], token), rounds + 1
    return out[:length]


@pytest.mark.parametrize(
    ("key", "holds"),
    [
        (lambda round_, position: (round_, position), True),
        (lambda round_, position: position, False),
        (lambda round_, position: 0, False),
    ],
    ids=["fresh", "keyed by position", "once a prompt"],
)
def test_uniforms_used_again_in_later_rounds(key, holds) -> None:
    """Draws of block verification keyed by absolute position, or made once, meet their own past: the law is lost."""
    target, draft = PAIRS["two tokens"]
    law: Law = defaultdict(float)
    for weight, out in every(lambda draws: _block_by_hand(draws, target, draft, 3, key), SharedScript):
        law[out] += weight
    off = distance(law, sequence_law(target, 3))
    assert (off <= TOLERANCE) if holds else (off > 0.005)


def test_one_draw_a_path_instead_of_one_a_node() -> None:
    """Two drafted children, each tried with a draw of its own: the first gets two chances. One draw a node keeps p."""
    p = P_ROW.to_array()
    per_path = np.zeros(3)
    per_path[1] += p[1]  # child 1 is tried first
    per_path += (1 - p[1]) * p  # else child 0 is tried with a fresh draw, which is emitted whatever it is
    assert np.abs(per_path - p).sum() / 2 > 0.1
    per_node = sum(weight * np.eye(3)[token] for weight, token in every(lambda draws: draws.draw(P_ROW, 0)))
    assert np.abs(per_node - p).sum() <= TOLERANCE


class ZeroDraws(Script):
    """The smallest uniform, every time."""

    def draw(self, row: Row, position: int) -> int:
        return row.token(inverse_cdf(row.probs, 0.0))


@ratio_rules
def test_a_zero_draw_emits_nothing_forbidden(rule) -> None:
    """With u = 0 a token of probability zero is neither kept nor drawn; `u·q <= p` and a lax search would let it pass."""
    target, draft_row = Row.dense([0.0, 0.7, 0.3]), Row.dense([0.5, 0.25, 0.25])
    draft = Draft(tokens=(0, 0), rows=(draft_row, draft_row))
    decision = decide(rule, [target] * 3, draft, ZeroDraws())
    assert decision.num_accepted == 0
    assert decision.token != 0
    assert 0.0 * draft_row.prob(0) <= target.prob(0), "the twin accepts"
    assert int(np.searchsorted(np.cumsum(target.to_array()), 0.0, side="left")) == 0, "the twin draws token 0"


@pytest.mark.parametrize(
    ("rule", "holds"),
    [(TOKEN, False), (BLOCK, False), (MatchRule(), True)],
    ids=["token", "block", "match"],
)
def test_a_schedule_that_peeks(rule, holds) -> None:
    """A draft that ends by dropping the token it has just drawn, if that token is 2. `match` does not mind."""

    def peeking():
        for weight, draft in drafts(Q, 2):
            stop = draft.tokens.index(2) if 2 in draft.tokens else 2
            yield weight, Draft(tokens=draft.tokens[:stop], rows=draft.rows[:stop])

    off = bias(rule, P, peeking(), 3)
    assert (off <= TOLERANCE) if holds else (off > 0.03)


@pytest.mark.parametrize("vocab", [2, 3])
def test_a_peeking_schedule_cannot_harm_coupled(vocab) -> None:
    """Under shared draws the text does not depend on the draft at all: summed over the shared noise, through `decide`."""
    rng = np.random.default_rng(8)
    target, draft = table(random_table(rng, vocab, 1)), table(random_table(rng, vocab, 1))

    def run(draws: SharedScript) -> tuple[int, ...]:
        made = Draft()
        while len(made) < 2:
            row = draft(made.tokens)
            token = draws.draw(row, len(made))
            if token == 1:
                break
            made = made.then(row, token)
        rows = [target(made.tokens[:place]) for place in range(len(made) + 1)]
        decision = decide(CoupledRule(), rows, made, draws, 0)
        return (*made.tokens[: decision.num_accepted], decision.token)

    law: Law = defaultdict(float)
    for weight, out in every(run, SharedScript):
        law[out] += weight
    assert distance(completed(law, target, 3), sequence_law(target, 3)) <= TOLERANCE
