"""The C++ kernels: blocks are read as the `gguf` package reads them, and every instruction set gives the portable one's bits.

Products are compared with float64 on the dequantised weights and the activations as they are used (8 bits where weights are
quantised), so the only tolerance is float32 summation.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headstart import _core
from tests.native.random_gguf import K_QUANTS, TYPES, blocks, floats

SETS = _core.instruction_sets()
FLOAT_TYPES = ("F32", "F16", "BF16")

over_types = pytest.mark.parametrize("kind", TYPES)
over_other_sets = pytest.mark.parametrize("instruction_set", [name for name in SETS if name != "portable"])


def rng_for(*what: object) -> np.random.Generator:
    """Chance that depends on nothing but its name."""
    return np.random.default_rng(list(repr(what).encode()))


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Standard normal numbers in float32."""
    return rng.standard_normal(shape).astype(np.float32)


def multiply(instruction_set: str, kind: str, data: NDArray[np.uint8], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """[rows, n] for data [n, bytes of a row] and x [rows, k]."""
    return _core.matmul(instruction_set, kind, data.tobytes(), len(data), x.shape[1], x)


def assert_same_bits(got: Any, expected: Any) -> None:
    """Equal to the last bit, the sign of zero included."""
    np.testing.assert_array_equal(np.asarray(got).view(np.uint32), np.asarray(expected).view(np.uint32))


def test_the_best_set_is_the_first() -> None:
    """Portable code is always there, and last."""
    assert SETS[-1] == "portable"
    assert _core.best_instruction_set() == SETS[0]
    assert set(SETS) <= {"avx512vnni", "avxvnni", "avx2", "neondot", "neon", "portable"}


def test_every_type_has_a_name() -> None:
    """The types the tests go through are those the core knows."""
    assert sorted(_core.type_names()) == sorted(TYPES)


# ---- weights -------------------------------------------------------------------------------------------------------------------


@over_types
def test_dequantize_equals_gguf(kind: str) -> None:
    """Random blocks of every bit pattern are the numbers the `gguf` package reads, to the bit but for the sign of zero."""
    data = blocks(kind, 40, 512, rng_for(kind))
    np.testing.assert_array_equal(_core.dequantize(kind, data.tobytes(), 512), floats(kind, data, 512))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_dequantize_equals_gguf_on_quantised_numbers(kind: str) -> None:
    """The same for what a quantiser writes."""
    values = normal(rng_for(kind), 8, 256)
    data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    got = _core.dequantize(kind, data.tobytes(), 256)
    np.testing.assert_array_equal(got, gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))
    assert np.abs(got - values).max() < {"8": 0.03, "5": 0.4, "4": 0.8}[kind[1]]


def test_eight_bits_are_the_gguf_package_s() -> None:
    """Weights written as Q8_0, byte for byte."""
    values = normal(rng_for("Q8_0"), 8, 256)
    assert _core.weight_blocks("Q8_0", values) == gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0).tobytes()


def test_four_bits_are_closer_than_the_usual_ones() -> None:
    """Weights written as Q4_0: no group is further off than with the scale that just holds its largest number, and all together
    they are closer; zeros stay zeros."""
    values = normal(rng_for("Q4_0"), 64, 256)
    values[0, :32] = 0.0
    kind = gguf.GGMLQuantizationType.Q4_0
    ours = _core.dequantize("Q4_0", _core.weight_blocks("Q4_0", values), 256)
    usual = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    errors = [((got - values) ** 2).reshape(-1, 32).sum(axis=1) for got in (ours, usual)]
    assert (errors[0] <= errors[1] * 1.01 + 1e-9).all()  # a half-float scale may be off by a little more
    assert errors[0].sum() < 0.95 * errors[1].sum()
    assert (ours[0, :32] == 0).all()


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e9])
def test_weights_that_no_scale_holds(bad: float) -> None:
    """Refused, not written as nonsense."""
    values = np.ones((1, 32), np.float32)
    values[0, 3] = bad
    for kind in ("Q8_0", "Q4_0"):
        with pytest.raises(ValueError, match="not finite or too large"):
            _core.weight_blocks(kind, values)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_every_sixteen_bit_float_is_read(kind: str) -> None:
    """All 65,536 of them: subnormals, infinities and NaN included."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = _core.dequantize(kind, bits.tobytes(), 256).ravel()
    expected = bits.view(np.float16).astype(np.float32) if kind == "F16" else (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("instruction_set", SETS)
def test_every_set_reads_every_half_and_bfloat(instruction_set: str) -> None:
    """Times one, each sixteen-bit float passes through the product unchanged."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for kind in ("F16", "BF16"):
        values = _core.dequantize(kind, bits.tobytes(), 1)[:, 0]
        got = multiply(instruction_set, kind, bits[:, None].view(np.uint8), np.ones((1, 1), np.float32))[0]
        np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("instruction_set", SETS)
