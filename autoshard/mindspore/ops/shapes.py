"""Primitives with MindSpore's names and meaning that reduce, move or make elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.entries import dims_of, taken
from autoshard.mindspore.ops.primitive import plain, primitive
from autoshard.util.errors import ShapeError

Axis = int | Sequence[int] | None


def axes(axis: Axis) -> tuple[int, ...]:
    """An axis, several, or () or None for all, as a tuple."""
    return () if axis is None else (int(axis),) if isinstance(axis, int | np.integer) else tuple(axis)


# -- reductions: no axis, or an empty tuple, stands for all of them


def _reduction(name: str, operator: Any, doc: str) -> Any:
    def function(x, axis=(), *, keep_dims=False):
        return operator(x, axis=axes(axis), keep_dims=keep_dims)

    function.__doc__ = doc
    return primitive(name, operator)(function)


ReduceMax = _reduction("ReduceMax", core.reduce_max, "The largest element along axes.")
ReduceMin = _reduction("ReduceMin", core.reduce_min, "The smallest element along axes.")
ReduceProd = _reduction("ReduceProd", core.reduce_prod, "The product of elements along axes.")
ReduceAny = _reduction("ReduceAny", core.reduce_any, "Whether any element along axes is true.")


@primitive("ReduceAll", core.reduce_all)
def ReduceAll(input, axis=None, *, keep_dims=False):
    """Whether all elements along axes are true."""
    return core.reduce_all(input, axis=axes(axis), keep_dims=keep_dims)


@primitive("ReduceMean", core.reduce_mean)
def ReduceMean(x, axis=(), *, keep_dims=False):
    """The mean of elements along axes."""
    if not element(x.dtype).is_float:
        raise ShapeError(
            f"ReduceMean of {element(x.dtype)}: MindSpore's mean of whole numbers has no fraction; cast first"
        )
    return core.reduce_mean(x, axis=axes(axis), keep_dims=keep_dims)


@primitive("ReduceSum", core.reduce_sum)
def ReduceSum(x, axis=(), *, keep_dims=False, skip_mode=False):
    """The sum of elements along axes; with `skip_mode` the tensor itself if no axis is named."""
    if skip_mode and not axes(axis):
        return core.identity(x)
    return core.reduce_sum(x, axis=axes(axis), keep_dims=keep_dims)


def _position(x: Any, find: Any, axis: int, keep_dims: bool = False) -> Any:
    return core.cast(find(x, axis=axis, keep_dims=keep_dims), dtype="i64")


@primitive("Argmax", core.arg_max)
def Argmax(input_x, *, axis=-1, output_type="i32"):
    """The place of the largest element along `axis`, the first of equal ones; int32, or the `output_type` int64."""
    return _typed(core.arg_max(input_x, axis=axis), output_type)


@primitive("Argmin", core.arg_min)
def Argmin(x, *, axis=-1, output_type="i32"):
    """The place of the smallest element along `axis`, the first of equal ones; int32, or the `output_type` int64."""
    return _typed(core.arg_min(x, axis=axis), output_type)


def _typed(found: Any, kind: Any) -> Any:
    name = element(kind).name
    if name not in ("i32", "i64"):
        raise ShapeError(f"Argmax, Argmin: output_type is {name}; it is int32 or int64")
    return found if name == "i32" else core.cast(found, dtype=name)


@primitive("ArgMaxWithValue", core.reduce_max)
def ArgMaxWithValue(input, *, axis=0, keep_dims=False):
    """The place (int64) of the largest element along `axis`, and the element."""
    value = core.reduce_max(input, axis=(axis,), keep_dims=keep_dims)
    return _position(input, core.arg_max, axis, keep_dims), value


@primitive("ArgMinWithValue", core.reduce_min)
def ArgMinWithValue(input, *, axis=0, keep_dims=False):
    """The place (int64) of the smallest element along `axis`, and the element."""
    value = core.reduce_min(input, axis=(axis,), keep_dims=keep_dims)
    return _position(input, core.arg_min, axis, keep_dims), value


@primitive("CumSum", core.cum_sum)
def CumSum(input, axis, *, exclusive=False, reverse=False):
    """Sums up to each element along `axis`, in the tensor's type; `exclusive` leaves it out, `reverse` from behind."""
    sums = core.cum_sum(input, exclusive=exclusive, reverse=reverse, axis=axis)
    kind = element(input.dtype)
    return sums if element(sums.dtype) == kind else core.cast(sums, dtype=kind.name)


