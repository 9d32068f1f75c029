"""Overloads that reduce, order or count elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.shapes import swapped
from autoshard.frontends.torch.table import Call, axes, axis, cast, do, number, translates


def total(x: Any) -> Any:
    """The sum of all elements."""
    return do(ops.reduce_sum, x, axis=axes(None, len(x.shape)))


@translates("aten.sum.dim_IntList", "aten.sum.default")
def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return do(ops.reduce_sum, call.cast(x), axis=axes(dim, len(x.shape)), keep_dims=keepdim)


@translates("aten.mean.dim", "aten.mean.default")
def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return do(ops.reduce_mean, call.cast(x), axis=axes(dim, len(x.shape)), keep_dims=keepdim)


@translates("aten.prod.default", "aten.prod.dim_int")
def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return do(ops.reduce_prod, call.cast(x), axis=axes(dim, len(x.shape)), keep_dims=keepdim)


@translates("aten.amax.default", "aten.max.default")
def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return do(ops.reduce_max, x, axis=axes(dim, len(x.shape)), keep_dims=keepdim)


@translates("aten.amin.default", "aten.min.default")
def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return do(ops.reduce_min, x, axis=axes(dim, len(x.shape)), keep_dims=keepdim)


def truth(x: Any) -> Any:
    return x if dtype(x.dtype).name == "bool" else do(ops.not_equal, x, number(0, dtype(x.dtype)))


@translates("aten.any.default", "aten.any.dim", "aten.any.dims")
def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return do(ops.reduce_any, truth(x), axis=axes(dim, len(x.shape)), keep_dims=keepdim)


@translates("aten.all.default", "aten.all.dim", "aten.all.dims")
def _(call: Call, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return do(ops.reduce_all, truth(x), axis=axes(dim, len(x.shape)), keep_dims=keepdim)


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


@translates("aten.var.dim")
def _(call: Call, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    return variance(x, axes(dim, len(x.shape)), float(unbiased), keepdim)


@translates("aten.var.correction")
def _(call: Call, x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return variance(x, axes(dim, len(x.shape)), 1 if correction is None else correction, keepdim)


@translates("aten.var_mean.correction")
def _(call: Call, x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    over = axes(dim, len(x.shape))
    mean = do(ops.reduce_mean, x, axis=over, keep_dims=keepdim)
    return variance(x, over, 1 if correction is None else correction, keepdim), mean


@translates("aten.std.default")
def _(call: Call, x: Any, unbiased: bool = True) -> Any:
    return _deviation(call, x, None, float(unbiased), False)


@translates("aten.std.dim")
def _(call: Call, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _deviation(call, x, dim, float(unbiased), keepdim)


@translates("aten.std.correction")
def _(call: Call, x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return _deviation(call, x, dim, correction, keepdim)


@translates("aten.std_mean.default")
def _(call: Call, x: Any, unbiased: bool = True) -> Any:
    return _deviation(call, x, None, float(unbiased), False), do(ops.reduce_mean, x, axis=axes(None, len(x.shape)))


@translates("aten.std_mean.dim")
def _(call: Call, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    mean = do(ops.reduce_mean, x, axis=axes(dim, len(x.shape)), keep_dims=keepdim)
    return _deviation(call, x, dim, float(unbiased), keepdim), mean


@translates("aten.std_mean.correction")
def _(call: Call, x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    mean = do(ops.reduce_mean, x, axis=axes(dim, len(x.shape)), keep_dims=keepdim)
    return _deviation(call, x, dim, correction, keepdim), mean


def _deviation(call: Call, x: Any, dim: Any, correction: float | None, keepdim: bool) -> Any:
    """The root of the variance; without a gradient where all elements are equal, as in torch."""
    found = variance(x, axes(dim, len(x.shape)), 1 if correction is None else correction, keepdim)
    return root(found, 0.5, call)


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
    over, x = axes(dim, len(x.shape)), call.cast(x)
    if ord == 2:
        squares = do(ops.reduce_sum, do(ops.square, x), axis=over, keep_dims=keepdim)
        return root(squares, 0.5, call)
    if ord == 1:
        return do(ops.reduce_sum, do(ops.abs, x), axis=over, keep_dims=keepdim)
    if math.isinf(ord):
        return do(ops.reduce_max if ord > 0 else ops.reduce_min, do(ops.abs, x), axis=over, keep_dims=keepdim)
    if ord == 0:
        return do(ops.reduce_sum, call.cast(truth(x)), axis=over, keep_dims=keepdim)
    powers = root(do(ops.abs, x), ord, call) if ord < 1 else do(ops.pow, do(ops.abs, x), number(ord, call.dtype))
    return root(do(ops.reduce_sum, powers, axis=over, keep_dims=keepdim), 1 / ord, call)


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