def test_to_half_rounds_as_numpy(instruction_set: str) -> None:
    """Nearest, ties to even, over all exponents, at ties and beyond the range."""
    rng = rng_for("half")
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    x = np.concatenate(
        [halves, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf)), normal(rng, 999)]
    )
    x = np.concatenate([x, -x, np.float32([65519.0, 65520.0, 1e9, np.inf, -np.inf, 0.0, -0.0, 1e-30])]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(_core.to_half(instruction_set, x), expected)
    assert np.isnan(np.uint16(_core.to_half(instruction_set, np.float32([np.nan]))[0]).view(np.float16))


# ---- products ------------------------------------------------------------------------------------------------------------------


@over_types
@pytest.mark.parametrize(("n", "rows"), [(1, 1), (16, 3), (33, 8), (77, 19)])
def test_matmul_is_the_product(kind: str, n: int, rows: int) -> None:
    """Float64 on the same numbers, to the rounding of a float32 sum."""
    rng = rng_for(kind, n, rows)
    k = 512
    data, x = blocks(kind, n, k, rng), normal(rng, rows, k)
    used = x
    if kind not in FLOAT_TYPES:
        q, scales = _core.quantize("portable", x)
        used = q * np.repeat(scales, 32, axis=1)
    weights = floats(kind, data, k).astype(np.float64)
    expected = used.astype(np.float64) @ weights.T
    size = np.abs(used.astype(np.float64)) @ np.abs(weights).T  # rounding is relative to the terms, not to their sum
    if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        size = size * 16  # scale and minimum are summed apart, each larger than the weights they make
    got = multiply("portable", kind, data, x)
    assert got.shape == (rows, n)
    assert (np.abs(got - expected) / size).max() < 2e-6


@pytest.mark.parametrize("kind", FLOAT_TYPES)
@pytest.mark.parametrize("k", [1, 3, 7, 30, 129])
def test_unquantised_weights_take_any_width(kind: str, k: int) -> None:
    """No multiple of anything is needed."""
    rng = rng_for(kind, k)
    data, x = blocks(kind, 20, k, rng), normal(rng, 5, k)
    expected = x.astype(np.float64) @ floats(kind, data, k).astype(np.float64).T
    for name in SETS:
        np.testing.assert_allclose(multiply(name, kind, data, x), expected, rtol=1e-5, atol=1e-5)
        assert_same_bits(multiply(name, kind, data, x), multiply("portable", kind, data, x))


@over_other_sets
@over_types
def test_every_set_gives_the_portable_bits(instruction_set: str, kind: str) -> None:
    """Products of every number of rows, at several widths, extreme integers and scales included."""
    rng = rng_for(instruction_set, kind)
    for k in (256, 1024) if kind in K_QUANTS else (32, 96, 512):
        for n in (5, 48):
            data = blocks(kind, n, k, rng)
            for rows in (*range(1, 10), 16, 21):
                x = normal(rng, rows, k) * np.float32(10.0) ** rng.integers(-6, 7, (rows, 1)).astype(np.float32)
                x[rng.random((rows, k)) < 0.2] = 0.0
                x[0, :32] = rng.choice([0.0, -0.0, 1.0])
                assert_same_bits(multiply(instruction_set, kind, data, x), multiply("portable", kind, data, x))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in FLOAT_TYPES])
def test_largest_integers_do_not_saturate(instruction_set: str, kind: str) -> None:
    """All weight bits set or none against activations of ±127: sums of products at their extremes are exact."""
    k = 256
    data = blocks(kind, 16, k, rng_for(kind))
    x = np.ones((2, k), np.float32)
    x[1, ::2] = -1.0
    for bits in (0x00, 0xFF, 0x7F, 0x80):
        filled = data.copy()
        filled[:] = bits
        for at, value in _scales_of(kind):
            filled.reshape(16, -1, _width(kind))[..., at : at + 2] = np.float16(value).reshape(1).view(np.uint8)
        expected = x.astype(np.float64) @ floats(kind, filled, k).astype(np.float64).T
        np.testing.assert_allclose(multiply(instruction_set, kind, filled, x), expected, rtol=1e-5, atol=1e-2)


def _width(kind: str) -> int:
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1])


def _scales_of(kind: str) -> list[tuple[int, float]]:
    if kind == "Q6_K":
        return [(208, 0.01)]
    return [(0, 0.01)] + ([(2, 0.02)] if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else [])


