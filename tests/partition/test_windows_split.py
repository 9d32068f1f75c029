"""Operators that move elements along a dim, run with that dim split: equal to the unsplit run, by an exchange alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard.ops  # noqa: F401  (registers the operators)
from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.strategy import Strategy, is_runnable
from autoshard.layout import Mesh
from autoshard.ops.body import Body
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.partition.program import Collective
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from tests.oracle.check import assert_same, plan_with, single
from tests.partition.exchanging import drawn, exchanging, multiple

MESHES = ("2", "4", "2x4", "6", "3x2")


LENGTH = st.sampled_from([8, 12, 16, 24])
MESH = st.sampled_from(MESHES)


@settings(max_examples=30)
@given(LENGTH, st.sampled_from([4, 6, 8, 12]), st.integers(0, 3), st.integers(1, 3), MESH)
def test_slices(size, count, start, stride, mesh):
    room = start + (count - 1) * stride + 1
    x = drawn(0, 3, multiple(max(size, room), 12) if room <= 24 else multiple(room + 11, 12))
    limit = min(x.shape[1], start + count * stride)
    attrs = {"start": (0, start), "limit": (3, limit), "strides": (1, stride)}
    exchanging("Slice", [x], attrs, mesh)


@settings(max_examples=30)
@given(LENGTH, st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 2), MESH)
def test_padding_with_holes(size, low, high, interior, mesh):
    full = size + low + high + (size - 1) * interior
    high += -full % 12 if full > 0 else 12 - full
    attrs = {"low": (1, low), "high": (0, high), "interior": (0, interior)}
    exchanging("HloPad", [drawn(0, 3, size), np.array(7.5, np.float32)], attrs, mesh)


@settings(max_examples=25)
@given(LENGTH, st.integers(0, 14), st.integers(0, 14), MESH)
def test_padding(size, low, high, mesh):
    high += -(size + low + high) % 12
    exchanging("Pad", [drawn(0, size, 3)], {"paddings": ((low, high), (0, 0)), "value": -1.5}, mesh)


@settings(max_examples=30)
@given(LENGTH, st.integers(1, 3), st.booleans(), st.integers(0, 4), st.sampled_from([4, 6, 8, 12]), MESH)
def test_python_slices_and_their_gradients(size, step, backwards, start, count, mesh):
    size = multiple(max(size, start + count * step), 12)
    size += 12 * (size < start + count * step)
    taken = range(start, start + count * step, step)
    begin, end, strides = taken[0], taken[-1] + 1, step
    if backwards:
        begin, end, strides = taken[-1], taken[0] - 1 if taken[0] else None, -step
    attrs = {"begin": (None, begin), "end": (None, end), "strides": (1, strides)}
    exchanging("StridedSlice", [drawn(0, 3, size)], attrs, mesh)
    exchanging("StridedSliceGrad", [drawn(1, 3, count)], {"shape": (3, size), **attrs}, mesh)


@settings(max_examples=30)
@given(LENGTH, st.integers(-30, 30), MESH)
def test_orders(size, shift, mesh):
    x = drawn(0, 5, size, 4)
    assert exchanging("ReverseV2", [x], {"axis": (1, 2)}, mesh)
    assert exchanging("Roll", [x], {"shift": (shift, 1), "axis": (-2, 0)}, mesh)


@settings(max_examples=25)
@given(st.lists(st.sampled_from([2, 4, 6, 12, 16]), min_size=1, max_size=4), MESH)
def test_joining_and_cutting(sizes, mesh):
    xs = [drawn(i, 3, size) for i, size in enumerate(sizes)]
    exchanging("Concatenate", xs, {"dim": 1}, mesh)
    exchanging("Concat", xs, {"axis": -1}, mesh)
    exchanging("Split", [drawn(0, 3, sum(sizes))], {"axis": 1, "sizes": tuple(sizes)}, mesh)


@settings(max_examples=25)
@given(
    st.sampled_from([8, 12, 16]), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
    st.integers(-1, 4), st.booleans(), MESH,
)  # fmt: skip
def test_convolution_in_space(size, window, stride, base, dilation, low, turned, mesh):
    extent, inner = (window - 1) * dilation + 1, (size - 1) * base + 1
    count = multiple(max(1, (inner + low - extent) // stride + 1), 4)
    high = (count - 1) * stride + extent - inner - low
    attrs = {
        "lhs_dims": (0, 2, 1), "rhs_dims": (1, 0, 2), "out_dims": (2, 0, 1), "strides": (stride,),
        "padding": ((low, high),), "lhs_dilation": (base,), "rhs_dilation": (dilation,), "reversal": (turned,),
    }  # fmt: skip
    exchanging("Convolution", [drawn(0, 2, size, 6), drawn(1, 5, 6, window)], attrs, mesh)


@settings(max_examples=30)
@given(
    st.sampled_from([8, 12, 18]), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2), st.booleans(), MESH
)  # fmt: skip
def test_convolution_with_split_windows(window, count, low, dilation, turned, mesh):
    """As in the gradient of a convolution's weights, whose window is as large as the images."""
    size = (window - 1) * dilation + count - low
    size += -size % 12
    high = (window - 1) * dilation + count - low - size
    attrs = {
        "lhs_dims": (0, 1, 2), "rhs_dims": (0, 1, 2), "out_dims": (0, 1, 2), "padding": ((low, high),),
        "rhs_dilation": (dilation,), "reversal": (turned,),
    }  # fmt: skip
    exchanging("Convolution", [drawn(0, 2, 3, size), drawn(1, 3, 5, window)], attrs, mesh)


