"""Overloads that move elements: views, permutations, slices, joins, repetition; and those that make tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.table import FOLDED, Call, axis, cast, do, number, translates
from autoshard.trace.tensor import TracedTensor


def reshaped(x: Any, shape: Sequence[int]) -> Any:
    return x if tuple(x.shape) == tuple(shape) else do(ops.reshape, x, shape=tuple(shape))


@translates(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten._reshape_alias.default",
)
def _(call: Call, x: Any, *args: Any) -> Any:
    return reshaped(x, call.shape)


@translates("aten.unsqueeze.default")
def _(call: Call, x: Any, dim: int) -> Any:
    return do(ops.expand_dims, x, axis=dim % (len(x.shape) + 1))


@translates("aten.squeeze.dims", "aten.squeeze.dim", "aten.squeeze.default")
def _(call: Call, x: Any, dim: Any = None) -> Any:
    rank = len(x.shape)
    given = range(rank) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = tuple(sorted({axis(one, rank) for one in given if rank and x.shape[axis(one, rank)] == 1}))
    return do(ops.squeeze, x, axis=gone) if gone else x


@translates("aten.permute.default")
def _(call: Call, x: Any, dims: Sequence[int]) -> Any:
    perm = tuple(axis(dim, len(x.shape)) for dim in dims)
    return x if perm == tuple(range(len(perm))) else do(ops.transpose, x, perm=perm)


@translates("aten.transpose.int", "aten.transpose_copy.int")
def _(call: Call, x: Any, a: int, b: int) -> Any:
    return swapped(x, a, b)


@translates("aten.t.default")
def _(call: Call, x: Any) -> Any:
    return x if len(x.shape) < 2 else swapped(x, 0, 1)


def swapped(x: Any, a: int, b: int) -> Any:
    """x with two dims exchanged."""
    if not x.shape:
        return x
    perm = list(range(len(x.shape)))
    perm[a], perm[b] = perm[b], perm[a]
    return do(ops.transpose, x, perm=tuple(perm))


@translates("aten.expand.default", "aten.broadcast_to.default")
def _(call: Call, x: Any, sizes: Sequence[int], *, implicit: bool = False) -> Any:
    return spread(x, call.shape)


def spread(x: Any, shape: Sequence[int]) -> Any:
    """x repeated to `shape` along new dims and those of size 1."""
    return x if tuple(x.shape) == tuple(shape) else do(ops.broadcast_to, x, shape=tuple(shape))


@translates("aten.repeat.default")
def _(call: Call, x: Any, repeats: Sequence[int]) -> Any:
    return do(ops.tile, x, multiples=tuple(repeats))


# -- parts


def cut(x: Any, dim: int, start: int | None, end: int | None, step: int = 1) -> Any:
    """x[start:end:step] along one dim; of what was put together, or is the same everywhere, only what it needs."""
    size = x.shape[dim]
    found = range(*slice(start, end, step).indices(size))
    if len(found) == size:
        return x
    if not len(found):
        return emptied(x, dim)
    node = x.recorder.builder.makers.get(x.value) if isinstance(x, TracedTensor) else None
    if node is not None and node.op.name == "Fill":
        return do(ops.fill, **{**node.attrs, "shape": (*x.shape[:dim], len(found), *x.shape[dim + 1 :])})
    if node is not None and node.op.name == "Concat" and node.attrs["axis"] == dim and not node.attrs["places"]:
        before = 0
        for piece in node.operands:
            if before <= found.start and found[-1] < (behind := before + piece.type.shape[dim]):
                return cut(x.recorder.tensor(piece), dim, found.start - before, min(found.stop, behind) - before, step)
            before += piece.type.shape[dim]
    begin, stop, strides = ([fill] * dim for fill in (None, None, 1))
    return do(
        ops.strided_slice,
        x,
        begin=(*begin, found.start),
        end=(*stop, found.stop),
        strides=(*strides, step),
    )


def emptied(x: Any, dim: int) -> Any:
    """A tensor like x with nothing along one dim."""
    of = dtype(x.dtype)
    return np.zeros((*x.shape[:dim], 0, *x.shape[dim + 1 :]), of.numpy)


@translates("aten.slice.Tensor")
def _(call: Call, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return cut(x, axis(dim, len(x.shape)), start, end, step)


@translates("aten.select.int")
def _(call: Call, x: Any, dim: int, index: int) -> Any:
    dim = axis(dim, len(x.shape))
    index %= x.shape[dim]
    return do(ops.squeeze, cut(x, dim, index, index + 1), axis=(dim,))


@translates("aten.split_with_sizes.default", "aten.split.Tensor", "aten.chunk.default", "aten.tensor_split.sections")
def _(call: Call, x: Any, sizes: Any, dim: int = 0) -> Any:
    dim = axis(dim, len(x.shape))
    found = tuple(one.shape[dim] for one in call.results if one is not None)
    if len(found) == 1:
        return (x,)
    return do(ops.split, x, axis=dim, output_num=len(found), sizes=found)


@translates("aten.unbind.int")
def _(call: Call, x: Any, dim: int = 0) -> Any:
    found = do(ops.unstack, x, axis=axis(dim, len(x.shape)))
    return found if isinstance(found, tuple) else (found,)


@translates("aten.cat.default")
def _(call: Call, tensors: Sequence[Any], dim: int = 0) -> Any:
    # torch lets an empty tensor of one dim stand beside any others.
    kept = [call.cast(one) for one in tensors if math.prod(one.shape) or len(one.shape) == len(call.shape) > 1]
    kept = [one for one in kept if math.prod(one.shape)] or kept
    return kept[0] if len(kept) == 1 else do(ops.concat, *kept, axis=axis(dim, len(call.shape)))


@translates("aten.stack.default")
def _(call: Call, tensors: Sequence[Any], dim: int = 0) -> Any:
    return do(ops.stack, *[call.cast(one) for one in tensors], axis=axis(dim, len(call.shape)))


def replaced(x: Any, part: Any, dim: int, start: int, end: int) -> Any:
    """x with x[start:end] along a dim exchanged for `part`."""
    pieces = [cut(x, dim, 0, start)] if start else []
    pieces.append(spread(cast(part, dtype(x.dtype)), [*x.shape[:dim], end - start, *x.shape[dim + 1 :]]))
    if end < x.shape[dim]:
        pieces.append(cut(x, dim, end, None))
    return pieces[0] if len(pieces) == 1 else do(ops.concat, *pieces, axis=dim)


@translates("aten.select_scatter.default")
def _(call: Call, x: Any, part: Any, dim: int, index: int) -> Any:
    dim = axis(dim, len(x.shape))
    index %= x.shape[dim]
    return replaced(x, do(ops.expand_dims, part, axis=dim), dim, index, index + 1)


@translates("aten.flip.default")
def _(call: Call, x: Any, dims: Sequence[int]) -> Any:
    return do(ops.flip, x, axis=tuple(axis(dim, len(x.shape)) for dim in dims)) if dims else x


@translates("aten.roll.default")
def _(call: Call, x: Any, shifts: Any, dims: Any = ()) -> Any:
    shifts, dims = ((one,) if isinstance(one, int) else tuple(one) for one in (shifts, dims))
    if dims:
        return do(ops.roll, x, shift=shifts, axis=tuple(axis(dim, len(x.shape)) for dim in dims))
    flat = reshaped(x, (math.prod(x.shape),))
    return reshaped(do(ops.roll, flat, shift=shifts, axis=(0,)), call.shape)


@translates("aten.tril.default")
def _(call: Call, x: Any, diagonal: int = 0) -> Any:
    return do(ops.tril, x, diagonal=diagonal)


@translates("aten.triu.default")
def _(call: Call, x: Any, diagonal: int = 0) -> Any:
    return do(ops.triu, x, diagonal=diagonal)


@translates("aten.constant_pad_nd.default")
def _(call: Call, x: Any, pad: Sequence[int], value: float = 0) -> Any:
    return padded(x, pad, value)


def padded(x: Any, pad: Sequence[int], value: float) -> Any:
    """x with (before, after) elements of a value around it, pairs from the last dim on; negative ones cut off."""
    pairs = [(0, 0)] * len(x.shape)
    for i in range(len(pad) // 2):
        low, high = pad[2 * i : 2 * i + 2]
        dim = len(x.shape) - 1 - i
        x = cut(x, dim, max(0, -low), x.shape[dim] - max(0, -high))
        pairs[dim] = max(0, low), max(0, high)
    return do(ops.pad, x, paddings=tuple(pairs), value=value) if any(map(any, pairs)) else x


# -- tensors from nothing


def filled(call: Call, value: Any) -> Any:
    """The call's result with one value everywhere: an array if it is small."""
    if math.prod(call.shape) <= FOLDED:
        return np.full(call.shape, value, call.dtype.numpy)
    if call.dtype.numpy.kind == "c":
        return spread(number(value, call.dtype), call.shape)
    kind = float if call.dtype.is_float else bool if call.dtype.name == "bool" else int
    return do(ops.fill, shape=call.shape, value=kind(value), dtype=call.dtype.name)


