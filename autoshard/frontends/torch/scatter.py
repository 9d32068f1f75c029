"""Overloads that place elements along one dim by index tensors, or at places that are known before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.indexing import placed, wrapped
from autoshard.frontends.torch.shapes import cut, replaced, reshaped, spread
from autoshard.frontends.torch.table import Call, axis, cast, do, number, translates


def _within(call: Call, x: Any, dim: int, index: Any, source: Any, place: Callable[[Any, Any, Any, int], Any]) -> Any:
    """`place(x, index, source, dim)` on the part of x that the index reaches, which may be smaller in other dims."""
    x, index = (one if one.shape else reshaped(one, (1,)) for one in (x, index))
    if isinstance(source, bool | int | float):
        source = spread(number(source, call.dtype), tuple(index.shape))
    else:
        source = cast(source if source.shape else reshaped(source, (1,)), call.dtype)
    dim = axis(dim, len(x.shape))
    for i, size in enumerate(index.shape):
        source = cut(source, i, 0, size)
    if not math.prod(index.shape):
        return reshaped(x, call.shape)
    part = x
    for i, size in enumerate(index.shape):
        part = part if i == dim else cut(part, i, 0, size)
    return reshaped(_put_back(x, place(part, index, source, dim), dim), call.shape)


def _put_back(x: Any, part: Any, dim: int) -> Any:
    """x with its first elements in all dims but one exchanged for `part`."""
    for i in range(len(x.shape)):
        if i != dim and part.shape[i] != x.shape[i]:
            lead = x
            for j in range(i + 1, len(x.shape)):
                lead = lead if j == dim else cut(lead, j, 0, part.shape[j])
            rest = cut(lead, i, part.shape[i], None)
            for j in range(i):
                rest = rest if j == dim else cut(rest, j, 0, part.shape[j])
            part = do(ops.concat, part, rest, axis=i)
    return part


@translates("aten.scatter.src", "aten.scatter.value")
def _(call: Call, x: Any, dim: int, index: Any, source: Any) -> Any:
    def place(x: Any, index: Any, source: Any, dim: int) -> Any:
        last = do(ops.last_along, index, size=x.shape[dim], dim=dim)
        made = do(ops.last_elements, source, last, index, dim=dim)
        return do(ops.select, do(ops.greater_equal, last, np.int32(0)), made, x)

    return _within(call, x, dim, index, source, place)


@translates("aten.scatter_add.default")
def _(call: Call, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _within(call, x, dim, index, source, lambda *given: do(ops.add, given[0], _added(*given)))


def _added(x: Any, index: Any, source: Any, dim: int) -> Any:
    return do(ops.gather_d_grad, source, index, size=x.shape[dim], dim=dim)


@translates("aten.scatter_reduce.two")
def _(call: Call, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    return _within(call, x, dim, index, source, _reducing(call, reduce, include_self))


@translates("aten.scatter.reduce", "aten.scatter.value_reduce")
def _(call: Call, x: Any, dim: int, index: Any, source: Any, *, reduce: str) -> Any:
    return _within(call, x, dim, index, source, _reducing(call, {"add": "sum", "multiply": "prod"}[reduce], True))


@translates("aten.index_reduce.default")
def _(call: Call, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    x, index, source = (one if one.shape else reshaped(one, (1,)) for one in (x, index, source))
    dim = axis(dim, len(x.shape))
    line = reshaped(index, (index.shape[0], *(1,) * (len(x.shape) - 1 - dim)))
    return _within(call, x, dim, spread(line, tuple(source.shape)), source, _reducing(call, reduce, include_self))


def _reducing(call: Call, reduce: str, include_self: bool) -> Callable[[Any, Any, Any, int], Any]:
    """How elements and what stands at their place are put together."""

    def place(x: Any, index: Any, source: Any, dim: int) -> Any:
        one = number(1, call.dtype)
        count = _added(x, index, spread(one, tuple(index.shape)), dim)
        named = do(ops.greater, count, number(0, call.dtype))
        if reduce in ("sum", "mean"):
            total = _added(x, index, source, dim)
            whole = do(ops.add, x, total) if include_self else do(ops.select, named, total, x)
            if reduce == "sum":
                return whole
            count = do(ops.scalar_add, count, addend=1) if include_self else do(ops.maximum, count, one)
            return do(ops.div if call.dtype.is_float else ops.floor_div, whole, count)
        if include_self:
            return _beside(call, x, index, source, dim, reduce)
        by = {"amax": "max", "amin": "min"}.get(reduce, reduce)
        return do(ops.select, named, do(ops.index_reduce, source, index, size=x.shape[dim], dim=dim, by=by), x)

    return place


def _beside(call: Call, x: Any, index: Any, source: Any, dim: int, reduce: str) -> Any:
    """Elements put together with what stands at their place, as one more element that names it."""
    by = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    own = np.arange(x.shape[dim]).reshape(-1, *(1,) * (len(x.shape) - 1 - dim))
    own = cast(spread(own, tuple(x.shape)), dtype(index.dtype))
    both, line = do(ops.concat, x, source, axis=dim), do(ops.concat, own, index, axis=dim)
    return do(ops.index_reduce, both, line, size=x.shape[dim], dim=dim, by=by)


@translates("aten.put.default")
def _(call: Call, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    size, count = math.prod(x.shape), math.prod(index.shape)
    if not size or not count:
        return x
    index = wrapped(index, size, call.node.args[1])
    flat = placed(reshaped(x, (size,)), reshaped(index, (count,)), reshaped(source, (count,)), accumulate)
    return reshaped(flat, call.shape)


# -- at places that are known before


def put_at(x: Any, part: Any, places: np.ndarray) -> Any:
    """x with the elements of `part` at flat places of it, of which no two are the same."""
    size = math.prod(x.shape)
    source = np.zeros(size, np.int64)
    source[places.reshape(-1)] = np.arange(places.size)
    held = np.zeros(size, bool)
    held[places.reshape(-1)] = True
    if not places.size:
        return x
    taken = do(ops.gather, reshaped(part, (places.size,)), source, axis=0)
    return reshaped(do(ops.select, held, taken, reshaped(x, (size,))), tuple(x.shape))


def _numbered(x: Any) -> np.ndarray:
    """The flat place of each element."""
    return np.arange(math.prod(x.shape)).reshape(tuple(x.shape))


@translates("aten.diagonal_scatter.default")
def _(call: Call, x: Any, part: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return put_at(x, part, np.diagonal(_numbered(x), offset, dim1, dim2))


@translates("aten.slice_scatter.default")
def _(call: Call, x: Any, part: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    dim = axis(dim, len(x.shape))
    found = range(*slice(start, end, step).indices(x.shape[dim]))
    if not len(found):
        return x
    if step == 1:
        return replaced(x, part, dim, found.start, found.stop)
    places = _numbered(x)[(slice(None),) * dim + (slice(start, end, step),)]
    return put_at(x, spread(cast(part, dtype(x.dtype)), places.shape), places)


@translates("aten.as_strided.default")
def _(call: Call, x: Any, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Any:
    places = _strided(call, x, size, stride, offset)
    return reshaped(do(ops.gather, reshaped(x, (math.prod(x.shape),)), places, axis=0), call.shape)


@translates("aten.as_strided_scatter.default")
def _(call: Call, x: Any, part: Any, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Any:
    places = _strided(call, x, size, stride, offset)
    if call.training:
        call.refuse("the gradient of as_strided_scatter, which goes by how tensors lie in torch's memory")
    if len(np.unique(places)) < places.size:
        call.refuse("as_strided_scatter to places some of which are the same")
    return put_at(x, part, places)


def _strided(call: Call, x: Any, size: Sequence[int], stride: Sequence[int], offset: int | None) -> np.ndarray:
    """The elements of x that a view takes out of its memory, in which x has to lie alone, with dims in any order."""
    fake = call.node.args[0].meta["val"]
    steps = fake.stride()
    order = sorted(range(len(steps)), key=lambda dim: (-steps[dim], -fake.shape[dim]))
    if fake.storage_offset() or not fake.permute(order).is_contiguous():
        call.refuse("as_strided of a tensor that has parts of its memory alone")
    places = np.asarray(offset or 0)
    for count, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(count) * step
    if places.size and places.max() >= math.prod(x.shape):
        call.refuse("as_strided beyond the tensor")
    return _numbered(x).transpose(order).reshape(-1)[places]


# -- bags of embeddings


@translates(
    "aten.embedding_bag.default",
    "aten.embedding_bag.padding_idx",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
)
def _(
    call: Call,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Sums, means (mode 1) or maxima (mode 2) of rows; each offset begins a bag, which may be empty."""
    if any(map(call.used, (1, 2, 3))):
        call.refuse("what embedding_bag returns besides the bags")
    if scale_grad_by_freq and call.training:
        call.refuse("scale_grad_by_freq of bags, for which torch takes counts of other rows; Embedding has it")
    count, bags = indices.shape[0], call.shape[0]
    size = count // max(bags, 1)
    if size and isinstance(offsets, np.ndarray) and np.array_equal(offsets[:bags], range(0, count, size)):
        return (
            _rows_as_bags(call, weight, indices, (bags, size), per_sample_weights, mode, padding_idx),
            None,
            None,
            None,
        )
    begin = cut(offsets, 0, 0, bags) if include_last_offset else offsets
    order = np.arange(count, dtype=np.int64)[:, None]
    bag = do(ops.reduce_sum, cast(do(ops.less_equal, begin, order), dtype("i64")), axis=(1,))
    bag = do(ops.scalar_add, bag, addend=-1)
    rows = do(ops.gather, weight, indices, axis=0)
    counts = spread(number(1, call.dtype), (count,))
    if per_sample_weights is not None:
        rows = do(ops.mul, rows, do(ops.expand_dims, call.cast(per_sample_weights), axis=1))
    if padding_idx is not None and padding_idx >= 0:
        held = do(ops.not_equal, indices, number(padding_idx, dtype(indices.dtype)))
        bag, counts = do(ops.select, held, bag, number(-1, dtype("i64"))), call.cast(held)
    return _bagged(call, rows, bag, counts, bags, mode), None, None, None


