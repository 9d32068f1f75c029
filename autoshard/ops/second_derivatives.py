"""Gradients of gradient operators, said with other operators: what a loss that holds a gradient is trained by.

    loss = mean(y) + mean(grad(y, x) ** 2)          # a gradient penalty

Each of these operators is linear in g, the gradient that it passes on. Elementwise ones times a slope: for g their own
gradient is the same operator once more, and only the derivative of the slope is new.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from autoshard.core.tensortype import dtype as element_type
from autoshard.ops import unary as u
from autoshard.ops.loss import l1_loss_grad, mse_loss_grad, sparse_softmax_cross_entropy_grad
from autoshard.ops.norm import layer_norm_param_grad, log_softmax_grad, norm_grad, softmax, softmax_grad
from autoshard.ops.pointwise import add, div, greater, mul, pow_base_grad, pow_exponent_grad, select_grad, sub
from autoshard.ops.pointwise import pow as power
from autoshard.ops.reduce import extreme_grad, reduce_mean, reduce_sum
from autoshard.ops.registry import Operator
from autoshard.ops.shape import broadcast_to, expand_dims
from autoshard.ops.source import fill, ones_like
from autoshard.ops.unary import cos, exp, neg, scalar_add, scalar_mul, sigmoid, sin, square, tanh, wants

_TANH_SCALE, _TANH_CUBE = 0.7978845608028654, 0.044715  # of the tanh approximation of GeLU


def _scaled(x: Any, factor: float, addend: float = 0.0) -> Any:
    scaled = scalar_mul(x, factor=factor)
    return scalar_add(scaled, addend=addend) if addend else scaled


# -- elementwise


def _bends(op: Operator, bend: Callable[[Any, Any], Any] | None) -> None:
    """`bend(c, z)` is c times the derivative of the slope at the second operand z; None where it is zero."""

    @op.gradient
    def _(g, r, of, z):
        return op(g, z), bend(mul(g, of), z) if bend is not None and wants(z) else None


def _silu_bend(c: Any, x: Any) -> Any:
    """s (1 - s) (2 + x (1 - 2 s)) for the logistic s of x."""
    s = sigmoid(x)
    return mul(u.sigmoid_grad(c, s), scalar_add(mul(x, _scaled(s, -2.0, 1.0)), addend=2.0))


_bends(u.exp_grad, lambda c, y: c)
_bends(u.log_grad, lambda c, x: neg(div(div(c, x), x)))
_bends(u.sin_grad, lambda c, x: neg(mul(c, sin(x))))
_bends(u.cos_grad, lambda c, x: neg(mul(c, cos(x))))
_bends(u.log1p_grad, lambda c, x: neg(u.log1p_grad(u.log1p_grad(c, x), x)))
_bends(u.sqrt_grad, lambda c, y: neg(div(u.sqrt_grad(c, y), y)))
_bends(u.rsqrt_grad, lambda c, y: _scaled(mul(c, square(y)), -1.5))
_bends(u.reciprocal_grad, lambda c, y: _scaled(mul(c, y), -2.0))
_bends(u.square_grad, lambda c, x: _scaled(c, 2.0))
_bends(u.tanh_grad, lambda c, y: _scaled(mul(c, y), -2.0))
_bends(u.sigmoid_grad, lambda c, y: mul(c, _scaled(y, -2.0, 1.0)))
_bends(u.erf_grad, lambda c, x: _scaled(mul(u.erf_grad(c, x), x), -2.0))
_bends(u.relu_grad, None)
_bends(u.abs_grad, None)
_bends(u.silu_grad, _silu_bend)
_bends(u.softplus_grad, lambda c, x: u.sigmoid_grad(c, sigmoid(x)))


def _gelu_bend(x: Any) -> Any:
    """The second derivative x Phi(x): (2 - x^2) phi(x) for the normal distribution Phi and its density phi."""
    density = _scaled(exp(_scaled(square(x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return mul(density, _scaled(square(x), -1.0, 2.0))


def _gelu_tanh_bend(x: Any) -> Any:
    """The second derivative of x (1 + t) / 2 for t = tanh(a (x + b x^3)): t' + x t'' / 2."""
    squared = square(x)
    inner = mul(x, _scaled(squared, _TANH_SCALE * _TANH_CUBE, _TANH_SCALE))
    first = _scaled(squared, 3 * _TANH_SCALE * _TANH_CUBE, _TANH_SCALE)
    second = _scaled(x, 6 * _TANH_SCALE * _TANH_CUBE)
    t = tanh(inner)
    rising = u.tanh_grad(first, t)
    bending = sub(u.tanh_grad(second, t), _scaled(mul(mul(t, rising), first), 2.0))
    return add(rising, _scaled(mul(x, bending), 0.5))


@u.gelu_grad.gradient
def _(g, r, of, x, approximate):
    bend = _gelu_tanh_bend(x) if approximate == "tanh" else _gelu_bend(x)
    return u.gelu_grad(g, x, approximate=approximate), mul(mul(g, of), bend)