@primitive("L2Loss", core.square)
def L2Loss(input_x):
    """Half the sum of all squares."""
    return core.scalar_mul(core.reduce_sum(core.square(input_x)), factor=0.5)


# -- moving elements


@primitive("Reshape", core.reshape)
def Reshape(input, shape):
    """The elements in row-major order under another shape, of which one size may be -1."""
    return core.reshape(input, shape=plain(shape))


@primitive("Flatten", core.reshape)
def Flatten(input_x):
    """All dims but the first as one."""
    return core.reshape(input_x, shape=(input_x.shape[0], -1))


@primitive("Transpose", core.transpose)
def Transpose(input, input_perm):
    """Dim i of the result is dim input_perm[i]."""
    return core.transpose(input, perm=plain(input_perm))


@primitive("ExpandDims", core.expand_dims)
def ExpandDims(input_x, axis):
    """A dim of size 1 at `axis`."""
    return core.expand_dims(input_x, axis=plain(axis))


@primitive("Squeeze", core.squeeze)
def Squeeze(input, *, axis=()):
    """Without the dims of size 1 at `axis`, or, without one, any."""
    return core.squeeze(input, axis=axes(axis) or None)


@primitive("Concat", core.concat)
def Concat(tensors, *, axis=0):
    """A tuple or list of tensors one behind the other along `axis`."""
    return core.concat(*tensors, axis=axis)


@primitive("Stack", core.stack)
def Stack(input_x, *, axis=0):
    """A tuple or list of tensors of one shape along a new axis."""
    return core.stack(*input_x, axis=axis)


@primitive("Unstack", core.unstack)
def Unstack(input_x, *, axis=0, num=None):
    """A tuple of the tensors that lie along `axis`, of which there are `num`."""
    return _several(core.unstack(input_x, axis=axis, num=num))


@primitive("Split", core.split)
def Split(input_x, *, axis=0, output_num=1):
    """A tuple of `output_num` equal parts along `axis`."""
    return _several(core.split(input_x, axis=axis, output_num=output_num))


def _several(results: Any) -> tuple:
    return results if isinstance(results, tuple) else (results,)


def _tile_strategy(called: Any, given: Any, out: Any) -> tuple[Any, Any]:
    """MindSpore's strategy has the parts of the result: where a dim is repeated, those of its copies."""
    copies = plain(called["dims"])
    if len(given) != 1 or dims_of(given[0]) != len(copies):
        return given, out
    own = [None if count > 1 else i for i, count in enumerate(copies)]
    return (taken(given[0], own[len(copies) - len(called["input"].shape) :]),), out or given


@primitive("Tile", core.tile, strategy_of_call=_tile_strategy)
def Tile(input, dims):
    """dims[i] copies side by side along dim i."""
    return core.tile(input, multiples=plain(dims))


@primitive("BroadcastTo", core.broadcast_to)
def BroadcastTo(input, *, shape):
    """Repeated along new leading dims, and along dims of size 1; -1 keeps a dim."""
    return core.broadcast_to(input, shape=shape)


@primitive("Pad", core.pad)
def Pad(input_x, *, paddings):
    """Zeros around: paddings[i] = (before, after) along dim i."""
    return core.pad(input_x, paddings=paddings)


@primitive("Slice", core.strided_slice)
def Slice(input, begin, size):
    """size[i] elements from begin[i] on along each dim; -1 takes all that follow."""
    begin, size = plain(begin), plain(size)
    ends = tuple(None if count == -1 else first + count for first, count in zip(begin, size, strict=True))
    return core.strided_slice(input, begin=begin, end=ends)


@primitive("StridedSlice", core.strided_slice)
def StridedSlice(
    input_x,
    begin,
    end,
    strides,
    *,
    begin_mask=0,
    end_mask=0,
    ellipsis_mask=0,
    new_axis_mask=0,
    shrink_axis_mask=0,
):
    """Each strides[i]-th element from begin[i] to before end[i]. Bit i of a mask says of entry i that it is open at its
    begin or end, stands for all dims in between, makes a new dim, or takes one element, whose dim goes."""
    begin, end, strides = plain(begin), plain(end), plain(strides)
    index: list[Any] = []
    for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            index.append(Ellipsis)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(int(first))
        else:
            index.append(slice(None if begin_mask & bit else first, None if end_mask & bit else last, step))
    return _sliced(input_x, _without_ellipsis(index, len(input_x.shape)))


