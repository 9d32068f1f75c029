"""Python's operators and methods on symbolic tensors: the traced graph computes what numpy computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import ops, plan
from autoshard.core.tensortype import TensorType
from autoshard.trace import Parameter, trace
from autoshard.trace.tensor import snake
from autoshard.util.errors import AutoshardError, GraphError, ShapeError

X = np.random.default_rng(0).normal(size=(4, 6, 10)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(6, 10)).astype(np.float32)
W = np.random.default_rng(2).normal(size=(10, 12)).astype(np.float32)
I = np.arange(24, dtype=np.int32).reshape(4, 6)  # noqa: E741

ON_FLOATS = [
    lambda x, y, w: x + y,
    lambda x, y, w: x + 1,
    lambda x, y, w: 1.5 + x,
    lambda x, y, w: x - y,
    lambda x, y, w: x - 2,
    lambda x, y, w: 2 - x,
    lambda x, y, w: x * y * 3,
    lambda x, y, w: x / (y * y + 1),
    lambda x, y, w: x / 3,
    lambda x, y, w: 2 / (x * x + 1),
    lambda x, y, w: x**2,
    lambda x, y, w: abs(x) ** 1.5,
    lambda x, y, w: (x * x + 1) ** -1,
    lambda x, y, w: (x * x + 1) ** -0.5,
    lambda x, y, w: 2 ** (x * 0.25),
    lambda x, y, w: x @ w,
    lambda x, y, w: x @ w.reshape(1, 10, 12),
    lambda x, y, w: y[0] @ w,
    lambda x, y, w: x @ w[:, 3],
    lambda x, y, w: -x + abs(y),
    lambda x, y, w: x // 2 + x % 2,
    lambda x, y, w: (x > y) & (x < 1) | ~(y >= 0),
    lambda x, y, w: (x == x) ^ (x != 0),
    lambda x, y, w: (x > 0) * 2,
    lambda x, y, w: x.reshape(24, 10),
    lambda x, y, w: x.reshape((6, -1)),
    lambda x, y, w: x.transpose(),
    lambda x, y, w: x.transpose(1, 0, 2),
    lambda x, y, w: x.transpose((2, 0, 1)),
    lambda x, y, w: x.swapaxes(0, -1),
    lambda x, y, w: w.T,
    lambda x, y, w: x.flatten(),
    lambda x, y, w: x.sum(),
    lambda x, y, w: x.sum(axis=(0, 2)),
    lambda x, y, w: x.mean(axis=1, keepdims=True),
    lambda x, y, w: x.max(axis=-1) + x.min(),
    lambda x, y, w: x.prod(axis=1),
    lambda x, y, w: x.astype(np.float64),
    lambda x, y, w: x[:, 1:2].squeeze(1),
    lambda x, y, w: sum(row for row in y),
]


@pytest.mark.parametrize("fn", ON_FLOATS, ids=range(len(ON_FLOATS)))
def test_same_as_numpy(fn) -> None:
    traced = trace(fn, X, Y, W)
    want = fn(X, Y, W)
    got = traced(X, Y, W)
    assert got.shape == want.shape and got.dtype.kind == want.dtype.kind and got.dtype.itemsize <= 8
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-5)


@pytest.mark.parametrize(
    "fn, want",
    [
        (lambda i: i + 2, "i32"),
        (lambda i: i * 3, "i32"),
        (lambda i: i * 0.5, "f32"),
        (lambda i: i / 3, "f32"),
        (lambda i: 2 / (i + 1), "f32"),
        (lambda i: i // 4, "i32"),
        (lambda i: (i > 3) + 1, "i32"),
        (lambda i: i**2, "i32"),
    ],
)
def test_whole_numbers(fn, want) -> None:
    traced = trace(fn, I)
    assert str(traced.graph.outputs[0].type.dtype) == want
    np.testing.assert_allclose(traced(I), fn(I), rtol=1e-6)


def index_of(size: int) -> st.SearchStrategy:
    ends = st.none() | st.integers(-size, size)
    slices = st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, -1]))
    return st.integers(-size, size - 1) | slices.filter(lambda one: len(range(size)[one]) > 0)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_indexing_is_numpys(data) -> None:
    items: list = [data.draw(index_of(size)) for size in X.shape[: data.draw(st.integers(0, 3))]]
    for extra in data.draw(st.sampled_from([[], [None], [Ellipsis], [None, Ellipsis, None]])):
        # Behind the last index no item changes its dim.
        items.append(extra)
    index = tuple(items)
    np.testing.assert_array_equal(trace(lambda x: x[index], X)(X), X[index])


def test_indexing_by_a_tensor_picks_rows() -> None:
    ids = np.array([[3, 0], [1, 1]], np.int32)
    np.testing.assert_array_equal(trace(lambda x, i: x[i], X, ids)(X, ids), X[ids])


PICKS = {
    "rows": lambda x, i, j: x[i],
    "columns": lambda x, i, j: x[:, i],
    "both": lambda x, i, j: x[i, j],
    "a number beside": lambda x, i, j: x[0, i],
    "apart": lambda x, i, j: x[i, :, j],
    "neighbours behind": lambda x, i, j: x[1:, i, j],
    "cut": lambda x, i, j: x[::2, i, 1:],
    "last": lambda x, i, j: x[..., j],
    "new dims": lambda x, i, j: x[None, i, None, j],
    "known": lambda x, i, j: x[np.arange(4), i, [0, -1, 1, 2]],
    "mask": lambda x, i, j: x[np.array([True, False, True, True]), :, j[0]],
    "one": lambda x, i, j: x[i[0], j[1, 0]],
}


@pytest.mark.parametrize("name", PICKS)
def test_indexing_by_tensors_is_numpys(name) -> None:
    x, i, j = X[:, :5, :6], np.array([0, 3, -1, 2]), np.array([[1], [0], [-2]])
    traced = trace(PICKS[name], x, i, j)
    np.testing.assert_array_equal(traced(x, i, j), PICKS[name](x, i, j))
    np.testing.assert_array_equal(plan(traced, devices=2).run(x, i, j), PICKS[name](x, i, j))


def test_an_index_outside_is_an_error_of_the_run() -> None:
    for pick in (lambda x, i: x[i], lambda x, i: x[i, i]):
        with pytest.raises(AutoshardError, match="7"):
            trace(pick, X, np.array([7]))(X, np.array([7]))


def test_a_mask_of_a_trace_cannot_pick() -> None:
    with pytest.raises(ShapeError, match="only whole numbers can pick rows; for a mask use ops.select"):
        trace(lambda x: x[x > 0], X)
    np.testing.assert_array_equal(trace(lambda x: x[X > 0], X)(X), X[X > 0])


@pytest.mark.parametrize(
    "index, message",
    [
        ((0, 0, 0, 0), "3 dims with 4 indices"),
        (4, "index 4 is not in dim 0 of size 4"),
        ("a", "dim 0 is indexed with 'a'"),
        ((0, [0.5]), "only whole numbers can pick rows; for a mask use ops.select"),
        ((0, [7, 1]), "indices from 1 to 7 are not in dim 1 of size 6"),
    ],
)
def test_bad_index(index, message) -> None:
    with pytest.raises(ShapeError, match=message):
        trace(lambda x: x[index], X)


def test_numbers_take_the_type_of_the_tensor_beside_them() -> None:
    traced = trace(lambda x: ops.maximum(x, 0.5), TensorType.of((4, 6), "f16"))
    fill, node = traced.graph.nodes
    assert fill.op.name == "Fill" and str(fill.results[0].type) == "f16[]"
    assert str(node.results[0].type) == "f16[4, 6]"
    chosen = trace(lambda c: ops.select(c, 1.0, 0.0), TensorType.of((4, 6), "bool"))
    assert str(chosen.graph.outputs[0].type) == "f32[4, 6]"


def test_arrays_become_constants_and_equal_numbers_a_fill() -> None:
    column = np.arange(4, dtype=np.float32)[:, None]
    traced = trace(lambda x: x + column + np.ones((4, 6), np.float32), TensorType.of((4, 6)))
    assert [node.op.name for node in traced.graph.nodes] == ["Constant", "Add", "Fill", "Add"]
    x = np.zeros((4, 6), np.float32)
    np.testing.assert_array_equal(traced(x), x + column + 1)


def test_the_array_may_stand_on_the_left() -> None:
    traced = trace(lambda y: X + y, Y)
    np.testing.assert_array_equal(traced(Y), X + Y)
    np.testing.assert_array_equal(X * Parameter(Y), X * Y)


@pytest.mark.parametrize(
    "fn, use",
    [
        (lambda x: x if x.sum() > 0 else -x, "a condition"),
        (lambda x: x * float(x.sum()), r"float\(\)"),
        (lambda x: [x[0]][x[0]], "an index"),
        (lambda x: np.concatenate([x, x]), "numpy.concatenate"),
        (lambda x: np.asarray(x), "a conversion to numpy"),
        (lambda x: x.asnumpy(), r"\.asnumpy\(\)"),
    ],
)
def test_numbers_of_a_tensor_are_not_known(fn, use) -> None:
    with pytest.raises(GraphError, match=use + r".* needs the numbers of the tensor.*test_tensor\.py:\d+.*ops\.select"):
        trace(fn, X)


def test_a_tensor_must_not_leave_its_trace() -> None:
    kept = []
    trace(lambda x: kept.append(x) or x + 1, X, name="first")
    with pytest.raises(GraphError, match="'first', not to 'second'.*test_tensor.py"):
        trace(lambda x: x + kept[0], X, name="second")


def test_shapes_that_do_not_match_name_operator_types_and_line() -> None:
    with pytest.raises(ShapeError) as error:
        trace(lambda x, w: ops.matmul(x, w), X, Y)
    text = str(error.value)
    assert "MatMul" in text and "f32[4, 6, 10], f32[6, 10]" in text
    assert "test_tensor.py:" in text and "trace(lambda x, w: ops.matmul(x, w), X, Y)" in text


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ShapeError, match="an operand is 'three'"):
        trace(lambda x: ops.add(x, "three"), X)
    with pytest.raises(TypeError):
        trace(lambda x: x + "three", X)


@pytest.mark.parametrize(
    "name, want",
    [("MatMul", "matmul"), ("BatchMatMul", "batch_matmul"), ("ReLU", "relu"), ("GeLUGrad", "gelu_grad")]
    + [
        ("ReduceSum", "reduce_sum"),
        ("AddN", "add_n"),
        ("GatherD", "gather_d"),
        ("ViT", "vit"),
        ("LayerNormParamGrad", "layer_norm_param_grad"),
    ],
)
def test_snake(name, want) -> None:
    assert snake(name) == want


@pytest.mark.jax
@pytest.mark.parametrize("values", [np.zeros(()), np.full((2, 3), 0.25), np.arange(6.0).reshape(2, 3)], ids=str)
def test_constants_of_half_precision(values) -> None:
    import ml_dtypes

    array = values.astype(ml_dtypes.bfloat16)
    traced = trace(lambda x: ops.add(ops.cast(x, dtype="bf16"), array), np.ones((2, 3), np.float32))
    assert str(traced.graph.outputs[0].type) == "bf16[2, 3]"
    np.testing.assert_array_equal(np.asarray(traced(np.ones((2, 3), np.float32)), np.float32), np.ones((2, 3)) + values)
