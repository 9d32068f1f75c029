"""Gradients of StableHLO's elementwise functions, said with other operators: a table of calculus."""

from __future__ import annotations

import math
from typing import Any

from autoshard.core.tensortype import dtype
from autoshard.ops.hlo_chlo import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    chlo_erf,
    chlo_square,
    chlo_tan,
    cosh,
    digamma,
    erf_inv,
    erfc,
    lgamma,
    polygamma,
    sinh,
)
from autoshard.ops.hlo_pointwise import (
    atan2,
    bitwise_and,
    cbrt,
    convert,
    expm1,
    hlo_clamp,
    quotient,
    reduce_precision,
    rem,
    round_away,
    tan,
)
from autoshard.ops.pointwise import add, div, greater, less, mul, select, slope
from autoshard.ops.reduce import sum_to
from autoshard.ops.source import fill, ones_like
from autoshard.ops.unary import abs as absolute
from autoshard.ops.unary import exp, floor, neg, reciprocal, rsqrt, scalar_add, scalar_mul, sign, square

slope(expm1, lambda y, x: scalar_add(y, addend=1.0))
slope(tan, lambda y, x: scalar_add(square(y), addend=1.0))
slope(sinh, lambda y, x: cosh(x))
slope(cosh, lambda y, x: sinh(x))
slope(asin, lambda y, x: rsqrt(scalar_add(neg(square(x)), addend=1.0)))
slope(acos, lambda y, x: neg(rsqrt(scalar_add(neg(square(x)), addend=1.0))))
slope(asinh, lambda y, x: rsqrt(scalar_add(square(x), addend=1.0)))
slope(acosh, lambda y, x: rsqrt(scalar_add(square(x), addend=-1.0)))


@atan.gradient
def _(g, y, x):
    return div(g, scalar_add(square(x), addend=1.0))


@atanh.gradient
def _(g, y, x):
    return div(g, scalar_add(scalar_mul(square(x), factor=-1.0), addend=1.0))


# -- special functions

slope(chlo_square, lambda y, x: scalar_mul(x, factor=2.0))
slope(chlo_tan, lambda y, x: scalar_add(square(y), addend=1.0))
slope(cbrt, lambda y, x: reciprocal(scalar_mul(square(y), factor=3.0)))
slope(chlo_erf, lambda y, x: scalar_mul(exp(neg(square(x))), factor=2 / math.sqrt(math.pi)))
slope(erfc, lambda y, x: scalar_mul(exp(neg(square(x))), factor=-2 / math.sqrt(math.pi)))
slope(erf_inv, lambda y, x: scalar_mul(exp(square(y)), factor=math.sqrt(math.pi) / 2))
slope(lgamma, lambda y, x: digamma(x))
slope(digamma, lambda y, x: polygamma(ones_like(x), x))


@round_away.gradient
def _(g, y, x):
    return None


# -- two operands


@atan2.gradient
def _(g, y, rise, run):
    """The derivative of the angle: (run, -rise) / (rise^2 + run^2)."""
    share = div(g, add(square(rise), square(run)))
    return mul(share, run), neg(mul(share, rise))


@quotient.gradient
def _(g, y, x, divisor):
    """A step function."""
    return None, None


@rem.gradient
def _(g, y, x, divisor):
    """x - t divisor, where t, the ratio cut to a whole number, stays the same nearby."""
    ratio = div(x, divisor)
    return g, neg(mul(g, mul(sign(ratio), floor(absolute(ratio)))))


@hlo_clamp.gradient
def _(g, y, low, x, high):
    """To x where it lies between the bounds, else to the bound that it was moved to; a bound may be a scalar."""
    zero = fill(shape=tuple(g.shape), value=0.0, dtype=dtype(g.dtype).name)
    under, over = less(x, low), greater(x, high)
    inside = bitwise_and(greater(x, low), less(x, high))
    return (
        sum_to(select(under, g, zero), low.shape),
        select(inside, g, zero),
        sum_to(select(over, g, zero), high.shape),
    )


# -- types


def _passed(g: Any, y: Any, x: Any, **_: object) -> Any:
    """The gradient as it is; the sum that it goes into is of the operand's type."""
    return g


convert.gradient(_passed)
reduce_precision.gradient(_passed)
