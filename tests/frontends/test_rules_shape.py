"""The rules of operations of shape and position, and of collectives, against Shardy's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontends.rules import assert_equal_rules, one_op, rules_of

pytestmark = pytest.mark.jax

_SIZE = st.sampled_from([1, 2, 3, 4, 6, 12])
_SHAPE = st.lists(_SIZE, min_size=1, max_size=4)


def tensor(shape: list[int], element: str = "f32") -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def ints(values: list[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def equal(op: str, operands: str, results: str) -> None:
    """The rules agree, in both modes."""
    text = one_op(op, operands, results)
    assert assert_equal_rules(text) == assert_equal_rules(text, conservative=True) == 1


def test_values_from_nothing_have_no_rule():
    for op in ("stablehlo.constant dense<1.0>", "stablehlo.iota dim = 0", "stablehlo.constant dense<[1.0, 2.0]>"):
        (pair,) = rules_of(f"func.func @main() {{\n %0 = {op} : tensor<2xf32>\n return\n}}")
        assert (pair.ours, pair.shardys) == (None, None)


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    shape = draw(_SHAPE)
    dims = draw(st.lists(st.sampled_from(range(len(shape))), unique=True, max_size=len(shape)))
    return [draw(st.sampled_from([1, shape[dim]])) for dim in dims], shape, dims


@given(broadcasts())
@settings(max_examples=40)
def test_broadcast_in_dim(drawn):
    source, shape, dims = drawn
    op = f'"stablehlo.broadcast_in_dim"(%0) <{{broadcast_dimensions = {ints(dims)}}}>'
    equal(op, tensor(source), tensor(shape))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    primes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), max_size=6))

    def grouped(order: list[int]) -> list[int]:
        ends = sorted(draw(st.lists(st.integers(0, len(order)), max_size=3)))
        cuts = [0, *ends, len(order)]
        return [math.prod(order[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]

    return grouped(primes), grouped(draw(st.permutations(primes)))


@given(reshapes())
@settings(max_examples=150)
def test_reshape(shapes):
    equal('"stablehlo.reshape"(%0)', tensor(shapes[0]), tensor(shapes[1]))


@given(_SHAPE, st.data())
@settings(max_examples=25)
def test_transpose(shape, data):
    order = data.draw(st.permutations(range(len(shape))))
    target = tensor([shape[dim] for dim in order])
    equal(f'"stablehlo.transpose"(%0) <{{permutation = {ints(order)}}}>', tensor(shape), target)


@given(_SHAPE, st.data())
@settings(max_examples=25)
def test_reverse(shape, data):
    dims = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    equal(f'"stablehlo.reverse"(%0) <{{dimensions = {ints(dims)}}}>', tensor(shape), tensor(shape))


@given(_SHAPE, st.data())
@settings(max_examples=40)
def test_pad(shape, data):
    low, high = ([data.draw(st.integers(-1, 2)) for _ in shape] for _ in range(2))
    low = [max(one, -size - other) for one, other, size in zip(low, high, shape, strict=True)]
    interior = [data.draw(st.integers(0, 2)) for _ in shape]
    ends = zip(low, shape, interior, high, strict=True)
    target = [a + size + (size - 1) * inner + b for a, size, inner, b in ends]
    names = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior}
    attrs = ", ".join(f"{name} = {ints(values)}" for name, values in names.items())
    equal(f'"stablehlo.pad"(%0, %1) <{{{attrs}}}>', f"{tensor(shape)}, tensor<f32>", tensor(target))


def sliced(shape: list[int], data: st.DataObject) -> tuple[str, list[int]]:
    """A slice's attributes and result shape."""
    start = [data.draw(st.integers(0, size - 1)) for size in shape]
    limit = [data.draw(st.integers(first + 1, size)) for first, size in zip(start, shape, strict=True)]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]
    target = [-((a - b) // step) for a, b, step in zip(start, limit, strides, strict=True)]
    names = {"start_indices": start, "limit_indices": limit, "strides": strides}
    return ", ".join(f"{name} = {ints(values)}" for name, values in names.items()), target


@given(_SHAPE, st.data())
@settings(max_examples=40)
def test_slice(shape, data):
    attrs, target = sliced(shape, data)
    equal(f'"stablehlo.slice"(%0) <{{{attrs}}}>', tensor(shape), tensor(target))


@given(_SHAPE, st.data())
@settings(max_examples=25)
def test_concatenate(shape, data):
    dim = data.draw(st.sampled_from(range(len(shape))))
    sizes = data.draw(st.lists(_SIZE, min_size=1, max_size=3))
    parts = [[*shape[:dim], size, *shape[dim + 1 :]] for size in sizes]
    names = ", ".join(f"%{i}" for i in range(len(parts)))
    target = tensor([*shape[:dim], sum(sizes), *shape[dim + 1 :]])
    op = f'"stablehlo.concatenate"({names}) <{{dimension = {dim} : i64}}>'
    equal(op, ", ".join(map(tensor, parts)), target)


@given(st.lists(st.sampled_from(["%a", "%b", "%sa", "%ta", "%sb"]), min_size=1, max_size=3), st.booleans())
@settings(max_examples=50)
def test_concatenate_of_slices_and_what_they_are_slices_of(names, conservative):
    of = {"%a": 6, "%b": 6, "%sa": 4, "%ta": 2, "%sb": 3}
    types = ", ".join(f"tensor<{of[name]}x5xf32>" for name in names)
    text = f"""func.func @main(%a: tensor<6x5xf32>, %b: tensor<6x5xf32>) {{
      %sa = stablehlo.slice %a [2:6, 0:5] : (tensor<6x5xf32>) -> tensor<4x5xf32>
      %ta = stablehlo.slice %a [0:2, 0:5] : (tensor<6x5xf32>) -> tensor<2x5xf32>
      %sb = stablehlo.slice %b [0:6:2, 0:5] : (tensor<6x5xf32>) -> tensor<3x5xf32>
      %r = stablehlo.concatenate {", ".join(names)}, dim = 0
          : ({types}) -> tensor<{sum(of[name] for name in names)}x5xf32>
      return
    }}"""
    assert assert_equal_rules(text, conservative) == 4


# -- collectives

_GROUPS = "replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
_ADD = """({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  })"""


@given(_SHAPE, st.data())
@settings(max_examples=25)
def test_collectives_that_resize_a_dim(shape, data):
    dim = data.draw(st.sampled_from(range(len(shape))))
    more = [size * 2 if i == dim else size for i, size in enumerate(shape)]
    gather = f'"stablehlo.all_gather"(%0) <{{all_gather_dim = {dim} : i64, {_GROUPS}}}>'
    equal(gather, tensor(shape), tensor(more))
    scatter = f'"stablehlo.reduce_scatter"(%0) <{{scatter_dimension = {dim} : i64, {_GROUPS}}}> {_ADD}'
    equal(scatter, tensor(more), tensor(shape))


@given(_SHAPE, st.data())
@settings(max_examples=30)
def test_all_to_all(shape, data):
    split, concat = (data.draw(st.sampled_from(range(len(shape)))) for _ in range(2))
    source = [size * 2 if dim == split else size for dim, size in enumerate(shape)]
    target = [size * 2 if dim == concat else size for dim, size in enumerate(shape)]
    attrs = f"split_dimension = {split} : i64, concat_dimension = {concat} : i64, split_count = 2 : i64, {_GROUPS}"
    equal(f'"stablehlo.all_to_all"(%0) <{{{attrs}}}>', tensor(source), tensor(target))


@given(_SHAPE)
@settings(max_examples=8)
def test_collectives_that_keep_the_shape(shape):
    of = tensor(shape)
    equal(f'"stablehlo.all_reduce"(%0) <{{{_GROUPS}}}> {_ADD}', of, of)
    pairs = "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
    equal(f'"stablehlo.collective_permute"(%0) <{{{pairs}}}>', of, of)
    equal(f'"stablehlo.collective_broadcast"(%0) <{{{_GROUPS}}}>', of, of)
    equal(f'"stablehlo.cross-replica-sum"(%0) <{{{_GROUPS}}}>', of, of)


def test_collectives_of_several_tensors():
    types = "tensor<4x6xf32>, tensor<4x8xf32>"
    equal(f'"stablehlo.all_reduce"(%0, %1) <{{{_GROUPS}}}> {_ADD}', types, types)
    more = "tensor<4x12xf32>, tensor<4x16xf32>"
    equal(f'"stablehlo.all_gather"(%0, %1) <{{all_gather_dim = 1 : i64, {_GROUPS}}}>', types, more)