def zeros_as(call: Call, result: int) -> Any:
    """An array of zeros like one of the results."""
    of = call.results[result]
    assert of is not None
    return np.zeros(of.shape, of.dtype.numpy)


@translates("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def _(call: Call, x: Any, *args: Any, **options: Any) -> Any:
    return filled(call, args[-1])


@translates("aten.scalar_tensor.default")
def _(call: Call, value: Any, **options: Any) -> Any:
    return number(value, call.dtype)


@translates("aten.fill.Scalar")
def _(call: Call, x: Any, value: Any) -> Any:
    return filled(call, value)


@translates(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    # What torch leaves as it finds it may as well be zeros.
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_permuted.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.new_empty_strided.default",
)
def _(call: Call, *args: Any, **options: Any) -> Any:
    return filled(call, 0)


@translates("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def _(call: Call, *args: Any, **options: Any) -> Any:
    return filled(call, 1)


@translates("aten.arange.start_step")
def _(call: Call, start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    return numbers(call.shape[0], start, step, call.dtype.name)


@translates("aten.arange.default")
def _(call: Call, end: Any, **options: Any) -> Any:
    return numbers(call.shape[0], 0, 1, call.dtype.name)


@translates("aten.arange.start")
def _(call: Call, start: Any, end: Any, **options: Any) -> Any:
    return numbers(call.shape[0], start, 1, call.dtype.name)


def numbers(count: int, start: Any = 0, step: Any = 1, of: str = "i64") -> Any:
    """start, start + step, ...: so many of them."""
    return do(ops.arange, start=start, limit=start + count * step, delta=step, dtype=of, count=count)


@translates("aten.eye.default", "aten.eye.m")
def _(call: Call, n: int, m: int | None = None, **options: Any) -> Any:
    rows, columns = numbers(call.shape[0]), numbers(call.shape[1])
    return call.cast(do(ops.equal, do(ops.expand_dims, rows, axis=1), columns))