def _without_ellipsis(index: list[Any], rank: int) -> list[Any]:
    if Ellipsis not in index:
        return index
    at = index.index(Ellipsis)
    taken = sum(one is not None for one in index) - 1
    return [*index[:at], *[slice(None)] * (rank - taken), *index[at + 1 :]]


def _sliced(x: Any, index: Sequence[Any]) -> Any:
    """x by slices, whole numbers whose dims go, and None for new dims."""
    taken = [_range(one) for one in index if one is not None]
    begin, end, strides = zip(*taken, strict=True) if taken else ((), (), ())
    y = core.strided_slice(x, begin=begin, end=end, strides=strides)
    old = [one for one in index if one is not None]
    gone = tuple(i for i, one in enumerate(old) if isinstance(one, int))
    y = core.squeeze(y, axis=gone) if gone else y
    rest = [one for one in index if not isinstance(one, int)]
    for at in (i for i, one in enumerate(rest) if one is None):
        y = core.expand_dims(y, axis=at)
    return y


def _range(one: Any) -> tuple[Any, Any, int]:
    if isinstance(one, int):
        return one, one + 1 or None, 1
    return one.start, one.stop, one.step or 1


@primitive("ReverseV2", core.flip)
def ReverseV2(input, *, axis):
    """In reversed order along the axes."""
    return core.flip(input, axis=axis)


@primitive("Roll", core.roll)
def Roll(input, *, shifts, dims=None):
    """Moved by `shifts` along `dims`, what leaves at the end comes in at the begin; without dims the flat tensor."""
    if dims is None:
        flat = core.roll(core.reshape(input, shape=(-1,)), shift=axes(shifts), axis=(0,))
        return core.reshape(flat, shape=tuple(input.shape))
    return core.roll(input, shift=axes(shifts), axis=axes(dims))


@primitive("Tril", core.tril)
def Tril(input_x, *, diagonal=0):
    """Zeros above a diagonal of the last two dims."""
    return core.tril(input_x, diagonal=diagonal)


@primitive("Triu", core.triu)
def Triu(input, *, diagonal=0):
    """Zeros below a diagonal of the last two dims."""
    return core.triu(input, diagonal=diagonal)


@primitive("Depend", core.identity)
def Depend(value, expr):
    """The value; `expr` comes before it, as everything does that a trace meets before."""
    return core.identity(value)


# -- tensors out of nothing, and what is known of a tensor without its numbers


@primitive("Fill", core.fill)
def Fill(type, shape, value):
    """`value` everywhere, in the element type."""
    return core.fill(shape=plain(shape), value=plain(value), dtype=element(type).name)


@primitive("Zeros", core.fill)
def Zeros(shape, type=None):
    """0 everywhere; float32 unless told otherwise."""
    return core.fill(shape=axes(shape), value=0, dtype=element(type or "f32").name)


@primitive("Ones", core.fill)
def Ones(shape, type=None):
    """1 everywhere; float32 unless told otherwise."""
    return core.fill(shape=axes(shape), value=1, dtype=element(type or "f32").name)


@primitive("Range", core.arange)
def Range(start, end, step, *, maxlen=1000000):
    """start, start + step, ... before end; int64, or float32 if one of them is a float."""
    given = [plain(one) for one in (start, end, step)]
    kind = "f32" if any(isinstance(one, float) for one in given) else "i64"
    return core.arange(start=given[0], limit=given[1], delta=given[2], dtype=kind)


@primitive("Eye", core.tril)
def Eye(n, m, t):
    """1 on the main diagonal of n rows and m columns, 0 elsewhere."""
    return core.tril(core.triu(core.fill(shape=(n, m), value=1, dtype=element(t).name)))


@primitive("Shape", core.identity)
def Shape(input_x):
    """The sizes, as a tuple of Python's numbers."""
    return tuple(input_x.shape)


@primitive("Rank", core.identity)
def Rank(input_x):
    """The number of dims."""
    return len(input_x.shape)


@primitive("Size", core.identity)
def Size(input_x):
    """The number of elements."""
    return int(np.prod(input_x.shape, dtype=np.int64))


@primitive("DType", core.identity)
def DType(input_x):
    """The element type."""
    return element(input_x.dtype)


@primitive("ScalarToTensor", core.fill)
def ScalarToTensor(input_x, dtype="f32"):
    """A number as a tensor without dims."""
    return core.fill(shape=(), value=plain(input_x), dtype=element(dtype).name)
