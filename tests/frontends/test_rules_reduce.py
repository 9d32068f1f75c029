"""Rules of reductions, sorting, windows and normalization are Shardy's, for shapes and attributes drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.hlo_text import array, comparator, operation, pairs, reducer, shapes, tensor
from tests.frontends.rules import assert_equal_rules

pytestmark = pytest.mark.jax


def dims(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, len(shape) - 1), unique=True).map(tuple)


@given(st.data(), shapes(), st.integers(1, 3), st.sampled_from(["add", "maximum", "multiply"]))
def test_reduce(data: st.DataObject, shape: tuple[int, ...], inputs: int, body: str) -> None:
    gone = data.draw(dims(shape))
    kept = tuple(size for dim, size in enumerate(shape) if dim not in gone)
    operands = [tensor(shape)] * inputs + [tensor(())] * inputs
    attributes = f"dimensions = {array(gone)}"
    text = operation("reduce", operands, [tensor(kept)] * inputs, attributes, [reducer(body, inputs=inputs)])
    assert assert_equal_rules(text) == 1


@given(st.data(), shapes(), st.integers(1, 3), st.booleans())
def test_sort(data: st.DataObject, shape: tuple[int, ...], inputs: int, conservative: bool) -> None:
    dimension = data.draw(st.integers(0, len(shape) - 1))
    attributes = f"dimension = {dimension} : i64, is_stable = true"
    types = [tensor(shape)] * inputs
    text = operation("sort", types, types, attributes, [comparator(inputs=inputs)])
    assert assert_equal_rules(text, conservative) == 1


@given(shapes(0), st.integers(1, 3))
def test_map_has_none(shape: tuple[int, ...], inputs: int) -> None:
    scalars = ", ".join(f"%s{i}: tensor<f32>" for i in range(inputs))
    body = f"{{ ^bb0({scalars}):\nstablehlo.return %s0 : tensor<f32> }}"
    attributes = f"dimensions = {array(range(len(shape)))}"
    assert assert_equal_rules(operation("map", [tensor(shape)] * inputs, [tensor(shape)], attributes, [body])) == 0


@given(st.data(), shapes())
def test_batch_norm(data: st.DataObject, shape: tuple[int, ...]) -> None:
    feature = data.draw(st.integers(0, len(shape) - 1))
    vector, x = tensor((shape[feature],)), tensor(shape)
    attributes = f"epsilon = 0.1 : f32, feature_index = {feature} : i64"
    inference = operation("batch_norm_inference", [x] + [vector] * 4, [x], attributes)
    training = operation("batch_norm_training", [x, vector, vector], [x, vector, vector], attributes)
    gradient = operation("batch_norm_grad", [x, vector, vector, vector, x], [x, vector, vector], attributes)
    assert [assert_equal_rules(text) for text in (inference, training, gradient)] == [1, 0, 0]


# -- windows

Numbers = tuple[int, ...]
SMALL = st.integers(1, 3)


def counted(size: int, window: int, stride: int, base: int, dilation: int, pad: tuple[int, int]) -> int:
    """The number of windows, as the specification of reduce_window counts them."""
    padded = (size - 1) * base + 1 + sum(pad)
    extent = (window - 1) * dilation + 1
    return (padded - extent) // stride + 1 if padded >= extent else 0


@st.composite
def windowed(draw: Callable, dilations: bool) -> tuple[Numbers, Numbers, str]:
    """A shape, the shape of its windows, and the attributes; every second dim or so is left alone."""
    rows = []
    for size in draw(shapes()):
        alone = draw(st.booleans())
        base, dilation = (draw(SMALL), draw(SMALL)) if dilations else (1, 1)
        window, stride = (1, 1) if alone else (draw(SMALL), draw(SMALL))
        pad = (0, 0) if alone else (draw(st.integers(0, 2)), draw(st.integers(-1, 2)))
        if counted(size, window, stride, base, dilation, pad) < 1:
            window, stride, base, dilation, pad = 1, 1, 1, 1, (0, 0)
        rows.append((size, window, stride, base, dilation, pad))
    sizes, window, stride, base, dilation, pad = (tuple(column) for column in zip(*rows, strict=True))
    attributes = f"window_dimensions = {array(window)}, window_strides = {array(stride)}, padding = {pairs(pad)}"
    if dilations:
        attributes += f", base_dilations = {array(base)}, window_dilations = {array(dilation)}"
    return sizes, tuple(counted(*row) for row in rows), attributes


@given(windowed(dilations=True), st.integers(1, 2), st.booleans())
def test_reduce_window(drawn: tuple[Numbers, Numbers, str], inputs: int, conservative: bool) -> None:
    shape, result, attributes = drawn
    operands = [tensor(shape)] * inputs + [tensor(())] * inputs
    text = operation("reduce_window", operands, [tensor(result)] * inputs, attributes, [reducer(inputs=inputs)])
    assert assert_equal_rules(text, conservative) == 1


@given(windowed(dilations=False), st.booleans())
def test_select_and_scatter(drawn: tuple[Numbers, Numbers, str], conservative: bool) -> None:
    shape, result, attributes = drawn
    operands = [tensor(shape), tensor(result), tensor(())]
    text = operation("select_and_scatter", operands, [tensor(shape)], attributes, [comparator("GE"), reducer()])
    assert assert_equal_rules(text, conservative) == 1


def test_absent_attributes_are_the_usual_ones() -> None:
    text = operation(
        "reduce_window",
        [tensor((4, 6)), tensor(())],
        [tensor((4, 4))],
        f"window_dimensions = {array((1, 3))}",
        [reducer()],
    )
    assert assert_equal_rules(text) == 1
