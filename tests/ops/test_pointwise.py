"""Elementwise operators: values against scipy and plain formulas, broadcasting, types, ties, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from scipy import special, stats

from autoshard import ops
from autoshard.core.tensortype import type_of
from autoshard.util.errors import ShapeError
from tests.ops.checks import check_gradient

RNG = np.random.default_rng(11)
X = RNG.normal(size=(4, 6)) * 3
P = RNG.uniform(0.2, 3.0, (4, 6))


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("exp", X, np.e**X),
        ("log", P, np.log2(P) * np.log(2)),
        ("log1p", P, np.log(1 + P)),
        ("sqrt", P, P**0.5),
        ("rsqrt", P, P**-0.5),
        ("reciprocal", P, P**-1),
        ("square", X, X**2),
        ("tanh", X, (np.exp(2 * X) - 1) / (np.exp(2 * X) + 1)),
        ("sigmoid", X, 1 / (1 + np.exp(-X))),
        ("erf", X, 2 * stats.norm.cdf(X * 2**0.5) - 1),
        ("gelu", X, X * stats.norm.cdf(X)),
        ("relu", X, np.where(X > 0, X, 0)),
        ("silu", X, X / (1 + np.exp(-X))),
        ("softplus", X, np.log(1 + np.exp(X))),
        ("sin", X, np.exp(1j * X).imag),
        ("cos", X, np.exp(1j * X).real),
        ("abs", X, np.maximum(X, -X)),
        ("neg", X, 0 - X),
        ("sign", X, (X > 0) * 1.0 - (X < 0)),
        ("floor", X, X - np.mod(X, 1)),
        ("ceil", X, -np.floor(-X)),
        ("round", np.array([0.5, 1.5, -2.4]), np.array([0.0, 2.0, -2.0])),
        ("stop_gradient", X, X),
    ],
)
def test_one_operand(name: str, x: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(getattr(ops, name)(x), want, rtol=1e-9, atol=1e-12)


def test_tanh_form_of_gelu_is_close_to_the_erf_form() -> None:
    near, exact = ops.gelu(X, approximate="tanh"), ops.gelu(X)
    assert 0 < np.abs(near - exact).max() < 2e-3


@settings(max_examples=60, deadline=None)
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=5), st.integers(0, 99))
def test_arithmetic_broadcasts_and_sums_back(shapes, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = (rng.uniform(0.5, 2.0, shape) for shape in shapes.input_shapes)
    want = np.broadcast_to(x, shapes.result_shape) * np.broadcast_to(y, shapes.result_shape)
    got = ops.mul(x, y)
    np.testing.assert_array_equal(got, want)
    assert ops.mul.rule((type_of(x), type_of(y)), {}).result_shape(0) == shapes.result_shape
    dx, dy = ops.mul.cotangents(np.ones_like(got), got, (x, y), {})
    assert dx.shape == x.shape and dy.shape == y.shape
    np.testing.assert_allclose(np.sum(dx * x), np.sum(want))
    np.testing.assert_allclose(np.sum(dy * y), np.sum(want))


def test_comparison_and_logic_give_bools() -> None:
    a, b = np.array([1, 2, 3]), np.array([[2], [1]])
    assert ops.less(a, b).tolist() == [[True, False, False], [False, False, False]]
    assert ops.greater_equal(a, b).tolist() == [[False, True, True], [True, True, True]]
    assert ops.logical_xor(a > 1, a > 2).tolist() == [False, True, False]
    assert ops.logical_not(a > 1).dtype == bool


def test_whole_numbers_divide_to_floats_and_floor_divide_to_whole_numbers() -> None:
    a, b = np.array([7, -7], np.int32), np.array([2], np.int32)
    assert ops.div(a, b).dtype == np.float32 and ops.div(a, b).tolist() == [3.5, -3.5]
    assert ops.floor_div(a, b).dtype == np.int32 and ops.floor_div(a, b).tolist() == [3, -4]
    assert ops.mod(a, b).tolist() == [1, 1]
    assert ops.exp(a).dtype == np.float32
    assert ops.scalar_mul(a, factor=0.5).tolist() == [3.5, -3.5]
    assert ops.scalar_add(a, addend=2).dtype == np.int32


def test_gradients_have_the_types_of_their_operands() -> None:
    x, w = X.astype(np.float32), X.astype(np.float16)
    dx, dw = ops.mul.cotangents(x, ops.mul(x, w), (x, w), {})
    assert dx.dtype == np.float32 and dw.dtype == np.float16
    mask = x > 0
    assert ops.mul.cotangents(x, ops.mul(x, mask), (x, mask), {})[1] is None


COMPLEX = ("abs", "exp", "log", "sqrt", "tanh", "sin", "cos", "square", "reciprocal", "real_part", "conj")


@pytest.mark.parametrize("name", COMPLEX)
def test_gradients_of_complex_numbers(name: str) -> None:
    assert check_gradient(getattr(ops, name), [X / 3 + 1j * P], {}) == 1


def test_of_equal_operands_the_first_takes_the_gradient() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])
    for op in (ops.maximum, ops.minimum):
        dx, dy = op.cotangents(np.ones(3), op(x, y), (x, y), {})
        np.testing.assert_array_equal(dx + dy, 1)
        assert dx[0] == 1


def test_power_of_a_negative_base_has_a_gradient_for_the_base() -> None:
    x, y = np.array([-2.0, 3.0]), np.array([2.0, 2.0])
    dx, dy = ops.pow.cotangents(np.ones(2), ops.pow(x, y), (x, y), {})
    np.testing.assert_allclose(dx, 2 * x)
    np.testing.assert_allclose(dy, [0, 9 * np.log(3)])


def test_select_does_not_let_nan_through_the_gradient() -> None:
    condition = np.array([True, False])
    g = np.array([np.nan, 1.0])
    _, dx, dy = ops.select.cotangents(g, g, (condition, np.ones(2), np.ones(2)), {})
    assert dx[1] == 0 and dy[0] == 0 and dy[1] == 1


def test_partial_sums_pass_only_where_the_operator_is_linear() -> None:
    assert ops.mul.linear == ((0,), (1,)) and ops.add.linear == ((0, 1),) and ops.div.linear == ((0,),)
    assert not ops.relu.linear and not ops.scalar_add.linear and not ops.maximum.linear and not ops.exp.linear


def test_erf_agrees_with_scipy_in_single_precision() -> None:
    x = X.astype(np.float32)
    assert ops.erf(x).dtype == np.float32
    np.testing.assert_allclose(ops.erf(x), special.erf(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.add(np.ones((4, 6)), np.ones((4, 10))), r"Add .*_1 is 10 in operand 1 .* is 6 in"),
        (lambda: ops.sub(np.array([True]), np.array([False])), "Sub of bools has no meaning"),
        (lambda: ops.neg(np.array([True])), "Neg of bools has no meaning"),
        (lambda: ops.gelu(X, approximate="fast"), "approximate is 'fast'; it is 'none'"),
        (lambda: ops.cast(X, dtype="f12"), "unknown element type 'f12'"),
        (lambda: ops.relu(X, slope=1), "ReLU has no attribute 'slope'"),
        (lambda: ops.add(X), r"Add takes 2 operands \(x, y\), not 1"),
    ],
)
def test_bad_operands_are_named(call, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()
