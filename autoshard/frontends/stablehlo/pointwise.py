"""Translators of elementwise operations, of StableHLO and CHLO."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir.dialects import stablehlo

from autoshard.frontends.stablehlo.attributes import attribute, tensor_type
from autoshard.frontends.stablehlo.table import Translation, plain, translates
from autoshard.util.errors import ShapeError

_STABLEHLO = {
    "abs": "Abs", "add": "Add", "and": "And", "atan2": "Atan2", "cbrt": "Cbrt", "ceil": "Ceil", "clamp": "Clamp",
    "complex": "Complex", "cosine": "Cos", "count_leading_zeros": "CountLeadingZeros", "exponential": "Exp",
    "exponential_minus_one": "Expm1", "floor": "Floor", "imag": "Imag", "is_finite": "IsFinite", "log": "Log",
    "log_plus_one": "Log1p", "logistic": "Sigmoid", "maximum": "Maximum", "minimum": "Minimum", "multiply": "Mul",
    "negate": "Neg", "not": "Not", "or": "Or", "popcnt": "PopulationCount", "real": "Real",
    "remainder": "Remainder", "round_nearest_afz": "RoundAwayFromZero", "round_nearest_even": "Round",
    "rsqrt": "Rsqrt", "select": "Select", "shift_left": "ShiftLeft", "shift_right_arithmetic": "ShiftRightArithmetic",
    "shift_right_logical": "ShiftRightLogical", "sign": "Sign", "sine": "Sin", "sqrt": "Sqrt", "subtract": "Sub",
    "tan": "Tan", "tanh": "Tanh", "xor": "Xor",
}  # fmt: skip
_CHLO = {
    "acos": "ChloAcos", "acosh": "ChloAcosh", "asin": "ChloAsin", "asinh": "ChloAsinh", "atan": "ChloAtan",
    "atanh": "ChloAtanh", "bessel_i1e": "ChloBesselI1e", "conj": "ChloConj", "cosh": "ChloCosh",
    "digamma": "ChloDigamma", "erf": "ChloErf", "erf_inv": "ChloErfInv", "erfc": "ChloErfc", "is_inf": "ChloIsInf",
    "is_neg_inf": "ChloIsNegInf", "is_pos_inf": "ChloIsPosInf", "lgamma": "ChloLgamma", "mulhi": "ChloMulhi",
    "next_after": "ChloNextAfter", "polygamma": "ChloPolygamma", "sinh": "ChloSinh", "square": "ChloSquare",
    "tan": "ChloTan", "zeta": "ChloZeta",
}  # fmt: skip
_COMPARISONS = {
    "EQ": "Equal", "NE": "NotEqual", "LT": "Less", "LE": "LessEqual", "GT": "Greater", "GE": "GreaterEqual",
}  # fmt: skip

plain({f"stablehlo.{name}": operator for name, operator in _STABLEHLO.items()})
plain({f"chlo.{name}": operator for name, operator in _CHLO.items()})


def _is_whole(op: Any) -> bool:
    """Whether the result is of whole numbers."""
    of = tensor_type(str(op.results[0].type)).dtype
    return not of.is_float and not of.name.startswith("c")


@translates("stablehlo.divide")
def _(op: Any) -> Translation:
    return "Quotient" if _is_whole(op) else "Div", {}


@translates("stablehlo.power")
def _(op: Any) -> Translation:
    return "IntegerPower" if _is_whole(op) else "Pow", {}


@translates("stablehlo.compare")
def _(op: Any) -> Translation:
    attrs = op.attributes
    direction = stablehlo.ComparisonDirectionAttr(attrs["comparison_direction"]).value
    if "compare_type" in attrs and stablehlo.ComparisonTypeAttr(attrs["compare_type"]).value == "TOTALORDER":
        return "CompareTotalOrder", {"direction": direction}
    return _COMPARISONS[direction], {}


@translates("stablehlo.convert")
def _(op: Any) -> Translation:
    return "Convert", {"dtype": tensor_type(str(op.results[0].type)).dtype.name}


@translates("stablehlo.reduce_precision")
def _(op: Any) -> Translation:
    return "ReducePrecision", {name: attribute(op, name) for name in ("exponent_bits", "mantissa_bits")}


@translates("chlo.top_k")
def _(op: Any) -> Translation:
    return "ChloTopK", {"k": attribute(op, "k")}


@translates("stablehlo.bitcast_convert")
def _(op: Any) -> Translation:
    source, target = tensor_type(str(op.operands[0].type)), tensor_type(str(op.results[0].type))
    if source.rank == target.rank:
        return "BitcastConvert", {"dtype": target.dtype.name}
    wider = source.rank > target.rank
    ratio = (source if wider else target).shape[-1]
    if ratio != max(source.dtype.bits, target.dtype.bits) // min(source.dtype.bits, target.dtype.bits):
        raise ShapeError(f"bitcast_convert of {source} to {target}: the last dim must hold the parts of one element")
    return "BitcastRegroup", {"ratio": ratio, "wider": wider, "dtype": target.dtype.name}
