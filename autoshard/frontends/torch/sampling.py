"""Overloads that look tensors up between their elements: grid_sample, and interpolation that smooths as it shrinks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.resample import multiplied
from autoshard.frontends.torch.shapes import cut, reshaped, spread
from autoshard.frontends.torch.table import Call, cast, do, number, translates
from autoshard.ops.resampling import scale

LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
Tap = tuple[Any, Any]


@translates("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", "aten.grid_sampler.default")
def _(call: Call, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """The grid [n, ..., dims] holds places from -1 to 1 in the dims of x [n, c, ...], the last dim first."""
    batch, channels, *sizes = x.shape
    count = math.prod(grid.shape[1:-1])
    if not math.prod(call.shape):
        return np.zeros(call.shape, call.dtype.numpy)
    taps = []
    for i, size in enumerate(sizes):
        column = len(sizes) - 1 - i
        place = reshaped(cut(grid, len(grid.shape) - 1, column, column + 1), (batch, count))
        taps.append(_taps(call, place, size, mode, padding, align_corners))
    flat = reshaped(x, (batch, channels, math.prod(sizes)))
    total = None
    for corner in itertools.product(*taps):
        part = _looked_up(call, flat, sizes, corner)
        total = part if total is None else do(ops.add, total, part)
    return reshaped(total, call.shape)


def _taps(call: Call, place: Any, size: int, mode: int, padding: int, corners: bool) -> list[Tap]:
    """Per element that a place is made of along one dim: where it stands (a whole number), and its weight."""
    at = _plus(_times(place, (size - 1) / 2 if corners else size / 2), (size - 1) / 2)
    bound = _bounds(call, size, padding, corners)
    if mode == NEAREST:
        return [(do(ops.round, bound(at)), None)]
    if mode == LINEAR:
        at = bound(at)
        low = do(ops.stop_gradient, do(ops.floor, at))
        far = do(ops.sub, at, low)
        return [(low, _plus(_times(far, -1.0), 1.0)), (_plus(low, 1.0), far)]
    low = do(ops.stop_gradient, do(ops.floor, at))
    far = do(ops.sub, at, low)
    return [(bound(_plus(low, float(i - 1))), weight) for i, weight in enumerate(_cubic(far))]


def _cubic(far: Any) -> list[Any]:
    """Weights of the four elements around a place (Keys 1981, with a = -3/4 as torch has it)."""
    a = -0.75

    def near(t: Any) -> Any:
        return _plus(do(ops.mul, do(ops.mul, _plus(_times(t, a + 2), -(a + 3)), t), t), 1.0)

    def away(t: Any) -> Any:
        inner = _plus(do(ops.mul, _plus(_times(t, a), -5 * a), t), 8 * a)
        return _plus(do(ops.mul, inner, t), -4 * a)

    back = _plus(_times(far, -1.0), 1.0)
    return [away(_plus(far, 1.0)), near(far), near(back), away(_plus(back, 1.0))]


def _plus(x: Any, addend: float) -> Any:
    return do(ops.scalar_add, x, addend=float(addend))


def _times(x: Any, factor: float) -> Any:
    return do(ops.scalar_mul, x, factor=float(factor))


def _bounds(call: Call, size: int, padding: int, corners: bool) -> Callable[[Any], Any]:
    """What brings places beyond the ends back, by the kind of padding."""

    def clipped(at: Any) -> Any:
        return do(ops.minimum, do(ops.maximum, at, number(0, call.dtype)), number(size - 1, call.dtype))

    def reflected(at: Any) -> Any:
        low, span = (0.0, size - 1) if corners else (-0.5, size)
        if not span:
            return _times(at, 0.0)
        away = do(ops.abs, _plus(at, -low))
        flips = do(ops.stop_gradient, do(ops.floor, _times(away, 1 / span)))
        rest = do(ops.sub, away, _times(flips, span))
        odd = do(ops.equal, do(ops.mod, flips, number(2, call.dtype)), number(1, call.dtype))
        return clipped(_plus(do(ops.select, odd, _plus(_times(rest, -1.0), span), rest), low))

    return {ZEROS: lambda at: at, BORDER: clipped, REFLECTION: reflected}[padding]


def _looked_up(call: Call, flat: Any, sizes: Sequence[int], corner: Sequence[Tap]) -> Any:
    """Elements at one corner around each place, times their weights; zero where it lies outside."""
    batch, channels, _ = flat.shape
    index, weight, inside = None, None, None
    for (place, share), size in zip(corner, sizes, strict=True):
        low, high = (do(op, place, number(end, call.dtype)) for op, end in _ends(size))
        there = do(ops.logical_and, low, high)
        safe = do(ops.select, there, place, number(0, call.dtype))
        whole = cast(do(ops.stop_gradient, safe), dtype("i64"))
        index = whole if index is None else do(ops.add, do(ops.scalar_mul, index, factor=size), whole)
        inside = there if inside is None else do(ops.logical_and, inside, there)
        if share is not None:
            weight = share if weight is None else do(ops.mul, weight, share)
    assert index is not None, "a corner has a place along each dim"
    wide = spread(do(ops.expand_dims, index, axis=1), (batch, channels, index.shape[1]))
    found = do(ops.gather_d, flat, wide, dim=2)
    held = call.cast(inside)
    factor = held if weight is None else do(ops.select, inside, weight, number(0, call.dtype))
    return do(ops.mul, found, do(ops.expand_dims, factor, axis=1))


def _ends(size: int) -> tuple[tuple[Any, int], tuple[Any, int]]:
    """What a place inside is compared with, and how."""
    return (ops.greater_equal, 0), (ops.less_equal, size - 1)


# -- interpolation that averages over all that a new element covers


def _smoothing(new: int, old: int, corners: bool, factor: float | None, weight: Callable, reach: float) -> np.ndarray:
    """The matrix [new, old] whose rows are the filter around each place, as wide as the step if that is over one."""
    step = scale(new, old, corners, factor)
    wide = max(step, 1.0)
    matrix = np.zeros((new, old))
    for i in range(new):
        center = step * (i + 0.5)
        low, high = max(int(center - reach * wide + 0.5), 0), min(int(center + reach * wide + 0.5), old)
        row = np.array([weight((j - center + 0.5) / wide) for j in range(low, high)])
        matrix[i, low:high] = row / row.sum() if row.sum() else row
    return matrix


def _triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


def _keys(x: float) -> float:
    """Keys's cubic with a = -1/2, as torch takes where it smooths."""
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _smooth(name: str, weight: Callable[[float], float], reach: float) -> None:
    @translates(f"aten.{name}.default")
    def _(call: Call, x: Any, size: Any, corners: bool, *factors: float | None) -> Any:
        given = factors or (None, None)
        for i, dim in enumerate((2, 3)):
            x = multiplied(x, dim, _smoothing(call.shape[dim], x.shape[dim], corners, given[i], weight, reach))
        return x


_smooth("_upsample_bilinear2d_aa", _triangle, 1.0)
_smooth("_upsample_bicubic2d_aa", _keys, 2.0)
