"""Overloads that make dims of other lengths: interpolation, adaptive pooling, padding by copies, windows, diagonals.

What is linear and reaches over many elements is a product with a matrix of known numbers; what copies elements looks
them up by known positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.shapes import padded, reshaped, spread
from autoshard.frontends.torch.table import Call, axis, cast, do, translates
from autoshard.ops.resampling import averaging, taps, windows

Line = Callable[[int, int], np.ndarray]


def multiplied(x: Any, dim: int, matrix: np.ndarray) -> Any:
    """x with its lines along a dim, of n elements, multiplied by a matrix [m, n]."""
    rank, weights = len(x.shape), matrix.astype(np.float32)
    order = [*(i for i in range(rank) if i != dim), dim]
    last = dim == rank - 1
    rows = x if last else do(ops.transpose, x, perm=tuple(order))
    made = do(ops.matmul, rows, cast(weights, dtype(x.dtype)), transpose_b=True)
    return made if last else do(ops.transpose, made, perm=tuple(order.index(i) for i in range(rank)))


def picked_up(x: Any, dim: int, places: np.ndarray) -> Any:
    """x with the elements at known places along a dim."""
    if places.ndim == 1 and np.array_equal(places, np.arange(x.shape[dim])):
        return x
    return do(ops.gather, x, places, axis=dim)


# -- interpolation


def _linear(x: Any, dim: int, new: int, corners: bool, factor: float | None) -> Any:
    low, high, far = taps(new, x.shape[dim], corners, factor)
    first, second = picked_up(x, dim, low), picked_up(x, dim, high)
    weight = cast(far.reshape(new, *(1,) * (len(x.shape) - 1 - dim)), dtype(x.dtype))
    return do(ops.add, first, do(ops.mul, do(ops.sub, second, first), weight))


def _interpolation(name: str, count: int) -> None:
    def translated(call: Call, x: Any, corners: bool, factors: Sequence[float | None]) -> Any:
        lead = len(x.shape) - count
        for i in range(count):
            if call.shape[lead + i] != x.shape[lead + i] or factors[i] is not None:
                x = _linear(x, lead + i, call.shape[lead + i], corners, factors[i])
        return x

    @translates(f"aten.upsample_{name}.vec")
    def _(call: Call, x: Any, size: Any, corners: bool, factors: Any = None) -> Any:
        return translated(call, x, corners, factors or (None,) * count)

    @translates(f"aten.upsample_{name}.default")
    def _(call: Call, x: Any, size: Any, corners: bool, *factors: float | None) -> Any:
        return translated(call, x, corners, factors or (None,) * count)


for _name, _count in (("linear1d", 1), ("bilinear2d", 2), ("trilinear3d", 3)):
    _interpolation(_name, _count)


# -- adaptive pooling


def _adaptive(count: int) -> None:
    @translates(f"aten._adaptive_avg_pool{count}d.default", f"aten.adaptive_avg_pool{count}d.default")
    def _(call: Call, x: Any, size: Any) -> Any:
        lead, sizes = x.shape[:-count], call.shape[-count:]
        if any(whole % part for whole, part in zip(x.shape[-count:], sizes, strict=True)):
            for dim in range(len(lead), len(x.shape)):
                x = multiplied(x, dim, averaging(call.shape[dim], x.shape[dim]))
            return x
        pairs = zip(x.shape[-count:], sizes, strict=True)
        apart = reshaped(x, (*lead, *(size for whole, part in pairs for size in (part, whole // part))))
        return do(ops.reduce_mean, apart, axis=tuple(len(lead) + 2 * i + 1 for i in range(count)))

    @translates(f"aten.adaptive_max_pool{count}d.default")
    def _(call: Call, x: Any, size: Any) -> Any:
        if call.used(1):
            known = zip(call.shape[-count:], x.shape[-count:], strict=True)
            return with_positions(x, [_longest(windows(new, old)) for new, old in known])
        for dim in range(len(x.shape) - count, len(x.shape)):
            x = _largest(x, dim, windows(call.shape[dim], x.shape[dim]))
        return x, None


def _largest(x: Any, dim: int, found: Sequence[range]) -> Any:
    """The largest of each window; shorter ones take their last element again."""
    return do(ops.reduce_max, picked_up(x, dim, _longest(found)), axis=(dim + 1,), keep_dims=False)


def _longest(found: Sequence[range]) -> np.ndarray:
    """Places of the elements of each window, as many for all."""
    longest = max(map(len, found))
    return np.array([[window[min(i, len(window) - 1)] for i in range(longest)] for window in found])


def with_positions(x: Any, places: Sequence[np.ndarray]) -> tuple[Any, Any]:
    """The largest element of each window of the last dims, and where it stands among all of them, row by row.

    Args:
        places: per dim what each window takes [windows, elements]; an element may come again.
    """
    count, lead = len(places), len(x.shape) - len(places)
    sizes = tuple(x.shape[lead:])
    flat = np.zeros((), np.int64)
    for at, size in zip(places, sizes, strict=True):
        flat = flat[..., None, None] * size + at
    order = (*range(0, 2 * count, 2), *range(1, 2 * count, 2))
    flat = np.transpose(flat, order)
    outer, inner = flat.shape[:count], int(np.prod(flat.shape[count:]))
    flat = flat.reshape(-1, inner)
    line = reshaped(x, (*x.shape[:lead], int(np.prod(sizes))))
    held = do(ops.gather, line, flat, axis=lead)
    best = do(ops.arg_max, held, axis=lead + 1, keep_dims=True)
    value = do(ops.gather_d, held, best, dim=lead + 1)
    first = np.arange(len(flat), dtype=np.int32)[:, None] * np.int32(inner)
    position = do(ops.gather, flat.reshape(-1), do(ops.add, best, first), axis=0)
    shape = (*x.shape[:lead], *outer)
    return reshaped(value, shape), reshaped(position, shape)


for _count in (1, 2, 3):
    _adaptive(_count)


# -- padding by copies of elements

_PLACES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "reflect": lambda at, size: size - 1 - np.abs(size - 1 - np.abs(at)),
    "replicate": lambda at, size: np.clip(at, 0, size - 1),
    "circular": lambda at, size: at % size,
}


def _padded_by(x: Any, pad: Sequence[int], mode: str) -> Any:
    for i in range(len(pad) // 2):
        dim, (before, after) = len(x.shape) - 1 - i, pad[2 * i : 2 * i + 2]
        size = x.shape[dim]
        # What a negative number cuts off comes back on no side, but where the nearest element is repeated.
        begin, end = (0, size) if mode == "replicate" else (max(0, -before), size - max(0, -after))
        places = _PLACES[mode](np.arange(-before - begin, size + after - begin), end - begin) + begin
        x = picked_up(x, dim, places)
    return x


@translates("aten.pad.default")
def _(call: Call, x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    return padded(x, pad, float(value or 0)) if mode == "constant" else _padded_by(x, pad, mode)


def _padding(mode: str, name: str, count: int) -> None:
    @translates(f"aten.{name}{count}d.default")
    def _(call: Call, x: Any, pad: Sequence[int]) -> Any:
        return _padded_by(x, pad, mode)


for _count in (1, 2, 3):
    _padding("reflect", "reflection_pad", _count)
    _padding("replicate", "replication_pad", _count)


# -- windows and diagonals


@translates("aten.unfold.default")
def _(call: Call, x: Any, dim: int, size: int, step: int) -> Any:
    dim = axis(dim, len(x.shape))
    if not x.shape:
        return spread(x, call.shape)
    found = picked_up(x, dim, np.arange(call.shape[dim])[:, None] * step + np.arange(size))
    order = [i for i in range(len(found.shape)) if i != dim + 1]
    return do(ops.transpose, found, perm=(*order, dim + 1)) if dim + 1 != len(x.shape) else found


@translates("aten.diagonal.default")
def _(call: Call, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(x.shape)
    dim1, dim2 = axis(dim1, rank), axis(dim2, rank)
    rest = [i for i in range(rank) if i not in (dim1, dim2)]
    x = do(ops.transpose, x, perm=(*rest, dim1, dim2))
    *lead, rows, columns = x.shape
    places = (np.arange(call.shape[-1]) + max(-offset, 0)) * columns + np.arange(call.shape[-1]) + max(offset, 0)
    return do(ops.gather, reshaped(x, (*lead, rows * columns)), places, axis=len(lead))


def _indices(name: str, upper: bool) -> None:
    @translates(f"aten.{name}_indices.default")
    def _(call: Call, rows: int, columns: int, offset: int = 0, **options: Any) -> Any:
        found = np.triu_indices(rows, offset, columns) if upper else np.tril_indices(rows, offset, columns)
        return np.stack(found).astype(call.dtype.numpy)


_indices("tril", False)
_indices("triu", True)


# -- averages whose windows may reach beyond the end


def covered(size: int, window: int, stride: int, pad: int, count: int, padding_counts: bool) -> np.ndarray:
    """How many elements (with those of the padding, if they count) each of `count` windows holds."""
    begin = np.arange(count) * stride - pad
    end = np.minimum(begin + window, size + pad)
    return end - begin if padding_counts else np.minimum(end, size) - np.maximum(begin, 0)


def shares(counts: Sequence[np.ndarray]) -> np.ndarray:
    """One divided by the product of the counts along each of the last dims."""
    total = np.ones((1,) * len(counts))
    for i, one in enumerate(counts):
        total = total * one.reshape(-1, *(1,) * (len(counts) - 1 - i))
    return np.asarray(1 / total, np.float32)
