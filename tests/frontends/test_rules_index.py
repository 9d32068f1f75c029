"""Rules of contractions, gathers, scatters and dynamic slices equal those that Shardy attaches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.frontends.rules import assert_equal_rules, one_op, rules_of

pytestmark = pytest.mark.jax


def check(text: str, conservative: bool = False) -> None:
    assert assert_equal_rules(text, conservative) > 0, text


# -- contractions


@given(SHAPES, SHAPES, SHAPES, SHAPES, st.data())
def test_dot_general(batch, contract, lhs_free, rhs_free, data):
    lhs, lhs_batch, lhs_contract = mixed(data, batch, contract, lhs_free)
    rhs, rhs_batch, rhs_contract = mixed(data, batch, contract, rhs_free)
    numbers = (
        f"lhs_batching_dimensions = {lhs_batch}, rhs_batching_dimensions = {rhs_batch}, "
        f"lhs_contracting_dimensions = {lhs_contract}, rhs_contracting_dimensions = {rhs_contract}"
    )
    op = f'"stablehlo.dot_general"(%0, %1) {{dot_dimension_numbers = #stablehlo.dot<{numbers}>}}'
    result = (*batch, *free_sizes(lhs, lhs_batch + lhs_contract), *free_sizes(rhs, rhs_batch + rhs_contract))
    check(one_op(op, f"{tensor(lhs)}, {tensor(rhs)}", tensor(result)))


@pytest.mark.parametrize("lhs, rhs, result", [((6,), (6,), ()), ((6,), (6, 4), (4,)), ((3, 6), (6,), (3,))])
def test_dot(lhs, rhs, result):
    check(one_op('"stablehlo.dot"(%0, %1)', f"{tensor(lhs)}, {tensor(rhs)}", tensor(result)))


def test_dot_of_matrices_and_empty_ones():
    check(one_op('"stablehlo.dot"(%0, %1)', "tensor<3x6xf32>, tensor<6x4xf32>", "tensor<3x4xf32>"))
    check(one_op('"stablehlo.dot"(%0, %1)', "tensor<3x0xf32>, tensor<0x4xf32>", "tensor<3x4xf32>"))


# -- gather and scatter


@given(index_cases(), st.booleans())
def test_gather(case: IndexCase, conservative: bool):
    sizes = f"slice_sizes = array<i64: {', '.join(map(str, case.slice_sizes))}>, indices_are_sorted = false"
    op = f'"stablehlo.gather"(%0, %1) {{dimension_numbers = #stablehlo.gather{case.numbers(False)}, {sizes}}}'
    check(one_op(op, f"{tensor(case.operand)}, {tensor(case.indices, 'i32')}", tensor(case.slices)), conservative)


@given(index_cases(), st.sampled_from(BODIES), st.booleans())
def test_scatter(case: IndexCase, body: tuple[str, str, str], conservative: bool):
    element, lines, returned = body
    check(scatter(case, (element,), lines.replace("T", f"tensor<{element}>"), (returned,)), conservative)


@given(index_cases(), st.sampled_from(("add add", "add multiply", "maximum maximum", "add", "")))
def test_scatter_of_two(case: IndexCase, names: str):
    """A known reduction has to be the same for both; the second input's own update may also just replace it."""
    lines, returned = "", ["%c", "%d"]
    for i, (name, pair) in enumerate(zip(names.split(), ("%a, %c", "%b, %d"), strict=False)):
        lines += f"%v{i} = stablehlo.{name} {pair} : tensor<f32>\n"
        returned[i] = f"%v{i}"
    check(scatter(case, ("f32", "f32"), lines, tuple(returned)))


# -- dynamic slices


@given(PAIRS, st.booleans())
def test_dynamic_slice(pairs, conservative):
    whole, part = zip(*pairs, strict=True)
    starts = ", ".join(f"%{i + 1}" for i in range(len(whole)))
    sizes = f"slice_sizes = array<i64: {', '.join(map(str, part))}>"
    operands = ", ".join([tensor(whole), *["tensor<i32>"] * len(whole)])
    check(one_op(f'"stablehlo.dynamic_slice"(%0, {starts}) {{{sizes}}}', operands, tensor(part)), conservative)


@given(PAIRS, st.booleans())
def test_dynamic_update_slice(pairs, conservative):
    whole, part = zip(*pairs, strict=True)
    starts = ", ".join(f"%{i + 2}" for i in range(len(whole)))
    operands = ", ".join([tensor(whole), tensor(part), *["tensor<i64>"] * len(whole)])
    check(one_op(f'"stablehlo.dynamic_update_slice"(%0, %1, {starts})', operands, tensor(whole)), conservative)


@given(PAIRS, st.sampled_from(("stablehlo.constant", "sdy.constant")), st.data())
def test_update_at_constants(pairs, constant, data):
    """Only starts that are constants themselves, all of them, let the update's own factor be split."""
    whole, part = zip(*pairs, strict=True)
    starts = [data.draw(st.sampled_from(("%c", "%d", "%e"))) for _ in whole] if data.draw(st.booleans()) else ["%c"]
    starts = (starts * len(whole))[: len(whole)]
    types = ", ".join([tensor(whole), tensor(part), *["tensor<i32>"] * len(whole)])
    check(
        f"func.func @main(%0: {tensor(whole)}, %1: {tensor(part)}) {{\n"
        f"  %c = {constant} dense<1> : tensor<i32>\n"
        f"  %d = stablehlo.constant dense<0> : tensor<i32>\n"
        f"  %e = stablehlo.negate %d : tensor<i32>\n"
        f'  %r = "stablehlo.dynamic_update_slice"(%0, %1, {", ".join(starts)}) : ({types}) -> {tensor(whole)}\n'
        f"  return\n}}\n"
    )


# -- what Shardy has no rule for


@pytest.mark.parametrize(
    "op, operands, result",
    [
        ('"stablehlo.einsum"(%0, %1) {einsum_config = "ab,cb->ac"}', "tensor<6x4xf32>, tensor<3x4xf32>", (6, 3)),
        ('"stablehlo.unary_einsum"(%0) {einsum_config = "ab->b"}', "tensor<6x4xf32>", (4,)),
        (
            '"stablehlo.torch_index_select"(%0, %1) {dim = 1 : i64, batch_dims = 1 : i64}',
            "tensor<6x4x5xf32>, tensor<6x3xi32>",
            (6, 3, 5),
        ),
        ('"stablehlo.dynamic_reshape"(%0, %1)', "tensor<6x4xf32>, tensor<2xi32>", (4, 6)),
    ],
)
def test_without_rule(op, operands, result):
    (pair,) = rules_of(one_op(op, operands, tensor(result)))
    assert pair.ours is None and pair.shardys is None
