"""Tables answer with exactly what is written in them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from headstart.errors import OptionError
from headstart.interfaces import Ask
from headstart.models.table import TableModel


def rows_after(model: TableModel, tokens: list[int]) -> Any:
    """Softmax of the logits after each of `tokens`."""
    logits = model.score([Ask(cache=model.open(), tokens=tokens)])[0].logits
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def test_softmax_gives_the_row_back() -> None:
    """Row after x_1 x_2 is table[x_1, x_2], to 1e-15, zeros exactly."""
    table = np.random.default_rng(0).dirichlet(np.ones(4), size=(4, 4))
    table[2, 1] = [0.5, 0.0, 0.5, 0.0]
    rows = rows_after(TableModel(table), [3, 2, 1, 0])
    for row, (before, last) in zip(rows, [(0, 3), (3, 2), (2, 1), (1, 0)], strict=True):
        np.testing.assert_allclose(row, table[before, last], atol=1e-15)
    assert rows[2, 1] == 0.0


def test_short_contexts_are_completed_with_token_0() -> None:
    """The first row of an order-3 table after x is table[0, 0, x]."""
    table = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 3, 3))
    np.testing.assert_allclose(rows_after(TableModel(table), [2])[0], table[0, 0, 2], atol=1e-15)


def test_order_0_is_one_row() -> None:
    """Every context has the same law."""
    model = TableModel([0.2, 0.8])
    assert (model.order, model.vocab_size) == (0, 2)
    np.testing.assert_allclose(rows_after(model, [0, 1, 1]), [[0.2, 0.8]] * 3, atol=1e-15)


def test_order_counts_the_tokens_looked_at() -> None:
    """`order` is the number of axes before the last."""
    assert TableModel(np.full((2, 2, 2), 0.5)).order == 2


@pytest.mark.parametrize(
    "probs",
    [
        [0.5, 0.6],
        [[0.5, 0.5], [0.9, 0.0]],
        [1.5, -0.5],
        [np.nan, 1.0],
        [np.inf, 0.0],
        [[0.5, 0.5]],
        1.0,
        [],
        [0.5, 0.5 + 1e-7],
    ],
)
def test_what_is_no_table_is_refused(probs: Any) -> None:
    """Rows that are no laws and shapes that are no tables."""
    with pytest.raises(OptionError, match="`probs`"):
        TableModel(probs)


def test_context_limit_must_be_positive() -> None:
    """A model that can hold nothing is a mistake."""
    with pytest.raises(OptionError, match="`context_limit`"):
        TableModel([1.0], context_limit=0)


def test_from_logits_answers_with_them_as_they_are() -> None:
    """NaN, −inf and unnormalised rows come back untouched, as a copy."""
    logits = np.array([[np.nan, 0.0], [-np.inf, -np.inf]])
    model = TableModel.from_logits(logits, context_limit=9)
    answer = model.score([Ask(cache=model.open(), tokens=[0, 1])])[0].logits
    np.testing.assert_array_equal(answer, logits)
    answer[:] = 0
    np.testing.assert_array_equal(model.score([Ask(cache=model.open(), tokens=[0, 1])])[0].logits, logits)
    with pytest.raises(OptionError, match="`logits`"):
        TableModel.from_logits([[0.0, 0.0]])


def test_answers_are_copies() -> None:
    """Changing an answer in place cannot change the table."""
    for probs in ([0.5, 0.5], [[0.5, 0.5], [0.1, 0.9]]):
        model = TableModel(probs)
        before = rows_after(model, [1, 0])
        model.score([Ask(cache=model.open(), tokens=[1, 0])])[0].logits[:] = 7.0
        np.testing.assert_array_equal(rows_after(model, [1, 0]), before)


def test_tables_need_no_torch() -> None:
    """Importing tables loads neither torch nor transformers."""
    code = "import sys, headstart.models.table; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
