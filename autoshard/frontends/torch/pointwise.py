"""Elementwise overloads. Operands are brought to the element type that torch promotes them to, which torch itself says.

Numbers beside tensors become attributes of ScalarAdd and ScalarMul where there is such an operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autoshard import ops
from autoshard.core.tensortype import DType, dtype
from autoshard.frontends.torch.table import Call, cast, do, number, translates
from autoshard.frontends.torch.tensors import element


def _is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex)


def _is_attribute(x: Any) -> bool:
    """Whether ScalarAdd and ScalarMul take it: real numbers."""
    return isinstance(x, bool | int | float)


def promoted(call: Call, *places: int) -> DType:
    """The element type that torch gives the arguments at `places` in common."""
    import torch

    values = [getattr(call.node.args[i], "meta", {}).get("val", call.node.args[i]) for i in places]
    found = torch.result_type(values[0], values[1]) if len(values) > 1 else values[0].dtype
    return element(found)


def as_type(x: Any, to: DType) -> Any:
    """A tensor or number in an element type."""
    return number(x, to) if _is_number(x) else cast(x, to)


# -- one operand

_SAME = {
    "neg": ops.neg, "relu": ops.relu, "floor": ops.floor, "ceil": ops.ceil, "round": ops.round,
    "sign": ops.sign, "square": ops.square, "alias": ops.identity, "clone": ops.identity, "detach": ops.stop_gradient,
}  # fmt: skip
_FLOAT = {
    "exp": ops.exp, "log": ops.log, "log1p": ops.log1p, "sqrt": ops.sqrt, "rsqrt": ops.rsqrt, "sin": ops.sin,
    "cos": ops.cos, "tanh": ops.tanh, "sigmoid": ops.sigmoid, "erf": ops.erf, "silu": ops.silu,
    "reciprocal": ops.reciprocal, "expm1": ops.expm1, "tan": ops.tan, "asin": ops.asin, "acos": ops.acos,
    "atan": ops.atan, "sinh": ops.sinh, "cosh": ops.cosh, "asinh": ops.asinh,
    "acosh": ops.acosh, "atanh": ops.atanh, "erfc": ops.erfc, "erfinv": ops.erf_inv, "lgamma": ops.lgamma,
    "digamma": ops.digamma,
}  # fmt: skip


def _unary(name: str, op: Any) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any, **options: Any) -> Any:
        # clone(memory_format=...) and the like say only how the tensor lies in torch's memory.
        return x if op is ops.identity else call.cast(do(op, call.cast(x)))


for _name, _op in {**_SAME, **_FLOAT}.items():
    _unary(_name, _op)


@translates("aten.abs.default")
def _(call: Call, x: Any) -> Any:
    if dtype(x.dtype) == call.dtype:
        return do(ops.abs, x)
    parts = do(ops.real_part, x), do(ops.imaginary_part, x)
    return do(ops.sqrt, do(ops.add, *(do(ops.square, part) for part in parts)))


def _logarithm(name: str, base: float) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any) -> Any:
        return do(ops.scalar_mul, do(ops.log, call.cast(x)), factor=1 / math.log(base))


_logarithm("log2", 2)
_logarithm("log10", 10)


@translates("aten.exp2.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.exp, do(ops.scalar_mul, call.cast(x), factor=math.log(2)))


@translates("aten.round.decimals")
def _(call: Call, x: Any, *, decimals: int) -> Any:
    return do(ops.scalar_mul, do(ops.round, do(ops.scalar_mul, x, factor=10.0**decimals)), factor=10.0**-decimals)


@translates("aten.lift_fresh_copy.default", "aten.contiguous.default", "aten.detach_.default")
def _(call: Call, x: Any, **options: Any) -> Any:
    return x


@translates("aten.gelu.default")
def _(call: Call, x: Any, *, approximate: str = "none") -> Any:
    return do(ops.gelu, x, approximate=approximate)


@translates("aten.softplus.default")
def _(call: Call, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else do(ops.scalar_mul, x, factor=float(beta))
    soft = do(ops.softplus, scaled)
    soft = soft if beta == 1 else do(ops.scalar_mul, soft, factor=1 / beta)
    return do(ops.select, do(ops.greater, scaled, number(threshold, call.dtype)), x, soft)


@translates("aten.log_sigmoid.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.neg, do(ops.softplus, do(ops.neg, x)))


@translates("aten.sinc.default")
def _(call: Call, x: Any) -> Any:
    x, one = call.cast(x), number(1, call.dtype)
    zero = do(ops.equal, x, number(0, call.dtype))
    scaled = do(ops.scalar_mul, do(ops.select, zero, one, x), factor=math.pi)
    return do(ops.select, zero, one, do(ops.div, do(ops.sin, scaled), scaled))


@translates("aten.leaky_relu.default")
def _(call: Call, x: Any, negative_slope: float = 0.01) -> Any:
    positive = do(ops.greater, x, number(0, call.dtype))
    return do(ops.select, positive, x, do(ops.scalar_mul, x, factor=float(negative_slope)))


@translates("aten.elu.default")
def _(call: Call, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    zero = number(0, call.dtype)
    low = do(ops.scalar_mul, do(ops.minimum, x, zero), factor=float(input_scale))
    low = do(ops.scalar_mul, do(ops.scalar_add, do(ops.exp, low), addend=-1.0), factor=float(alpha * scale))
    high = do(ops.scalar_mul, x, factor=float(scale))
    return do(ops.select, do(ops.greater, x, zero), high, low)


def _clamp(call: Call, x: Any, low: Any, high: Any) -> Any:
    x = call.cast(x)
    if low is not None:
        x = do(ops.maximum, x, as_type(low, call.dtype))
    return x if high is None else do(ops.minimum, x, as_type(high, call.dtype))


@translates("aten.clamp.default", "aten.clamp.Tensor")
def _(call: Call, x: Any, min: Any = None, max: Any = None) -> Any:
    return _clamp(call, x, min, max)


@translates("aten.hardtanh.default")
def _(call: Call, x: Any, min_val: float = -1, max_val: float = 1) -> Any:
    return inside(call, x, min_val, max_val)


def inside(call: Call, x: Any, low: float, high: float) -> Any:
    """A clamp that has no gradient at its bounds either."""
    least, most = number(low, call.dtype), number(high, call.dtype)
    below = do(ops.select, do(ops.greater_equal, x, most), most, x)
    return do(ops.select, do(ops.less_equal, x, least), least, below)


@translates("aten.clamp_min.default")
def _(call: Call, x: Any, min: Any) -> Any:
    return _clamp(call, x, min, None)


@translates("aten.clamp_max.default")
def _(call: Call, x: Any, max: Any) -> Any:
    return _clamp(call, x, None, max)


@translates("aten.logical_not.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.logical_not, x)


@translates("aten.bitwise_not.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.logical_not, x) if dtype(x.dtype).name == "bool" else do(ops.bitwise_not, x)


@translates("aten.isnan.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.not_equal, x, x)


@translates("aten.isinf.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.equal, do(ops.abs, x), number(math.inf, dtype(x.dtype)))


@translates("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")
def _(call: Call, x: Any, *args: Any, **options: Any) -> Any:
    return call.cast(x) if hasattr(x, "dtype") else number(x, call.dtype)  # of numbers in gradients taken inside


# -- two operands


def binary(call: Call, op: Any, x: Any, y: Any) -> Any:
    """An arithmetic operator on operands promoted to the result's type."""
    return call.cast(do(op, as_type(x, call.dtype), as_type(y, call.dtype)))


