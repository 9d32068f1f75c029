"""MindSpore's functions that move elements, look them up, or make tensors out of nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops import index as lookups
from autoshard.mindspore.ops import math as elementwise
from autoshard.mindspore.ops import shapes
from autoshard.mindspore.ops.functional.calls import broadcast_to
from autoshard.mindspore.ops.primitive import as_tensors, plain
from autoshard.util.errors import ShapeError


def split(tensor: Any, split_size_or_sections: int | Sequence[int], axis: int = 0) -> Any:
    """Parts of so many elements along `axis`, the last may have less; or parts of the given sizes."""
    length, given = tensor.shape[axis], plain(split_size_or_sections)
    sizes = (
        given
        if isinstance(given, tuple)
        else (given,) * (length // given) + ((length % given,) if length % given else ())
    )
    if math.fsum(sizes) != length:
        raise ShapeError(f"split: sizes {sizes} do not add up to the {length} elements along axis {axis}")
    parts = core.split(tensor, axis=axis, sizes=sizes)
    return as_tensors(parts if isinstance(parts, tuple) else (parts,))


def chunk(input: Any, chunks: int, axis: int = 0) -> Any:
    """So many parts along `axis`, equal but for the last."""
    return split(input, -(-input.shape[axis] // chunks), axis)


def squeeze(input: Any, axis: Any = None) -> Any:
    """Without the dims of size 1 at `axis`, or any."""
    return shapes.Squeeze(shapes.axes(axis))(input)


def flatten(input: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Any:
    """The dims from `start_dim` to `end_dim` as one."""
    if order != "C":
        raise ShapeError(f"flatten: order is {order!r}; only 'C', row-major, is offered here")
    rank = len(input.shape)
    if not rank:
        return as_tensors(core.reshape(input, shape=(1,)))
    first, last = start_dim % rank, end_dim % rank
    if last < first:
        raise ShapeError(f"flatten: start_dim {start_dim} comes behind end_dim {end_dim}")
    whole = math.prod(input.shape[first : last + 1])
    return as_tensors(core.reshape(input, shape=(*input.shape[:first], whole, *input.shape[last + 1 :])))


def flip(input: Any, dims: Any) -> Any:
    """In reversed order along dims."""
    return shapes.ReverseV2(shapes.axes(dims))(input)


def swapaxes(input: Any, axis0: int, axis1: int) -> Any:
    """With two dims exchanged."""
    order = list(range(len(input.shape)))
    order[axis0], order[axis1] = order[axis1], order[axis0]
    return shapes.Transpose()(input, tuple(order))


def t(input: Any) -> Any:
    """The transposed matrix."""
    return input if len(input.shape) < 2 else swapaxes(input, 0, 1)


def narrow(input: Any, axis: int, start: int, length: int) -> Any:
    """`length` elements from `start` on along `axis`."""
    begin, sizes = [0] * len(input.shape), list(input.shape)
    begin[axis], sizes[axis] = start, length
    return shapes.Slice()(input, tuple(begin), tuple(sizes))


def pad(input_x: Any, padding: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    """A number around: (before, behind) for the last dim, then for the one before it, and so on."""
    if mode != "constant":
        raise ShapeError(f"pad: mode is {mode!r}; only 'constant' is offered here")
    given, missing = plain(padding), len(input_x.shape) - len(padding) // 2
    pairs = [(given[2 * i], given[2 * i + 1]) for i in range(len(given) // 2)]
    return as_tensors(core.pad(input_x, paddings=(*((0, 0),) * missing, *reversed(pairs)), value=value or 0))


def swapdims(input: Any, dim0: int, dim1: int) -> Any:
    """With two dims exchanged."""
    return swapaxes(input, dim0, dim1)


def movedim(x: Any, source: Any, destination: Any) -> Any:
    """With dims at other places, the others in their order."""
    rank = len(x.shape)
    begin, end = ([one % rank for one in shapes.axes(given)] for given in (source, destination))
    if len(begin) != len(end) or len(set(begin)) < len(begin) or len(set(end)) < len(end):
        raise ShapeError(f"movedim: source {source!r} and destination {destination!r} are as many dims, each once")
    order = [dim for dim in range(rank) if dim not in begin]
    for place, dim in sorted(zip(end, begin, strict=True)):
        order.insert(place, dim)
    return shapes.Transpose()(x, tuple(order))


moveaxis = movedim


def ravel(input: Any) -> Any:
    """All elements in one dim."""
    return shapes.Reshape()(input, (-1,))


def expand_as(input: Any, other: Any) -> Any:
    """`broadcast_to` the shape of another tensor."""
    return broadcast_to(input, tuple(other.shape))


def view_as(input: Any, other: Any) -> Any:
    """In the shape of another tensor."""
    return shapes.Reshape()(input, tuple(other.shape))


def repeat_elements(x: Any, rep: int, axis: int = 0) -> Any:
    """Each element `rep` times in a row along `axis`."""
    at = axis % len(x.shape)
    apart = core.expand_dims(x, axis=at + 1)
    wide = core.broadcast_to(apart, shape=(*x.shape[: at + 1], rep, *x.shape[at + 1 :]))
    return as_tensors(core.reshape(wide, shape=(*x.shape[:at], x.shape[at] * rep, *x.shape[at + 1 :])))


def repeat_interleave(input: Any, repeats: Any, axis: int | None = None) -> Any:
    """Each element so many times in a row along `axis`, or of the flat tensor; one number, or one for each."""
    x, counts = (ravel(input) if axis is None else input), np.asarray(repeats)
    at = 0 if axis is None else axis % len(x.shape)
    if counts.size == 1:
        return repeat_elements(x, int(counts.reshape(())), at)
    if counts.shape != (x.shape[at],):
        raise ShapeError(f"repeat_interleave: repeats {counts.tolist()} of dim {at} of {tuple(x.shape)}; one for each")
    return lookups.Gather()(x, np.repeat(np.arange(len(counts)), counts).astype(np.int32), at)


def meshgrid(*inputs: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """For each vector a tensor in which it lies along a dim of its own; "xy" exchanges the first two dims."""
    if indexing not in ("xy", "ij"):
        raise ShapeError(f"meshgrid: indexing is {indexing!r}; it is 'xy' or 'ij'")
    order = [1, 0, *range(2, len(inputs))] if indexing == "xy" and len(inputs) > 1 else list(range(len(inputs)))
    sizes = [inputs[i].shape[0] for i in order]
    places = {i: at for at, i in enumerate(order)}
    return tuple(
        broadcast_to(
            core.reshape(one, shape=tuple(-1 if at == places[i] else 1 for at in range(len(sizes)))), tuple(sizes)
        )
        for i, one in enumerate(inputs)
    )


def sequence_mask(lengths: Any, maxlen: int | None = None) -> Any:
    """Along a new last dim of `maxlen`, whether its place is below the length."""
    if maxlen is None:
        if not isinstance(lengths, np.ndarray):
            raise ShapeError("sequence_mask: give maxlen; the largest length is not known while a model is traced")
        maxlen = int(np.asarray(lengths).max())
    kind = element(lengths.dtype)
    return as_tensors(core.less(np.arange(maxlen).astype(kind.numpy), core.expand_dims(lengths, axis=-1)))


# -- looking up


def index_select(input: Any, axis: int, index: Any) -> Any:
    """Slices along `axis`, one per index of a vector."""
    return lookups.Gather()(input, index, axis)


def one_hot(indices: Any, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1) -> Any:
    """`on_value` where a new axis has the index, else `off_value`."""
    return lookups.OneHot(axis)(indices, depth, on_value, off_value)


def topk(input: Any, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest (or smallest) elements along `dim`, by default the last, and their places."""
    rank, at = len(input.shape), (len(input.shape) - 1 if dim is None else dim % len(input.shape))
    x = input if at == rank - 1 else swapaxes(input, at, rank - 1)
    values, places = lookups.TopK(sorted)(x if largest else core.neg(x), k)
    values = values if largest else as_tensors(core.neg(values))
    return (values, places) if at == rank - 1 else (swapaxes(values, at, rank - 1), swapaxes(places, at, rank - 1))


