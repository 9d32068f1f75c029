"""Overloads that reduce, order or count elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.shapes import swapped
from autoshard.frontends.torch.table import Call, axes, axis, cast, do, number, translates


def total(x: Any) -> Any:
    """The sum of all elements."""
    return do(ops.reduce_sum, x, axis=axes(None, len(x.shape)))


def truth(x: Any) -> Any:
    return x if dtype(x.dtype).name == "bool" else do(ops.not_equal, x, number(0, dtype(x.dtype)))


def _reduction(op: Any, of: Callable[[Call, Any], Any], *names: str) -> None:
    """Overloads that one operator reduces, of the operand as `of` gives it."""

    @translates(*(f"aten.{name}" for name in names))
    def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return do(op, of(call, x), axis=axes(dim, len(x.shape)), keep_dims=keepdim)


_reduction(ops.reduce_sum, Call.cast, "sum.dim_IntList", "sum.default")
_reduction(ops.reduce_mean, Call.cast, "mean.dim", "mean.default")
_reduction(ops.reduce_prod, Call.cast, "prod.default", "prod.dim_int")
_reduction(ops.reduce_max, lambda call, x: x, "amax.default", "max.default")
_reduction(ops.reduce_min, lambda call, x: x, "amin.default", "min.default")
_reduction(ops.reduce_any, lambda call, x: truth(x), "any.default", "any.dim", "any.dims")
_reduction(ops.reduce_all, lambda call, x: truth(x), "all.default", "all.dim", "all.dims")


def _position(name: str, op: Any, best: Any) -> None:
    @translates(f"aten.arg{name}.default")
    def _(call: Call, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None or not x.shape:
            x, dim = do(ops.reshape, x, shape=(math.prod(x.shape),)), 0
        found = do(op, x, axis=axis(dim, len(x.shape)), keep_dims=keepdim)
        return call.cast(do(ops.reshape, found, shape=call.shape) if tuple(found.shape) != call.shape else found)

    @translates(f"aten.{name}.dim")
    def _(call: Call, x: Any, dim: int, keepdim: bool = False) -> Any:
        # The element at the position, not the extreme itself: so ties give their gradient to one element, as in torch.
        if not x.shape:
            return x, np.zeros((), np.int64)
        dim = axis(dim, len(x.shape))
        place = do(op, x, axis=dim, keep_dims=True)
        value = do(ops.gather_d, x, place, dim=dim)
        if not keepdim:
            value, place = (do(ops.squeeze, one, axis=(dim,)) for one in (value, place))
        return value, cast(place, dtype("i64"))


_position("max", ops.arg_max, ops.reduce_max)
_position("min", ops.arg_min, ops.reduce_min)


def _spread(name: str, of: Callable[..., Any], *overloads: str, mean: bool = False) -> None:
    """Overloads of a variance or deviation, with `mean` also that; they differ in how the correction is given."""

    def found(call: Call, x: Any, dim: Any, correction: float | None, keepdim: bool) -> Any:
        over = axes(dim, len(x.shape))
        middle = do(ops.reduce_mean, x, axis=over, keep_dims=keepdim) if mean else None
        made = of(call, x, over, 1 if correction is None else correction, keepdim)
        return (made, middle) if mean else made

    def default(call: Call, x: Any, unbiased: bool = True) -> Any:
        return found(call, x, None, float(unbiased), False)

    def along(call: Call, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return found(call, x, dim, float(unbiased), keepdim)

    def corrected(
        call: Call, x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        return found(call, x, dim, correction, keepdim)

    known = {"default": default, "dim": along, "correction": corrected}
    for overload in overloads:
        translates(f"aten.{name}.{overload}")(known[overload])


def _deviation(call: Call, x: Any, over: tuple[int, ...], correction: float, keepdim: bool) -> Any:
    """The root of the variance; without a gradient where all elements are equal, as in torch."""
    return root(variance(x, over, correction, keepdim), 0.5, call)


def _variance(call: Call, x: Any, over: tuple[int, ...], correction: float, keepdim: bool) -> Any:
    return variance(x, over, correction, keepdim)


_spread("var", _variance, "dim", "correction")
_spread("var_mean", _variance, "correction", mean=True)
_spread("std", _deviation, "default", "dim", "correction")
_spread("std_mean", _deviation, "default", "dim", "correction", mean=True)


def variance(x: Any, over: tuple[int, ...], correction: float, keepdim: bool) -> Any:
    """The mean of squared distances from the mean, its count less by `correction`."""
    count = math.prod(x.shape[dim] for dim in over)
    centered = do(ops.sub, x, do(ops.reduce_mean, x, axis=over, keep_dims=True))
    mean = do(ops.reduce_mean, do(ops.square, centered), axis=over, keep_dims=keepdim)
    return mean if not correction else do(ops.unbiased, mean, count=count, correction=correction)


@translates("aten.cumsum.default")
def _(call: Call, x: Any, dim: int, *, dtype: Any = None) -> Any:
    x = call.cast(x)
    return x if not x.shape else do(ops.cum_sum, x, axis=axis(dim, len(x.shape)))


@translates("aten.linalg_vector_norm.default")
def _(call: Call, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return vector_norm(call.cast(x), ord, axes(dim, len(x.shape)), call, keepdim)


def vector_norm(x: Any, p: float, over: tuple[int, ...], call: Call, keepdim: bool = False) -> Any:
    """The p-norm along dims, with torch's gradients: none where the norm is 0."""
    if p == 2:
        return root(do(ops.reduce_sum, do(ops.square, x), axis=over, keep_dims=keepdim), 0.5, call)
    if p == 0:
        return do(ops.reduce_sum, call.cast(truth(x)), axis=over, keep_dims=keepdim)
    size = do(ops.abs, x)
    if p == 1:
        return do(ops.reduce_sum, size, axis=over, keep_dims=keepdim)
    if math.isinf(p):
        return do(ops.reduce_max if p > 0 else ops.reduce_min, size, axis=over, keep_dims=keepdim)
    powers = root(size, p, call) if p < 1 else do(ops.pow, size, number(p, call.dtype))
    return root(do(ops.reduce_sum, powers, axis=over, keep_dims=keepdim), 1 / p, call)


