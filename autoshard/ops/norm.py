"""Softmax and normalisation. Kernels need the normalised dims whole; where ranks split them, `decompose` runs instead.

LayerNorm and RmsNorm share their gradient: `standardize` takes mean and scale out of x once, for all slopes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.axes import axis_index, letters, unsplit_words, words
from autoshard.ops.folding import dotted, largest, summed, widened
from autoshard.ops.options import Filling, Storage
from autoshard.ops.pointwise import add, div, mul, sub
from autoshard.ops.reduce import reduce_max, reduce_mean, reduce_sum
from autoshard.ops.registry import operator
from autoshard.ops.source import fill
from autoshard.ops.unary import exp, log, real, rsqrt, scalar_add, scalar_mul, square, stop_gradient
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


def _axis_rule(name: str, operands: int):
    """All operands and the result alike, `axis` whole."""

    def rule(*shapes: Shape, axis: int) -> str:
        at = axis_index(axis, len(shapes[0]), name)
        text = unsplit_words(letters(len(shapes[0])), range(at, at + 1))
        return f"{', '.join([text] * operands)} -> {text}"

    return rule


# -- softmax


def _own(out: np.ndarray | None, wide: np.ndarray) -> np.ndarray | None:
    """The memory for a result, unless it is computed in a wider type."""
    return out if out is not None and out.dtype == wide.dtype else None


@operator(
    "Softmax",
    rule=_axis_rule("Softmax", 1),
    dtype=real,
    flops=12,
    storage=Storage(scratch=0.1),
    filling=Filling(over=((0,),)),
)
def softmax(x, *, axis=-1, out=None):
    """exp(x) divided by its sum along `axis`."""
    x = widened(x)
    e = np.subtract(x, largest(x, axis), out=_own(out, x))
    e = np.exp(e, out=e if e.dtype.kind in "fc" else None)
    e /= summed(e, (axis % e.ndim,), True)
    return e


@softmax.gradient
def _(g, y, x, axis):
    return softmax_grad(g, y, axis=axis)


def shifted(x: Any, axis: int) -> Any:
    """x minus its largest element along `axis`, so that exp cannot overflow."""
    return sub(x, stop_gradient(reduce_max(x, axis=axis, keep_dims=True)))


@softmax.decompose
def _(x, axis):
    e = exp(shifted(x, axis))
    return div(e, reduce_sum(e, axis=axis, keep_dims=True))


@operator(
    "SoftmaxGrad",
    rule=_axis_rule("SoftmaxGrad", 2),
    linear=((0,),),
    flops=5,
    storage=Storage(scratch=0.1),
    filling=Filling(over=((0,),)),
)
def softmax_grad(g, y, *, axis=-1, out=None):
    """Gradient of Softmax from g and its result."""
    g, y = widened(g), widened(y)
    share = np.expand_dims(dotted(np.moveaxis(g, axis, -1), np.moveaxis(y, axis, -1)), axis)
    slope = np.subtract(g, share, out=_own(out, g))
    slope *= y
    return slope


@softmax_grad.decompose
def _(g, y, axis):
    slope = mul(g, y)
    return sub(slope, mul(y, reduce_sum(slope, axis=axis, keep_dims=True)))


@operator("LogSoftmax", rule=_axis_rule("LogSoftmax", 1), dtype=real, flops=12, storage=Storage(scratch=1.1))
def log_softmax(x, *, axis=-1):
    """The logarithm of Softmax, exact also where that is tiny."""
    x = widened(x)
    shifted = x - largest(x, axis)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@log_softmax.gradient
def _(g, y, x, axis):
    return log_softmax_grad(g, y, axis=axis)


@log_softmax.decompose
def _(x, axis):
    below = shifted(x, axis)
    return sub(below, log(reduce_sum(exp(below), axis=axis, keep_dims=True)))


@operator("LogSoftmaxGrad", rule=_axis_rule("LogSoftmaxGrad", 2), linear=((0,),), flops=12)
def log_softmax_grad(g, y, *, axis=-1):
    """Gradient of LogSoftmax from g and its result."""
    g, y = widened(g), widened(y)
    return g - np.exp(y) * g.sum(axis, keepdims=True)


@log_softmax_grad.decompose
def _(g, y, axis):
    return sub(g, mul(exp(y), reduce_sum(g, axis=axis, keep_dims=True)))


# -- normalisation


def _first(begin: int, x: Shape, what: str) -> int:
    return axis_index(begin, len(x), f"{what}: begin_norm_axis")


def _norm_rule(name: str):
    """x, and parameters that have its trailing dims from `begin_norm_axis` on."""

    def rule(x: Shape, *params: Shape, begin_norm_axis: int, **_: object) -> str:
        first = _first(begin_norm_axis, x, name)
        for shape in params:
            if tuple(shape) != tuple(x[first:]):
                raise ShapeError(
                    f"{name} of {tuple(x)} from axis {first} needs parameters of shape {tuple(x[first:])}, "
                    f"not {tuple(shape)}"
                )
        names = letters(len(x))
        text = unsplit_words(names, range(first, len(x)))
        small = unsplit_words(names[first:], range(len(x)))
        return f"{', '.join([text] + [small] * len(params))} -> {text}"

    return rule


def _norm_axes(begin: int, rank: int) -> tuple[int, ...]:
    return tuple(range(begin % rank, rank))


def _standardize(x: np.ndarray, begin: int, epsilon: float, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """x with mean 0 (`center`) and mean square 1, and the factor for the latter; small floats are computed in f32."""
    axes = _norm_axes(begin, x.ndim)
    x = widened(x)
    made = x - x.mean(axes, keepdims=True) if center else x
    flat = made.reshape(*x.shape[: axes[0]], math.prod(x.shape[axes[0] :]))
    rstd = dotted(flat, flat)
    rstd = 1 / np.sqrt(rstd / flat.shape[-1] + epsilon)
    rstd = rstd.reshape(*x.shape[: axes[0]], *(1,) * len(axes))
    return np.multiply(made, rstd, out=made if center else None), rstd


@operator("LayerNorm", rule=_norm_rule("LayerNorm"), flops=8, storage=Storage(scratch=0.1))
def layer_norm(x, gamma, beta, *, begin_norm_axis=-1, epsilon=1e-5):
    """x without mean and scale over the dims from `begin_norm_axis` on, times gamma plus beta."""
    made, _ = _standardize(x, begin_norm_axis, epsilon, True)
    made *= gamma
    made += beta
    return made


@layer_norm.gradient
def _(g, y, x, gamma, beta, begin_norm_axis, epsilon):
    unit, rstd = standardize(x, begin_norm_axis=begin_norm_axis, epsilon=epsilon)
    dx = norm_grad(g, unit, rstd, gamma, begin_norm_axis=begin_norm_axis)
    return dx, *layer_norm_param_grad(g, unit, begin_norm_axis=begin_norm_axis)


@layer_norm.decompose
def _(x, gamma, beta, begin_norm_axis, epsilon):
    axes = _norm_axes(begin_norm_axis, len(x.shape))
    centered = sub(x, reduce_mean(x, axis=axes, keep_dims=True))
    return add(mul(mul(centered, _rstd(centered, axes, epsilon)), gamma), beta)


def _rstd(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    return rsqrt(scalar_add(reduce_mean(square(x), axis=axes, keep_dims=True), addend=epsilon))


@operator("RmsNorm", rule=_norm_rule("RmsNorm"), flops=6, storage=Storage(scratch=0.1))
def rms_norm(x, gamma, *, begin_norm_axis=-1, epsilon=1e-6):
    """x divided by its root mean square over the dims from `begin_norm_axis` on, times gamma."""
    made, _ = _standardize(x, begin_norm_axis, epsilon, False)
    made *= gamma
    return made


@rms_norm.gradient
def _(g, y, x, gamma, begin_norm_axis, epsilon):
    unit, rstd = standardize(x, begin_norm_axis=begin_norm_axis, epsilon=epsilon, center=False)
    dx = norm_grad(g, unit, rstd, gamma, begin_norm_axis=begin_norm_axis, center=False)
    lead = tuple(range(_first(begin_norm_axis, x.shape, "RmsNorm")))
    slope = mul(g, unit)
    return dx, reduce_sum(slope, axis=lead) if lead else slope


@rms_norm.decompose
def _(x, gamma, begin_norm_axis, epsilon):
    return mul(mul(x, _rstd(x, _norm_axes(begin_norm_axis, len(x.shape)), epsilon)), gamma)


def _standardize_rule(x: Shape, *, begin_norm_axis: int, **_: object) -> str:
    first, names = _first(begin_norm_axis, x, "Standardize"), letters(len(x))
    text = unsplit_words(names, range(first, len(x)))
    return f"{text} -> {text}, {words(names[:first] + ['1'] * (len(x) - first))}"


@operator("Standardize", rule=_standardize_rule, flops=6, storage=Storage(scratch=0.1))
def standardize(x, *, begin_norm_axis=-1, epsilon=1e-5, center=True):
    """x with mean 0 (`center`) and mean square 1 over the trailing dims; and the factor that did it."""
    return _standardize(x, begin_norm_axis, epsilon, center)


@standardize.gradient
def _(g, y, x, begin_norm_axis, epsilon, center):
    (for_unit, for_rstd), (unit, rstd) = g, y
    first = _first(begin_norm_axis, x.shape, "Standardize")
    slopes = []
    if for_unit is not None:
        ones = fill(shape=tuple(x.shape[first:]), value=1.0, dtype=element_type(x.dtype).name)
        slopes.append(norm_grad(for_unit, unit, rstd, ones, begin_norm_axis=first, center=center))
    if for_rstd is not None:
        share = scalar_mul(mul(for_rstd, square(rstd)), factor=-1 / math.prod(x.shape[first:]))
        slopes.append(mul(share, unit))
    return slopes[0] if len(slopes) == 1 else add(*slopes)


@standardize.decompose
def _(x, begin_norm_axis, epsilon, center):
    axes = _norm_axes(begin_norm_axis, len(x.shape))
    made = sub(x, reduce_mean(x, axis=axes, keep_dims=True)) if center else x
    rstd = _rstd(made, axes, epsilon)
    return mul(made, rstd), rstd


def _norm_grad_rule(g: Shape, unit: Shape, rstd: Shape, gamma: Shape, *, begin_norm_axis: int, **_: object) -> str:
    first, names = _first(begin_norm_axis, g, "NormGrad"), letters(len(g))
    text = unsplit_words(names, range(first, len(g)))
    small = words(names[:first] + ["1"] * (len(g) - first))
    return f"{text}, {text}, {small}, {unsplit_words(names[first:], range(len(g)))} -> {text}"


@operator(
    "NormGrad",
    rule=_norm_grad_rule,
    linear=((0,),),
    flops=9,
    storage=Storage(scratch=1.1),
    filling=Filling(over=((0,),)),
)
def norm_grad(g, unit, rstd, gamma, *, begin_norm_axis=-1, center=True, out=None):
    """Gradient of LayerNorm (RmsNorm: not `center`) for x, from the standardized x and its scale."""
    axes = _norm_axes(begin_norm_axis, g.ndim)
    g = widened(g)
    slope = np.multiply(g, gamma, out=_own(out, g))
    rows = [one.reshape(*g.shape[: axes[0]], math.prod(g.shape[axes[0] :])) for one in (slope, unit)]
    share = dotted(*rows).reshape(rstd.shape) / rows[0].shape[-1]
    mean = slope.mean(axes, keepdims=True) if center else None
    slope -= unit * share
    if center:
        slope -= mean
    slope *= rstd
    return slope


@norm_grad.decompose
def _(g, unit, rstd, gamma, begin_norm_axis, center):
    axes = _norm_axes(begin_norm_axis, len(g.shape))
    slope = mul(g, gamma)
    rest = sub(slope, mul(unit, reduce_mean(mul(slope, unit), axis=axes, keep_dims=True)))
    if center:
        rest = sub(rest, reduce_mean(slope, axis=axes, keep_dims=True))
    return mul(rest, rstd)


def _param_grad_rule(g: Shape, unit: Shape, *, begin_norm_axis: int) -> str:
    names = letters(len(g))
    text, small = words(names), words(names[_first(begin_norm_axis, g, "LayerNormParamGrad") :])
    return f"{text}, {text} -> {small}, {small}"


@operator("LayerNormParamGrad", rule=_param_grad_rule, linear=((0,),), flops=3)
def layer_norm_param_grad(g, unit, *, begin_norm_axis=-1):
    """Gradients of LayerNorm for gamma and beta: sums over the leading dims of g * unit and of g."""
    first = begin_norm_axis % g.ndim
    width = math.prod(g.shape[first:])
    shape = g.shape[first:]
    g, unit = (widened(one).reshape(math.prod(one.shape[:first]), width) for one in (g, unit))
    return np.einsum("mn,mn->n", g, unit).reshape(shape), summed(g, (0,)).reshape(shape)