def scaled(x: Any, factor: complex) -> Any:
    if factor == 1:
        return x
    if not _is_attribute(factor):
        return do(ops.mul, x, number(factor, dtype(x.dtype)))
    return do(ops.scalar_mul, x, factor=factor)


@translates("aten.add.Tensor", "aten.add.Scalar")
def _(call: Call, x: Any, y: Any, *, alpha: complex = 1) -> Any:
    if _is_attribute(y) and _is_attribute(alpha):
        return call.cast(do(ops.scalar_add, call.cast(x), addend=_like(y * alpha, call.dtype)))
    return binary(call, _logical(call, ops.add, ops.logical_or), x, scaled(as_type(y, call.dtype), alpha))


@translates("aten.sub.Tensor", "aten.sub.Scalar")
def _(call: Call, x: Any, y: Any, *, alpha: complex = 1) -> Any:
    if _is_attribute(y) and _is_attribute(alpha):
        return call.cast(do(ops.scalar_add, call.cast(x), addend=_like(-y * alpha, call.dtype)))
    return binary(call, ops.sub, x, scaled(as_type(y, call.dtype), alpha))


@translates("aten.rsub.Scalar", "aten.rsub.Tensor")
def _(call: Call, x: Any, y: Any, alpha: complex = 1) -> Any:
    return binary(call, ops.sub, y, scaled(call.cast(x), alpha))


