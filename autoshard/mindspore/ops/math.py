"""Elementwise primitives with MindSpore's names and meaning: arithmetic, comparison, logic, activations."""

from __future__ import annotations

from typing import Any

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.entries import dims_of, leading, refused, taken
from autoshard.mindspore.ops.primitive import plainly, primitive, tensors
from autoshard.ops.primitive import current_primitive
from autoshard.util.errors import ShapeError

Abs = plainly("Abs", core.abs, "input")
ACos = plainly("ACos", core.acos, "input")
Acosh = plainly("Acosh", core.acosh, "input")
Asin = plainly("Asin", core.asin, "input")
Asinh = plainly("Asinh", core.asinh, "input")
Atan = plainly("Atan", core.atan, "input")
Atanh = plainly("Atanh", core.atanh, "input")
Ceil = plainly("Ceil", core.ceil, "input")
Cos = plainly("Cos", core.cos, "input")
Cosh = plainly("Cosh", core.cosh, "input")
Erf = plainly("Erf", core.erf, "input")
Erfc = plainly("Erfc", core.erfc, "input")
Exp = plainly("Exp", core.exp, "input")
Expm1 = plainly("Expm1", core.expm1, "input")
Floor = plainly("Floor", core.floor, "input")
Identity = plainly("Identity", core.identity, "input_x")
Inv = plainly("Inv", core.reciprocal, "x")
IsFinite = plainly("IsFinite", core.is_finite, "input")
IsInf = plainly("IsInf", core.is_inf, "input")
Log = plainly("Log", core.log, "input")
Log1p = plainly("Log1p", core.log1p, "input")
LogicalNot = plainly("LogicalNot", core.logical_not, "input")
Neg = plainly("Neg", core.neg, "input")
OnesLike = plainly("OnesLike", core.ones_like, "x")
Reciprocal = plainly("Reciprocal", core.reciprocal, "input")
ReLU = plainly("ReLU", core.relu, "input")
Rint = plainly("Rint", core.round, "input_x")
Rsqrt = plainly("Rsqrt", core.rsqrt, "input")
Sigmoid = plainly("Sigmoid", core.sigmoid, "input")
Sign = plainly("Sign", core.sign, "input")
Sin = plainly("Sin", core.sin, "input")
Sinh = plainly("Sinh", core.sinh, "input")
Softplus = plainly("Softplus", core.softplus, "input_x")
Sqrt = plainly("Sqrt", core.sqrt, "x")
Square = plainly("Square", core.square, "input")
StopGradient = plainly("StopGradient", core.stop_gradient, "value")
Tan = plainly("Tan", core.tan, "input")
Tanh = plainly("Tanh", core.tanh, "input")
ZerosLike = plainly("ZerosLike", core.zeros_like, "x")

Add = plainly("Add", core.add, "input", "other")
TensorAdd = plainly("TensorAdd", core.add, "x", "y", doc="Add under its former name.")
Sub = plainly("Sub", core.sub, "input", "other")
Mul = plainly("Mul", core.mul, "input", "other")
Div = plainly("Div", core.div, "input", "other")
FloorDiv = plainly("FloorDiv", core.floor_div, "input", "other")
FloorMod = plainly("FloorMod", core.mod, "x", "y", doc="x - floor(x / y) * y: the remainder has the sign of y.")
Mod = plainly("Mod", core.rem, "x", "y", doc="x - trunc(x / y) * y: the remainder has the sign of x.")
TruncateMod = plainly("TruncateMod", core.rem, "x", "y", doc="The same as Mod.")
Pow = plainly("Pow", core.pow, "input", "exponent")
Maximum = plainly("Maximum", core.maximum, "input", "other")
Minimum = plainly("Minimum", core.minimum, "input", "other")
Equal = plainly("Equal", core.equal, "input", "other")
NotEqual = plainly("NotEqual", core.not_equal, "input", "other")
Greater = plainly("Greater", core.greater, "input", "other")
GreaterEqual = plainly("GreaterEqual", core.greater_equal, "input", "other")
Less = plainly("Less", core.less, "input", "other")
LessEqual = plainly("LessEqual", core.less_equal, "input", "other")
LogicalAnd = plainly("LogicalAnd", core.logical_and, "x", "y")
LogicalOr = plainly("LogicalOr", core.logical_or, "x", "y")
LogicalXor = plainly("LogicalXor", core.logical_xor, "input", "other")
BitwiseAnd = plainly("BitwiseAnd", core.bitwise_and, "x", "y")
BitwiseOr = plainly("BitwiseOr", core.bitwise_or, "x", "y")
BitwiseXor = plainly("BitwiseXor", core.bitwise_xor, "x", "y")
Atan2 = plainly("Atan2", core.atan2, "input", "other")
Select = plainly("Select", core.select, "condition", "input", "other")


