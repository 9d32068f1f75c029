"""merge_movements keeps what a graph computes, and makes one operator of rolls, of shifts and of slices of joins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard import ops
from autoshard.core.tensortype import TensorType
from autoshard.frontends import from_stablehlo
from autoshard.ir.graph import Builder, Graph, Value
from autoshard.ir.verify import verify
from autoshard.ops.registry import lookup
from autoshard.trace import evaluate, trace
from autoshard.transform.inline import inline
from autoshard.transform.merge_movements import merge_movements
from autoshard.transform.simplify import prune

pytestmark = pytest.mark.jax
X = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)


def merged(fn, *arrays) -> tuple[Graph, list[str]]:
    """The merged graph of a JAX function, which computes the same, and its operators besides constants."""
    lowered = jax.jit(fn, keep_unused=True).lower(*arrays)
    graph = prune(inline(from_stablehlo(lowered.as_text()).graph))
    small = merge_movements(graph)
    verify(small)
    for got, want in zip(evaluate(small, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    return small, [node.op.name for node in small.nodes if node.operand_types and node.operand_types[0].shape]


@pytest.mark.parametrize("shift", [1, 3, -2, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_roll_is_one_operator(shift: int, axis: int) -> None:
    small, names = merged(lambda x: jnp.roll(x, shift, axis), X)
    assert names == ["Roll"]
    np.testing.assert_array_equal(evaluate(small, [X])[0], np.roll(X, shift, axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_of_a_roll_is_a_roll(axis: int) -> None:
    def fn(x, y):
        return jax.vjp(lambda x: jnp.roll(x, 2, axis), x)[1](y)[0]

    assert merged(fn, X, X + 1)[1] == ["Roll"]


def test_a_roll_inside_of_a_loop() -> None:
    def fn(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.roll(x, 1, 0) * 2, x)

    small, _ = merged(fn, X)
    body = [node.op.name for loop in small.nodes for region in loop.regions for node in region.nodes]
    assert "Roll" in body and "Slice" not in body


def test_pad_and_slice_shift() -> None:
    small, names = merged(lambda x: jnp.pad(x, ((1, 1), (0, 2)))[2:, 1:], X)
    assert names == ["HloPad"]
    assert small.nodes[-1].attrs["low"] == (-1, -1) and small.nodes[-1].attrs["high"] == (1, 2)


def test_slices_of_joins_and_joins_of_slices() -> None:
    assert merged(lambda x: jnp.concatenate([x, x + 1])[8:10], X)[1] == ["Add", "StridedSlice"]
    assert merged(lambda x: jnp.concatenate([x[:2], x[2:5], x[5:]]), X)[1] == ["Identity"]
    assert merged(lambda x: x[1:, 2:][2:, :1], X)[1] == ["StridedSlice"]


def test_what_is_no_such_thing_stays() -> None:
    def twice_used(x):
        first = x[:3]
        return jnp.concatenate([x[3:], first]), first

    assert sorted(merged(twice_used, X)[1]) == ["Concatenate", "Slice", "Slice"]
    assert merged(lambda x: x[::2][1:], X)[1] == ["Slice", "Slice"]
    assert merged(lambda x: jnp.pad(jnp.pad(x, 1)[:, :4], 1, constant_values=2.0), X)[1] == ["HloPad", "HloPad"]
    assert merged(lambda x: jnp.concatenate([x[4:], x[:4] * 2]), X)[1] == ["Slice", "Slice", "Mul", "Concatenate"]
    assert merged(lambda x: jnp.pad(x[:3], ((0, 4), (0, 0))) + jnp.pad(x[2:], ((2, 0), (0, 0))), X)[1].count("Add") == 1


def test_annotated_nodes_and_asked_values_stay() -> None:
    first = ops.StridedSlice().shard(((1, 2),))
    traced = trace(lambda x: ops.concat(first(x, (3,), (7,), (1,)), ops.strided_slice(x, begin=(0,), end=(3,))), X)
    assert [node.op.name for node in merge_movements(traced.graph).nodes] == ["Roll"]
    (annotated,) = traced.annotations
    assert annotated in merge_movements(traced.graph, traced.annotations).nodes
    assert merge_movements(traced.graph, asked=annotated.results) is traced.graph


def _moved(builder: Builder, values: list[Value], draw) -> Value:
    """One more operator that moves elements of some of the values."""
    x = draw(st.sampled_from(values[-3:]))
    shape = x.type.shape
    kind = draw(st.sampled_from(["slice", "slice", "concat", "concat", "pad", "roll", "add"]))
    if kind == "slice":
        begin = tuple(draw(st.integers(0, size - 1)) for size in shape)
        end = tuple(draw(st.integers(first + 1, size)) for first, size in zip(begin, shape, strict=True))
        return _add(builder, "StridedSlice", x, begin=begin, end=end, strides=(1,) * len(shape))
    if kind == "concat":
        axis = draw(st.integers(0, 1))
        fitting = [one for one in values if one.type.shape[1 - axis] == shape[1 - axis]]
        return _add(builder, "Concatenate", x, draw(st.sampled_from(fitting)), dim=axis)
    if kind == "pad":
        zero = _add(builder, "Fill", shape=(), value=draw(st.sampled_from([0.0, 0.0, 1.0])), dtype="f32")
        low = tuple(draw(st.integers(1 - size, 3)) for size in shape)
        high = tuple(draw(st.integers(1 - size - min(at, 0), 3)) for at, size in zip(low, shape, strict=True))
        return _add(builder, "HloPad", x, zero, low=low, high=high, interior=(0, 0))
    if kind == "roll":
        at, axis = draw(st.integers(1, 4)), draw(st.integers(0, 1))
        at = min(at, shape[axis] - 1)
        if not at:
            return x
        whole = [0, 0], list(shape)
        parts = []
        for begin, end in ((at, shape[axis]), (0, at)):
            ends = [list(one) for one in whole]
            ends[0][axis], ends[1][axis] = begin, end
            parts.append(_add(builder, "Slice", x, start=tuple(ends[0]), limit=tuple(ends[1]), strides=(1, 1)))
        return _add(builder, "Concatenate", *parts, dim=axis)
    same = [one for one in values if one.type == x.type]
    return _add(builder, "Add", x, draw(st.sampled_from(same)))


def _add(builder: Builder, name: str, *operands: Value, **attrs) -> Value:
    op = lookup(name)
    return builder.add(op, operands, op.check_attributes(attrs)).results[0]


@given(st.data())
def test_random_moves_compute_the_same(data) -> None:
    builder = Builder("moves")
    values = [builder.input(TensorType.of((5, 4), "f32"), "x"), builder.input(TensorType.of((5, 4), "f32"), "y")]
    for _ in range(data.draw(st.integers(2, 8))):
        values.append(_moved(builder, values, data.draw))
        if values[-1].type.elements > 400:
            break
    graph = prune(builder.build([values[-1], *([values[-2]] if data.draw(st.booleans()) else [])]))
    arrays = [np.arange(1, 21, dtype=np.float32).reshape(5, 4), -np.arange(1, 21, dtype=np.float32).reshape(5, 4)]
    small = merge_movements(graph)
    verify(small)
    assert len(small.nodes) <= len(graph.nodes)
    for got, want in zip(evaluate(small, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
