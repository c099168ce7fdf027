"""Residual, overlap and total variation of two rows, however each is stored, against dense arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import _core
from headstart.errors import OptionError
from headstart.pairs import excess_mass, overlap, residual, total_variation
from headstart.rows import Row


@st.composite
def rows(draw, vocab: int = 6) -> Row:
    """Dense, truncated (zeros listed or not), or a point; float64 or float32."""
    kind = draw(st.sampled_from([np.float64, np.float32]))
    match draw(st.sampled_from(["dense", "sparse", "point"])):
        case "point":
            return Row.point(draw(st.integers(0, vocab - 1)), vocab)
        case "dense":
            ids = None
            size = vocab
        case _:
            ids = np.array(sorted(draw(st.sets(st.integers(0, vocab - 1), min_size=1))))
            size = ids.size
    weights = np.array(draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 1e-9, 1e-17]), min_size=size, max_size=size)), dtype=kind)
    if weights.sum() == 0:
        weights[0] = 1
    return Row(weights / weights.sum(), ids, vocab)


def dense(row: Row) -> np.ndarray:
    full = np.zeros(row.vocab_size)
    for place in range(row.probs.size):
        full[row.token(place)] = row.probs[place]
    return full


@settings(max_examples=500, deadline=None)
@given(p=rows(), q=rows(), scale=st.sampled_from([1.0, 0.5, 0.01]))
def test_pairs_agree_with_dense_arithmetic(p, q, scale) -> None:
    """Every combination of storage: the residual is a law, never NaN, over tokens the target has."""
    a, b = dense(p), dense(q)
    tiny = 1e-6 if np.float32 in (p.probs.dtype.type, q.probs.dtype.type) else 1e-12
    assert overlap(p, q) == pytest.approx(min(1.0, np.minimum(a, b).sum()), abs=tiny)
    assert overlap(p, q) == pytest.approx(overlap(q, p), abs=tiny)
    assert total_variation(p, q) == pytest.approx(np.abs(a - b).sum() / 2, abs=tiny)
    assert 0 <= overlap(p, q) <= 1
    left = np.maximum(scale * a - b, 0)
    assert excess_mass(p, q, scale) == pytest.approx(left.sum(), abs=tiny)
    got = dense(residual(p, q, scale))
    assert np.isfinite(got).all()
    assert got.sum() == pytest.approx(1, abs=1e-6)
    assert (a[got > 0] > 0).all(), "nothing the target forbids"
    if left.sum() > 1e-5:
        assert got == pytest.approx(left / left.sum(), abs=1e-2 if tiny == 1e-6 else 1e-9)
        assert (got[left == 0] <= (1e-2 if tiny == 1e-6 else 0)).all()


@pytest.mark.parametrize("size", [1, 15, 512, 5000, 49_152])
def test_a_row_over_some_tokens_beside_one_over_all(size: int) -> None:
    """In single precision, as the rows of a head with its own vocabulary: what is left and what is shared, summed in double."""
    rng = np.random.default_rng(size)
    ids = np.sort(rng.permutation(size)[: max(1, size // 6)]).astype(np.int64)
    numbers = np.exp(2 * rng.normal(size=size)).astype(np.float32)
    near = numbers[ids] * np.exp(0.5 * rng.normal(size=ids.size)).astype(np.float32)
    p, q = Row(numbers / numbers.sum(), None, size), Row(near / near.sum(), ids, size)
    a, b = p.probs.astype(np.float64), dense(q)
    for scale in (1.0, 0.3):
        left = np.maximum(scale * a - b, 0)
        assert excess_mass(p, q, scale) == pytest.approx(left.sum(), abs=1e-6)
        if left.sum() > 1e-5:
            assert residual(p, q, scale).to_array() == pytest.approx(left / left.sum(), abs=1e-6)
    assert overlap(p, q) == overlap(q, p) == pytest.approx(np.minimum(a, b).sum(), abs=1e-6)


def test_places_outside_a_row_never_reach_it() -> None:
    """Ids are checked before they index anything; so are lengths."""
    p, q, ids = np.ones(4, np.float32) / 4, np.ones(2, np.float32) / 2, np.array([0, 3])
    assert _core.common(p, ids, q, 1.0) == pytest.approx(0.5)
    for places, row in ((np.array([0, 4]), q), (np.array([-1, 2]), q), (np.array([0, 1, 2]), q)):
        with pytest.raises(ValueError, match=r"`ids`|`q`"):
            _core.common(p, places, row, 1.0)
        with pytest.raises(ValueError, match=r"`ids`|`q`"):
            _core.beyond(p, places, row, 1.0, np.empty_like(p))
    with pytest.raises(ValueError, match="`out`"):
        _core.beyond(p, ids, q, 1.0, np.empty(3, np.float32))


@settings(max_examples=100, deadline=None)
@given(p=rows())
def test_equal_rows_leave_the_target(p) -> None:
    """Where p = q exactly nothing is left, and the correction is drawn from p."""
    assert residual(p, p) is p
    assert overlap(p, p) == pytest.approx(1, abs=1e-6)
    assert total_variation(p, p) == 0


def test_equal_up_to_rounding_leaves_the_target() -> None:
    """A row and its copy through other arithmetic differ in the last bits: noise is not a correction."""
    rng = np.random.default_rng(0)
    for kind in (np.float32, np.float64):
        logits = rng.normal(size=50_000).astype(kind)
        one, other = np.exp(logits), np.exp(logits - kind(1.7))
        p, q = Row.dense(one / one.sum()), Row.dense(other / other.sum())
        drawn = residual(p, q).to_array()
        assert np.isfinite(drawn).all()
        assert drawn.sum(dtype=np.float64) == pytest.approx(1, abs=1e-5)


def test_a_last_bit_is_not_a_correction() -> None:
    """One entry a rounding larger than the draft's: all of the residual would be that token; the target's row comes back."""
    for kind in (np.float32, np.float64):
        q = np.array([0.1, 0.2, 0.7], dtype=kind)
        p = q.copy()
        p[0] = np.nextafter(p[0], kind(1))
        target = Row.dense(p)
        assert residual(target, Row.dense(q)) is target


def test_plain_arrays_will_do() -> None:
    """As the article uses them: vectors in, a row out."""
    p, q = [0.3, 0.25, 0.2, 0.15, 0.07, 0.03], [0.1, 0.1, 0.3, 0.3, 0.15, 0.05]
    assert overlap(p, q) == pytest.approx(0.65, abs=1e-12)
    assert total_variation(p, q) == pytest.approx(0.35, abs=1e-12)
    assert residual(p, q).to_array() == pytest.approx([0.2 / 0.35, 0.15 / 0.35, 0, 0, 0, 0], abs=1e-12)


def test_other_vocabularies_are_refused() -> None:
    """Rows of two sizes have nothing to compare."""
    for compare in (overlap, total_variation, residual):
        with pytest.raises(OptionError, match="`target` and `draft` must be rows over one vocabulary, got 2 and 3 tokens"):
            compare([0.5, 0.5], [0.5, 0.25, 0.25])


def test_a_point_left_of_a_near_point() -> None:
    """The last 1e-9 of mass is a law of its own."""
    p, q = Row.dense([1 - 1e-9, 1e-9]), Row.point(0, 2)
    assert residual(p, q).to_array().tolist() == [0.0, 1.0]
    assert math.isclose(excess_mass(p, q), 1e-9)
