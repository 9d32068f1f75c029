"""Reductions: values, rules with their reduction kind, shared gradients, the count of a mean, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import broadcastable_shapes

from autoshard import ops
from autoshard.core.tensortype import TensorType, dtype, type_of
from autoshard.ops.reduce import sum_to
from autoshard.util.errors import ShapeError
from tests.ops.checks import check_gradient

RNG = np.random.default_rng(13)
X = RNG.normal(size=(4, 6, 10))


def rule_text(op: ops.Operator, **attrs: object) -> str:
    return str(op.rule((type_of(X),), op.check_attributes(attrs)))


@pytest.mark.parametrize(
    ("name", "function"),
    [("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("prod", np.prod)],
)
@pytest.mark.parametrize("axis", [0, -1, (0, 2), (2, 1), ()], ids=str)
@pytest.mark.parametrize("keep", [False, True])
def test_values(name: str, function, axis, keep: bool) -> None:
    got = getattr(ops, f"reduce_{name}")(X, axis=axis, keep_dims=keep)
    np.testing.assert_allclose(got, function(X, axis=axis if axis != () else None, keepdims=keep))


def test_rules_say_how_terms_are_joined() -> None:
    assert rule_text(ops.reduce_sum, axis=1) == "a b c -> a c {a=4, b=6, c=10}"
    assert rule_text(ops.reduce_max, axis=(0, -1), keep_dims=True) == "a b c -> 1 b 1 by max {a=4, b=6, c=10}"
    assert rule_text(ops.reduce_prod) == "a b c -> () by prod {a=4, b=6, c=10}"
    assert rule_text(ops.arg_max, axis=1) == "a [b]^6 c -> a c {a=4, b=6, c=10}"
    assert rule_text(ops.cum_sum, axis=0) == "[a]^4 b c -> [a]^4 b c {a=4, b=6, c=10}"


def test_bools_are_counted_and_joined() -> None:
    mask = X > 0
    assert ops.reduce_sum(mask, axis=1).dtype == np.int32
    np.testing.assert_array_equal(ops.reduce_sum(mask, axis=1), mask.sum(1))
    np.testing.assert_array_equal(ops.reduce_all(mask, axis=2), mask.min(2))
    np.testing.assert_array_equal(ops.reduce_any(mask, axis=2, keep_dims=True), mask.max(2, keepdims=True))
    assert ops.reduce_mean(np.array([1, 2], np.int32)).dtype == np.float32


def test_a_block_of_a_mean_divides_by_the_whole_count() -> None:
    halves = [ops.reduce_mean(X[:, half], axis=1, count=6) for half in (slice(0, 2), slice(2, 6))]
    np.testing.assert_allclose(halves[0] + halves[1], X.mean(1))


def test_equal_extremes_share_the_gradient() -> None:
    x = np.array([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    highest, lowest = [[0, 0.5, 0.5, 0], [0.25] * 4], [[0, 0, 0, 1], [0.25] * 4]
    for op, want in ((ops.reduce_max, highest), (ops.reduce_min, lowest)):
        y = op(x, axis=1)
        (dx,) = op.cotangents(np.ones(2), y, (x,), op.check_attributes({"axis": 1}))
        np.testing.assert_array_equal(dx, want)


def test_product_has_a_gradient_where_elements_are_zero() -> None:
    x = np.array([[2.0, 0.0, 5.0], [0.0, 0.0, 3.0]])
    (dx,) = ops.reduce_prod.cotangents(
        np.ones(2), ops.reduce_prod(x, axis=1), (x,), ops.reduce_prod.check_attributes({"axis": 1})
    )
    np.testing.assert_array_equal(dx, [[0, 10, 0], [0, 0, 0]])
    assert check_gradient(ops.reduce_prod, [x], {"axis": 0}) == 1


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_spread_is_the_transpose_of_a_sum(scale: float) -> None:
    attrs = ops.spread.check_attributes({"shape": (4, 6, 10), "axis": (0, 2), "scale": scale})
    g = RNG.normal(size=6)
    assert ops.spread(g, **attrs).shape == (4, 6, 10)
    np.testing.assert_allclose(np.sum(ops.spread(g, **attrs) * X), np.sum(g * X.sum((0, 2))) * scale)
    assert check_gradient(ops.spread, [g], attrs) == 1


def test_positions_are_of_the_first_of_equal_elements() -> None:
    x = np.array([[1, 5, 5], [0, 0, 7]])
    assert ops.arg_max(x).tolist() == [1, 2] and ops.arg_min(x, axis=0).tolist() == [1, 1, 0]
    assert ops.arg_max(x).dtype == np.int32
    assert ops.arg_max(x, axis=0, keep_dims=True).tolist() == [[0, 0, 1]]


def test_cumulative_sums() -> None:
    x = np.array([1, 2, 4], np.int32)
    assert ops.cum_sum(x).tolist() == [1, 3, 7]
    assert ops.cum_sum(x, exclusive=True).tolist() == [0, 1, 3]
    assert ops.cum_sum(x, reverse=True).tolist() == [7, 6, 4]
    assert ops.cum_sum(x, reverse=True, exclusive=True).tolist() == [6, 4, 0]
    assert ops.cum_sum(x > 1).tolist() == [0, 1, 2]


def test_narrow_floats_are_added_up_in_wider_ones() -> None:
    ones = np.ones((2, 1000), dtype("bf16").numpy)
    assert ops.cum_sum(ones)[0, -1] == 1000
    assert float(ops.cum_prod(ones + ones / 128)[0, 99]) == pytest.approx(1.0078125**100, rel=1 / 128)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_sum_to_undoes_broadcasting(data: st.DataObject) -> None:
    small = data.draw(st.lists(st.sampled_from([0, 1, 3, 4]), max_size=3).map(tuple))
    big = np.broadcast_shapes(small, data.draw(broadcastable_shapes(small, max_dims=4, min_side=0, max_side=4)))
    g, x = np.random.default_rng(0).normal(size=big), np.random.default_rng(1).normal(size=small)
    summed = sum_to(g, small)
    assert summed.shape == small
    np.testing.assert_allclose(np.sum(summed * x), np.sum(g * x), atol=1e-12)


def test_sum_to_of_the_same_shape_is_the_tensor_itself() -> None:
    assert sum_to(X, X.shape) is X


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.reduce_sum(X, axis=3), "ReduceSum: axis 3 "),
        (lambda: ops.reduce_max(X, axis=(0, -3)), "name one dim twice"),
        (lambda: ops.arg_max(X, axis=-4), "ArgMax: axis -4"),
        (lambda: ops.cum_sum(X, axis="x"), "CumSum: axis 'x'"),
        (lambda: sum_to(X, (4, 6)), r"summing a tensor of shape \(4, 6, 10\) to \(4, 6\)"),
        (lambda: ops.spread(np.ones(6), shape=(4, 6), axis=1), "Spread"),
    ],
)
def test_bad_operands_are_named(call, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        call()


def test_a_reduction_counts_its_elements_as_flops() -> None:
    types = (TensorType.parse("f32[24, 10]"),)
    assert ops.reduce_sum.flops(types, ops.reduce_sum.check_attributes({"axis": 1})) == 240