def _rows_as_bags(
    call: Call, weight: Any, indices: Any, shape: tuple[int, int], scales: Any, mode: int, padding_idx: int | None
) -> Any:
    """The same of bags of equal size: rows of that shape, none of which looks at another."""
    indices, held = reshaped(indices, shape), None
    if padding_idx is not None and padding_idx >= 0:
        held = do(ops.expand_dims, do(ops.not_equal, indices, number(padding_idx, dtype(indices.dtype))), axis=2)
    rows, zero = do(ops.gather, weight, indices, axis=0), number(0, call.dtype)
    if mode == 2:
        seen = rows if held is None else do(ops.select, held, rows, number(-math.inf, call.dtype))
        first = do(ops.arg_max, seen, axis=1, keep_dims=True)
        most = reshaped(do(ops.gather_d, rows, first, dim=1), call.shape)
        return most if held is None else do(ops.select, do(ops.reduce_any, held, axis=(1,)), most, zero)
    if scales is not None:
        rows = do(ops.mul, rows, do(ops.expand_dims, reshaped(call.cast(scales), shape), axis=2))
    rows = rows if held is None else do(ops.select, held, rows, zero)
    total = do(ops.reduce_sum, rows, axis=(1,))
    if mode == 0:
        return total
    count = number(shape[1], call.dtype) if held is None else do(ops.reduce_sum, call.cast(held), axis=(1,))
    return do(ops.div, total, count if held is None else do(ops.maximum, count, number(1, call.dtype)))


def _bagged(call: Call, rows: Any, bag: Any, counts: Any, bags: int, mode: int) -> Any:
    if not rows.shape[0]:
        return np.zeros(call.shape, call.dtype.numpy)
    size = do(ops.gather_grad, counts, bag, size=bags) if mode else None
    if mode == 2:
        line = spread(do(ops.expand_dims, bag, axis=1), tuple(rows.shape))
        most = do(ops.index_reduce, rows, line, size=bags, dim=0, by="max")
        there = do(ops.greater, do(ops.expand_dims, size, axis=1), number(0, call.dtype))
        return do(ops.select, there, most, number(0, call.dtype))
    total = do(ops.gather_grad, rows, bag, size=bags)
    if mode == 0:
        return total
    return do(ops.div, total, do(ops.maximum, do(ops.expand_dims, size, axis=1), number(1, call.dtype)))
