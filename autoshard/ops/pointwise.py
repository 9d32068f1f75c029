"""Elementwise operators of two and more operands: arithmetic, comparison, logic, selection, as in numpy.

Gradients are said with other operators and summed back to the operands' shapes; the table is in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard.core.tensortype import promote
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import Operator, operator
from autoshard.ops.unary import BOOL, fit, flat, into, neg, real, signed, wants


def _binary(
    name: str,
    run: np.ufunc,
    *,
    of: Callable | None = None,
    flops: float = 1.0,
    linear: tuple[tuple[int, ...], ...] = (),
) -> Operator:
    @operator(name, rule="..., ... -> ...", dtype=of, flops=flops, linear=linear)
    def binary(x, y, *, out=None):
        return into(out, run, x, y)

    binary.__doc__ = f"{name} of each pair of elements, broadcast."
    return binary


def _slopes(op: Operator, left: Callable, right: Callable) -> None:
    """Gradients `left(g, r, x, y)` and `right(g, r, x, y)`, r the result, before they are summed back."""

    @op.gradient
    def _(g, r, x, y):
        return (
            fit(left(g, r, x, y), x) if wants(x) else None,
            fit(right(g, r, x, y), y) if wants(y) else None,
        )


def slope(op: Operator, by: Callable) -> None:
    """Make `by(y, x)` times what comes from above the gradient of an operator of one operand."""

    @op.gradient
    def _(g, y, x):
        return mul(g, by(y, x))


def _comparison(name: str, run: np.ufunc) -> Operator:
    return _binary(name, run, of=lambda x, y: BOOL)


add = _binary("Add", np.add, linear=((0, 1),))
sub = _binary("Sub", np.subtract, of=signed("Sub"), linear=((0, 1),))
mul = _binary("Mul", np.multiply, linear=((0,), (1,)))
div = _binary("Div", np.true_divide, of=real, linear=((0,),))
floor_div = flat(_binary("FloorDiv", np.floor_divide, of=signed("FloorDiv"), flops=2))
mod = _binary("FloorMod", np.mod, of=signed("FloorMod"), flops=3)
remainder = mod  # as MindSpore, torch and numpy name it; HLO's remainder is `rem`
pow = _binary("Pow", np.power, of=signed("Pow"), flops=16)
maximum = _binary("Maximum", np.maximum)
minimum = _binary("Minimum", np.minimum)
equal = _comparison("Equal", np.equal)
not_equal = _comparison("NotEqual", np.not_equal)
less = _comparison("Less", np.less)
less_equal = _comparison("LessEqual", np.less_equal)
greater = _comparison("Greater", np.greater)
greater_equal = _comparison("GreaterEqual", np.greater_equal)
logical_and = _comparison("LogicalAnd", np.logical_and)
logical_or = _comparison("LogicalOr", np.logical_or)
logical_xor = _comparison("LogicalXor", np.logical_xor)

_slopes(add, lambda g, r, x, y: g, lambda g, r, x, y: g)
_slopes(sub, lambda g, r, x, y: g, lambda g, r, x, y: neg(g))
_slopes(mul, lambda g, r, x, y: mul(g, y), lambda g, r, x, y: mul(g, x))
_slopes(div, lambda g, r, x, y: div(g, y), lambda g, r, x, y: neg(div(mul(g, r), y)))
_slopes(mod, lambda g, r, x, y: g, lambda g, r, x, y: neg(mul(g, floor_div(x, y))))
_slopes(pow, lambda g, r, x, y: pow_base_grad(g, x, y), lambda g, r, x, y: pow_exponent_grad(g, r, x))


@operator("PowBaseGrad", rule="..., ..., ... -> ...", linear=((0,),), flops=18, storage=Storage(scratch=2))
def pow_base_grad(g, x, exponent):
    """Gradient of Pow for its base."""
    return g * exponent * np.power(x, exponent - 1)


@operator("PowExponentGrad", rule="..., ..., ... -> ...", linear=((0,),), flops=10, storage=Storage(scratch=2.25))
def pow_exponent_grad(g, y, x):
    """Gradient of Pow for its exponent; 0 where the base is not positive, since there is no log of it."""
    positive = x > 0
    return g * y * np.log(np.where(positive, x, x.dtype.type(1)))


# -- more operands


@operator(
    "Select",
    rule="..., ..., ... -> ...",
    dtype=lambda condition, x, y: promote((x, y)),
    linear=((1, 2),),
)
def select(condition, x, y):
    """x where the condition holds, y elsewhere."""
    return np.where(condition, x, y)


@select.gradient
def _(g, r, condition, x, y):
    return (
        None,
        fit(select_grad(g, condition), x) if wants(x) else None,
        fit(select_grad(g, condition, other=True), y) if wants(y) else None,
    )


@operator(
    "SelectGrad",
    rule="..., ... -> ...",
    dtype=lambda g, condition, **_: g,
    linear=((0,),),
    storage=Storage(scratch=lambda operands, results, *, other: 0 if other else operands[1].elements),
    filling=Filling(over=((0,),)),
)
def select_grad(g, condition, *, other=False, out=None):
    """g where the condition holds (`other`: where it does not), 0 elsewhere."""
    zero = g.dtype.type(0)
    if other:
        return _filled(g, condition, zero, out)
    return np.where(condition, g, zero) if out is None else _filled(g, np.logical_not(condition), zero, out)


def _filled(x: np.ndarray, mask: np.ndarray, value: Any, out: np.ndarray | None) -> np.ndarray:
    """`value` where the mask holds, x elsewhere; `out` is x or none."""
    if out is None or mask.dtype != np.bool_:
        return np.where(mask, value, x)
    np.copyto(out, value, where=mask)
    return out


def _picking(op: Operator, picks: Operator) -> None:
    """The gradient of an operator that picks the first of two where `picks` says so: one mask decides for both.

    Compared with the result, an operand whose terms were summed in another order than in the forward pass would differ
    in its last bit, and not count as picked.
    """

    @op.gradient
    def _(g, r, x, y):
        first = picks(x, y)
        return (
            fit(select_grad(g, first), x) if wants(x) else None,
            fit(select_grad(g, first, other=True), y) if wants(y) else None,
        )


_picking(maximum, greater_equal)
_picking(minimum, less_equal)


@operator(
    "MaskedFill", rule="..., ... -> ...", dtype=lambda x, mask, **_: x, call=("value",), filling=Filling(over=((0,),))
)
def masked_fill(x, mask, *, value, out=None):
    """`value` where the mask holds, x elsewhere."""
    return _filled(x, mask, x.dtype.type(value), out)


@masked_fill.gradient
def _(g, y, x, mask, value):
    return fit(select_grad(g, mask, other=True), x) if wants(x) else None, None


@operator(
    "AddN",
    rule=lambda *shapes: ", ".join(["..."] * len(shapes)) + " -> ...",
    linear=((),),
    storage=Storage(scratch=0),
    filling=Filling(over=((0, 1),)),
)
def add_n(*xs, out=None):
    """The sum of any number of tensors."""
    if len(xs) == 1:
        return xs[0]
    total = into(out, np.add, xs[0], xs[1])
    for x in xs[2:]:
        # Of scalars numpy makes numbers, which are no memory to write to.
        fits = (
            total.ndim
            and np.broadcast_shapes(total.shape, x.shape) == total.shape
            and np.result_type(total, x) == total.dtype
        )
        total = np.add(total, x, out=total if fits and total.ndim else None)
    return total


@add_n.gradient
def _(g, y, *xs):
    return tuple(fit(g, x) if wants(x) else None for x in xs)
