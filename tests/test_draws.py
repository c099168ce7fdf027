"""Draws follow the row they are given; keyed noise is the published generator; streams and seeds are independent."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headstart import _core
from headstart.draws import KeyedDraws, StreamDraws, derived_seed, fresh_seed, inverse_cdf
from headstart.rows import Row

_log = np.vectorize(_core.fixed_log)
PROBS = np.array([0.4, 0.0, 0.3, 0.2, 0.07, 0.03])
FALSE_ALARM = 1e-6


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    """Survival probability of the counts under `probs`; 0 where an impossible token was drawn."""
    if counts[probs == 0].any():
        return 0.0
    return float(stats.chisquare(counts[probs > 0], probs[probs > 0] * counts.sum()).pvalue)


def sources(count: int):
    """The first draws of `count` independent sources of each kind."""
    row = Row.dense(PROBS)
    stream, keyed = StreamDraws(5), KeyedDraws(5)
    return {
        "stream": [stream.draw(row, 0) for _ in range(count)],
        "stream, one a seed": [StreamDraws(seed).draw(row, 0) for seed in range(count)],
        "keyed over positions": [keyed.draw(row, position) for position in range(count)],
        "keyed over seeds": [KeyedDraws(seed).draw(row, 7) for seed in range(count)],
        "keyed over derived seeds": [KeyedDraws(derived_seed(5, index)).draw(row, 7) for index in range(count)],
    }


def test_draws_follow_the_row() -> None:
    """χ² of 8,000 draws over positions, over seeds, over derived seeds; false alarm 1e-6 each.

    Twin that must fail: the same counts against a row that is off by 0.05 on two tokens."""
    for name, tokens in sources(8000).items():
        counts = np.bincount(tokens, minlength=6)
        assert chi_square(counts, PROBS) > FALSE_ALARM, name
        assert chi_square(counts, PROBS + np.array([-0.05, 0, 0.05, 0, 0, 0])) < FALSE_ALARM, name


def test_keyed_draws_are_independent_between_positions() -> None:
    """χ² of pairs of neighbouring positions against the product law; false alarm 1e-6. Twin: one position twice."""
    row = Row.dense([0.5, 0.3, 0.2])
    product = np.outer(row.probs, row.probs).ravel()
    for step, holds in ((1, True), (0, False)):
        pairs = np.zeros(9)
        for seed in range(6000):
            draws = KeyedDraws(seed)
            pairs[3 * draws.draw(row, 10) + draws.draw(row, 10 + step)] += 1
        assert (chi_square(pairs, product) > FALSE_ALARM) is holds


def test_a_stream_never_repeats_a_draw() -> None:
    """χ² of consecutive draws of one stream against the product law; false alarm 1e-6."""
    row, draws = Row.dense([0.5, 0.3, 0.2]), StreamDraws(3)
    tokens = np.array([draws.draw(row, 0) for _ in range(12_000)]).reshape(-1, 2)
    assert (
        chi_square(np.bincount(3 * tokens[:, 0] + tokens[:, 1], minlength=9), np.outer(row.probs, row.probs).ravel())
        > FALSE_ALARM
    )


# Philox4x32-10 from the paper (Salmon et al. 2011, §3.2): ten rounds on four words, two multipliers, two Weyl constants.


def _philox(counter: list[int], key: list[int]) -> list[int]:
    mask = 2**32 - 1
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(second >> 32) ^ counter[1] ^ key[0], second & mask, (first >> 32) ^ counter[3] ^ key[1], first & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def _uniforms(seed: int, position: int, count: int) -> list[float]:
    """u of the first tokens, as the docstring of KeyedDraws has it."""
    mask, found = 2**32 - 1, []
    for token in range(count):
        block, word = 16 * (token // 64) + token % 16, token // 16 % 4
        halves = [_philox([block, half, position & mask, position >> 32], [seed & mask, seed >> 32])[word] for half in (0, 1)]
        found.append(((halves[0] << 20 | halves[1] >> 12) + 0.5) / 2**52)
    return found


def test_the_second_implementation_is_the_published_generator() -> None:
    """Known answers that come with Random123."""
    ones = 2**32 - 1
    assert _philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert _philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    digits = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    assert _philox(digits[:4], digits[4:]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("instruction_set", _core.instruction_sets())
def test_every_instruction_set_makes_the_same_noise(instruction_set) -> None:
    """Words of groups near and far, from integers."""
    for seed, position, group in ((0, 0, 0), (2**64 - 1, 2**64 - 1, 7), (123456789123, 5, 2400)):
        for half in (0, 1):
            got, mask = _core.noise(instruction_set, seed, position, group, half), 2**32 - 1
            for token in (0, 1, 15, 16, 33, 62, 63):
                counter = [16 * group + token % 16, half, position & mask, position >> 32]
                assert got[token] == _philox(counter, [seed & mask, seed >> 32])[token // 16]


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 0), (2**63 - 1, 5), (123456789, 70_000), (3, 2**40)])
def test_keyed_noise_is_what_its_docstring_says(seed, position) -> None:
    """The token of every draw, from a second implementation in integers: what the C++ core must reproduce."""
    rng = np.random.default_rng(1)
    clocks = [-math.log(u) for u in _uniforms(seed, position, 150)]
    for count, scale in itertools.product((18, 64, 150), (1.0, 1e-30, 1e6)):
        for kind in (np.float64, np.float32):
            for _ in range(7):
                probs = (rng.dirichlet(np.full(count, 0.3)) * scale).astype(kind)
                best = min(range(count), key=lambda token: clocks[token] / float(probs[token]) if probs[token] > 0 else math.inf)
                ids = np.flatnonzero(probs)
                assert _core.race(seed, position, probs, None) == best
                assert ids[_core.race(seed, position, probs[ids], ids)] == best
                if scale == 1.0:
                    assert KeyedDraws(seed).draw(Row.dense(probs), position) == best


def test_keyed_draws_do_not_depend_on_how_a_row_is_stored() -> None:
    """Dense, truncated, scaled by rounding, asked first or last, after other positions: the same token."""
    rng = np.random.default_rng(4)
    draws = KeyedDraws(9)
    for position in range(300):
        ids = np.sort(rng.choice(40, size=8, replace=False))
        probs = rng.dirichlet(np.ones(8))
        sparse = Row(probs, ids, 40)
        want = KeyedDraws(9).draw(sparse, position)
        assert draws.draw(Row.dense(sparse.to_array()), position) == want
        assert draws.draw(sparse, position) == want
        assert draws.draw(Row(probs * (1 + 1e-7), ids, 40), position) == want
        wider = np.concatenate([sparse.to_array(), np.zeros(60)])
        assert draws.draw(Row.dense(wider), position) == want, "padding changes nothing"
    assert draws.draw(Row.point(3, 40), 0) == 3


def test_a_dead_heat_is_decided_by_fixed_arithmetic() -> None:
    """Probabilities in proportion to the clocks: every token finishes at once up to rounding, and the fixed logarithm decides."""
    for position in range(50):
        uniforms = np.array(_uniforms(7, position, 8))
        probs = -np.log(uniforms) / -np.log(uniforms).sum()
        want = int(np.argmin(-_log(uniforms) / probs))
        assert KeyedDraws(7).draw(Row.dense(probs), position) == want
        assert KeyedDraws(7).draw(Row(probs, np.arange(8), 30), position) == want


def test_forgotten_positions_are_made_again() -> None:
    """However many positions lie between two draws, the second is the first."""
    row, draws = Row.dense(np.full(20, 0.05)), KeyedDraws(3)
    first = [draws.draw(row, position) for position in range(40)]
    assert [draws.draw(row, position) for position in range(40)] == first
    assert [draws.draw(row, position) for position in reversed(range(40))] == first[::-1]


def test_shared_noise_makes_close_rows_agree() -> None:
    """Two rows 0.05 apart draw the same token at over 90 % of positions; with other seeds at about Σ p·q."""
    p, q = Row.dense([0.5, 0.3, 0.2]), Row.dense([0.45, 0.35, 0.2])
    one, same, other = KeyedDraws(1), KeyedDraws(1), KeyedDraws(2)
    agree = [one.draw(p, position) == same.draw(q, position) for position in range(2000)]
    apart = [one.draw(p, position) == other.draw(q, position) for position in range(2000)]
    assert np.mean(agree) > 0.9
    assert np.mean(apart) < 0.45


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-300, 1e-17, 0.1, 0.3, 1.0]), min_size=1, max_size=9), st.floats(0, 1, exclude_max=True)
)
def test_no_token_of_probability_zero_is_ever_drawn(weights, uniform) -> None:
    """Any row, any uniform, 0 and the largest under 1 included; and the place is the first whose running sum exceeds it."""
    probs = np.array(weights)
    if probs.sum() == 0:
        return
    for u in (uniform, 0.0, np.nextafter(1.0, 0.0)):
        place = inverse_cdf(probs, u)
        assert probs[place] > 0
        assert math.fsum(weights[:place]) <= u * math.fsum(weights) * (1 + 1e-12)
        assert math.fsum(weights[: place + 1]) >= u * math.fsum(weights) * (1 - 1e-12)
    full = Row.dense(probs / probs.sum())
    for seed in range(3):
        assert full.prob(KeyedDraws(seed).draw(full, 0)) > 0
        assert full.prob(StreamDraws(seed).draw(full, 0)) > 0


def test_a_uniform_that_rounds_up_to_the_total() -> None:
    """Where uniform · total is the total itself, the last token with mass is drawn."""
    assert inverse_cdf(np.array([0.0, 5e-324, 0.0]), np.nextafter(1.0, 0.0)) == 1


def test_the_fixed_logarithm() -> None:
    """The fixed logarithm agrees with the library's to three roundings over the whole range of clocks."""
    u = np.concatenate([2.0 ** -np.arange(1, 54), np.random.default_rng(0).random(10_000), 1 - 2.0 ** -np.arange(2, 53)])
    assert np.abs(_log(u) / np.log(u) - 1).max() < 7e-16


def test_seeds() -> None:
    """The first sequence keeps its seed, the others get their own, all within 63 bits; fresh seeds differ."""
    derived = [derived_seed(42, index) for index in range(1000)]
    assert derived[0] == 42
    assert len({*derived, *(derived_seed(43, index) for index in range(1000))}) == 2000
    assert all(0 <= seed < 2**63 for seed in derived)
    assert derived == [derived_seed(42, index) for index in range(1000)]
    assert len({fresh_seed() for _ in range(100)}) == 100
    row = Row.dense(np.full(50, 0.02))
    texts = [[source(seed).draw(row, place) for place in range(20)] for source in (StreamDraws, KeyedDraws) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == texts[4] != texts[5]
