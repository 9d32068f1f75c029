"""Operators that look elements up by index tensors: gather, one-hot, gather along an axis, top-k, gradients.

One meaning makes them splittable along the indexed axis: an index outside the axis finds a zero (and adds
nothing in a gradient). So a rank that holds rows `offset` to `offset + size` looks up its own rows only, and
the sum over ranks is the whole result. With `bound`, the size of the whole axis, negative indices count from the back,
as MindSpore has it, and one that lies outside is an error instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.axes import along_words, axis_index, letters, words
from autoshard.ops.known import surely
from autoshard.ops.options import Filling, Storage
from autoshard.ops.registry import operator
from autoshard.ops.top_k import top_k_exchange
from autoshard.util.errors import ShapeError

Bound = tuple[str, dict[str, int]]
Localize = Callable[[Mapping[str, Any], OperatorPlacement], dict[str, Any]]


def _local(index: np.ndarray, size: int, offset: int, bound: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indices counted from `offset`, and which of them lie in 0..size-1.

    Raises:
        ShapeError: with `bound`, an index that is not in -bound..bound-1.
    """
    local = index.astype(np.intp, copy=False)
    if bound and local.size:
        if surely((local.min() < -bound) | (local.max() >= bound)):
            raise ShapeError(f"indices from {local.min()} to {local.max()}, but the axis has places 0..{bound - 1}")
        local = np.where(local < 0, local + bound, local)
    local = local - offset if offset else local
    return local, (local >= 0) & (local < size)


def check_index(index: DType, what: str) -> None:
    """Raise ShapeError unless the element type is one of whole numbers."""
    if index.numpy.kind not in "iu":
        raise ShapeError(f"{what}: indices must be whole numbers, not {index}")


def type_of_first(what: str):
    """The dtype of the first operand; the last one must hold indices."""

    def element(*dtypes: DType, **attrs: object) -> DType:
        check_index(dtypes[-1], what)
        return dtypes[0]

    return element


# -- blocks of the looked-up dim on a rank


def operand_block(along: str) -> Localize:
    """A rank looks up in its block of the first operand along the dim that the attribute `along` names."""
    return lambda attrs, placement: {"offset": placement.operand_offset(0, attrs[along] % placement.operands[0].rank)}


