"""Gradients of StableHLO's elementwise functions, said with other operators: a table of calculus."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.ops.hlo_chlo import acos, acosh, asin, asinh, atan, atanh, cosh, sinh
from autoshard.ops.hlo_pointwise import expm1, tan
from autoshard.ops.pointwise import div, mul
from autoshard.ops.registry import Operator
from autoshard.ops.unary import neg, rsqrt, scalar_add, scalar_mul, square


def _slope(op: Operator, slope: Callable) -> None:
    """`slope(y, x)` times what comes from above."""

    @op.gradient
    def _(g, y, x):
        return mul(g, slope(y, x))


_slope(expm1, lambda y, x: scalar_add(y, addend=1.0))
_slope(tan, lambda y, x: scalar_add(square(y), addend=1.0))
_slope(sinh, lambda y, x: cosh(x))
_slope(cosh, lambda y, x: sinh(x))
_slope(asin, lambda y, x: rsqrt(scalar_add(neg(square(x)), addend=1.0)))
_slope(acos, lambda y, x: neg(rsqrt(scalar_add(neg(square(x)), addend=1.0))))
_slope(asinh, lambda y, x: rsqrt(scalar_add(square(x), addend=1.0)))
_slope(acosh, lambda y, x: rsqrt(scalar_add(square(x), addend=-1.0)))


@atan.gradient
def _(g, y, x):
    return div(g, scalar_add(square(x), addend=1.0))


@atanh.gradient
def _(g, y, x):
    return div(g, scalar_add(scalar_mul(square(x), factor=-1.0), addend=1.0))