@primitive("RealDiv", core.div)
def RealDiv(x, y):
    """x / y; of whole numbers the quotient without its fraction, in their type."""
    x, y = tensors(x, y)
    whole = not (element(x.dtype).is_inexact or element(y.dtype).is_inexact)
    return core.quotient(x, y) if whole else core.div(x, y)


@primitive("TruncateDiv", core.quotient)
def TruncateDiv(x, y):
    """x / y without its fraction, towards 0."""
    x, y = tensors(x, y)
    kind = element(x.dtype)
    return _truncated(core.div(x, y)) if kind.is_float else core.quotient(x, y)


def _truncated(x: Any) -> Any:
    return core.mul(core.sign(x), core.floor(core.abs(x)))


@primitive("DivNoNan", core.div)
def DivNoNan(x1, x2):
    """x1 / x2, and 0 where x2 is 0."""
    x1, x2 = tensors(x1, x2)
    none = core.equal(x2, core.zeros_like(x2))
    safe = core.div(x1, core.select(none, core.ones_like(x2), x2))
    return core.masked_fill(safe, none, value=0.0)


@primitive("Xdivy", core.div)
def Xdivy(x, y):
    """x / y, and 0 where x is 0."""
    x, y = tensors(x, y)
    none = core.equal(x, core.zeros_like(x))
    return core.masked_fill(core.div(x, core.add(y, core.cast(none, dtype=element(y.dtype).name))), none, value=0.0)


@primitive("Xlogy", core.mul)
def Xlogy(input, other):
    """input times the logarithm of other, and 0 where input is 0."""
    input, other = tensors(input, other)
    none = core.equal(input, core.zeros_like(input))
    safe = core.select(core.logical_and(none, core.equal(other, other)), core.ones_like(other), other)
    return core.mul(input, core.log(safe))


@primitive("SquaredDifference", core.sub)
def SquaredDifference(x, y):
    """(x - y) squared."""
    return core.square(core.sub(*tensors(x, y)))


@primitive("Lerp", core.sub, leading(2))
def Lerp(input, end, weight):
    """input + weight * (end - input)."""
    input, end, weight = tensors(input, end, weight)
    return core.add(input, core.mul(core.sub(end, input), weight))


@primitive("AddN", core.add_n)
def AddN(inputs):
    """The sum of a tuple or list of tensors of one shape."""
    return core.add_n(*inputs)


@primitive("IsNan", core.not_equal, lambda attrs, given, out: (given * 2 if isinstance(given, tuple) else given, out))
def IsNan(x):
    """Where an element is no number."""
    return core.not_equal(x, x)


@primitive("Round", core.round)
def Round(input, decimals=0):
    """The nearest whole number, of two the even one; with `decimals` the nearest multiple of 10 ** -decimals."""
    if not decimals:
        return core.round(input)
    return core.scalar_mul(core.round(core.scalar_mul(input, factor=10.0**decimals)), factor=10.0**-decimals)


@primitive("Cast", core.cast)
def Cast(input_x, dtype):
    """The tensor in another element type; of floats the part before the point becomes a whole number."""
    (input_x,) = tensors(input_x)
    return core.cast(input_x, dtype=element(dtype).name)


def _masked_fill_strategy(called: Any, given: Any, out: Any) -> tuple[Any, Any]:
    """MindSpore's strategy may have the entry () for the value, which is no operand where it is a number."""
    is_operand = hasattr(called["value"], "__autoshard_apply__")
    return (given if is_operand or given[2:] != ((),) else given[:2]), out


@primitive("MaskedFill", core.masked_fill, strategy_of_call=_masked_fill_strategy)
def MaskedFill(input_x, mask, value):
    """The tensor with `value`, a number or a tensor without dims, where the mask is true."""
    if hasattr(value, "__autoshard_apply__"):
        select, own = core.primitive_class(core.select)(), current_primitive()
        if own is not None and own.in_strategy is not None:
            x, fill, *rest = own.in_strategy
            select.in_strategy, select.out_strategy, select.source = (
                (fill, *(rest or [()]), x),
                own.out_strategy,
                own.source,
            )
        return select(mask, core.cast(value, dtype=element(input_x.dtype).name), input_x)
    return core.masked_fill(input_x, mask, value=float(value))


# -- activations


@primitive("GeLU", core.gelu)
def GeLU(input):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): MindSpore's primitive takes the tanh form."""
    return core.gelu(input, approximate="tanh")


@primitive("Gelu", core.gelu)
def Gelu(x):
    """GeLU under its former name."""
    return core.gelu(x, approximate="tanh")


@primitive("FastGeLU", core.sigmoid)
def FastGeLU(x):
    """x times the sigmoid of 1.702 x."""
    return core.mul(x, core.sigmoid(core.scalar_mul(x, factor=1.702)))


