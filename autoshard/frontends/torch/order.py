"""Overloads of order: cumulative products and extremes, medians, k-th values, modes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.reduce import total
from autoshard.frontends.torch.shapes import cut, reshaped
from autoshard.frontends.torch.table import Call, axis, cast, do, number, translates


def _lifted(x: Any) -> Any:
    """A scalar as a vector of one."""
    return x if x.shape else do(ops.reshape, x, shape=(1,))


# -- up to each element


@translates("aten.cumprod.default")
def _(call: Call, x: Any, dim: int, *, dtype: Any = None) -> Any:
    x = call.cast(x)
    return reshaped(do(ops.cum_prod, _lifted(x), axis=axis(dim, len(x.shape))), call.shape)


@translates("aten.logcumsumexp.default")
def _(call: Call, x: Any, dim: int) -> Any:
    return reshaped(do(ops.log_cum_sum_exp, _lifted(call.cast(x)), axis=axis(dim, len(x.shape))), call.shape)


def _extremes(name: str, largest: bool) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any, dim: int) -> Any:
        x, dim = _lifted(x), axis(dim, len(x.shape))
        place = do(ops.cum_extreme, x, axis=dim, largest=largest)
        return _at(call, x, place, dim)


_extremes("cummax", True)
_extremes("cummin", False)


def _at(call: Call, x: Any, place: Any, dim: int) -> tuple[Any, Any]:
    """The elements at places along a dim, and the places, in the shapes of the results."""
    value = do(ops.gather_d, x, place, dim=dim)
    return reshaped(value, call.shape), reshaped(cast(place, dtype("i64")), call.shape)


# -- one of many


@translates("aten.kthvalue.default")
def _(call: Call, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    x, dim = _lifted(x), axis(dim, len(x.shape))
    return _at(call, x, cut(do(ops.arg_sort, x, axis=dim), dim, k - 1, k), dim)


@translates("aten.mode.default")
def _(call: Call, x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    x, dim = _lifted(x), axis(dim, len(x.shape))
    return _at(call, x, do(ops.mode_position, x, axis=dim), dim)


def _middle(x: Any, dim: int, skip_nan: bool) -> Any:
    """Where the lower median stands; a NaN, which counts as largest, is it unless they are skipped."""
    order, size = do(ops.arg_sort, x, axis=dim), x.shape[dim]
    lower = cut(order, dim, (size - 1) // 2, (size - 1) // 2 + 1)
    if not dtype(x.dtype).is_float:
        return lower
    nan = do(ops.not_equal, x, x)
    if skip_nan:
        there = do(ops.reduce_sum, cast(do(ops.logical_not, nan), dtype("i32")), axis=(dim,), keep_dims=True)
        rank = do(ops.floor_div, do(ops.scalar_add, there, addend=-1), np.int32(2))
        return do(ops.gather_d, order, do(ops.maximum, rank, np.int32(0)), dim=dim)
    first = do(ops.arg_max, cast(nan, dtype("i32")), axis=dim, keep_dims=True)
    return do(ops.select, do(ops.reduce_any, nan, axis=(dim,), keep_dims=True), first, lower)


def _medians(name: str, skip_nan: bool) -> None:
    @translates(f"aten.{name}.dim")
    def _(call: Call, x: Any, dim: int = -1, keepdim: bool = False) -> Any:
        x, dim = _lifted(x), axis(dim, len(x.shape))
        return _at(call, x, _middle(x, dim, skip_nan), dim)

    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any) -> Any:
        x = do(ops.reshape, x, shape=(math.prod(x.shape),))
        if not x.shape[0]:
            return number(math.nan, call.dtype)
        value = do(ops.gather_d, x, _middle(x, 0, skip_nan), dim=0)
        return shared(call, x, reshaped(value, ()))


_medians("median", False)
_medians("nanmedian", True)


def shared(call: Call, x: Any, value: Any) -> Any:
    """`value`, an element of x, with a gradient in equal shares to all that are equal to it, as torch gives."""
    if not call.training or not dtype(x.dtype).is_float:
        return value
    fixed = do(ops.stop_gradient, value)
    same = do(ops.equal, x, fixed)
    count = total(call.cast(same))
    away = do(ops.select, same, do(ops.sub, x, do(ops.stop_gradient, x)), number(0, call.dtype))
    return do(ops.add, fixed, do(ops.div, total(away), count))
