"""`Row`: what is refused, and that dense, truncated and point rows read the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import OptionError
from headstart.rows import Row, as_row, as_rows


@given(st.sets(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 12), max_size=6))
def test_a_truncated_row_reads_like_its_dense_form(support, asked) -> None:
    """prob, at, to_array and token agree with the row written out."""
    ids = np.array(sorted(support))
    probs = np.arange(1, ids.size + 1) / np.arange(1, ids.size + 1).sum()
    row, full = Row(probs, ids, 13), np.zeros(13)
    full[ids] = probs
    written = Row.dense(full)
    assert row.to_array().tolist() == full.tolist()
    assert [row.prob(token) for token in range(13)] == full.tolist()
    places = np.array(asked, dtype=np.int64)
    assert row.at(places).tolist() == written.at(places).tolist() == full[places].tolist()
    assert row.at(None).tolist() == full.tolist()
    assert [row.token(place) for place in range(ids.size)] == ids.tolist()
    assert written.token(4) == 4


def test_a_point() -> None:
    """All mass on one token; outside the vocabulary there is none."""
    row = Row.point(2, 4)
    assert row.to_array().tolist() == [0, 0, 1, 0]
    assert (row.prob(2), row.prob(3)) == (1.0, 0.0)
    for token in (-1, 4):
        with pytest.raises(IndexError, match=f"token {token} is outside the vocabulary of 4"):
            Row.point(token, 4)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([0.5, 0.4], "must sum to 1, got 0.9; normalise it first"),
        ([1.5, -0.5], "probabilities of 0 or more, got a smallest entry of -0.5"),
        ([np.nan, 1.0], "finite probabilities"),
        ([np.inf, 0.0], "finite probabilities"),
        ([[0.5, 0.5]], r"must be a vector of probabilities, got shape \(1, 2\)"),
        ([], r"got shape \(0,\)"),
        (1.0, r"got shape \(\)"),
    ],
)
def test_bad_rows_are_refused_by_name(probs, message) -> None:
    """One clear line that says `row` and what is wrong with it."""
    with pytest.raises(OptionError, match=f"`row` .*{message}"):
        Row.dense(probs)
    with pytest.raises(OptionError, match="`row`"):
        as_row(probs)


def test_what_is_taken_as_a_row() -> None:
    """Rows as they are, lists, arrays of any kind; float32 stays float32."""
    row = Row.dense([0.25, 0.75])
    assert as_row(row) is row
    assert as_rows([row, [1, 0]])[0] is row
    assert as_rows(np.eye(3))[2].to_array().tolist() == [0, 0, 1]
    assert Row.dense([1, 0]).probs.dtype == np.float64
    assert Row.dense(np.array([0.5, 0.5], dtype=np.float32)).probs.dtype == np.float32
    third = np.full(3, 1 / 3, dtype=np.float32)
    assert Row.dense(third).probs is third, "a sum off by rounding is used as given"


def test_rows_are_frozen() -> None:
    """A row cannot be changed through its name."""
    with pytest.raises(AttributeError):
        Row.dense([1.0]).vocab_size = 2  # type: ignore[misc]