@pytest.mark.parametrize("instruction_set", SETS)
@over_types
def test_a_row_does_not_feel_the_others(instruction_set: str, kind: str) -> None:
    """Rows multiplied together are, bit for bit, those multiplied alone."""
    rng = rng_for(instruction_set, kind)
    data, x = blocks(kind, 40, 256, rng), normal(rng, 21, 256)
    alone = np.concatenate([multiply(instruction_set, kind, data, row[None]) for row in x])
    for rows in (*range(2, 10), 15, 16, 17, 21):
        assert_same_bits(multiply(instruction_set, kind, data, x[:rows]), alone[:rows])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(TYPES), st.integers(1, 40), st.integers(1, 20), st.integers(1, 3))
def test_any_shape_on_any_set(seed: int, kind: str, n: int, rows: int, width: int) -> None:
    """Whatever the shape, every set gives the same bits."""
    rng = np.random.default_rng(seed)
    k = width * (256 if kind in K_QUANTS else 32)
    data, x = blocks(kind, n, k, rng), normal(rng, rows, k)
    expected = multiply("portable", kind, data, x)
    for name in SETS:
        assert_same_bits(multiply(name, kind, data, x), expected)


# ---- activations ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instruction_set", SETS)
def test_quantize_is_the_nearest_of_255_steps(instruction_set: str) -> None:
    """One scale per 32 numbers, the largest of them 127 steps; zeros and what is as small as nothing stay zeros."""
    x = normal(rng_for("quantize"), 9, 320) * np.float32(3.0)
    x[4, 32:64] = 0.0
    x[5, 64:96] = 1e-38
    q, scales = _core.quantize(instruction_set, x)
    groups = x.reshape(9, 10, 32)
    expected_scales = np.abs(groups).max(axis=2) / np.float32(127.0)
    expected_scales[5, 2] = 0.0
    np.testing.assert_array_equal(scales, expected_scales)
    assert (np.abs(q) <= 127).all()
    error = np.abs(q.reshape(9, 10, 32) * scales[..., None] - groups).max(axis=2)
    assert (error <= 0.5001 * scales + 1e-37).all()
    assert not q[4, 32:64].any()
    assert not q[5, 64:96].any()
    for got, expected in zip((q, scales), _core.quantize("portable", x), strict=True):
        assert_same_bits(got, expected)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("broken", [np.nan, -np.nan, np.inf, -np.inf])
@over_types
def test_a_broken_number_is_not_hidden(instruction_set: str, kind: str, broken: float) -> None:
    """NaN or infinity anywhere in a row makes all its products other than finite; the rows beside it do not feel it."""
    rng = rng_for(kind)
    data, x = blocks(kind, 20, 256, rng), normal(rng, 9, 256)
    expected = multiply(instruction_set, kind, data, x)
    for place in (0, 8, 19, 31, 255):
        y = x.copy()
        y[4, place] = broken
        got = multiply(instruction_set, kind, data, y)
        assert not np.isfinite(got[4]).any()
        assert_same_bits(np.delete(got, 4, axis=0), np.delete(expected, 4, axis=0))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("n", [1, 7, 16, 31, 32, 100, 576])
def test_rms_norm(instruction_set: str, n: int) -> None:
    """x over its root mean square, times the weight."""
    rng = rng_for(n)
    x, weight = normal(rng, n) * np.float32(4), normal(rng, n)
    got = _core.rms_norm(instruction_set, x, weight, 1e-6)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got, wide / np.sqrt((wide**2).mean() + 1e-6) * weight, rtol=1e-6)
    assert_same_bits(got, _core.rms_norm("portable", x, weight, 1e-6))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gates(instruction_set: str, activation: str) -> None:
    """To float32 rounding of the exponent over the whole range, far tails included."""
    x = np.concatenate([np.linspace(-120, 120, 4801), [1e-20, -1e-20, 0.0, 3e4, -3e4], np.linspace(-3, 3, 997)]).astype(
        np.float32
    )
    up = normal(rng_for("gate"), len(x))
    wide = x.astype(np.float64)
    exponent = wide if activation == "silu" else 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    with np.errstate(over="ignore"):
        expected = wide / (1 + np.exp(-exponent)) * up
    got = _core.gate(instruction_set, activation, x, up)
    allowed = (5e-7 + 1.2e-7 * np.minimum(np.abs(exponent), 88.0)) * np.abs(expected) + 1e-30
    assert (np.abs(got - expected) / allowed).max() < 1.0
    assert_same_bits(got, _core.gate("portable", activation, x, up))
    for n in range(1, 40):  # tails
        assert_same_bits(_core.gate(instruction_set, activation, x[-n:].copy(), up[-n:].copy()), got[-n:])