def root(x: Any, power: float, call: Call) -> Any:
    """x to a power, where x is 0 without a gradient, as torch has it of norms."""
    exponent = number(power, call.dtype)
    if not call.training:
        return do(ops.sqrt, x) if power == 0.5 else do(ops.pow, x, exponent)
    zero = do(ops.equal, x, number(0, call.dtype))
    safe = do(ops.select, zero, number(1, call.dtype), x)
    made = do(ops.sqrt, safe) if power == 0.5 else do(ops.pow, safe, exponent)
    fixed = do(ops.stop_gradient, x) if power > 0 else number(math.inf, call.dtype)
    return do(ops.select, zero, fixed, made)


# -- order


@translates("aten.topk.default")
def _(call: Call, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    dim, last = axis(dim, len(x.shape)), len(x.shape) - 1
    if not k or not x.shape:
        return (np.zeros(call.shape, call.dtype.numpy) if not k else x), np.zeros(call.shape, np.int64)
    moved = x if dim == last else swapped(x, dim, last)
    # The smallest are the largest of what is turned around; their values are looked up, so that the gradient is right.
    _, place = do(ops.top_k, moved if largest else do(ops.neg, moved), k=k)
    value = do(ops.gather_d, moved, place, dim=last)
    if dim != last:
        value, place = swapped(value, dim, last), swapped(place, dim, last)
    return value, cast(place, dtype("i64"))


@translates("aten.sort.default", "aten.sort.stable")
def _(call: Call, x: Any, *args: Any, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
    dim, falling = (*args, *(dim, descending)[len(args) :])
    dim = axis(dim, len(x.shape))
    place = do(ops.arg_sort, x, axis=dim, descending=falling)
    return do(ops.gather_d, x, place, dim=dim), cast(place, dtype("i64"))


@translates("aten.argsort.default", "aten.argsort.stable")
def _(call: Call, x: Any, *args: Any, stable: bool = False, dim: int = -1, descending: bool = False) -> Any:
    dim, falling = (*args, *(dim, descending)[len(args) :])
    return call.cast(do(ops.arg_sort, x, axis=axis(dim, len(x.shape)), descending=falling))


@translates("aten.histc.default")
def _(call: Call, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Counts per bin: each element's bin as a row of zeros and a one, summed; elements outside find no bin."""
    if min == max:
        call.refuse("histc without bounds takes them from the data; give min and max")
    x = do(ops.reshape, x, shape=(math.prod(x.shape),))
    x = cast(x, dtype("f32"))
    place = do(ops.scalar_mul, do(ops.scalar_add, x, addend=-float(min)), factor=bins / (max - min))
    place = do(ops.minimum, do(ops.floor, place), np.float32(bins - 1))
    inside = do(ops.logical_and, do(ops.less_equal, x, np.float32(max)), do(ops.greater_equal, x, np.float32(min)))
    place = do(ops.cast, do(ops.select, inside, place, np.float32(-1)), dtype="i32")
    return do(ops.reduce_sum, do(ops.one_hot, place, depth=bins, dtype=call.dtype.name), axis=(0,))


@translates("aten.bincount.default")
def _(call: Call, x: Any, weights: Any = None, minlength: int = 0) -> Any:
    call.refuse("the number of bins depends on the data; import the module itself, with `minlength`")