@translates("aten.mul.Tensor", "aten.mul.Scalar")
def _(call: Call, x: Any, y: Any) -> Any:
    if _is_attribute(y):
        return call.cast(do(ops.scalar_mul, call.cast(x), factor=_like(y, call.dtype)))
    return binary(call, _logical(call, ops.mul, ops.logical_and), x, y)


# Overloads of two operands that one operator computes once they have one element type.
_BINARY = {
    ops.div: ("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "aten.divide.Tensor"),
    ops.mod: ("aten.remainder.Tensor", "aten.remainder.Scalar"),
    ops.rem: ("aten.fmod.Tensor", "aten.fmod.Scalar"),
    ops.maximum: ("aten.maximum.default", "aten.max.other"),
    ops.minimum: ("aten.minimum.default", "aten.min.other"),
    ops.atan2: ("aten.atan2.default",),
    ops.shift_left: (
        "aten.bitwise_left_shift.Tensor",
        "aten.bitwise_left_shift.Tensor_Scalar",
        "aten.__lshift__.Scalar",
        "aten.__lshift__.Tensor",
    ),
    ops.shift_right_arithmetic: (
        "aten.bitwise_right_shift.Tensor",
        "aten.bitwise_right_shift.Tensor_Scalar",
        "aten.__rshift__.Scalar",
        "aten.__rshift__.Tensor",
    ),
    ops.mul: ("aten.multiply.Tensor",),
    ops.sub: ("aten.subtract.Tensor",),
}


def _binary(op: Any, names: Sequence[str]) -> None:
    @translates(*names)
    def _(call: Call, x: Any, y: Any) -> Any:
        return binary(call, op, x, y)


for _op, _names in _BINARY.items():
    _binary(_op, _names)


@translates("aten.hypot.default")
def _(call: Call, x: Any, y: Any) -> Any:
    return do(ops.sqrt, do(ops.add, do(ops.square, call.cast(x)), do(ops.square, call.cast(y))))


@translates("aten.copysign.Tensor", "aten.copysign.Scalar")
def _(call: Call, x: Any, y: Any) -> Any:
    """The size of x with the sign of y; that of a zero is seen in its reciprocal. As in torch y has a gradient, 0."""
    y = as_type(y, call.dtype)
    zero, one, sign = number(0, call.dtype), number(1, call.dtype), do(ops.sign, y)
    of_zero = do(ops.select, do(ops.less, do(ops.reciprocal, y), zero), do(ops.neg, one), one)
    defined = do(ops.logical_and, do(ops.not_equal, sign, zero), do(ops.equal, y, y))
    return do(ops.mul, do(ops.abs, call.cast(x)), do(ops.select, defined, sign, of_zero))


@translates("aten.ldexp.Tensor")
def _(call: Call, x: Any, y: Any) -> Any:
    return do(ops.mul, call.cast(x), do(ops.pow, number(2, call.dtype), call.cast(y)))


@translates("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.default")
def _(call: Call, x: Any, y: Any, *, rounding_mode: str | None = "floor") -> Any:
    if rounding_mode == "floor":
        return binary(call, ops.floor_div, x, y)
    if rounding_mode is None:
        return binary(call, ops.div, x, y)
    return _trunc(call, binary(call, ops.div, x, y)) if call.dtype.is_float else binary(call, ops.quotient, x, y)


@translates("aten.trunc.default")
def _trunc(call: Call, x: Any) -> Any:
    below = do(ops.less, x, number(0, call.dtype))
    return do(ops.select, below, do(ops.ceil, x), do(ops.floor, x))


@translates("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _(call: Call, x: Any, y: Any) -> Any:
    by_power = {2: ops.square, 0.5: ops.sqrt, -0.5: ops.rsqrt, -1: ops.reciprocal}
    if _is_number(y) and y in by_power:
        return call.cast(do(by_power[y], call.cast(x)))
    if _is_number(y) and y == 1:
        return call.cast(x)
    return binary(call, ops.pow, x, y)


def _logical(call: Call, arithmetic: Any, logical: Any) -> Any:
    """Of bools torch takes a sum for `or` and a product for `and`."""
    return logical if call.dtype.name == "bool" else arithmetic


def _like(value: Any, of: DType) -> Any:
    """A real number of the kind that the element type holds; complex ones take floats."""
    return float(value) if of.is_inexact else int(value)


def _comparison(name: str, op: Any) -> None:
    @translates(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def _(call: Call, x: Any, y: Any) -> Any:
        common = promoted(call, 0, 1)
        return do(op, as_type(x, common), as_type(y, common))


for _name, _op in {
    "eq": ops.equal, "ne": ops.not_equal, "lt": ops.less, "le": ops.less_equal, "gt": ops.greater,
    "ge": ops.greater_equal,
}.items():  # fmt: skip
    _comparison(_name, _op)


def _logic(name: str, op: Any) -> None:
    @translates(f"aten.logical_{name}.default")
    def _(call: Call, x: Any, y: Any) -> Any:
        return do(op, x, y)


def _bits(name: str, op: Any, bits: Any) -> None:
    @translates(f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar")
    def _(call: Call, x: Any, y: Any) -> Any:
        return binary(call, op if call.dtype.name == "bool" else bits, x, y)


for _name, _op, _bitwise in (
    ("and", ops.logical_and, ops.bitwise_and),
    ("or", ops.logical_or, ops.bitwise_or),
    ("xor", ops.logical_xor, ops.bitwise_xor),
):
    _logic(_name, _op)
    _bits(_name, _op, _bitwise)


# -- selection


@translates("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def _(call: Call, condition: Any, x: Any, y: Any) -> Any:
    return do(ops.select, condition, as_type(x, call.dtype), as_type(y, call.dtype))


@translates("aten.masked_fill.Scalar")
def _(call: Call, x: Any, mask: Any, value: Any) -> Any:
    if not _is_attribute(value):
        return do(ops.select, mask, number(value, call.dtype), x)
    return do(ops.masked_fill, x, mask, value=_like(value, call.dtype))


@translates("aten.masked_fill.Tensor")
def _(call: Call, x: Any, mask: Any, value: Any) -> Any:
    return do(ops.select, mask, call.cast(value), x)


@translates("aten.addcmul.default")
def _(call: Call, x: Any, a: Any, b: Any, *, value: complex = 1) -> Any:
    return do(ops.add, x, scaled(do(ops.mul, call.cast(a), call.cast(b)), value))


@translates("aten.addcdiv.default")
def _(call: Call, x: Any, a: Any, b: Any, *, value: complex = 1) -> Any:
    return do(ops.add, x, scaled(do(ops.div, call.cast(a), call.cast(b)), value))


@translates("aten.lerp.Scalar", "aten.lerp.Tensor")
def _(call: Call, x: Any, y: Any, weight: Any) -> Any:
    step = do(ops.sub, y, x)
    step = scaled(step, weight) if _is_number(weight) else do(ops.mul, step, weight)
    return do(ops.add, x, step)
