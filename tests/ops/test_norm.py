"""Softmax and normalisation: values against scipy and plain formulas, large and half numbers, errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from autoshard import ops
from autoshard.core.tensortype import type_of
from autoshard.util.errors import ShapeError

RNG = np.random.default_rng(14)
X = RNG.normal(size=(4, 6, 10)) * 2 + 1
GAMMA, BETA = RNG.normal(size=(2, 10))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_agrees_with_scipy(axis: int) -> None:
    np.testing.assert_allclose(ops.softmax(X, axis=axis), special.softmax(X, axis=axis))
    np.testing.assert_allclose(ops.log_softmax(X, axis=axis), special.log_softmax(X, axis=axis))


def test_softmax_of_large_numbers_is_finite() -> None:
    x = np.array([[1e4, 0.0, -1e4]], np.float32)
    np.testing.assert_array_equal(ops.softmax(x), [[1, 0, 0]])
    np.testing.assert_array_equal(ops.log_softmax(x), [[0, -1e4, -2e4]])
    assert ops.softmax.decomposition is not None
    np.testing.assert_array_equal(ops.softmax.decomposition(x, axis=-1), [[1, 0, 0]])


def test_layer_norm() -> None:
    mean, variance = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
    want = (X - mean) / np.sqrt(variance + 1e-5) * GAMMA + BETA
    np.testing.assert_allclose(ops.layer_norm(X, GAMMA, BETA), want)
    gamma, beta = RNG.normal(size=(2, 6, 10))
    mean, variance = X.mean((1, 2), keepdims=True), X.var((1, 2), keepdims=True)
    want = (X - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    np.testing.assert_allclose(ops.layer_norm(X, gamma, beta, begin_norm_axis=1, epsilon=1e-3), want)


def test_rms_norm() -> None:
    want = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6) * GAMMA
    np.testing.assert_allclose(ops.rms_norm(X, GAMMA), want)


def test_norms_do_not_change_their_operands() -> None:
    kept = X.copy()
    ops.layer_norm(X, GAMMA, BETA)
    ops.rms_norm(X, GAMMA)
    ops.softmax(X)
    np.testing.assert_array_equal(X, kept)


def test_half_precision_does_not_overflow() -> None:
    x = (np.arange(1, 11) * 300).astype(np.float16)[None]
    one, zero = np.ones(10, np.float16), np.zeros(10, np.float16)
    made = ops.layer_norm(x, one, zero)
    assert made.dtype == np.float16
    wide = x.astype(np.float64)
    np.testing.assert_allclose(made, (wide - wide.mean()) / wide.std(), rtol=2e-3)


def test_normalised_dims_split_into_parts_and_leading_dims_as_they_are() -> None:
    types = (type_of(X), type_of(GAMMA), type_of(BETA))
    rule = ops.layer_norm.rule(types, ops.layer_norm.check_attributes({}))
    assert str(rule) == "a b [c]^10, [c]^10, [c]^10 -> a b [c]^10 {a=4, b=6, c=10}"
    grads = ops.layer_norm_param_grad.rule((type_of(X), type_of(X)), {"begin_norm_axis": -1})
    assert str(grads) == "a b c, a b c -> c, c {a=4, b=6, c=10}"
    assert [grads.factors[i].name for i in grads.contracted] == ["a", "b"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.softmax(X, axis=3), "Softmax: axis 3"),
        (lambda: ops.layer_norm(X, GAMMA[:4], BETA), r"needs parameters of shape \(10,\), not \(4,\)"),
        (lambda: ops.layer_norm(X, GAMMA, BETA, begin_norm_axis=1), r"needs parameters of shape \(6, 10\)"),
        (lambda: ops.rms_norm(X, GAMMA, begin_norm_axis=5), "RmsNorm: begin_norm_axis"),
    ],
)
def test_bad_operands_are_named(call, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()
