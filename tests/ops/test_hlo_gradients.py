"""Gradients of StableHLO's operators against finite differences, with unequal sizes."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.ops import (
    hlo_chlo,
    hlo_dynamic,
    hlo_gather,
    hlo_pointwise,
    hlo_reduce,
    hlo_scatter,
    hlo_shape,
    hlo_sort,
    hlo_window,
)
from autoshard.ops.body import Body
from autoshard.util.errors import NoGradientError, ShapeError
from tests.ops.checks import check_gradient

RNG = np.random.default_rng(0)


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return RNG.uniform(low, high, shape)


def numbers(*values: int) -> list[np.ndarray]:
    return [np.asarray(value) for value in values]


SPECIAL = {
    hlo_chlo.chlo_square: (-2, 2), hlo_chlo.chlo_tan: (-1, 1), hlo_chlo.chlo_erf: (-1, 1), hlo_chlo.erfc: (-1, 1),
    hlo_chlo.erf_inv: (-0.8, 0.8), hlo_chlo.lgamma: (0.5, 4), hlo_chlo.digamma: (0.5, 4), hlo_pointwise.cbrt: (0.5, 2),
}  # fmt: skip


@pytest.mark.parametrize("op", SPECIAL, ids=lambda op: op.name)
def test_functions_of_one_operand(op):
    low, high = SPECIAL[op]
    assert check_gradient(op, [floats(4, 6, low=low, high=high)], {}) == 1


def test_functions_of_several_operands():
    assert check_gradient(hlo_pointwise.atan2, [floats(4, 6), floats(4, 6, low=0.5)], {}) == 2
    assert check_gradient(hlo_pointwise.rem, [floats(4, 6, low=2.1, high=2.9), floats(4, 6, low=0.95, high=1)], {})
    assert check_gradient(hlo_pointwise.hlo_clamp, [np.asarray(-0.7), floats(4, 6), np.asarray(0.9)], {}) == 3
    assert check_gradient(hlo_pointwise.hlo_clamp, [floats(4, 6, high=-1), floats(4, 6), floats(4, 6, low=1)], {}) == 3
    assert check_gradient(hlo_pointwise.convert, [floats(4, 6)], {"dtype": "f64"}) == 1


def test_what_is_moved_goes_back():
    cases = [
        (hlo_shape.broadcast_in_dim, [floats(6, 4)], {"shape": (4, 3, 6), "dims": (2, 0)}),
        (hlo_shape.broadcast_in_dim, [floats(1, 4)], {"shape": (2, 6, 4), "dims": (1, 2)}),
        (hlo_shape.broadcast_in_dim, [np.asarray(1.5)], {"shape": (2, 6), "dims": ()}),
        (hlo_shape.concatenate, [floats(2, 3), floats(2, 5), floats(2, 1)], {"dim": 1}),
        (hlo_shape.slice_in_dims, [floats(7, 9, 2)], {"start": (1, 0, 0), "limit": (6, 9, 1), "strides": (2, 4, 1)}),
        (hlo_shape.slice_in_dims, [floats(7, 3)], {"start": (2, 1), "limit": (2, 3), "strides": (1, 1)}),
        (hlo_shape.hlo_pad, [floats(4, 6), np.asarray(0.5)], {"low": (2, -1), "high": (1, 3), "interior": (2, 0)}),
        (hlo_shape.hlo_pad, [floats(5), np.asarray(0.5)], {"low": (-3,), "high": (-2,), "interior": (1,)}),
        (hlo_dynamic.dynamic_slice, [floats(7, 6), *numbers(2, 5)], {"sizes": (3, 2)}),
        (hlo_dynamic.dynamic_update_slice, [floats(7, 6), floats(3, 2), *numbers(6, 1)], {}),
    ]
    for op, arrays, attrs in cases:
        assert check_gradient(op, arrays, attrs) >= 1, attrs


ROWS = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1}
WINDOWS = {"offset_dims": (0, 2), "collapsed_slice_dims": (), "start_index_map": (1, 0), "index_vector_dim": 0}
ALONG = {
    "offset_dims": (), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,), "start_indices_batching_dims": (0,),
    "start_index_map": (1,), "index_vector_dim": 2,
}  # fmt: skip
# Indices beyond either end are moved inside by a gather, and left out by a scatter.
INDICES = np.array([3, 0, 11, -2, 3, 6])


@pytest.mark.parametrize(
    "shape, indices, sizes, numbers",
    [
        ((7, 4), INDICES, (1, 4), ROWS),
        ((7, 4), INDICES, (1, 3), ROWS),
        ((7, 5), np.stack([INDICES, INDICES[::-1]]), (2, 3), WINDOWS),
        ((3, 7), INDICES.reshape(3, 2, 1), (1, 1), ALONG),
    ],
)
def test_lookups_and_their_gradients(shape, indices, sizes, numbers):
    operand, gathered = floats(*shape), {**numbers, "slice_sizes": sizes}
    assert check_gradient(hlo_gather.gather_slices, [operand, indices], gathered) == 1
    slices = hlo_gather.gather_slices(operand, indices, **gathered)
    scattered = {
        "update_window_dims": numbers["offset_dims"],
        "inserted_window_dims": numbers["collapsed_slice_dims"],
        "input_batching_dims": numbers.get("operand_batching_dims", ()),
        "scatter_indices_batching_dims": numbers.get("start_indices_batching_dims", ()),
        "scatter_dims_to_operand_dims": numbers["start_index_map"],
        "index_vector_dim": numbers["index_vector_dim"],
    }
    updates = floats(*slices.shape)
    assert check_gradient(hlo_scatter.scatter_add_slices, [operand, indices, updates], scattered) == 2
    for name in ("replace", "max", "min", "mul"):
        attrs = {**scattered, "body": Body(name)}
        assert check_gradient(hlo_scatter.scatter_slices, [operand, indices, updates], attrs) == 2
    updates[::3] = 0
    assert check_gradient(hlo_scatter.scatter_slices, [operand, indices, updates], {**scattered, "body": Body("mul")})


@pytest.mark.jax
@pytest.mark.parametrize("name", ["max", "min"])
def test_equal_updates_share_an_extreme_as_in_jax(name):
    import jax

    operand, updates = np.asarray([1, 2, 2, 0, 5], np.float32), np.asarray([2, 2, 1, 7, 5, 5], np.float32)
    indices, weights = np.array([1, 1, 0, 9, 4, 3]), np.asarray([3, 5, 7, 11, 13], np.float32)
    wanted = jax.grad(lambda x, u: (getattr(x.at[indices], name)(u, mode="drop") * weights).sum(), argnums=(0, 1))(
        operand, updates
    )
    attrs = {
        "update_window_dims": (), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1, "body": Body(name),
    }  # fmt: skip
    attrs = hlo_scatter.scatter_slices.check_attributes(attrs)
    arrays = [operand, indices[:, None], updates]
    (y,) = hlo_scatter.scatter_slices.evaluate(arrays, attrs)
    found = hlo_scatter.scatter_slices.cotangents(weights, y, arrays, attrs)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], wanted[1], rtol=1e-6)


@pytest.mark.parametrize(("size", "padding"), [(4, (3, 0)), (4, (0, 3)), (1, (0, 0))])
def test_products_up_to_each_element(size, padding):
    attrs = {"dimensions": (1, size), "padding": ((0, 0), padding), "body": Body("mul")}
    x = floats(3, size)
    x[1, -1] = 0
    assert check_gradient(hlo_window.reduce_window, [x, np.asarray(1.0)], attrs, constant=(1,)) == 1


def test_several_inputs_at_once_are_refused():
    attrs = hlo_scatter.scatter_slices.check_attributes(
        {"update_window_dims": (), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
         "index_vector_dim": 1, "body": Body("mul")}
    )  # fmt: skip
    arrays = [floats(5), floats(5), np.array([[1], [1]]), floats(2), floats(2)]
    with pytest.raises(NoGradientError, match="Scatter of 2 inputs by mul has no gradient"):
        hlo_scatter.scatter_slices.cotangents((floats(5), None), (floats(5), floats(5)), arrays, attrs)


def test_the_largest():
    distinct = RNG.permutation(4 * 6 * 9).reshape(4, 6, 9) / 7.0
    assert check_gradient(hlo_chlo.chlo_top_k, [distinct], {"k": 3}) == 1


@pytest.mark.parametrize("dimension", [0, 2])
def test_sorted_elements(dimension):
    first, second = RNG.permutation(4 * 6 * 9).reshape(4, 6, 9) / 7.0, floats(4, 6, 9)
    falling = {"dimension": dimension, "body": Body("ge")}
    assert check_gradient(hlo_sort.sort_along, [first], falling) == 1
    assert check_gradient(hlo_sort.sort_along, [first, second], {**falling, "compared": 1}) == 2


@pytest.mark.parametrize("dimensions", [(0, 2), (1,), ()])
def test_reductions(dimensions):
    x, start = floats(3, 4, 5, low=0.5), np.asarray(0.25)
    assert check_gradient(hlo_reduce.reduce_add, [x, start], {"dimensions": dimensions}) == 2
    for name, neutral in {"max": -np.inf, "min": np.inf, "mul": 1.0}.items():
        attrs = hlo_reduce.reduce_with.check_attributes({"dimensions": dimensions, "body": Body(name)})
        y = hlo_reduce.reduce_with.evaluate([x, np.asarray(neutral)], attrs)[0]
        g = floats(*y.shape)
        (found, *_) = hlo_reduce.reduce_with.cotangents(g, y, [x, np.asarray(neutral)], attrs)
        way = floats(*x.shape)
        ends = [hlo_reduce.reduce_with.evaluate([x + e * way, np.asarray(neutral)], attrs)[0] for e in (1e-6, -1e-6)]
        np.testing.assert_allclose(np.sum(found * way), np.sum(g * (ends[0] - ends[1])) / 2e-6, rtol=1e-5, atol=1e-7)


def test_other_reductions_say_that_they_have_no_gradient():
    attrs = hlo_reduce.reduce_with.check_attributes({"dimensions": (1,), "body": Body("xor")})
    with pytest.raises(ShapeError, match="Reduce of 1 inputs by xor has no gradient; only sums, products, maxima"):
        hlo_reduce.reduce_with.cotangents(floats(3), floats(3), [floats(3, 4), np.asarray(0.0)], attrs)