@settings(max_examples=30)
@given(
    st.sampled_from([8, 12, 16]), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
    st.integers(0, 6), MESH,
)  # fmt: skip
def test_pooling(size, window, stride, base, dilation, low, mesh):
    extent, inner = (window - 1) * dilation + 1, (size - 1) * base + 1
    count = multiple(max(1, (inner + low - extent) // stride + 1), 4)
    high = (count - 1) * stride + extent - inner - low
    attrs = {
        "dimensions": (1, window), "strides": (1, stride), "base_dilations": (1, base),
        "window_dilations": (1, dilation), "padding": ((0, 0), (low, high)),
    }  # fmt: skip
    x = drawn(0, 3, size)
    for body, start in (("max", -np.inf), ("add", 0.25)):
        exchanging("ReduceWindow", [x, np.array(start, np.float32)], {**attrs, "body": Body(body)}, mesh)


@pytest.mark.parametrize("mesh", MESHES)
def test_images(mesh):
    """Both dims of an image split, strided and depthwise."""
    attrs = {
        "lhs_dims": (0, 3, 1, 2), "rhs_dims": (2, 3, 0, 1), "out_dims": (0, 3, 1, 2),
        "padding": ((1, 1), (1, 1)), "feature_groups": 6,
    }  # fmt: skip
    images, filters = drawn(0, 1, 24, 12, 6), drawn(1, 3, 3, 1, 6)
    assert exchanging("Convolution", [images, filters], attrs, mesh)
    assert exchanging("Convolution", [images, filters], {**attrs, "strides": (2, 1), "padding": ((0, 1), (1, 1))}, mesh)


@settings(max_examples=30)
@given(LENGTH, st.booleans(), st.booleans(), st.sampled_from(["f32", "i32", "bool"]), MESH)
def test_cumulative_sums(size, exclusive, reverse, dtype, mesh):
    x = (drawn(0, 4, size, 3) * 3).astype({"f32": np.float32, "i32": np.int32, "bool": np.bool_}[dtype])
    assert exchanging("CumSum", [x], {"axis": -2, "exclusive": exclusive, "reverse": reverse}, mesh)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("body", "start"), [("add", 0.0), ("max", -np.inf), ("add", 0.25), ("mul", 1.0)])
def test_windows_up_to_each_element(body, start, reverse, mesh):
    """As JAX writes cumulative sums, maxima and products; what does not begin with the neutral element too."""
    attrs = {"dimensions": (24, 1), "padding": ((0, 23) if reverse else (23, 0), (0, 0)), "body": Body(body)}
    arrays = [drawn(0, 24, 3), np.array(start, np.float32)]
    graph, node = single(lookup("ReduceWindow"), arrays, lookup("ReduceWindow").check_attributes(attrs))
    assert exchanging("ReduceWindow", arrays, attrs, mesh)
    for strategy in enumerate_strategies(node.rule, Mesh.parse(mesh)):
        if strategy.exchanges:
            program = lower(plan_with(graph, node, strategy))
            (gather,) = [one for one in program.collectives if one.serves is node]
            assert gather.step.kind == "all_gather"
            assert gather.nbytes_moved == (strategy.parts[0] - 1) * 4 * 3 / strategy.parts[1]


def uneven(op: str, arrays: list[np.ndarray], attrs: dict, mesh: str, factor: int) -> None:
    """Run with one factor split over the whole mesh, whatever its dims divide into; compare with the whole run."""
    operator, chosen = lookup(op), Mesh.parse(mesh)
    graph, node = single(operator, arrays, attrs)
    parts = [chosen.devices if i == factor else 1 for i in range(len(node.rule.factors))]
    assert is_runnable(node.rule, parts) and node.rule.factors[factor].exchange
    strategy = Strategy(node.rule, chosen, tuple(chosen.all_axes if one > 1 else () for one in parts))
    program = lower(plan_with(graph, node, strategy))
    verify_program(program)
    assert {"halo", "all_gather"} & {one.step.kind for one in program.instructions if isinstance(one, Collective)}
    outputs = Executor(program, LocalComm(chosen.devices))(*arrays)
    for got, want in zip(outputs, operator.evaluate(arrays, node.attrs), strict=True):
        assert_same(got, want, 1e-5, f"{op} {attrs} of {[one.shape for one in arrays]} by {strategy} on {mesh}")


UNEVEN = [
    ("Slice", [(3, 19)], {"start": (0, 2), "limit": (3, 17), "strides": (1, 1)}, 1),
    ("Slice", [(3, 23)], {"start": (0, 1), "limit": (3, 23), "strides": (1, 3)}, 1),
    ("HloPad", [(11, 2), ()], {"low": (3, 0), "high": (-1, 0), "interior": (1, 0)}, 0),
    ("Pad", [(11, 2)], {"paddings": ((2, 4), (0, 0)), "value": 3.0}, 0),
    ("StridedSlice", [(2, 17)], {"begin": (None, 15), "end": (None, 1), "strides": (1, -1)}, 1),
    ("StridedSliceGrad", [(2, 7)], {"shape": (2, 17), "begin": (None, 2), "end": (None, 16), "strides": (1, 2)}, 1),
    ("ReverseV2", [(13, 2)], {"axis": 0}, 0),
    ("Roll", [(13, 2)], {"shift": -4, "axis": 0}, 0),
    ("Concatenate", [(5, 2), (9, 2), (1, 2)], {"dim": 0}, 0),
    ("Split", [(2, 20)], {"axis": 1, "sizes": (9, 11)}, 1),
    ("CumSum", [(15, 2)], {"axis": 0, "reverse": True}, 0),
    ("CumSum", [(15, 2)], {"axis": 0, "exclusive": True}, 0),
    (
        "Convolution",
        [(2, 3, 13), (3, 5, 4)],
        {"lhs_dims": (0, 1, 2), "rhs_dims": (0, 1, 2), "out_dims": (0, 1, 2), "padding": ((1, 2),)},
        1,
    ),
    (
        "Convolution",
        [(2, 3, 15), (3, 5, 13)],
        {"lhs_dims": (0, 1, 2), "rhs_dims": (0, 1, 2), "out_dims": (0, 1, 2), "padding": ((1, 0),)},
        1,
    ),
    (
        "SelectAndScatter",
        [(3, 17), (3, 7), ()],
        {
            "dimensions": (1, 4),
            "strides": (1, 2),
            "padding": ((0, 0), (1, -2)),
            "select": Body("ge"),
            "scatter": Body("add"),
        },
        2,
    ),
    (
        "ReduceWindow",
        [(3, 17), ()],
        {"dimensions": (1, 3), "strides": (1, 2), "padding": ((0, 0), (1, 1)), "body": Body("max")},
        1,
    ),
]


@pytest.mark.parametrize("mesh", ["4", "6"])
@pytest.mark.parametrize(("op", "shapes", "attrs", "factor"), UNEVEN)
def test_parts_that_do_not_divide(op, shapes, attrs, factor, mesh):
    arrays = [drawn(i, *shape) if shape else np.array(-9.0, np.float32) for i, shape in enumerate(shapes)]
    uneven(op, arrays, attrs, mesh, factor)


@settings(max_examples=30)
@given(
    st.sampled_from([8, 12, 16]), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), MESH
)  # fmt: skip
def test_gradient_of_pooling(size, window, stride, low, high, mesh):
    count = multiple(max(1, (size + low + high - window) // stride + 1), 2)
    high = (count - 1) * stride + window - size - low
    attrs = {
        "dimensions": (1, window), "strides": (1, stride), "padding": ((0, 0), (low, high)),
        "select": Body("ge"), "scatter": Body("add"),
    }  # fmt: skip
    exchanging("SelectAndScatter", [drawn(0, 3, size), drawn(1, 3, count), np.array(0.0, np.float32)], attrs, mesh)
