"""Contractions, gathers, scatters and dynamic slices compute what XLA computes for the same module."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from autoshard.core.tensortype import dtype
from autoshard.util.errors import ShapeError
from tests.frontends.index_cases import (
    BODIES,
    PAIRS,
    SHAPES,
    IndexCase,
    free_sizes,
    index_cases,
    mixed,
    scatter,
    tensor,
)
from tests.frontends.xla import assert_same_numbers, random_array, returning, run_ours

pytestmark = pytest.mark.jax

SEEDS = st.integers(0, 1000).map(np.random.default_rng)
FEW = settings(max_examples=15)
# MLIR's names of element types and ours; and how exactly results of narrow ones can be compared.
ELEMENTS = {"f32": "f32", "f64": "f64", "bf16": "bf16", "f16": "f16", "i32": "i32", "ui8": "u8", "i1": "bool"}
ELEMENTS |= {"i8": "i8", "complex<f32>": "c64", "i64": "i64"}
LOOSE = {"bf16": 2e-2, "f16": 2e-3}


# -- contractions

DOTS = (
    ("f32", "f32", "f32"),
    ("bf16", "bf16", "bf16"),
    ("bf16", "bf16", "f32"),
    ("f16", "f16", "f16"),
    ("i8", "i8", "i32"),
    ("i32", "i32", "i32"),
    ("ui8", "ui8", "ui8"),
    ("f64", "f64", "f64"),
    ("complex<f32>", "complex<f32>", "complex<f32>"),
)


@FEW
@given(SHAPES, SHAPES, SHAPES, SHAPES, st.sampled_from(DOTS), SEEDS, st.data())
def test_dot_general(batch, contract, lhs_free, rhs_free, elements, rng, data):
    batch, contract, lhs_free, rhs_free = batch[:2], contract[:2], lhs_free[:2], rhs_free[:2]
    lhs, lhs_batch, lhs_contract = mixed(data, batch, contract, lhs_free)
    rhs, rhs_batch, rhs_contract = mixed(data, batch, contract, rhs_free)
    numbers = (
        f"lhs_batching_dimensions = {lhs_batch}, rhs_batching_dimensions = {rhs_batch}, "
        f"lhs_contracting_dimensions = {lhs_contract}, rhs_contracting_dimensions = {rhs_contract}"
    )
    op = f'"stablehlo.dot_general"(%0, %1) {{dot_dimension_numbers = #stablehlo.dot<{numbers}>}}'
    result = (*batch, *free_sizes(lhs, lhs_batch + lhs_contract), *free_sizes(rhs, rhs_batch + rhs_contract))
    text = returning(op, f"{tensor(lhs, elements[0])}, {tensor(rhs, elements[1])}", tensor(result, elements[2]))
    arrays = [random_array(rng, lhs, ELEMENTS[elements[0]]), random_array(rng, rhs, ELEMENTS[elements[1]])]
    assert_same_numbers(text, arrays, LOOSE.get(elements[2], 1e-5))


@pytest.mark.parametrize("lhs, rhs, result", [((6,), (6,), ()), ((6,), (6, 4), (4,)), ((3, 6), (6, 4), (3, 4))])
def test_dot(lhs, rhs, result):
    rng = np.random.default_rng(3)
    text = returning('"stablehlo.dot"(%0, %1)', f"{tensor(lhs)}, {tensor(rhs)}", tensor(result))
    assert_same_numbers(text, [random_array(rng, lhs, "f32"), random_array(rng, rhs, "f32")])


# -- gather and scatter


def indices_for(rng: np.random.Generator, case: IndexCase, element: str) -> np.ndarray:
    """Many inside, some outside on both sides, some equal."""
    low = 0 if element.startswith("u") else -2
    return rng.integers(low, max(case.operand) + 2, case.indices).astype(dtype(ELEMENTS[element]).numpy)


@FEW
@given(index_cases(), st.sampled_from(sorted(ELEMENTS)), st.sampled_from(("i32", "ui8", "i64")), SEEDS)
def test_gather(case: IndexCase, element: str, index: str, rng):
    sizes = f"slice_sizes = array<i64: {', '.join(map(str, case.slice_sizes))}>, indices_are_sorted = false"
    op = f'"stablehlo.gather"(%0, %1) {{dimension_numbers = #stablehlo.gather{case.numbers(False)}, {sizes}}}'
    types = f"{tensor(case.operand, element)}, {tensor(case.indices, index)}"
    arrays = [random_array(rng, case.operand, ELEMENTS[element]), indices_for(rng, case, index)]
    assert_same_numbers(returning(op, types, tensor(case.slices, element)), arrays, rtol=0)


def module_of(one_op: str) -> str:
    """The same module with the results of its operation returned."""
    head, _, tail = one_op.partition(") {\n")
    types = tail[tail.rindex("-> (") + 4 : tail.rindex(")\n")]
    count = types.count(", ") + 1
    values = ", ".join(f"%r#{i}" for i in range(count)) if count > 1 else "%r"
    return f"module {{\n{head}) -> ({types}) {{\n{tail.replace('  return', f'  return {values} : {types}')}}}\n"


@FEW
@given(index_cases(), st.sampled_from(BODIES), SEEDS)
def test_scatter(case: IndexCase, body: tuple[str, str, str], rng):
    element, lines, returned = body
    text = module_of(scatter(case, (element,), lines.replace("T", f"tensor<{element}>"), (returned,)))
    kind = ELEMENTS[element]
    arrays = [
        random_array(rng, case.operand, kind),
        indices_for(rng, case, "i32"),
        random_array(rng, case.slices, kind),
    ]
    assert_same_numbers(text, arrays, LOOSE.get(element, 1e-5))


PAIR_BODIES = (
    "%v = stablehlo.add %a, %c : tensor<f32>\n %w = stablehlo.add %b, %d : tensor<i32>",
    "%v = stablehlo.add %a, %c : tensor<f32>\n %w = stablehlo.maximum %b, %d : tensor<i32>",
    # The larger value with the number that came with it.
    "%p = stablehlo.compare GE, %a, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
    "%v = stablehlo.select %p, %a, %c : tensor<i1>, tensor<f32>\n"
    "%w = stablehlo.select %p, %b, %d : tensor<i1>, tensor<i32>",
)


@FEW
@given(index_cases(), st.sampled_from(PAIR_BODIES), SEEDS)
def test_scatter_of_two(case: IndexCase, lines: str, rng):
    text = module_of(scatter(case, ("f32", "i32"), lines, ("%v", "%w")))
    inputs = [random_array(rng, case.operand, "f32"), random_array(rng, case.operand, "i32")]
    updates = [random_array(rng, case.slices, "f32"), random_array(rng, case.slices, "i32")]
    assert_same_numbers(text, [*inputs, indices_for(rng, case, "i32"), *updates])


# -- dynamic slices


@FEW
@given(PAIRS, st.sampled_from(("i32", "ui8", "i64")), SEEDS)
def test_dynamic_slice_and_update(pairs, index, rng):
    whole, part = zip(*pairs, strict=True)
    low = 0 if index == "ui8" else -3
    starts = [np.asarray(rng.integers(low, 12), dtype(ELEMENTS[index]).numpy) for _ in whole]
    x, update = random_array(rng, whole, "bf16"), random_array(rng, part, "bf16")
    scalars = [f"tensor<{index}>"] * len(whole)
    names = ", ".join(f"%{i + 1}" for i in range(len(whole)))
    op = f'"stablehlo.dynamic_slice"(%0, {names}) {{slice_sizes = array<i64: {", ".join(map(str, part))}>}}'
    types = ", ".join([tensor(whole, "bf16"), *scalars])
    assert_same_numbers(returning(op, types, tensor(part, "bf16")), [x, *starts], rtol=0)
    names = ", ".join(f"%{i + 2}" for i in range(len(whole)))
    types = ", ".join([tensor(whole, "bf16"), tensor(part, "bf16"), *scalars])
    text = returning(f'"stablehlo.dynamic_update_slice"(%0, %1, {names})', types, tensor(whole, "bf16"))
    assert_same_numbers(text, [x, update, *starts], rtol=0)


# -- operations with sizes as operands, and those that came before gather and dot_general

C = "stablehlo.constant dense"
OTHERS = {
    "dynamic_reshape": (
        f"%c = {C}<[4, 6]> : tensor<2xi32>\n"
        "%r = stablehlo.dynamic_reshape %0, %c : (tensor<6x4xf32>, tensor<2xi32>) -> tensor<4x6xf32>",
        "tensor<4x6xf32>",
    ),
    "dynamic_broadcast_in_dim": (
        f"%c = {C}<[4, 3, 6]> : tensor<3xi32>\n"
        "%r = stablehlo.dynamic_broadcast_in_dim %0, %c, dims = [2, 0] "
        ": (tensor<6x4xf32>, tensor<3xi32>) -> tensor<4x3x6xf32>",
        "tensor<4x3x6xf32>",
    ),
    "dynamic_iota": (
        f"%c = {C}<[4, 3]> : tensor<2xi32>\n"
        "%r = stablehlo.dynamic_iota %c, dim = 1 : (tensor<2xi32>) -> tensor<4x3xf32>",
        "tensor<4x3xf32>",
    ),
    "dynamic_pad": (
        f"%v = {C}<7.0> : tensor<f32>\n%l = {C}<[-1, 2]> : tensor<2xi32>\n%h = {C}<[0, -3]> : tensor<2xi32>\n"
        f"%i = {C}<[1, 2]> : tensor<2xi32>\n%r = stablehlo.dynamic_pad %0, %v, %l, %h, %i "
        ": (tensor<6x4xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<10x9xf32>",
        "tensor<10x9xf32>",
    ),
    "real_dynamic_slice": (
        f"%l = {C}<[1, 0]> : tensor<2xi32>\n%h = {C}<[6, 3]> : tensor<2xi32>\n%i = {C}<[2, 1]> : tensor<2xi32>\n"
        "%r = stablehlo.real_dynamic_slice %0, %l, %h, %i "
        ": (tensor<6x4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<3x3xf32>",
        "tensor<3x3xf32>",
    ),
    "dynamic_gather": (
        f"%c = {C}<[1, 4]> : tensor<2xi32>\n"
        '%r = "stablehlo.dynamic_gather"(%0, %1, %c) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>}> "
        ": (tensor<6x4xf32>, tensor<6x5xi32>, tensor<2xi32>) -> tensor<6x5x4xf32>",
        "tensor<6x5x4xf32>",
    ),
    "torch_index_select": (
        '%r = "stablehlo.torch_index_select"(%0, %1) <{dim = 0 : i64, batch_dims = 0 : i64}> '
        ": (tensor<6x4xf32>, tensor<6x5xi32>) -> tensor<6x5x4xf32>",
        "tensor<6x5x4xf32>",
    ),
    "torch_index_select with batch": (
        "%x = stablehlo.reshape %0 : (tensor<6x4xf32>) -> tensor<6x2x2xf32>\n"
        '%r = "stablehlo.torch_index_select"(%x, %1) <{dim = 2 : i64, batch_dims = 1 : i64}> '
        ": (tensor<6x2x2xf32>, tensor<6x5xi32>) -> tensor<6x2x5xf32>",
        "tensor<6x2x5xf32>",
    ),
    "einsum": (
        '%r = "stablehlo.einsum"(%0, %0) <{einsum_config = "ab,cb->ca"}> '
        ": (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>",
        "tensor<6x6xf32>",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    lines, result = OTHERS[name]
    text = (
        f"module {{\nfunc.func public @main(%0: tensor<6x4xf32>, %1: tensor<6x5xi32>) -> {result} {{\n"
        f"{lines}\nreturn %r : {result}\n}}\n}}\n"
    )
    rng = np.random.default_rng(5)
    assert_same_numbers(text, [random_array(rng, (6, 4), "f32"), rng.integers(-2, 8, (6, 5)).astype(np.int32)])


def test_sizes_that_are_not_those_of_the_type():
    text = (
        "module {\nfunc.func public @main(%0: tensor<6x4xf32>, %1: tensor<2xi32>) -> tensor<4x6xf32> {\n"
        "%r = stablehlo.dynamic_reshape %0, %1 : (tensor<6x4xf32>, tensor<2xi32>) -> tensor<4x6xf32>\n"
        "return %r : tensor<4x6xf32>\n}\n}\n"
    )
    with pytest.raises(ShapeError, match=r"DynamicReshape: its operands ask for the shape \(3, 8\)"):
        run_ours(text, [np.zeros((6, 4), np.float32), np.array([3, 8], np.int32)])


# -- what JAX makes of its own indexing


def _indexing(x, i, u):
    rows = x.at[i].add(u).at[i, 2].set(u[:, 0]).at[:, i].multiply(2.0).at[i].max(u)
    batched = jax.vmap(lambda row, at: row[at])(rows, jnp.stack([i, i + 1] * (x.shape[0] // 2)))
    moved = lax.dynamic_update_slice(rows, u, (i[0], i[1]))
    taken = jnp.take_along_axis(moved, jnp.argsort(moved, axis=1)[:, :3], axis=1)
    return batched, taken, lax.dynamic_slice_in_dim(rows, i[2], 3, axis=1), x[i[0]], jnp.take(x, i, axis=1, mode="clip")


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("element", ["float32", "bfloat16"])
def test_indexing_of_jax(gradient, element):
    def total(x, i, u):
        return sum((jnp.asarray(one, jnp.float32) ** 2).sum() for one in _indexing(x, i, u))

    function = jax.grad(total, argnums=(0, 2)) if gradient else _indexing
    rng = np.random.default_rng(11)
    x, u = (random_array(rng, shape, "f32").astype(jnp.dtype(element)) for shape in ((6, 5), (4, 5)))
    i = np.array([1, 4, 1, 7], np.int32)
    lowered = jax.jit(function).lower(x, i, u)
    wanted = lowered.compile()(x, i, u)
    found = run_ours(lowered.as_text(), [x, i, u])
    rtol = 1e-5 if element == "float32" else 2e-2
    for want, got in zip(wanted, found, strict=True):
        want, got = (np.asarray(one, np.float64) for one in (want, got))
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())