@pytest.mark.parametrize("instruction_set", SETS)
def test_argmax(instruction_set: str) -> None:
    """The first of equals; a NaN wins."""
    rng = rng_for("argmax")
    for n in (1, 2, 15, 16, 17, 33, 1000):
        x = rng.integers(0, 8, n).astype(np.float32)
        assert _core.argmax(instruction_set, x) == int(x.argmax())
        x[rng.integers(n)] = np.nan
        assert _core.argmax(instruction_set, x) == int(np.isnan(x).argmax())
    assert _core.argmax(instruction_set, np.full(40, -np.inf, np.float32)) == 0
    assert _core.argmax(instruction_set, np.float32([-0.0, 0.0] * 20)) == 0


# ---- attention -----------------------------------------------------------------------------------------------------------------


def attention_case(seed: int, heads: int, dim: int, slots: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Queries [heads, dim], keys and values [slots, dim], all exact in half precision."""
    rng = np.random.default_rng(seed)
    query = normal(rng, heads, dim) / np.float32(np.sqrt(dim))
    keys, values = (normal(rng, slots, dim).astype(np.float16).astype(np.float32) for _ in range(2))
    return query * 2, keys, values


def softmax_mix(query: NDArray[Any], keys: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """[heads, dim] in float64."""
    scores = query.astype(np.float64) @ keys.astype(np.float64).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True) @ values.astype(np.float64)
    return mixed


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(("heads", "dim"), [(1, 64), (2, 16), (3, 64), (4, 128), (5, 80), (7, 64), (8, 256), (11, 48)])
@pytest.mark.parametrize(
    ("first", "chain", "tail"),
    [
        (0, 1, []),
        (0, 16, []),
        (0, 37, []),
        (5, 40, []),
        (15, 33, [33]),
        (0, 20, [21, 23, 24, 35]),
        (3, 3, [3, 5]),
        (17, 18, [39, 40]),
    ],
)
def test_attend(instruction_set: str, heads: int, dim: int, first: int, chain: int, tail: list[int]) -> None:
    """The softmax mix over the visible slots, and the portable bits."""
    query, keys, values = attention_case(heads + dim, heads, dim, 41)
    got = _core.attend(instruction_set, query, keys, values, first, chain, tail)
    seen = [*range(first, chain), *tail]
    np.testing.assert_allclose(got, softmax_mix(query, keys[seen], values[seen]), rtol=2e-5, atol=2e-6)
    assert_same_bits(got, _core.attend("portable", query, keys, values, first, chain, tail))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_attention_depends_on_positions_not_on_slots(data: st.DataObject) -> None:
    """The same keys in the same order give the same bits, wherever they lie, on every set: what a kept path relies on."""
    count = data.draw(st.integers(1, 40), label="count")
    heads, dim = data.draw(st.integers(1, 9), label="heads"), 16 * data.draw(st.integers(1, 5), label="dim / 16")
    query, keys, values = attention_case(count, heads, dim, count)
    expected = _core.attend("portable", query, keys, values, 0, count, [])
    split = data.draw(st.integers(0, count), label="split")
    first = data.draw(st.integers(0, 20), label="first")
    free = list(range(first + split, 80))
    tail = sorted(data.draw(st.permutations(free), label="slots")[: count - split])
    rng = np.random.default_rng(1)
    moved_keys, moved_values = normal(rng, 80, dim), normal(rng, 80, dim)  # what else lies around
    for place, slot in enumerate([*range(first, first + split), *tail]):
        moved_keys[slot], moved_values[slot] = keys[place], values[place]
    for name in SETS:
        assert_same_bits(_core.attend(name, query, moved_keys, moved_values, first, first + split, tail), expected)


# ---- what is refused -----------------------------------------------------------------------------------------------------------


def test_impossible_calls_are_refused() -> None:
    """Unknown names and sizes that do not fit are ValueErrors, never reads beyond the data."""
    x = np.ones((1, 32), np.float32)
    with pytest.raises(ValueError, match="`instruction_set`"):
        _core.matmul("mmx", "F32", bytes(128), 1, 32, x)
    with pytest.raises(ValueError, match="`type_name`"):
        _core.matmul("portable", "Q2_K", bytes(128), 1, 32, x)
    with pytest.raises(ValueError, match="`data`"):
        _core.matmul("portable", "F32", bytes(127), 1, 32, x)
    with pytest.raises(ValueError, match="multiple of 256"):
        _core.matmul("portable", "Q4_K", bytes(144), 1, 32, x)
    with pytest.raises(ValueError, match="columns"):
        _core.matmul("portable", "F32", bytes(64 * 4), 1, 64, x)
    with pytest.raises(ValueError, match="slot"):
        _core.attend("portable", np.ones((1, 16), np.float32), x[:, :16].copy(), x[:, :16].copy(), 0, 2, [])
