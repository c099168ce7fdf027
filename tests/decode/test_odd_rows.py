"""Rows nothing can be drawn from: a fault where they are visited, and nowhere else. Equal and degenerate rows."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter
from headstart.models.table import TableModel
from headstart.records import Sampling
from headstart.verify import RULES
from tests.decode.loops import finished, loop_law, plain_law, random_model, request
from tests.decode.test_exact_loop import fresh, keyed
from tests.exact import TOLERANCE, distance, random_table

ODD = {"nan": np.nan, "inf": np.inf, "all -inf": -np.inf}
rules = pytest.mark.parametrize("rule", RULES)


def with_odd_row(kind: str, vocab: int = 3, after: int = 1, seed: int = 1, order: int = 1) -> TableModel:
    """A random table whose row after token `after` cannot be drawn from."""
    logits = np.log(random_table(np.random.default_rng(seed), vocab, order))
    if kind == "all -inf":
        logits[after] = -np.inf
    else:
        logits[after, ..., 0] = ODD[kind]
    return TableModel.from_logits(logits)


@rules
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("drafter", ["model", "ngram", "odd model"])
@pytest.mark.parametrize("gamma", [1, 3])
def test_the_law_around_an_odd_row_is_exact(rule, kind, drafter, gamma) -> None:
    """Summed over the loop: every text, and every text that ends in the error, has the probability plain decoding gives it.

    Odd rows after rejected tokens change nothing; visited ones always end the sequence, under every rule."""
    vocab, script = (2, keyed) if RULES[rule].keyed else (3, fresh)
    model = with_odd_row(kind, vocab)
    made = {
        "model": ModelDrafter(random_model(5, vocab)),
        "ngram": NGramDrafter(vocab, min_match=1),
        "odd model": ModelDrafter(with_odd_row(kind, vocab, after=0, seed=7)),
    }[drafter]
    options = {"rule": rule, "vocab": vocab, "gamma": gamma}
    law = loop_law(Decoder(model, made), request(**options), script)
    wanted = plain_law(model, request(**options))
    assert distance(law, wanted) <= TOLERANCE
    assert 0.1 < sum(weight for (_, reason), weight in wanted.items() if reason is None) < 1


@rules
@pytest.mark.parametrize("kind", ODD)
def test_an_end_token_before_an_odd_row_wins(rule, kind) -> None:
    """Every odd row comes after an end token, inside the block or as its bonus row: no error, the law of plain decoding."""
    vocab, script = (2, keyed) if RULES[rule].keyed else (3, fresh)
    model = with_odd_row(kind, vocab)
    options = {"rule": rule, "vocab": vocab, "gamma": 3, "end_ids": (1,)}
    law = loop_law(Decoder(model, ModelDrafter(random_model(5, vocab))), request(**options), script)
    assert distance(law, plain_law(model, request(**options))) <= TOLERANCE
    assert all(reason is not None for _, reason in law)


@rules
def test_an_odd_row_after_a_rejected_token_is_no_fault(rule) -> None:
    """The draft says 1, the target never does, and the row after 1 is NaN: nothing is raised, ever."""
    logits = np.full((3, 3), -np.inf)
    logits[0], logits[2], logits[1] = [0.0, -np.inf, 0.0], [0.0, -np.inf, 0.0], np.nan
    drafter = ModelDrafter(TableModel([0.0, 1.0, 0.0]))
    (one,) = finished(Decoder(TableModel.from_logits(logits), drafter), request(rule=rule, gamma=3, max_tokens=30))
    assert one.error is None
    assert len(one.output) == 30
    assert one.stats.num_accepted == 0


@rules
def test_a_visited_odd_row_is_named(rule) -> None:
    """The error says where in the output; what was out before it stays, and the counts still agree."""
    logits = np.log(np.roll(np.eye(4), 1, axis=1) + 1e-300)
    logits[3] = np.nan
    cycle = TableModel(np.roll(np.eye(4), 1, axis=1))
    one = request((0,), rule=rule, vocab=4, sampling=Sampling(temperature=0.0), gamma=2, max_tokens=9)
    finished(Decoder(TableModel.from_logits(logits), ModelDrafter(cycle)), one)
    assert one.output == [1, 2, 3]
    assert str(one.error).startswith("no token can be drawn at output position 3: the logit of token 0 is NaN")
    assert one.finish_reason is None
    assert one.stats.completion_tokens == 3


@rules
def test_equal_logits_go_to_the_lower_id(rule) -> None:
    """Greedy decoding on a flat row emits token 0, drafted or not."""
    flat = TableModel([0.25] * 4)
    for drafter in (ModelDrafter(flat), ModelDrafter(TableModel([0.0, 0.0, 0.5, 0.5])), NGramDrafter(4, min_match=1)):
        one = request((3,), rule=rule, vocab=4, sampling=Sampling(temperature=0.0), max_tokens=8)
        assert finished(Decoder(flat, drafter), one)[0].output == [0] * 8


@rules
def test_the_processor_cuts_padding(rule) -> None:
    """Logits for 5 ids over a vocabulary of 3: the extra ids, though the likeliest, are never drafted nor emitted."""
    padded = TableModel([0.1, 0.1, 0.1, 0.3, 0.4])
    one = request((0,), rule=rule, vocab=3, max_tokens=60)
    finished(Decoder(padded, ModelDrafter(padded)), one)
    assert set(one.output) == {0, 1, 2}
    assert {token for each in one.rounds for token in each.draft} <= {0, 1, 2}
