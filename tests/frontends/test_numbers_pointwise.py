"""Elementwise operations compute what JAX computes, in every element type, at the edges of the types too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.ops.hlo_pointwise import compare_total_order
from tests.frontends.agreement import assert_same_numbers

pytestmark = pytest.mark.jax

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True, scope="module")
def wide_types():
    """64-bit types, which JAX otherwise cuts to 32."""
    with jax.enable_x64(True):
        yield


def values(element: str, low: float = -3.0, high: float = 3.0) -> np.ndarray:
    """Random numbers, shape (5, 7); whole numbers over their whole range."""
    of = jnp.dtype(element)
    if element == "bool":
        return RNG.random((5, 7)) < 0.5
    if of.kind in "iu":
        info = np.iinfo(of)
        return RNG.integers(info.min, info.max, (5, 7), of, endpoint=True)
    real = RNG.uniform(low, high, (5, 7))
    if of.kind == "c":
        return (real + 1j * RNG.uniform(low, high, (5, 7))).astype(of)
    return real.astype(of)


ALL_REALS = {
    "abs": lax.abs, "sign": lax.sign, "negate": lax.neg, "exponential": lax.exp, "log": lambda x: lax.log(lax.abs(x)),
    "log_plus_one": lambda x: lax.log1p(lax.abs(x)), "expm1": lax.expm1, "sqrt": lambda x: lax.sqrt(lax.abs(x)),
    "rsqrt": lambda x: lax.rsqrt(lax.abs(x)), "cbrt": lax.cbrt, "sine": lax.sin, "cosine": lax.cos, "tan": lax.tan,
    "tanh": lax.tanh, "logistic": lax.logistic, "floor": lax.floor, "ceil": lax.ceil, "is_finite": lax.is_finite,
    "round": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), "square": lax.square,
    "asin": lambda x: lax.asin(x / 4), "acos": lambda x: lax.acos(x / 4), "atan": lax.atan, "sinh": lax.sinh,
    "cosh": lax.cosh, "asinh": lax.asinh, "acosh": lambda x: lax.acosh(1 + lax.abs(x)),
    "atanh": lambda x: lax.atanh(x / 4),
}  # fmt: skip
FEW_TYPES = {
    "erf": lax.erf, "erfc": lax.erfc, "erf_inv": lambda x: lax.erf_inv(x / 4), "lgamma": lax.lgamma,
    "digamma": lambda x: lax.digamma(lax.abs(x) + 0.1), "bessel_i1e": lax.bessel_i1e,
    "zeta": lambda x: lax.zeta(lax.abs(x) + 1.5, lax.abs(x) + 0.5),
    "polygamma": lambda x: lax.polygamma(lax.round(lax.abs(x)), lax.abs(x) + 0.5),
}  # fmt: skip


def each(functions: Iterable[Callable]) -> Callable:
    """All functions of one argument at once."""
    chosen = tuple(functions)
    return lambda x: tuple(function(x) for function in chosen)


@pytest.mark.parametrize("element", FLOATS)
def test_functions_of_a_float(element):
    assert_same_numbers(each(ALL_REALS.values()), values(element))


@pytest.mark.parametrize("element", ["float32", "float64"])
def test_special_functions(element):
    assert_same_numbers(each(FEW_TYPES.values()), values(element), rtol=1e-4 if element == "float32" else 1e-9)


_OF_COMPLEX = (
    "abs", "sign", "negate", "exponential", "expm1", "sine", "cosine", "tan", "tanh", "logistic", "square", "asinh",
    "sinh", "cosh", "acosh",
)  # fmt: skip


@pytest.mark.parametrize("element", COMPLEX)
def test_functions_of_a_complex_number(element):
    chosen = each(ALL_REALS[name] for name in _OF_COMPLEX)
    assert_same_numbers(chosen, values(element), rtol=1e-4 if element == "complex64" else None)


@pytest.mark.parametrize("element", COMPLEX)
def test_complex_numbers_taken_apart_and_put_together(element):
    x, y = values(element), values(element)
    assert_same_numbers(
        lambda x, y: (lax.real(x), lax.imag(y), lax.conj(x), lax.complex(lax.real(x), lax.imag(y))), x, y
    )
    assert_same_numbers(lambda x, y: (x + y, x - y, x * y, x / y, lax.pow(x, y), x == y, lax.log(x)), x, y, rtol=1e-4)
    assert_same_numbers(lambda x, y: (lax.sqrt(x), lax.rsqrt(x), lax.log1p(y)), x, y, rtol=1e-4)


_NUMBERS = (*SIGNED, *UNSIGNED, *FLOATS)


@pytest.mark.parametrize("element", _NUMBERS)
def test_arithmetic(element):
    def all_of_it(x, y):
        sums = x + y, x - y, x * y, lax.max(x, y), lax.min(x, y), lax.div(x, y), lax.rem(x, y)
        bounded = lax.clamp(y, x, y), lax.clamp(y[0, 0], x, y[1, 1])
        compared = x == y, x != y, x < y, x <= y, x > y, x >= y
        return *sums, *bounded, *compared, lax.select(x < y, x, y), jnp.where(x[0, 0] < y[0, 0], x, y)

    assert_same_numbers(all_of_it, values(element), values(element))


@pytest.mark.parametrize("element", [*SIGNED, *UNSIGNED])
def test_division_by_zero_and_of_the_least_number(element):
    info = np.iinfo(element)
    pairs = [(a, b) for a in (info.min, info.min + 1, 0, 7, info.max) for b in (0, 1, 3, info.max, info.min)]
    pairs += [(info.min, -1)] if info.min else []
    x, y = (np.array(column, element) for column in zip(*pairs, strict=True))
    assert_same_numbers(lambda x, y: (lax.div(x, y), lax.rem(x, y)), x, y)


@pytest.mark.parametrize("element", [*SIGNED, *UNSIGNED])
def test_bits(element):
    x, y = values(element), values(element)
    count = RNG.integers(0, 80, (5, 7)).astype(element)
    x[0, :4] = [0, 1, np.iinfo(element).max, np.iinfo(element).min]
    shifts = (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)

    def all_of_it(x, y, count):
        logic = x & y, x | y, x ^ y, ~x, lax.population_count(x), lax.clz(x)
        return *logic, *(shift(x, count) for shift in shifts)

    assert_same_numbers(all_of_it, x, y, count)


def test_logic():
    x, y = values("bool"), values("bool")
    assert_same_numbers(lambda x, y: (x & y, x | y, x ^ y, ~x, x == y, x != y), x, y)


@pytest.mark.parametrize("element", FLOATS)
def test_powers_and_angles(element):
    x, y = np.abs(values(element)), values(element)
    assert_same_numbers(lambda x, y: (lax.pow(x, y), lax.atan2(y, x), lax.atan2(x, y)), x, y)


@pytest.mark.parametrize("element", ["int32", "uint8", "int64"])
def test_powers_of_whole_numbers(element):
    x = RNG.integers(0 if element[0] == "u" else -5, 6, (5, 7)).astype(element)
    y = RNG.integers(0, 9, (5, 7)).astype(element)
    assert_same_numbers(jnp.power, x, y)


@pytest.mark.parametrize("source", [*_NUMBERS, "bool", "complex64"])
def test_conversions(source):
    x = values(source, -300.0, 300.0)
    targets = [*_NUMBERS, "bool"] + (["complex64"] if source != "complex64" else [])
    assert_same_numbers(lambda x: tuple(lax.convert_element_type(x, jnp.dtype(target)) for target in targets), x)


def test_conversions_that_do_not_fit():
    x = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 3e9, -3e9, 254.9, -0.7], np.float32)
    targets = ("int8", "int32", "int64", "uint8", "uint32", "uint64")
    assert_same_numbers(lambda x: tuple(lax.convert_element_type(x, jnp.dtype(target)) for target in targets), x)


@pytest.mark.parametrize("element", ["float32", "float64", "float16", "bfloat16"])
def test_reduced_precision(element):
    kinds = ((5, 10), (8, 7), (4, 3), (5, 2), (8, 23), (11, 52))
    x = values(element) * np.asarray(10.0, element) ** RNG.integers(-4, 4, (5, 7)).astype(element)
    x[0, :4] = [np.inf, -np.inf, np.nan, -0.0]
    assert_same_numbers(lambda x: tuple(lax.reduce_precision(x, *bits) for bits in kinds), x, rtol=1e-12)


@pytest.mark.parametrize("element", ["float32", "float64", "float16"])
def test_neighbours(element):
    x, y = values(element), values(element)
    assert_same_numbers(lax.nextafter, x, y, rtol=1e-15)


@pytest.mark.parametrize(
    "pair", [("float32", "int32"), ("float64", "uint32"), ("uint16", "bfloat16"), ("int64", "int8")]
)
def test_bits_as_another_type(pair):
    source, target = pair
    narrow = values(source)
    assert_same_numbers(lambda x: lax.bitcast_convert_type(x, jnp.dtype(target)), narrow)
    ratio = jnp.dtype(source).itemsize // jnp.dtype(target).itemsize
    parts = RNG.integers(0, 100, (3, ratio) if ratio > 1 else (3,)).astype(target)
    assert_same_numbers(lambda x: lax.bitcast_convert_type(x, jnp.dtype(source)), parts)


@pytest.mark.parametrize("element", ["float32", "int32", "bfloat16", "uint8"])
def test_top_k(element):
    x = values(element)
    x[0] = x[1] = x[0, 0]
    assert_same_numbers(lambda x: lax.top_k(x, 3), x)


def test_top_k_takes_nan_for_the_largest():
    x = np.array([[1.0, np.nan, -np.inf, 0.0, -0.0, 5.0]], np.float32)
    assert_same_numbers(lambda x: lax.top_k(x, 6)[1], x)


def test_total_order():
    line = np.array([np.nan, -np.inf, -5.0, -0.0, 0.0, 1e-40, 2.0, np.inf, np.nan], np.float32)
    line[0], line[-1] = np.copysign(np.nan, -1), np.copysign(np.nan, 1)
    x, y = np.meshgrid(line, line)
    i, j = np.meshgrid(range(9), range(9))
    for direction, want in (("LT", i < j), ("GE", i >= j), ("EQ", i == j)):
        np.testing.assert_array_equal(compare_total_order(x, y, direction=direction), want)
