"""Row helpers of the core against plain numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import _core
from headstart.probs import process
from headstart.records import Sampling

SIZES = [1, 2, 15, 16, 17, 63, 500, 1024, 1025, 5000, 49_152]


def logits(size: int, seed: int = 0, spread: float = 4.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5, 1e-30])
def test_softmax(size: int, temperature: float) -> None:
    """Within rounding of double precision, exactly zero at −inf, summing to one."""
    x = logits(size, seed=size)
    if size > 2:
        x[size // 2] = -np.inf
    out = np.empty_like(x)
    _core.softmax(x, float(x.max()), temperature, out)
    with np.errstate(over="ignore"):
        exponent = (x.astype(np.float64) - x.max()) / np.float64(np.float32(temperature))
        exact = np.exp(exponent)
    exact /= exact.sum()
    rounding = 1e-6 + 2e-7 * np.minimum(-exponent, 100)  # single precision holds the exponent to 24 bits
    assert (np.abs(out - exact) <= rounding * exact + 1e-36).all()
    assert abs(out.sum(dtype=np.float64) - 1) < 2e-6
    assert size <= 2 or out[size // 2] == 0


@pytest.mark.parametrize("size", SIZES)
def test_at_least_and_residual(size: int) -> None:
    """Counts exactly, sums to 2e-6; entries equal to the threshold are in."""
    rng = np.random.default_rng(size)
    p, q = (rng.dirichlet(np.full(size, 0.3)).astype(np.float32) for _ in range(2))
    for threshold in (0.0, float(p[size // 2]), 2.0):
        count, held = _core.at_least(p, threshold)
        kept = p[p >= np.float32(threshold)]
        assert count == kept.size
        assert held == pytest.approx(float(kept.sum(dtype=np.float64)), rel=2e-6, abs=1e-30)
    out = np.empty_like(p)
    mass = _core.residual(p, q, 0.75, out)
    want = np.maximum(p * np.float32(0.75) - q, 0)
    np.testing.assert_array_equal(out, want)
    assert mass == pytest.approx(float(want.sum(dtype=np.float64)), rel=2e-6)


@pytest.mark.parametrize("size", SIZES)
def test_pick_inverts_the_running_sum(size: int) -> None:
    """The place numpy's running sum gives, or one whose edge lies within rounding of the uniform; never a zero."""
    rng = np.random.default_rng(size)
    probs = (rng.dirichlet(np.full(size, 0.3)) * (rng.random(size) < 0.7)).astype(np.float32)
    probs[-1] = 0.0 if size > 1 else 1.0
    probs[size // 3] = 0.1
    edges = np.concatenate([[0.0], np.cumsum(probs, dtype=np.float64)])
    for uniform in [0.0, 1 - 2**-53, *rng.random(200)]:
        place = _core.pick(probs, uniform)
        assert probs[place] > 0
        target = uniform * edges[-1]
        assert edges[place] - 1e-9 <= target < edges[place + 1] + 1e-9
    assert _core.pick(np.zeros(3, np.float32), 0.5) == -1


def test_pick_hits_every_edge_from_above() -> None:
    """The comparison is strict: a uniform on an edge goes to the next token with mass. Twin: `>=` would give the one before."""
    probs = np.array([0.0, 0.25, 0.0, 0.25, 0.5, 0.0], np.float32)
    assert [_core.pick(probs, u) for u in (0.0, 0.25, 0.5, 0.75)] == [1, 3, 4, 4]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    top_k=st.sampled_from([0, 1, 40, 700]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05]),
    levels=st.sampled_from([3, 50, 10**6]),
)
def test_truncation_of_a_large_row_is_that_of_its_double(seed: int, top_k: int, top_p: float, min_p: float, levels: int) -> None:
    """The fast road for large rows (its head first) keeps the tokens that sorting the whole row keeps, ties included."""
    rng = np.random.default_rng(seed)
    x = (np.round(rng.normal(size=6000) * levels) / levels * 3).astype(np.float32)
    sampling = Sampling(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    row = process(x, sampling).to_array()
    exact = process(x.astype(np.float64), sampling).to_array()
    differ = np.flatnonzero((row > 0) != (exact > 0))
    # Only at the edge of top-p may rounding decide otherwise, and then for one token.
    assert differ.size <= (1 if top_p < 1 else 0), differ
    if not differ.size:
        np.testing.assert_allclose(row, exact, rtol=5e-6, atol=1e-12)


def test_refuses_arrays_of_other_lengths() -> None:
    """One line naming the array, not a crash."""
    x = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="`out`"):
        _core.softmax(x, 1.0, 1.0, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="`q`"):
        _core.residual(x, np.ones(3, np.float32), 1.0, x)
    with pytest.raises(ValueError, match="`ids`"):
        _core.race(1, 1, x, np.arange(3))
