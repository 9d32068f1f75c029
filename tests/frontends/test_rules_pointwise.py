"""The rules of elementwise operations against Shardy's, for drawn shapes, and that they are called elementwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.frontends.stablehlo.pointwise import _STABLEHLO
from tests.frontends.rules import assert_equal_rules, one_op, rules_of

pytestmark = pytest.mark.jax

_FLOAT = "f32"
_OF_WHOLE = {
    "and", "count_leading_zeros", "not", "or", "popcnt", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "xor",
}  # fmt: skip
_TWO = {
    "add", "and", "atan2", "complex", "divide", "maximum", "minimum", "multiply", "or", "power", "remainder",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "subtract", "xor",
}  # fmt: skip
_RESULTS = {"complex": "complex<f32>", "is_finite": "i1"}
_SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 16]), max_size=4)


def tensor(shape: list[int], element: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def elementwise(name: str, shape: list[int]) -> str:
    """A module of the plain elementwise operation `name`."""
    element = "i32" if name in _OF_WHOLE else _FLOAT
    of = tensor(shape, element)
    operands = "%0, %1" if name in _TWO else "%0"
    types = ", ".join([of] * (2 if name in _TWO else 1))
    return one_op(f'"stablehlo.{name}"({operands})', types, tensor(shape, _RESULTS.get(name, element)))


@pytest.mark.parametrize("name", sorted({*_STABLEHLO, "divide", "power"} - {"select", "clamp"}))
@given(shape=_SIZES)
@settings(max_examples=4)
def test_plain_operations(name, shape):
    assert assert_equal_rules(elementwise(name, shape)) == 1


@given(shape=_SIZES, scalar=st.booleans())
@settings(max_examples=20)
def test_select_by_a_tensor_or_a_scalar(shape, scalar):
    of = tensor(shape, "bf16")
    types = f"{tensor([] if scalar else shape, 'i1')}, {of}, {of}"
    assert assert_equal_rules(one_op('"stablehlo.select"(%0, %1, %2)', types, of)) == 1


@given(shape=_SIZES, low=st.booleans(), high=st.booleans())
@settings(max_examples=20)
def test_clamp_by_tensors_or_scalars(shape, low, high):
    of = tensor(shape, "f32")
    bounds = [tensor([] if scalar else shape, "f32") for scalar in (low, high)]
    text = one_op('"stablehlo.clamp"(%0, %1, %2)', f"{bounds[0]}, {of}, {bounds[1]}", of)
    assert assert_equal_rules(text) == 1


@given(shape=_SIZES, direction=st.sampled_from(["EQ", "NE", "LT", "LE", "GT", "GE"]), total=st.booleans())
@settings(max_examples=15)
def test_compare(shape, direction, total):
    of = tensor(shape, "f32")
    kind = ", compare_type = #stablehlo<comparison_type TOTALORDER>" if total else ""
    attrs = f"<{{comparison_direction = #stablehlo<comparison_direction {direction}>{kind}}}>"
    assert assert_equal_rules(one_op(f'"stablehlo.compare"(%0, %1) {attrs}', f"{of}, {of}", tensor(shape, "i1"))) == 1


@given(shape=_SIZES, target=st.sampled_from(["i8", "f64", "i1", "bf16", "ui16", "f8E4M3FN"]))
@settings(max_examples=15)
def test_conversions(shape, target):
    of = tensor(shape, "f32")
    assert assert_equal_rules(one_op('"stablehlo.convert"(%0)', of, tensor(shape, target))) == 1
    bits = "<{exponent_bits = 5 : i32, mantissa_bits = 7 : i32}>"
    assert assert_equal_rules(one_op(f'"stablehlo.reduce_precision"(%0) {bits}', of, of)) == 1


@given(shape=_SIZES, wide=st.sampled_from(["f64", "f32", "i32"]), narrow=st.sampled_from(["f16", "i8", "bf16", "i32"]))
@settings(max_examples=25)
def test_bits_as_another_type(shape, wide, narrow):
    bits = {"f64": 64, "f32": 32, "i32": 32, "f16": 16, "bf16": 16, "i8": 8}
    ratio = bits[wide] // bits[narrow]
    many = tensor([*shape, ratio] if ratio > 1 else shape, narrow)
    few = tensor(shape, wide)
    assert assert_equal_rules(one_op('"stablehlo.bitcast_convert"(%0)', few, many)) == 1
    assert assert_equal_rules(one_op('"stablehlo.bitcast_convert"(%0)', many, few)) == 1


def test_chlo_has_no_rules_in_shardy():
    of = tensor([4, 6], "f32")
    for name in ("erf", "erf_inv", "square", "acos"):
        (pair,) = rules_of(one_op(f'"chlo.{name}"(%0)', of, of))
        assert pair == (f"chlo.{name}", None, None)