@primitive("ReLU6", core.relu)
def ReLU6(x):
    """The number between 0 and 6 that is nearest."""
    return core.minimum(core.relu(x), core.scalar_mul(core.ones_like(x), factor=6))


def _unit_ramp(x: Any) -> Any:
    """(x + 3) / 6 kept between 0 and 1."""
    return core.scalar_mul(ReLU6.function(core.scalar_add(x, addend=3)), factor=1 / 6)


@primitive("HSigmoid", core.relu)
def HSigmoid(input):
    """min(max(x + 3, 0), 6) / 6."""
    return _unit_ramp(input)


@primitive("HSwish", core.relu)
def HSwish(input):
    """x times HSigmoid of x."""
    return core.mul(input, _unit_ramp(input))


def exponential_below(x: Any, alpha: float) -> Any:
    """alpha (exp(x) - 1), of negative elements only, so that large ones do not overflow."""
    below = core.expm1(core.minimum(x, core.zeros_like(x)))
    return below if alpha == 1 else core.scalar_mul(below, factor=alpha)


@primitive("Elu", core.relu)
def Elu(input_x, *, alpha=1.0):
    """x where it is at least 0, else alpha (exp(x) - 1)."""
    return core.add(core.relu(input_x), exponential_below(input_x, alpha))


@primitive("CeLU", core.relu)
def CeLU(x, *, alpha=1.0):
    """x where it is at least 0, else alpha (exp(x / alpha) - 1)."""
    return core.add(core.relu(x), exponential_below(core.scalar_mul(x, factor=1 / alpha), alpha))


@primitive("SoftShrink", core.relu)
def SoftShrink(input, *, lambd=0.5):
    """x moved by `lambd` towards 0, at most to it."""
    above = core.relu(core.scalar_add(input, addend=-lambd))
    return core.sub(above, core.relu(core.scalar_add(core.neg(input), addend=-lambd)))


@primitive("HShrink", core.abs)
def HShrink(input, *, lambd=0.5):
    """x where it is further than `lambd` from 0, else 0."""
    far = core.abs(input)
    near = core.less_equal(far, core.scalar_mul(core.ones_like(far), factor=lambd))
    return core.masked_fill(input, near, value=0.0)


_SELU_SCALE, _SELU_ALPHA = 1.05070098, 1.67326324  # Klambauer et al. 2017, section 2; as MindSpore rounds them


@primitive("SeLU", core.relu)
def SeLU(input_x):
    """Elu with the scale and alpha that keep mean and variance (Klambauer et al. 2017)."""
    return core.scalar_mul(core.add(core.relu(input_x), exponential_below(input_x, _SELU_ALPHA)), factor=_SELU_SCALE)


@primitive("Mish", core.softplus)
def Mish(x):
    """x tanh(log(1 + exp(x)))."""
    return core.mul(x, core.tanh(core.softplus(x)))


@primitive("Softsign", core.abs)
def Softsign(input_x):
    """x / (1 + |x|)."""
    return core.div(input_x, core.scalar_add(core.abs(input_x), addend=1))


def along(vector: Any, x: Any, axis: int) -> Any:
    """A vector as a tensor that stretches over x from its dim `axis` on."""
    return core.reshape(vector, shape=(vector.shape[0], *(1,) * (len(x.shape) - axis - 1)))


def _prelu_strategy(attrs: Any, given: Any, out: Any) -> tuple[Any, Any]:
    """The weight is split as the channels are, or not at all; the three operands of the selection as x."""
    ranks = [dims_of(one) for one in given] if isinstance(given, tuple) else []
    if len(ranks) != 2 or not ranks[0] or ranks[1] != 1:
        raise refused(given, "(parts of x, (parts of its channels,))")
    alike = [taken(given[0], (None,)), *([taken(given[0], (1,))] if ranks[0] > 1 else [])]
    if given[1] not in alike:
        raise refused(given, f"(parts of x, (parts of its channels,)), so that the second one is {alike[-1]!r}")
    return (given[0],) * 3, out


@primitive("PReLU", core.select, _prelu_strategy)
def PReLU(input, weight):
    """x where it is at least 0, else x times the weight of its channel (dim 1), or the only weight."""
    if len(weight.shape) != 1 or weight.shape[0] not in (1, input.shape[1] if len(input.shape) > 1 else 1):
        raise ShapeError(
            f"PReLU of {tuple(input.shape)}: weight {tuple(weight.shape)} is one number, or one per channel"
        )
    slope = along(weight, input, min(1, len(input.shape) - 1)) if len(input.shape) else weight
    return core.select(core.greater(input, core.zeros_like(input)), input, core.mul(slope, input))
