"""Index operators: numpy meaning, indices outside, gradients, the split law, texts of errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import ops
from autoshard.core.tensortype import type_of
from autoshard.util.errors import ShapeError

X = np.arange(1, 24 * 6 + 1, dtype=np.float32).reshape(24, 6)


def test_gather_replaces_the_axis_by_the_index_dims() -> None:
    index = np.array([[1, 5, 0], [5, 5, 2]], np.int64)
    np.testing.assert_array_equal(ops.gather(X, index, axis=1), X[:, index])
    np.testing.assert_array_equal(ops.gather(X, index), X[index])
    np.testing.assert_array_equal(ops.gather(X, np.uint8(3)), X[3])


def test_indices_outside_find_zeros_and_add_nothing() -> None:
    index = np.array([-1, 23, 24], np.int32)
    np.testing.assert_array_equal(ops.gather(X, index), np.stack([0 * X[0], X[23], 0 * X[0]]))
    np.testing.assert_array_equal(ops.gather(X, np.int32(-1)), 0 * X[0])
    np.testing.assert_array_equal(ops.gather(X, index, axis=1), np.zeros((24, 3)))
    summed = ops.gather_grad(X[:3], index, size=24)
    np.testing.assert_array_equal(summed, np.where(np.arange(24)[:, None] == 23, X[1], 0))
    assert not ops.gather_grad(X[:3], index + 100, size=24).any()
    along = np.array([[0, -1], [6, 5]])
    np.testing.assert_array_equal(ops.gather_d(X[:2], along, dim=1), [[X[0, 0], 0], [0, X[1, 5]]])
    assert not ops.one_hot(np.array([-1, 4]), depth=4).any()


@given(st.integers(0, 2), st.lists(st.integers(-3, 9), min_size=1, max_size=12), st.integers(-2, 3))
@settings(max_examples=60, deadline=None)
def test_gather_grad_adds_up_repeated_indices(axis: int, indices: list[int], offset: int) -> None:
    rng, shape = np.random.default_rng(len(indices)), [4, 6, 5]
    shape[axis] = len(indices)
    g = rng.standard_normal(shape)
    want = np.zeros([7 if i == axis else size for i, size in enumerate(shape)])
    for place, index in enumerate(indices):
        if 0 <= index - offset < 7:
            np.moveaxis(want, axis, 0)[index - offset] += np.moveaxis(g, axis, 0)[place]
    got = ops.gather_grad(g, np.array(indices), size=7, axis=axis, offset=offset)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_gather_grad_of_other_element_types() -> None:
    g, indices = np.arange(12).reshape(4, 3), np.array([2, 0, 2, 7])
    want = [[3, 4, 5], [0, 0, 0], [6, 8, 10]]
    for element in (np.float16, np.float32, np.int32):
        got = ops.gather_grad(g.astype(element), indices, size=3)
        assert got.dtype == element
        np.testing.assert_array_equal(got, want)


def test_one_hot_places_its_axis_and_values() -> None:
    index = np.array([[1, 0, 2], [3, 3, 1]])
    want = np.eye(4, dtype=np.float32)[index]
    np.testing.assert_array_equal(ops.one_hot(index, depth=4), want)
    np.testing.assert_array_equal(ops.one_hot(index, depth=4, axis=0), np.moveaxis(want, -1, 0))
    np.testing.assert_array_equal(ops.one_hot(index, depth=4, axis=1), np.moveaxis(want, -1, 1))
    soft = ops.one_hot(index, depth=4, on_value=0.9, off_value=0.1, dtype="f64")
    assert soft.dtype == np.float64
    np.testing.assert_allclose(soft, 0.1 + 0.8 * want, rtol=1e-7)


def test_gather_along_an_axis_with_fewer_and_more_places() -> None:
    rng = np.random.default_rng(0)
    for places in (4, 10):
        index = rng.integers(0, 6, (24, places))
        np.testing.assert_array_equal(ops.gather_d(X, index, dim=-1), np.take_along_axis(X, index, 1))


def test_top_k_takes_the_first_of_equal_elements() -> None:
    values, index = ops.top_k(np.array([[2.0, 7.0, 2.0, 7.0, 1.0]], np.float32), k=3)
    np.testing.assert_array_equal(values, [[7, 7, 2]])
    np.testing.assert_array_equal(index, [[1, 3, 0]])
    assert index.dtype == np.int32
    np.testing.assert_array_equal(ops.top_k(np.array([0, 255, 3], np.uint8), k=2)[0], [255, 3])


def test_integer_operands_have_no_gradient() -> None:
    index = np.array([1, 2])
    attrs = ops.gather.check_attributes({})
    assert ops.gather.cotangents(X[:2], X[:2], [X, index], attrs)[1] is None
    attrs = ops.one_hot.check_attributes({"depth": 3})
    assert ops.one_hot.cotangents(X, X, [index], attrs) == (None,)
    attrs = ops.top_k.check_attributes({"k": 2})
    assert ops.top_k.cotangents((None, X), ops.top_k(X, k=2), [X], attrs) == (None,)


def test_moving_data_counts_no_arithmetic() -> None:
    operands = (type_of(X), type_of(np.zeros((8, 12), np.int32)))
    assert ops.gather.flops(operands, ops.gather.check_attributes({})) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.gather(X, np.array([1.0])), "Gather: indices must be whole numbers, not f64"),
        (
            lambda: ops.gather(X, np.array([1]), axis=2),
            r"Gather: axis 2 of a tensor with 2 dims; it must be -2\.\.1",
        ),
        (
            lambda: ops.gather_grad(X, np.zeros((24, 6, 2), int), size=4),
            "GatherGrad: the gradient has 2 dims",
        ),
        (lambda: ops.gather_grad(X, np.zeros(12, int), size=4), "GatherGrad"),
        (lambda: ops.one_hot(np.array([0.5]), depth=3), "OneHot: indices must be whole numbers"),
        (lambda: ops.one_hot(np.array([0]), depth=0), "OneHot: depth 0 must be a positive whole number"),
        (lambda: ops.gather_d(X, np.zeros((12, 6), int), dim=1), "GatherD"),
        (lambda: ops.gather_d(X, np.zeros((24, 6)), dim=1), "GatherD: indices must be whole numbers"),
        (lambda: ops.top_k(X, k=7), r"TopK of \(24, 6\): k 7 must be between 1 and the size of the last dim"),
    ],
)
def test_what_does_not_fit_is_told(call, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()