def result_block(along: str, size: str = "size") -> Localize:
    """A rank makes its block of the result, `size` places along the dim that the attribute `along` names."""

    def localize(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
        dim = attrs[along] % placement.results[0].rank
        return {size: placement.local_result()[dim], "offset": placement.result_offset(dim)}

    return localize


# -- gather rows


def _gather_words(params: int, indices: int, axis: int) -> tuple[list[str], list[str], list[str]]:
    """Factor names of params, indices and the gathered tensor, `axis` counted from the front."""
    rows = letters(params)
    picks = letters(indices, skip=params)
    return rows, picks, rows[:axis] + picks + rows[axis + 1 :]


def _bounded(attrs: Mapping[str, Any]) -> dict[int, float]:
    """Padding of indices has to be in range where all have to be."""
    return {1: 0} if attrs["bound"] else {}


def _gather_rule(params: Sequence[int], indices: Sequence[int], axis: int, **_: object) -> str:
    rows, picks, result = _gather_words(len(params), len(indices), axis_index(axis, len(params), "Gather"))
    return f"{words(rows)}, {words(picks)} -> {words(result)}"


@operator(
    "Gather",
    rule=_gather_rule,
    dtype=type_of_first("Gather"),
    linear=((0,),),
    flops=0,
    call=("axis",),
    storage=Storage(scratch=0),
    filling=Filling(fills=_bounded),
)
def gather(params, indices, *, axis=0, offset=0, bound=0):
    """Slices of params along `axis`, one per index: the index dims replace the axis.

    An index outside the axis gives zeros. `offset` is the index of the first slice that params holds. With `bound`,
    the size of the whole axis, indices from -bound on count from the back, and one that lies outside is an error.
    """
    rows, inside = _local(indices, params.shape[axis], offset, bound)
    if surely(inside.all()):
        return np.take(params, rows, axis)
    axis = axis % params.ndim
    picked = np.take(params, rows, axis, mode="clip")
    picked[(slice(None),) * axis + (~inside,)] = 0
    return picked


@gather.gradient
def _(g, y, params, indices, axis, offset, bound):
    return gather_grad(g, indices, size=params.shape[axis], axis=axis, offset=offset, bound=bound), None


gather.localize(operand_block("axis"))


def _scatter_axis(g: int, indices: int, axis: int) -> int:
    """The axis of the gathered-from tensor, counted from the front, where g and indices have so many dims."""
    if g < indices:
        raise ShapeError(f"GatherGrad: the gradient has {g} dims, fewer than the {indices} of the indices")
    return axis_index(axis, g - indices + 1, "GatherGrad")


def _gather_grad_rule(g: Sequence[int], indices: Sequence[int], size: int, axis: int, **_: object) -> Bound:
    at = _scatter_axis(len(g), len(indices), axis)
    rows, picks, result = _gather_words(len(g) - len(indices) + 1, len(indices), at)
    return f"{words(result)}, {words(picks)} -> {words(rows)}", {rows[at]: size}


@operator(
    "GatherGrad",
    rule=_gather_grad_rule,
    dtype=type_of_first("GatherGrad"),
    linear=((0,),),
    flops=0,
    filling=Filling(fills=_bounded),
)
def gather_grad(g, indices, *, size, axis=0, offset=0, bound=0):
    """Sum of the slices of g by index: slice i of the result, along `axis`, adds up all slices with index i.

    The result's axis has `size` slices, the first of them with index `offset`; other indices are left out.
    """
    # Imported here: scipy takes longer to import than all else together.
    from scipy.sparse import csc_array

    axis = _scatter_axis(g.ndim, indices.ndim, axis)
    flat = g.reshape(g.shape[:axis] + (indices.size,) + g.shape[axis + indices.ndim :])
    slices = np.moveaxis(flat, axis, 0)
    rows, inside = (one.ravel() for one in _local(indices, size, offset, bound))
    # scipy's sparse matrices know no f16 and none of the types that numpy lacks; the sum is better in f32 anyway.
    wide = np.dtype(np.float32) if element_type(g.dtype).is_float and g.dtype.itemsize < 4 else g.dtype
    ends = np.concatenate(([0], np.cumsum(inside)))
    pick = csc_array((np.ones(ends[-1], wide), rows[inside], ends), shape=(size, rows.size))
    # A product with the 0/1 matrix of the picks, which is many times faster than np.add.at.
    out = pick @ slices.reshape(rows.size, math.prod(slices.shape[1:])).astype(wide, copy=False)
    return np.moveaxis(out.reshape((size, *slices.shape[1:])), 0, axis)


@gather_grad.gradient
def _(g, y, x, indices, size, axis, offset, bound):
    return gather(g, indices, axis=axis, offset=offset, bound=bound), None


gather_grad.localize(result_block("axis"))


# -- one-hot


def _one_hot_rule(indices: Sequence[int], depth: int, axis: int, **_: object) -> Bound:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ShapeError(f"OneHot: depth {depth!r} must be a positive whole number")
    names = letters(len(indices) + 1)
    new = names.pop()
    axis = axis_index(axis, len(indices) + 1, "OneHot")
    return f"{words(names)} -> {words([*names[:axis], new, *names[axis:]])}", {new: depth}


def _one_hot_type(indices: DType, dtype: str, **_: object) -> str:
    check_index(indices, "OneHot")
    return dtype


@operator("OneHot", rule=_one_hot_rule, dtype=_one_hot_type, call=("depth", "on_value", "off_value"))
def one_hot(indices, *, axis=-1, depth, on_value=1.0, off_value=0.0, dtype="f32", offset=0):
    """`on_value` where the new axis of size `depth` has the index, `off_value` elsewhere.

    `offset` is the index that the first place of the new axis stands for.
    """
    places = np.arange(offset, offset + depth)
    axis = axis % (indices.ndim + 1)
    hit = np.expand_dims(indices, axis) == places.reshape((-1,) + (1,) * (indices.ndim - axis))
    # np.where of two Python floats would make f64 first.
    on, off = np.array([on_value, off_value], element_type(dtype).numpy)
    return np.where(hit, on, off)


@one_hot.gradient
def _(g, y, indices, **attrs):
    return None


one_hot.localize(result_block("axis", size="depth"))


# -- gather along an axis


def _gather_d_rule(x: Sequence[int], index: Sequence[int], dim: int, **_: object) -> str:
    rows, picks = along_words(len(x), dim, "GatherD")[:2]
    return f"{words(rows)}, {words(picks)} -> {words(picks)}"


@operator(
    "GatherD",
    rule=_gather_d_rule,
    dtype=type_of_first("GatherD"),
    linear=((0,),),
    flops=0,
    call=("x", "dim", "index"),
    filling=Filling(fills=_bounded),
)
def gather_d(x, index, *, dim, offset=0, bound=0):
    """result[i, j] = x[i, index[i, j]] for dim 1, and likewise for others; an index outside gives zero.

    x and index have equal sizes in all other dims. `offset` is the index of the first element that x holds, `bound` as
    for `gather`.
    """
    rows, inside = _local(index, x.shape[dim], offset, bound)
    if surely(inside.all()):
        return np.take_along_axis(x, rows, dim)
    picked = np.take_along_axis(x, np.where(inside, rows, 0), dim)
    picked[~inside] = 0
    return picked


@gather_d.gradient
def _(g, y, x, index, dim, offset, bound):
    return gather_d_grad(g, index, size=x.shape[dim], dim=dim, offset=offset, bound=bound), None


gather_d.localize(operand_block("dim"))


def _gather_d_grad_rule(g: Sequence[int], index: Sequence[int], size: int, dim: int, **_: object) -> Bound:
    rows, picks, dim = along_words(len(g), dim, "GatherDGrad")
    return f"{words(picks)}, {words(picks)} -> {words(rows)}", {rows[dim]: size}


@operator(
    "GatherDGrad",
    rule=_gather_d_grad_rule,
    dtype=type_of_first("GatherDGrad"),
    linear=((0,),),
    flops=0,
    filling=Filling(fills=_bounded),
)
def gather_d_grad(g, index, *, size, dim, offset=0, bound=0):
    """The elements of g summed by their index along `dim`, which has `size` places from index `offset` on."""
    rows, inside = _local(np.moveaxis(index, dim, -1), size, offset, bound)
    slices = np.moveaxis(g, dim, -1)
    out = np.zeros((*slices.shape[:-1], size), g.dtype)
    line = np.arange(math.prod(out.shape[:-1])).reshape((*out.shape[:-1], 1))
    np.add.at(out.reshape(-1), (line * size + rows)[inside], slices[inside])
    return np.moveaxis(out, -1, dim)


@gather_d_grad.gradient
def _(g, y, x, index, size, dim, offset, bound):
    return gather_d(g, index, dim=dim, offset=offset, bound=bound), None


gather_d_grad.localize(result_block("dim"))


# -- top-k


def _top_k_rule(x: Sequence[int], k: int, sorted: bool) -> Bound:
    if not x or isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= x[-1]:
        raise ShapeError(f"TopK of {tuple(x)}: k {k!r} must be between 1 and the size of the last dim")
    # Among the k best of each block are the k best of all; of a few elements the blocks themselves are less.
    mark = f"^{x[-1]}" if 2 * k <= x[-1] else ""
    return f"... [n]{mark} -> ... [k], ... [k]", {"k": k}


@operator("TopK", rule=_top_k_rule, dtype=lambda x, **_: (x, "i32"), call=("k",))
def top_k(x, *, k, sorted=True):
    """The k largest of the last dim, largest first, and their indices; equal elements by rising index.

    `sorted=False` permits any order; the order is the same.
    """
    last = x.shape[-1] - 1
    # The last of equal elements in a stable rising sort of the reversed row is the one with the least index.
    order = (last - np.argsort(x[..., ::-1], axis=-1, kind="stable"))[..., ::-1][..., :k]
    return np.take_along_axis(x, order, -1), order


@top_k.exchange
def _(attrs, placement):
    return top_k_exchange(top_k, attrs, placement, placement.operands[0].rank - 1, attrs["k"])


@top_k.gradient
def _(g, y, x, k, sorted):
    if g[0] is None:
        return None
    return gather_d_grad(g[0], y[1], size=x.shape[-1], dim=-1)
