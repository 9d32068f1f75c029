"""Reductions, sorting, windows and normalization compute what XLA computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.ops.body import Body
from autoshard.ops.folding import fold, fold_windows
from autoshard.ops.hlo_sort import merged_order, sort_along
from tests.frontends.hlo_text import array, comparator, operation, pairs, reducer, shapes, tensor
from tests.frontends.test_rules_reduce import dims, windowed
from tests.frontends.xla import assert_same_numbers, random_array

pytestmark = pytest.mark.jax

# XLA compiles each module anew, which takes longer than all else here.
few = settings(max_examples=15)


def arrays(types: Sequence[tuple[tuple[int, ...], str]], seed: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [random_array(rng, shape, element) for shape, element in types]


# -- reduce
BODIES = [
    *(("f32", op) for op in ("add", "multiply", "maximum", "minimum")),
    *(("i32", op) for op in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")),
    *(("i1", op) for op in ("add", "multiply", "maximum", "and", "or", "xor")),
    ("ui8", "add"),
    ("bf16", "add"),
    ("f16", "maximum"),
    ("complex<f32>", "add"),
    ("f64", "add"),
]
# What an operation starts from has to change nothing; what else it would do, StableHLO leaves open.
NEUTRAL = {"add": 0, "multiply": 1, "maximum": -100, "minimum": 100, "and": -1, "or": 0, "xor": 0}
NAMES = {"i1": "bool", "ui8": "u8", "complex<f32>": "c64"}


@pytest.mark.parametrize(("element", "op"), BODIES)
@pytest.mark.parametrize("gone", [(1,), (0, 2), (0, 1, 2), ()])
def test_reduce(element: str, op: str, gone: tuple[int, ...]) -> None:
    shape = (4, 3, 5)
    kept = tuple(size for dim, size in enumerate(shape) if dim not in gone)
    text = operation(
        "reduce",
        [tensor(shape, element), tensor((), element)],
        [tensor(kept, element)],
        f"dimensions = {array(gone)}",
        [reducer(op, element)],
    )
    name = NAMES.get(element, element)
    (x,) = arrays([(shape, name)], seed=len(gone))
    assert_same_numbers(text, [x, neutral(op, x)], 0.05 if name == "bf16" else 1e-5)


def neutral(op: str, like: np.ndarray) -> np.ndarray:
    return np.asarray(op in ("multiply", "and") if like.dtype == bool else NEUTRAL[op]).astype(like.dtype)


ARG_MAX = """{ ^bb0(%a: tensor<f32>, %i: tensor<i32>, %b: tensor<f32>, %j: tensor<i32>):
  %gt = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %eq = stablehlo.compare EQ, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %lt = stablehlo.compare LT, %i, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %tie = stablehlo.and %eq, %lt : tensor<i1>
  %left = stablehlo.or %gt, %tie : tensor<i1>
  %x = stablehlo.select %left, %a, %b : tensor<i1>, tensor<f32>
  %k = stablehlo.select %left, %i, %j : tensor<i1>, tensor<i32>
  stablehlo.return %x, %k : tensor<f32>, tensor<i32> }"""


@few
@given(st.data(), shapes(1, 3))
def test_reduce_of_two_inputs_by_any_function(data: st.DataObject, shape: tuple[int, ...]) -> None:
    gone = data.draw(dims(shape))
    kept = tuple(size for dim, size in enumerate(shape) if dim not in gone)
    operands = [tensor(shape), tensor(shape, "i32"), tensor(()), tensor((), "i32")]
    results = [tensor(kept), tensor(kept, "i32")]
    text = operation("reduce", operands, results, f"dimensions = {array(gone)}", [ARG_MAX])
    values = np.random.default_rng(1).integers(0, 4, shape).astype(np.float32)
    numbers = np.arange(values.size, dtype=np.int32).reshape(shape)
    assert_same_numbers(text, [values, numbers, np.array(-9, "f4"), np.array(99, "i4")])


def test_a_reduction_of_nothing_is_what_it_starts_from() -> None:
    text = operation("reduce", [tensor((0, 3)), tensor(())], [tensor((3,))], f"dimensions = {array((0,))}", [reducer()])
    assert_same_numbers(text, [np.zeros((0, 3), np.float32), np.array(2.5, "f4")])


def test_a_tree_keeps_the_order_of_elements() -> None:
    first = Body("", "first", lambda a, b: a)
    last = Body("", "last", lambda a, b: b)
    x = np.arange(35).reshape(5, 7)
    assert fold(first, (x,), (0,))[0].tolist() == x[0].tolist()
    assert fold(last, (x,), (1,))[0].tolist() == x[:, -1].tolist()
    assert fold(last, (x,), (0, 1))[0] == 34


def test_map() -> None:
    body = "{ ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n%t0 = stablehlo.subtract %b, %a : tensor<f32>\n"
    types = [tensor((4, 3)), tensor((4, 3))]
    text = operation(
        "map", types, types[:1], f"dimensions = {array((0, 1))}", [body + "stablehlo.return %t0 : tensor<f32> }"]
    )
    assert_same_numbers(text, arrays([((4, 3), "f32")] * 2))


# -- sort


@few
@given(st.data(), shapes(), st.integers(1, 2), st.sampled_from(["LT", "GT"]), st.sampled_from(["f32", "i32", "bf16"]))
def test_sort(data: st.DataObject, shape: tuple[int, ...], inputs: int, direction: str, element: str) -> None:
    """Whole numbers give ties, among which the order of the other inputs shows whether it is stable."""
    dimension = data.draw(st.integers(0, len(shape) - 1))
    types = [tensor(shape, element)] * inputs
    attributes = f"dimension = {dimension} : i64, is_stable = true"
    text = operation("sort", types, types, attributes, [comparator(direction, element, inputs)])
    rng = np.random.default_rng(4)
    keys = rng.integers(-2, 3, shape).astype(arrays([((), element)])[0].dtype)
    others = np.arange(keys.size).reshape(shape).astype(keys.dtype)
    assert_same_numbers(text, [keys, others][:inputs])


BY_TWO_KEYS = """{ ^bb0(%a: tensor<i32>, %b: tensor<i32>, %p: tensor<f32>, %q: tensor<f32>):
  %lt = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %eq = stablehlo.compare EQ, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %gt = stablehlo.compare GT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %tie = stablehlo.and %eq, %gt : tensor<i1>
  %r = stablehlo.or %lt, %tie : tensor<i1>
  stablehlo.return %r : tensor<i1> }"""


@pytest.mark.parametrize(("shape", "dimension"), [((13,), 0), ((3, 9), 1), ((17, 2), 0), ((2, 1, 3), 1)])
def test_sort_by_two_keys(shape: tuple[int, ...], dimension: int) -> None:
    types = [tensor(shape, "i32"), tensor(shape)]
    text = operation("sort", types, types, f"dimension = {dimension} : i64", [BY_TWO_KEYS])
    rng = np.random.default_rng(5)
    assert_same_numbers(text, [rng.integers(0, 3, shape).astype(np.int32), rng.standard_normal(shape).astype("f4")])


@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 9))
def test_merging_sorts_stably(count: int, rows: int, seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 6, (count, rows))
    columns = np.arange(rows)
    order = merged_order(lambda i, j: keys[i, columns] > keys[j, columns], count, rows)
    assert order.tolist() == np.argsort(-keys, axis=0, kind="stable").tolist()


def test_nan_is_sorted_by_what_the_comparator_says() -> None:
    """A comparator that puts NaN first: the usual order fails its check."""
    body = Body("", "nan first", lambda a, b, *_: np.isnan(a) & ~np.isnan(b) | (a < b))
    x = np.array([3, np.nan, 1, np.nan, 2], np.float32)
    sorted_, numbers = sort_along.run(x, np.arange(5), dimension=0, body=body)
    assert numbers.tolist() == [1, 3, 2, 4, 0] and sorted_[2:].tolist() == [1, 2, 3]


# -- windows


@few
@given(
    windowed(dilations=True), st.sampled_from([("f32", "add"), ("f32", "maximum"), ("i32", "add"), ("bf16", "minimum")])
)
def test_reduce_window(drawn: tuple, kind: tuple[str, str]) -> None:
    shape, result, attributes = drawn
    element, op = kind
    operands = [tensor(shape, element), tensor((), element)]
    text = operation("reduce_window", operands, [tensor(result, element)], attributes, [reducer(op, element)])
    (x,) = arrays([(shape, element)])
    assert_same_numbers(text, [x, neutral(op, x)])


@few
@given(windowed(dilations=False))
def test_reduce_window_by_any_function(drawn: tuple) -> None:
    shape, result, attributes = drawn
    operands = [tensor(shape), tensor(shape, "i32"), tensor(()), tensor((), "i32")]
    text = operation("reduce_window", operands, [tensor(result), tensor(result, "i32")], attributes, [ARG_MAX])
    values = np.random.default_rng(1).integers(0, 4, shape).astype(np.float32)
    numbers = np.arange(values.size, dtype=np.int32).reshape(shape)
    assert_same_numbers(text, [values, numbers, np.array(-9, "f4"), np.array(99, "i4")])


@few
@given(windowed(dilations=False), st.sampled_from(["GE", "LE"]))
def test_select_and_scatter(drawn: tuple, direction: str) -> None:
    shape, result, attributes = drawn
    operands = [tensor(shape), tensor(result), tensor(())]
    text = operation(
        "select_and_scatter", operands, [tensor(shape)], attributes, [comparator(direction), reducer("add")]
    )
    rng = np.random.default_rng(2)
    values = rng.permutation(np.arange(np.prod(shape))).reshape(shape).astype(np.float32)
    assert_same_numbers(text, [values, rng.standard_normal(result).astype("f4"), np.array(0.5, "f4")])


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3))
def test_windows_are_put_together_in_order(size: int, stride: int, dilation: int) -> None:
    pair = Body("", "pair", lambda a, b: np.char.add(a, b))
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz" * 2), "U9")
    (found,) = fold_windows(pair, (letters,), 0, size, stride, dilation)
    extent = (size - 1) * dilation + 1
    wanted = ["".join(letters[at : at + extent : dilation]) for at in range(0, len(letters) - extent + 1, stride)]
    assert found.tolist() == wanted


# -- batch normalization


@pytest.mark.parametrize(("shape", "feature"), [((4, 3, 5), 1), ((4, 6), 0), ((2, 3, 5, 7), 3)])
def test_batch_norm(shape: tuple[int, ...], feature: int) -> None:
    x, vector = tensor(shape), tensor((shape[feature],))
    attributes = f"epsilon = 0.01 : f32, feature_index = {feature} : i64"
    scale, offset, mean, variance = arrays([((shape[feature],), "f32")] * 4)
    variance = np.abs(variance) + np.float32(0.5)
    value, gradient = arrays([(shape, "f32")] * 2)
    inference = operation("batch_norm_inference", [x, *[vector] * 4], [x], attributes)
    assert_same_numbers(inference, [value, scale, offset, mean, variance])
    training = operation("batch_norm_training", [x, vector, vector], [x, vector, vector], attributes)
    assert_same_numbers(training, [value, scale, offset], 1e-4)
    grad = operation("batch_norm_grad", [x, vector, vector, vector, x], [x, vector, vector], attributes)
    assert_same_numbers(grad, [value, scale, mean, variance, gradient], 1e-4)


def test_absent_window_attributes() -> None:
    attributes = f"window_dimensions = {array((1, 3))}, padding = {pairs([(0, 0), (1, 0)])}"
    text = operation("reduce_window", [tensor((4, 6)), tensor(())], [tensor((4, 5))], attributes, [reducer()])
    assert_same_numbers(text, [*arrays([((4, 6), "f32")]), np.array(0, "f4")])