@select_grad.gradient
def _(g, r, of, condition, other):
    return select_grad(g, condition, other=other), None


@pow_base_grad.gradient
def _(g, r, of, x, exponent):
    """Of g e x^(e - 1)."""
    c = mul(g, of)
    less = scalar_add(exponent, addend=-1.0)
    for_exponent = add(mul(c, power(x, less)), pow_exponent_grad(c, mul(exponent, power(x, less)), x))
    return pow_base_grad(g, x, exponent), pow_base_grad(mul(c, exponent), x, less), for_exponent


@pow_exponent_grad.gradient
def _(g, r, of, y, x):
    """Of g y log(x) where x is positive."""
    c = mul(g, of)
    positive = greater(x, scalar_mul(x, factor=0.0))
    for_base = select_grad(div(mul(c, y), x), positive)
    return pow_exponent_grad(g, y, x), pow_exponent_grad(c, ones_like(y), x), for_base


# -- losses


def _loss_for_g(op: Operator, g: Any, of: Any, x: Any, y: Any, attrs: dict[str, Any]) -> Any:
    """The gradient of a loss's gradient for the g that it was scaled by: a number unless there is no reduction."""
    if attrs["reduction"] == "none":
        return op(g, x, y, **attrs)
    one = fill(shape=(), value=1.0, dtype=element_type(of.dtype).name)
    return reduce_sum(mul(g, op(one, x, y, **attrs)))


@mse_loss_grad.gradient
def _(g, r, of, x, y, **attrs):
    divisor = (attrs["count"] or math.prod(x.shape)) if attrs["reduction"] == "mean" else 1
    slope = _scaled(mul(g, of), 2.0 / divisor)
    return _loss_for_g(mse_loss_grad, g, of, x, y, attrs), slope, neg(slope)


@l1_loss_grad.gradient
def _(g, r, of, x, y, **attrs):
    return _loss_for_g(l1_loss_grad, g, of, x, y, attrs), None, None


@sparse_softmax_cross_entropy_grad.gradient
def _(g, r, of, logits, labels):
    unit = sparse_softmax_cross_entropy_grad(ones_like(of), logits, labels)
    column = expand_dims(of, axis=len(of.shape))
    return reduce_sum(mul(g, unit), axis=-1), softmax_grad(mul(g, column), softmax(logits)), None


# -- softmax and normalisation


@softmax_grad.gradient
def _(g, r, of, y, axis):
    """Of y (g - sum(g y))."""
    along = {"axis": axis, "keep_dims": True}
    centered = sub(of, reduce_sum(mul(of, y), **along))
    return softmax_grad(g, y, axis=axis), sub(mul(g, centered), mul(of, reduce_sum(mul(g, y), **along)))


@log_softmax_grad.gradient
def _(g, r, of, y, axis):
    """Of g - exp(y) sum(g)."""
    along = {"axis": axis, "keep_dims": True}
    share = mul(g, exp(y))
    return sub(g, reduce_sum(share, **along)), neg(mul(share, reduce_sum(of, **along)))


@norm_grad.gradient
def _(g, r, of, unit, rstd, gamma, begin_norm_axis, center):
    """Of (s - unit mean(s unit) - mean(s)) rstd for s = g gamma."""
    first = begin_norm_axis % len(of.shape)
    lead, along = tuple(range(first)), {"axis": tuple(range(first, len(of.shape))), "keep_dims": True}
    back = norm_grad(g, unit, rstd, ones_like(gamma), begin_norm_axis=first, center=center)
    s, scaled = mul(of, gamma), mul(g, rstd)
    shares = reduce_mean(mul(s, unit), **along), reduce_mean(mul(scaled, unit), **along)
    for_unit = neg(add(mul(scaled, shares[0]), mul(s, shares[1])))
    for_rstd = div(reduce_sum(mul(g, r), **along), rstd)
    for_gamma = mul(back, of)
    return mul(back, gamma), for_unit, for_rstd, reduce_sum(for_gamma, axis=lead) if lead else for_gamma


@layer_norm_param_grad.gradient
def _(g, r, of, unit, begin_norm_axis):
    """Of the sums of g unit and of g."""
    for_gamma, for_beta = g
    terms = [] if for_gamma is None else [mul(unit, for_gamma)]
    if for_beta is not None:
        terms.append(broadcast_to(for_beta, shape=tuple(of.shape)))
    return terms[0] if len(terms) == 1 else add(*terms), None if for_gamma is None else mul(of, for_gamma)


# -- largest and least


@extreme_grad.gradient
def _(g, r, of, x, axis, keep_dims, largest):
    """Of g, shared among the elements that attain the extreme: which ones does not change nearby."""
    attrs = {"axis": axis, "keep_dims": keep_dims}
    shares = extreme_grad(ones_like(of), x, largest=largest, **attrs)
    return reduce_sum(mul(g, shares), **attrs), None
