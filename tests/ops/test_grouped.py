"""Grouped products, argsort and last positions: numpy meaning, gradients, the split law; gradients of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard import ops
from autoshard.core.tensortype import TensorType
from autoshard.ops.body import Body
from autoshard.ops.registry import lookup
from autoshard.util.errors import ShapeError
from tests.ops.checks import check_gradient

RNG = np.random.default_rng(0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 3))
def test_each_row_meets_the_matrix_of_its_group(sizes: list[int], behind: int) -> None:
    rows, rng = sum(sizes) + behind, np.random.default_rng(len(sizes))
    x, w = rng.standard_normal((rows, 3)), rng.standard_normal((len(sizes), 3, 4))
    found = ops.grouped_matmul(x, w, np.cumsum(sizes))
    group = np.repeat(np.arange(len(sizes)), sizes)
    np.testing.assert_allclose(found[: len(group)], np.einsum("tk,tkn->tn", x[: len(group)], w[group]))
    assert not found[len(group) :].any()


def test_a_row_counts_once_in_the_work_of_grouped_products() -> None:
    types = [TensorType.parse(text) for text in ("f32[24, 6]", "f32[8, 6, 16]", "i32[8]")]
    op = lookup("GroupedMatMul")
    assert op.flops(tuple(types), op.check_attributes({})) == 2 * 24 * 6 * 16


def test_grouped_products_need_an_end_per_group() -> None:
    with pytest.raises(ShapeError, match=r"\(4, 3, 5\) has 4 groups, but ends has shape \(3,\)"):
        ops.grouped_matmul(np.zeros((6, 3)), np.zeros((4, 3, 5)), np.zeros(3, int))
    with pytest.raises(ShapeError, match="ends must be whole numbers, not f64"):
        ops.grouped_matmul(np.zeros((6, 3)), np.zeros((4, 3, 5)), np.zeros(4))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.booleans())
def test_argsort_is_stable_both_ways(values: list[int], descending: bool) -> None:
    found = ops.arg_sort(np.array(values), descending=descending).tolist()
    assert found == sorted(range(len(values)), key=lambda i: -values[i] if descending else values[i])


@given(st.lists(st.integers(-2, 7), min_size=1, max_size=12), st.integers(1, 6))
def test_the_last_of_several_positions_counts(index: list[int], size: int) -> None:
    found = ops.last_along(np.array(index), size=size, dim=0).tolist()
    assert found == [max((i for i, at in enumerate(index) if at == place), default=-1) for place in range(size)]


# -- windows

CONVOLUTIONS = {
    "strides and padding": ((2, 4, 7, 9), (3, 4, 3, 2), (0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 2, 3),
                            {"strides": (2, 1), "padding": ((1, 1), (0, 2))}),
    "groups": ((2, 4, 7, 9), (6, 2, 3, 2), (0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 2, 3),
               {"strides": (2, 3), "padding": ((1, 1), (0, 2)), "feature_groups": 2, "rhs_dilation": (2, 1)}),
    "other orders of dims": ((7, 2, 9, 4), (3, 2, 2, 6), (1, 3, 0, 2), (2, 3, 0, 1), (1, 2, 0, 3),
                             {"strides": (2, 3), "padding": ((3, 1), (0, 2)), "feature_groups": 2,
                              "lhs_dilation": (2, 1), "reversal": (True, False)}),
    "negative padding": ((7, 2, 9, 4), (3, 2, 2, 6), (1, 3, 0, 2), (2, 3, 0, 1), (1, 2, 0, 3),
                         {"padding": ((4, 0), (-1, 2)), "feature_groups": 2, "rhs_dilation": (1, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_gradients_of_convolutions_are_finite_differences(case: tuple) -> None:
    lhs, rhs, lhs_dims, rhs_dims, out_dims, attrs = case
    arrays = [RNG.standard_normal(lhs), RNG.standard_normal(rhs)]
    dims = {"lhs_dims": lhs_dims, "rhs_dims": rhs_dims, "out_dims": out_dims}
    assert check_gradient(ops.convolution, arrays, {**dims, **attrs}) == 2


POOLS = {
    "max": {"strides": (1, 2, 1), "padding": ((0, 0), (1, 1), (0, 1))},
    "min": {"strides": (1, 3, 2), "padding": ((0, 0), (0, 1), (1, 0))},
    "add": {"strides": (1, 2, 1), "padding": ((0, 0), (1, 1), (0, 1)), "window_dilations": (1, 2, 1),
            "base_dilations": (1, 1, 2)},
}  # fmt: skip


@pytest.mark.parametrize("body", POOLS)
def test_gradients_of_pooling_are_finite_differences(body: str) -> None:
    attrs = ops.reduce_window.check_attributes({"dimensions": (1, 3, 2), "body": Body(body), **POOLS[body]})
    start = np.array({"max": -np.inf, "min": np.inf, "add": 0.0}[body])
    x = RNG.permutation(2 * 9 * 7).reshape(2, 9, 7).astype(float)
    run = lambda at: ops.reduce_window.evaluate([at, start], attrs)[0]  # noqa: E731
    y, way = run(x), RNG.standard_normal(x.shape)
    g = RNG.standard_normal(y.shape)
    grad, none = ops.reduce_window.cotangents(g, y, [x, start], attrs)
    slope = np.sum(g * (run(x + 1e-5 * way) - run(x - 1e-5 * way))) / 2e-5
    np.testing.assert_allclose(np.sum(grad * way), slope, rtol=1e-6)
    assert none is None


def test_of_equal_elements_the_first_has_the_gradient_of_pooling() -> None:
    attrs = ops.reduce_window.check_attributes({"dimensions": (2,), "strides": (2,), "body": Body("max")})
    x, start = np.array([3.0, 3.0, 1.0, 2.0]), np.array(-np.inf)
    y = ops.reduce_window.evaluate([x, start], attrs)[0]
    assert ops.reduce_window.cotangents(np.array([5.0, 7.0]), y, [x, start], attrs)[0].tolist() == [5, 0, 0, 7]