def argsort(input: Any, axis: int = -1, descending: bool = False) -> Any:
    """The places of the elements in order along `axis`."""
    return lookups.Sort(axis, descending)(input)[1]


# -- tensors out of nothing


def tuple_to_array(input_x: Any) -> Any:
    """Numbers of Python as a vector, of float32 or int64."""
    if not isinstance(input_x, tuple) or not all(isinstance(one, int | float) for one in input_x):
        raise ShapeError(f"tuple_to_array: input_x is {input_x!r}; it is a tuple of numbers")
    floats = any(isinstance(one, float) for one in input_x)
    return as_tensors(np.asarray(input_x, np.float32 if floats else np.int64))


def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A number everywhere."""
    kind = dtype or ("bool" if isinstance(fill_value, bool) else "i64" if isinstance(fill_value, int) else "f32")
    return shapes.Fill()(kind, shapes.axes(size), fill_value)


def zeros_like(input: Any, *, dtype: Any = None) -> Any:
    """0 everywhere, in the shape of another tensor."""
    return shapes.Fill()(dtype or input.dtype, tuple(input.shape), 0)


def ones_like(input: Any, *, dtype: Any = None) -> Any:
    """1 everywhere, in the shape of another tensor."""
    return shapes.Fill()(dtype or input.dtype, tuple(input.shape), 1)


def full_like(input: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """A number everywhere, in the shape of another tensor."""
    return shapes.Fill()(dtype or input.dtype, tuple(input.shape), fill_value)


def arange(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    """start, start + step, ... before end; with one number the numbers from 0 to before it."""
    first, last = (0, start) if end is None else (start, end)
    found = shapes.Range()(first, last, step)
    return found if dtype is None else elementwise.Cast()(found, dtype)


def eye(n: int, m: int | None = None, dtype: Any = None) -> Any:
    """1 on the main diagonal, 0 elsewhere."""
    return shapes.Eye()(n, n if m is None else m, dtype or "f32")
