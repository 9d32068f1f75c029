"""Overloads that look elements up, or place them, by index tensors.

torch counts negative indices from the back, which autoshard's operators do not: indices are wrapped unless what made
them can give none that are negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.shapes import cut, reshaped, spread
from autoshard.frontends.torch.table import TABLE, Call, axis, cast, do, number, translates

# Overloads whose results are positions, and those that keep whole numbers from becoming negative.
_POSITIONS = {"argmax", "argmin", "argsort"}
_PAIRS = {"topk", "sort", "max", "min"}
_KEEPING = {
    "view", "reshape", "_unsafe_view", "expand", "unsqueeze", "squeeze", "slice", "select", "permute", "transpose",
    "clone", "alias", "_to_copy", "detach", "flatten", "repeat",
}  # fmt: skip


def never_negative(arg: Any) -> bool:
    """Whether an index argument (a node of the exported graph) can hold no negative number, by what made it."""
    if isinstance(arg, int):
        return arg >= 0
    target = getattr(arg, "target", None)
    if getattr(arg, "op", "") != "call_function":
        return False
    if getattr(target, "__name__", "") == "getitem":
        producer = getattr(arg.args[0], "target", None)
        return arg.args[1] == 1 and _name(producer) in _PAIRS
    name = _name(target)
    if name in _POSITIONS:
        return True
    if name == "arange":
        return all(isinstance(one, int) and one >= 0 for one in arg.args)
    if name in _KEEPING:
        return never_negative(arg.args[0])
    return name in ("floor_divide", "div", "add", "mul", "remainder") and all(map(never_negative, arg.args[:2]))


def _name(target: Any) -> str:
    """`view` of aten.view.default."""
    return str(target).split(".")[1] if str(target).startswith("aten.") else ""


def wrapped(index: Any, size: int, arg: Any) -> Any:
    """The index with negative numbers counted from the back of `size` places."""
    if isinstance(index, np.ndarray):
        return np.where(index < 0, index + size, index)
    if never_negative(arg):
        return index
    negative = do(ops.less, index, number(0, dtype(index.dtype)))
    return do(ops.select, negative, do(ops.scalar_add, index, addend=size), index)


@translates("aten.embedding.default")
def _(
    call: Call,
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    rows = do(ops.gather, weight, indices, axis=0)
    if not call.training:
        return rows
    if scale_grad_by_freq:
        rows = _by_frequency(rows, indices, weight.shape[0])
    if padding_idx < 0:
        return rows
    # The row of padding is never trained.
    fixed = do(ops.equal, indices, number(padding_idx, dtype(indices.dtype)))
    return do(ops.select, do(ops.expand_dims, fixed, axis=-1), do(ops.stop_gradient, rows), rows)


def _by_frequency(rows: Any, indices: Any, size: int) -> Any:
    """Rows of a table of so many, whose gradients are divided by how often their index occurs."""
    kind = dtype(rows.dtype)
    order = tuple(indices.shape)
    counts = do(ops.gather_grad, spread(number(1, kind), order), indices, size=size)
    often = do(ops.expand_dims, do(ops.gather, counts, indices, axis=0), axis=-1)
    same = do(ops.identity, rows)
    cotangent = do(ops.cotangent, same)
    made = do(ops.custom_gradient, same, rows, cotangent, do(ops.div, cotangent, often), outputs=1, inputs=1)
    return made[0] if isinstance(made, tuple | list) else made


@translates("aten.index_select.default")
def _(call: Call, x: Any, dim: int, index: Any) -> Any:
    dim = axis(dim, len(x.shape))
    if not x.shape:
        return reshaped(spread(reshaped(x, (1,)), (math.prod(index.shape),)), call.shape)
    index = index if index.shape else reshaped(index, (1,))
    return do(ops.gather, x, wrapped(index, x.shape[dim], call.node.args[2]), axis=dim)


@translates("aten.take.default")
def _(call: Call, x: Any, index: Any) -> Any:
    size = math.prod(x.shape)
    if not math.prod(call.shape):
        return np.zeros(call.shape, call.dtype.numpy)
    return do(ops.gather, reshaped(x, (size,)), wrapped(index, size, call.node.args[1]), axis=0)


@translates("aten.gather.default")
def _(call: Call, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    dim = axis(dim, len(x.shape))
    if not call.shape:
        return reshaped(x, ())
    x, index = (one if one.shape else reshaped(one, (1,)) for one in (x, index))
    return do(ops.gather_d, _as_wide(x, index, dim), index, dim=dim)


def _as_wide(x: Any, index: Any, dim: int) -> Any:
    """x cut to the sizes of index in all dims but one: torch looks no further."""
    for i, size in enumerate(index.shape):
        if i != dim:
            x = cut(x, i, 0, size)
    return x


# -- several index tensors


def _split(call: Call, x: Any, indices: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """The indexed dims, and for each its index, all of one shape, not negative."""
    dims = [i for i, one in enumerate(indices) if one is not None]
    for i in dims:
        if dtype(indices[i].dtype).name == "bool":
            call.refuse("an index of bools, by which the size of the result depends on the data; use torch.where")
    args = call.node.args[1]
    found = [wrapped(indices[i], x.shape[i], args[i]) for i in dims]
    shape = np.broadcast_shapes(*(tuple(one.shape) for one in found))
    return dims, [spread(one, shape) for one in found]


def _linear(x: Any, dims: Sequence[int], found: Sequence[Any]) -> Any:
    """One index into the indexed dims, counted row by row."""
    total = found[0]
    for dim, one in zip(dims[1:], found[1:], strict=True):
        total = do(ops.add, do(ops.scalar_mul, total, factor=x.shape[dim]), cast(one, dtype(total.dtype)))
    return total


def _in_front(x: Any, dims: Sequence[int]) -> tuple[Any, list[int]]:
    """x with the indexed dims first, and the order that does it."""
    order = [*dims, *(i for i in range(len(x.shape)) if i not in dims)]
    return (x if order == sorted(order) else do(ops.transpose, x, perm=tuple(order))), order


@translates("aten.index.Tensor")
def _(call: Call, x: Any, indices: Sequence[Any]) -> Any:
    dims, found = _split(call, x, indices)
    if len(dims) == 1:
        return do(ops.gather, x, found[0], axis=dims[0])
    # Dims that stand side by side are replaced where they stand, others by dims in front (as in numpy).
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    rank, kind = len(found[0].shape), dtype(found[0].dtype)
    return do(
        ops.gather_slices,
        x,
        do(ops.concat, *(do(ops.expand_dims, cast(one, kind), axis=-1) for one in found), axis=-1),
        offset_dims=tuple(i if i < first else i + rank for i in range(len(x.shape) - len(dims))),
        collapsed_slice_dims=tuple(dims),
        start_index_map=tuple(dims),
        index_vector_dim=rank,
        slice_sizes=tuple(1 if dim in dims else size for dim, size in enumerate(x.shape)),
    )


@translates("aten.index_put.default")
def _(call: Call, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    if (masked := _masked(call, x, indices, values, accumulate)) is not None:
        return masked
    dims, found = _split(call, x, indices)
    index, count = _linear(x, dims, found), math.prod(x.shape[dim] for dim in dims)
    front, order = _in_front(x, dims)
    rest, places = tuple(front.shape[len(dims) :]), math.prod(index.shape)
    if dims[0] and rest and len(values.shape) > len(index.shape) and dims == list(range(dims[0], dims[-1] + 1)):
        # The values' dims stand as those of the indexed tensor do: the index dims where the first indexed one is.
        values = spread(values, (*x.shape[: dims[0]], *index.shape, *x.shape[dims[-1] + 1 :]))
        values, _ = _in_front(values, range(dims[0], dims[0] + len(index.shape)))
    rows = reshaped(spread(cast(values, call.dtype), (*index.shape, *rest)), (places, *rest))
    flat, index = reshaped(front, (count, *rest)), reshaped(index, (places,))
    made = reshaped(placed(flat, index, rows, accumulate), front.shape)
    back = tuple(order.index(i) for i in range(len(order)))
    return made if back == tuple(range(len(back))) else do(ops.transpose, made, perm=back)


def _masked(call: Call, x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    """x with one number (or one row) wherever the only index, of bools, says so; None if it is another call."""
    given = [(i, one) for i, one in enumerate(indices) if one is not None]
    if len(given) != 1 or dtype(given[0][1].dtype).name != "bool":
        return None
    first, mask = given[0]
    after = first + len(mask.shape)
    if len(values.shape) > len(x.shape) - len(mask.shape) and math.prod(values.shape) != 1:
        return None
    if first and len(values.shape):
        return None
    mask = reshaped(mask, (*(1,) * first, *mask.shape, *(1,) * (len(x.shape) - after)))
    values = cast(values, call.dtype)
    values = do(ops.add, x, values) if accumulate else spread(values, tuple(x.shape))
    return do(ops.select, spread(mask, tuple(x.shape)), values, x)


def placed(x: Any, index: Any, rows: Any, accumulate: bool) -> Any:
    """x with rows put (or added) at the index along dim 0; of several for one place the last counts."""
    if accumulate:
        return do(ops.add, x, do(ops.gather_grad, rows, index, size=x.shape[0]))
    last = do(ops.last_along, index, size=x.shape[0], dim=0)
    hit = do(ops.greater_equal, last, np.int32(0))
    hit = reshaped(hit, (x.shape[0], *(1,) * (len(x.shape) - 1)))
    return do(ops.select, hit, do(ops.last_rows, rows, last, index), x)


@translates("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _(call: Call, x: Any, dim: int, index: Any, value: Any) -> Any:
    """A place that is named several times is filled once, and so counts its gradient once."""
    x = reshaped(x, x.shape or (1,))
    dim = axis(dim, len(x.shape))
    index = wrapped(reshaped(index, (math.prod(index.shape),)), x.shape[dim], call.node.args[2])
    last = do(ops.last_along, index, size=x.shape[dim], dim=0)
    hit = do(ops.greater_equal, last, np.int32(0))
    hit = reshaped(hit, tuple(size if i == dim else 1 for i, size in enumerate(x.shape)))
    filled = spread(value if hasattr(value, "shape") else number(value, call.dtype), tuple(x.shape))
    return reshaped(do(ops.select, spread(hit, tuple(x.shape)), cast(filled, call.dtype), x), call.shape)


@translates("aten.index_add.default")
def _(call: Call, x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    x, index, source = (one if one.shape else reshaped(one, (1,)) for one in (x, index, source))
    dim = axis(dim, len(x.shape))
    added = do(ops.gather_grad, cast(source, call.dtype), index, size=x.shape[dim], axis=dim)
    return reshaped(do(ops.add, x, added if alpha == 1 else do(ops.scalar_mul, added, factor=alpha)), call.shape)


# -- others


@translates("aten.masked_scatter.default")
def _(call: Call, x: Any, mask: Any, source: Any) -> Any:
    """Where the mask holds, the next element of the source: its number is how many held before."""
    mask = spread(mask, call.shape)
    flat = reshaped(mask, (math.prod(call.shape),))
    before = do(ops.scalar_add, do(ops.cum_sum, do(ops.cast, flat, dtype="i64"), axis=0), addend=-1)
    size = math.prod(source.shape)
    place = do(ops.minimum, do(ops.maximum, before, np.int64(0)), np.int64(size - 1))
    taken = do(ops.gather, reshaped(source, (size,)), place, axis=0)
    return do(ops.select, mask, reshaped(taken, call.shape), spread(x, call.shape))


@translates("aten.searchsorted.Tensor")
def _(
    call: Call,
    boundaries: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        boundaries = do(ops.gather_d, boundaries, sorter, dim=len(boundaries.shape) - 1)
    if len(boundaries.shape) > 1:
        boundaries = do(ops.expand_dims, boundaries, axis=-2)
    if not math.prod(call.shape) or not math.prod(boundaries.shape):
        return np.zeros(call.shape, call.dtype.numpy)
    return _below(call, x, boundaries, right or side == "right")


@translates("aten.searchsorted.Scalar")
def _(call: Call, boundaries: Any, x: Any, **options: Any) -> Any:
    return TABLE["aten.searchsorted.Tensor"](call, boundaries, number(x, dtype(boundaries.dtype)), **options)


@translates("aten.one_hot.default")
def _(call: Call, x: Any, num_classes: int = -1) -> Any:
    if num_classes < 0:
        call.refuse("one_hot without num_classes takes their number from the data")
    return do(ops.one_hot, x, depth=num_classes, on_value=1, off_value=0, dtype=call.dtype.name)


@translates("aten.nonzero.default", "aten.masked_select.default", "aten.unique_dim.default", "aten._unique2.default")
def _(call: Call, *args: Any, **options: Any) -> Any:
    call.refuse("the size of the result depends on the data")


@translates("aten.repeat_interleave.self_int")
def _(call: Call, x: Any, repeats: int, dim: int | None = None, **options: Any) -> Any:
    x, dim = (reshaped(x, (math.prod(x.shape),)), 0) if dim is None else (x, axis(dim, len(x.shape)))
    apart = do(ops.expand_dims, x, axis=dim + 1)
    wide = spread(apart, (*apart.shape[: dim + 1], repeats, *apart.shape[dim + 2 :]))
    return reshaped(wide, call.shape)


@translates("aten.diff.default")
def _(call: Call, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    dim = axis(dim, len(x.shape))
    parts = [one for one in (prepend, x, append) if one is not None]
    x = parts[0] if len(parts) == 1 else do(ops.concat, *parts, axis=dim)
    for _ in range(n):
        x = do(ops.sub, cut(x, dim, 1, None), cut(x, dim, 0, -1))
    return x


@translates("aten.bucketize.Tensor")
def _(call: Call, x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """How many boundaries lie below each element."""
    return _below(call, x, boundaries, right)


def _below(call: Call, x: Any, boundaries: Any, right: bool) -> Any:
    beyond = do(ops.greater_equal if right else ops.greater, do(ops.expand_dims, x, axis=-1), boundaries)
    return do(ops.reduce_sum, call.cast(beyond), axis=(len(x.shape),))
