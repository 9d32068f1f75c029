"""MindSpore's functions that make one of many elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops import math as elementwise
from autoshard.mindspore.ops import shapes
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.util.errors import ShapeError


def _reduced(operator: Any, x: Any, axis: Any, keep: bool, dtype: Any = None) -> Any:
    x = x if dtype is None else core.cast(x, dtype=element(dtype).name)
    return as_tensors(operator(x, axis=shapes.axes(axis), keep_dims=keep))


def sum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of elements along dims, or of all."""
    kind = element(input.dtype)
    if dtype is None and not kind.is_float:
        dtype = "i64"
    return _reduced(core.reduce_sum, input, dim, keepdim, dtype)


def mean(x: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """The mean of elements along axes, or of all."""
    return shapes.ReduceMean(keep_dims)(x, shapes.axes(axis))


def prod(input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> Any:
    """The product of elements along an axis, or of all."""
    return _reduced(core.reduce_prod, input, axis, keep_dims, dtype)


def all(input: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """Whether all elements along axes are true."""
    return _reduced(core.reduce_all, _true(input), axis, keep_dims)


def any(input: Any, axis: Any = None, keep_dims: bool = False) -> Any:
    """Whether any element along axes is true."""
    return _reduced(core.reduce_any, _true(input), axis, keep_dims)


def _true(x: Any) -> Any:
    return x if element(x.dtype).name == "bool" else core.not_equal(x, core.zeros_like(x))


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of the sum of exponentials along dims."""
    over = shapes.axes(dim)
    top = core.stop_gradient(core.reduce_max(input, axis=over, keep_dims=True))
    total = core.log(core.reduce_sum(core.exp(core.sub(input, top)), axis=over, keep_dims=keepdim))
    gone = tuple(sorted(one % len(input.shape) for one in over))
    return as_tensors(core.add(total, top if keepdim else core.squeeze(top, axis=gone)))


def _extreme(x: Any, axis: Any, keep: bool, given: tuple, value: Any, place: Any, what: str) -> Any:
    if given != (None, None):
        raise ShapeError(f"{what}: initial and where are not offered here")
    if axis is None:
        return as_tensors((value(x, axis=()), np.asarray(0, np.int64)))
    found = core.cast(place(x, axis=axis, keep_dims=keep), dtype="i64")
    return as_tensors((value(x, axis=(axis,), keep_dims=keep), found))


def max(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """The largest element along `axis` and its place; of all elements, if no axis is given, and 0."""
    return _extreme(input, axis, keepdims, (initial, where), core.reduce_max, core.arg_max, "max")


def min(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """The smallest element along `axis` and its place; of all elements, if no axis is given, and 0."""
    return _extreme(input, axis, keepdims, (initial, where), core.reduce_min, core.arg_min, "min")


def argmax(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The place (int64) of the largest element along `dim`, or in the flat tensor."""
    return _place(input, dim, keepdim, core.arg_max)


def argmin(input: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The place (int32) of the smallest element along `axis`, or in the flat tensor."""
    return elementwise.Cast()(_place(input, axis, keepdims, core.arg_min), "i32")


def _place(x: Any, axis: int | None, keep: bool, find: Any) -> Any:
    found = find(core.reshape(x, shape=(-1,)), axis=0) if axis is None else find(x, axis=axis, keep_dims=keep)
    return as_tensors(core.cast(found, dtype="i64"))


def cumsum(x: Any, axis: int, dtype: Any = None) -> Any:
    """Sums up to each element along `axis`."""
    return shapes.CumSum()(x if dtype is None else elementwise.Cast()(x, dtype), axis)


def amax(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """The largest element along axes, or of all."""
    return _least_or_most(core.reduce_max, input, axis, keepdims, (initial, where), "amax")


def amin(input: Any, axis: Any = None, keepdims: bool = False, *, initial: Any = None, where: Any = None) -> Any:
    """The smallest element along axes, or of all."""
    return _least_or_most(core.reduce_min, input, axis, keepdims, (initial, where), "amin")


def _least_or_most(operator: Any, x: Any, axis: Any, keep: bool, given: tuple, what: str) -> Any:
    if given != (None, None):
        raise ShapeError(f"{what}: initial and where are not offered here")
    return _reduced(operator, x, axis, keep)


def var(input: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """The mean square distance from the mean along axes, or of all; the sum is divided by their number less `ddof`."""
    over = shapes.axes(axis) or tuple(range(len(input.shape)))
    count = int(np.prod([input.shape[one] for one in over]))
    off = core.sub(input, core.reduce_mean(input, axis=over, keep_dims=True))
    found = core.reduce_mean(core.square(off), axis=over, keep_dims=keepdims)
    return as_tensors(core.scalar_mul(found, factor=count / (count - int(ddof))) if ddof else found)


def std(input: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """The square root of `var`."""
    return as_tensors(core.sqrt(var(input, axis, ddof, keepdims)))


def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The square root of the sum of squares along dims, or of all; with a number as `ord` and one dim, its p-norm."""
    x, over = (A if dtype is None else core.cast(A, dtype=element(dtype).name)), shapes.axes(dim)
    if ord is None or ord == "fro":
        return as_tensors(core.sqrt(core.reduce_sum(core.square(x), axis=over, keep_dims=keepdim)))
    if len(over) != 1 or isinstance(ord, str):
        raise ShapeError(f"norm: ord is {ord!r} and dim {dim!r}; ord is None, 'fro', or a number with one dim")
    size = core.abs(x)
    if np.isinf(ord):
        return as_tensors((core.reduce_max if ord > 0 else core.reduce_min)(size, axis=over, keep_dims=keepdim))
    if ord == 0:
        size = core.cast(core.not_equal(x, core.zeros_like(x)), dtype=element(x.dtype).name)
    powers = size if ord in (0, 1) else elementwise.Pow()(size, float(ord))
    total = core.reduce_sum(powers, axis=over, keep_dims=keepdim)
    return as_tensors(total if ord in (0, 1) else elementwise.Pow()(total, 1 / ord))


def count_nonzero(x: Any, axis: Any = (), keep_dims: bool = False, dtype: Any = "i32") -> Any:
    """How many elements along axes, or of all, are not 0."""
    seen = core.cast(core.not_equal(x, core.zeros_like(x)), dtype=element(dtype).name)
    return _reduced(core.reduce_sum, seen, axis, keep_dims, dtype)


def cumprod(input: Any, dim: int, dtype: Any = None) -> Any:
    """Products up to each element along `dim`."""
    return as_tensors(core.cum_prod(input if dtype is None else elementwise.Cast()(input, dtype), axis=dim))
