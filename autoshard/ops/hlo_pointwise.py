"""Elementwise operators of StableHLO that no other module has: bits, whole numbers, complex numbers, conversions.

Operands have one shape; only the predicate of a selection and the bounds of Clamp may be scalars instead. Meanings
are those of the StableHLO specification, and of XLA on a CPU where that leaves a case open (division by zero, shifts
by more than there are bits, conversions that overflow).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops import integer_arithmetic as integers
from autoshard.ops.options import Storage
from autoshard.ops.registry import operator
from autoshard.ops.unary import BOOL, elementwise, magnitude, native

_COMPLEX_OF = {element_type("f32"): element_type("c64"), element_type("f64"): element_type("c128")}


_one, _two = partial(elementwise, 1), partial(elementwise, 2)


def _away_from_zero(x: np.ndarray) -> np.ndarray:
    wide = native(x)
    whole_part = np.trunc(wide)
    return whole_part + np.copysign(np.abs(wide - whole_part) >= 0.5, wide)


def _atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The angle of (x, y); of complex numbers -i log((x + i y) / sqrt(x^2 + y^2))."""
    if y.dtype.kind == "c":
        return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))
    return np.arctan2(y, x)


# -- floats

expm1 = _one("Expm1", np.expm1, "exp(x) - 1, exact near 0.", flops=8)
cbrt = _one("Cbrt", np.cbrt, "The cube root.", flops=8)
tan = _one("Tan", np.tan, "The tangent.", flops=8)
round_away = _one("RoundAwayFromZero", _away_from_zero, "The nearest whole number; halves away from zero.")
is_finite = _one("IsFinite", np.isfinite, "Whether it is neither infinite nor NaN.", of=lambda x: BOOL)
atan2 = _two("Atan2", _atan2, "The angle of the point (second operand, first operand).", flops=10)

# -- whole numbers and bits

rem = _two("Remainder", integers.remainder, "What division leaves, with the sign of the dividend.", flops=3)
quotient = _two("Quotient", integers.quotient, "Division, rounded towards zero.")
integer_power = _two("IntegerPower", integers.power, "Whole numbers to the power of whole numbers.", flops=16)
bitwise_not = _one("Not", np.invert, "Every bit inverted; of bools the negation.")
bitwise_and = _two("And", np.bitwise_and, "Every bit of both.")
bitwise_or = _two("Or", np.bitwise_or, "Every bit of either.")
bitwise_xor = _two("Xor", np.bitwise_xor, "Every bit of one of them.")
population_count = _one("PopulationCount", integers.ones, "How many bits are set.", flops=4)
count_leading_zeros = _one("CountLeadingZeros", integers.leading_zeros, "How many high bits are not set.", flops=12)
shift_left = _two("ShiftLeft", integers.shift_left, "x * 2^y; 0 if all bits go out.")
shift_right_logical = _two("ShiftRightLogical", integers.shift_right_logical, "x moved y bits down, zeros from above.")
shift_right_arithmetic = _two(
    "ShiftRightArithmetic",
    integers.shift_right_arithmetic,
    "x moved y bits down, copies of the sign from above.",
)


# -- complex numbers


@operator("Complex", rule="..., ... -> ...", dtype=lambda real, imag: _COMPLEX_OF[real], flops=0)
def complex_number(real, imag):
    """real + i imag."""
    out = np.empty(np.broadcast_shapes(real.shape, imag.shape), _COMPLEX_OF[element_type(real.dtype)].numpy)
    out.real, out.imag = real, imag
    return out


real_part = _one("Real", np.real, "The real part.", of=magnitude, flops=0)
imaginary_part = _one("Imag", lambda x: np.imag(x) + 0, "The imaginary part, 0 of real numbers.", of=magnitude, flops=0)


# -- choice


@operator("Clamp", rule="..., ..., ... -> ...", dtype=lambda low, x, high: x, flops=2, storage=Storage(scratch=1))
def hlo_clamp(low, x, high):
    """x, but at least `low` and at most `high`."""
    return np.minimum(np.maximum(x, low), high)


_DIRECTIONS = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip


@operator("CompareTotalOrder", rule="..., ... -> ...", dtype=lambda x, y, *, direction: BOOL)
def compare_total_order(x, y, *, direction):
    """Compare floats in the total order of IEEE-754, where -0 is before 0 and NaNs stand at the ends."""
    return _DIRECTIONS[direction](integers.total_order(x), integers.total_order(y))


# -- conversions


@operator("Convert", rule="... -> ...", dtype=lambda x, *, dtype: element_type(dtype), flops=0)
def convert(x, *, dtype):
    """The elements as another type.

    Floats that an integer type cannot hold become its nearest value, NaN 0; a complex number its real part; a
    bool tells whether the number is not 0. Integers keep their low bits.
    """
    target = element_type(dtype)
    if target == BOOL:
        return x != 0
    if x.dtype.kind == "c" and not target.name.startswith("c"):
        x = x.real
    if _is_whole(target) and element_type(x.dtype).is_float:
        return _saturated(native(x), target)
    with np.errstate(over="ignore"):
        return x.astype(target.numpy)


def _is_whole(of: DType) -> bool:
    return not of.is_float and of != BOOL and not of.name.startswith("c")


def _saturated(x: np.ndarray, target: DType) -> np.ndarray:
    """Floats cut to whole numbers that `target` holds."""
    signed = target.name.startswith("i")
    low = -(2 ** (target.bits - 1)) if signed else 0
    high = 2 ** (target.bits - signed) - 1
    wide = np.int64 if signed else np.uint64
    cut = np.trunc(x.astype(np.float64))
    inside = (cut >= low) & (cut < float(high + 1))
    out = np.where(inside, cut, 0).astype(wide)
    out[cut >= float(high + 1)] = high
    out[cut < low] = low
    return out.astype(target.numpy)


@operator("ReducePrecision", rule="... -> ...", flops=4)
def reduce_precision(x, *, exponent_bits, mantissa_bits):
    """Each float rounded to the nearest that so many bits of exponent and mantissa can hold.

    What is too large becomes infinite, what is below the smallest normal number 0 (XLA, elemental_ir_emitter.cc,
    EmitReducePrecisionIR).
    """
    return integers.reduced(np.ascontiguousarray(x), exponent_bits, mantissa_bits)
