"""Operations of shape and position, and constants of every type, compute what JAX computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.trace.evaluate import evaluate
from autoshard.util.errors import ShapeError
from tests.frontends.agreement import assert_same_numbers

pytestmark = pytest.mark.jax

_SHAPE = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3)
_TYPES = ("float32", "int8", "bfloat16", "complex64", "bool", "uint16")


def counted(shape: list[int], element: str = "float32") -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(jnp.dtype(element))


@given(_SHAPE, st.data())
@settings(max_examples=12)
def test_shapes(shape, data):
    """All that moves elements and keeps them, of one drawn shape."""
    order = data.draw(st.permutations(range(len(shape))))
    turned = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    dims = tuple(sorted(data.draw(st.permutations(range(len(shape) + 1)))[: len(shape)]))
    sizes = [4] * (len(shape) + 1)
    for source, dim in enumerate(dims):
        sizes[dim] = shape[source] if shape[source] > 1 else 4

    def moved(x):
        flat = lax.reshape(x, (int(np.prod(shape)), 1))
        return lax.transpose(x, order), lax.rev(x, turned), lax.broadcast_in_dim(x, tuple(sizes), dims), flat

    assert_same_numbers(moved, counted(shape, data.draw(st.sampled_from(_TYPES))))


@given(_SHAPE, st.data())
@settings(max_examples=15)
def test_pad_and_slice(shape, data):
    config = []
    for size in shape:
        inner, high = data.draw(st.integers(0, 2)), data.draw(st.integers(-2, 2))
        room = size + (size - 1) * inner + high
        config.append((data.draw(st.integers(max(-3, -max(room, 0)), 2)) if room >= 0 else -room, high, inner))
    start = [data.draw(st.integers(0, size)) for size in shape]
    limit = [data.draw(st.integers(first, size)) for first, size in zip(start, shape, strict=True)]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]

    def cut(x):
        return lax.pad(x, np.asarray(7, x.dtype), config), lax.slice(x, start, limit, strides)

    assert_same_numbers(cut, counted(shape, data.draw(st.sampled_from(_TYPES[:3]))))


@given(_SHAPE, st.data())
@settings(max_examples=10)
def test_concatenate(shape, data):
    dim = data.draw(st.sampled_from(range(len(shape))))
    parts = [counted([*shape[:dim], size, *shape[dim + 1 :]]) for size in (2, 1, 4)]
    assert_same_numbers(lambda *xs: lax.concatenate(xs, dim), *parts)


def test_iota_of_all_types():
    types = ("float32", "int8", "bfloat16", "complex64", "uint32", "float16")
    assert_same_numbers(lambda: tuple(lax.broadcasted_iota(jnp.dtype(one), (3, 5, 2), 1) for one in types))


@pytest.mark.parametrize("element", [*_TYPES, "float16", "int64", "uint64", "complex128", "float8_e4m3fn", "int4"])
def test_constants(element):
    with jax.enable_x64(True):
        of = jnp.dtype(element)
        values = np.array([[0, 1, 3], [2, 1, 5]]).astype(of)
        many = counted([20, 13]).astype(of)
        one = np.full((4, 2), 3).astype(of)
        assert_same_numbers(lambda x: (x, jnp.asarray(values), jnp.asarray(many), jnp.asarray(one)), values)


def test_constants_of_special_floats():
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-42, 0.1], np.float32)
    assert_same_numbers(lambda: (jnp.asarray(special), jnp.full((2, 3), np.nan), jnp.full((3,), -np.inf)))
    small = special.astype(jnp.bfloat16)
    assert_same_numbers(lambda: (jnp.asarray(small), jnp.asarray(np.tile(small, 30))))
    largest = np.array([2**64 - 1, 0, 2**63], np.uint64)
    with jax.enable_x64(True):
        assert_same_numbers(lambda: (jnp.asarray(largest), jnp.full((3,), 2**64 - 1, np.uint64)))


def test_constants_are_made_once():
    graph = read_module(
        parse_module("""func.func @main() -> (tensor<4xf32>, tensor<4xf32>, tensor<2xi32>) {
          %0 = stablehlo.constant dense<0x7FC00000> : tensor<4xf32>
          %1 = stablehlo.constant dense<0x7FC00000> : tensor<4xf32>
          %2 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
          return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<2xi32>
        }""")
    ).graph
    first, second, third = graph.nodes
    assert (first.op.name, third.op.name) == ("Fill", "Constant")
    assert first.attrs == second.attrs


def test_sizes():
    text = """func.func @main(%x: tensor<3x5xf32>) -> tensor<i32> {
      %0 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<3x5xf32>) -> tensor<i32>
      return %0 : tensor<i32>
    }"""
    assert evaluate(read_module(parse_module(text)).graph, [counted([3, 5])]) == [5]


def test_collectives_outside_of_manual_computations_say_so():
    text = """func.func @main(%x: tensor<3x5xf32>) -> tensor<3x5xf32> {
      %0 = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}
          : (tensor<3x5xf32>) -> tensor<3x5xf32>
      return %0 : tensor<3x5xf32>
    }"""
    graph = read_module(parse_module(text)).graph
    with pytest.raises(ShapeError, match="cannot run CollectivePermute .* all ranks of a manual computation"):
        evaluate(graph, [counted([3, 5])])
