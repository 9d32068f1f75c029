"""StableHLO's convolution: any order of dims, strides, dilations, padding, reversal, feature and batch groups.

Batch, features, groups and space can be split, and so can windows: each rank fetches what its windows, or its part of
them, read of lhs; parts of windows leave terms of sums. `lhs_dims` are (batch, feature, spatial
dims ...), `rhs_dims` (input feature, output feature, spatial dims ...), `out_dims` (batch, feature, spatial dims ...).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.rule import PERMUTATION, REDUCTION, Rule
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import widened
from autoshard.ops.hlo_window import Window, dilated, windows
from autoshard.ops.registry import operator
from autoshard.ops.windows import Exchange, Slide, along, block_starts, common_parts, slid
from autoshard.ops.windows import OperandWindow as Fetched
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]
Dims = tuple[int, ...]
_LHS, _RHS, _OUT = 0, 1, 2


def _windows(rhs: Shape, rhs_dims: Dims, attrs: Mapping[str, Any]) -> tuple[Window, ...]:
    """The window of each spatial dim."""
    return windows(
        len(rhs) - 2,
        "Convolution",
        dimensions=tuple(rhs[dim] for dim in rhs_dims[2:]),
        strides=attrs["strides"],
        padding=attrs["padding"],
        base_dilations=attrs["lhs_dilation"],
        window_dilations=attrs["rhs_dilation"],
    )


def _check(lhs: Shape, rhs: Shape, attrs: Mapping[str, Any]) -> None:
    """Raises ShapeError unless ranks, features and groups agree."""
    dims = {"lhs": attrs["lhs_dims"], "rhs": attrs["rhs_dims"], "out": attrs["out_dims"]}
    for name, given in dims.items():
        if len(lhs) != len(rhs) or sorted(given) != list(range(len(lhs))):
            raise ShapeError(f"Convolution of {lhs} with {rhs}: {name}_dims {given} must name each dim once")
    groups, batches = attrs["feature_groups"], attrs["batch_groups"]
    inputs, (per_group, outputs) = lhs[dims["lhs"][1]], (rhs[dim] for dim in dims["rhs"][:2])
    if min(groups, batches) < 1 or max(groups, batches) > 1 < min(groups, batches) or outputs % (groups * batches):
        raise ShapeError(
            f"Convolution: {groups} feature groups and {batches} batch groups for {outputs} output features; "
            "one of them must be 1 and the other divide the features"
        )
    if inputs != per_group * groups or lhs[dims["lhs"][0]] % batches:
        raise ShapeError(
            f"Convolution of {lhs} with {rhs}: {inputs} input features must be {groups} groups of {per_group}, "
            f"and the batch {lhs[dims['lhs'][0]]} a multiple of {batches}"
        )


def _result(lhs: Shape, rhs: Shape, **attrs: Any) -> tuple[Shape]:
    _check(lhs, rhs, attrs)
    lhs_dims, rhs_dims, out_dims = attrs["lhs_dims"], attrs["rhs_dims"], attrs["out_dims"]
    out = [0] * len(lhs)
    out[out_dims[0]] = lhs[lhs_dims[0]] // attrs["batch_groups"]
    out[out_dims[1]] = rhs[rhs_dims[1]]
    for at, dim, window in zip(out_dims[2:], lhs_dims[2:], _windows(rhs, rhs_dims, attrs), strict=True):
        out[at] = window.count(lhs[dim])
    return (tuple(out),)


def _rule(lhs: Shape, rhs: Shape, spatial: bool = True, **attrs: Any) -> Rule:
    """Factors in Shardy's order: batch groups, batch, spatial dims, feature groups, input and output features."""
    (out,) = _result(lhs, rhs, **attrs)
    (lhs_batch, lhs_feature, *_), (rhs_in, rhs_out, *_) = attrs["lhs_dims"], attrs["rhs_dims"]
    out_batch, out_feature, *_ = attrs["out_dims"]
    groups, batches = attrs["feature_groups"], attrs["batch_groups"]
    builder = FactorBuilder([len(lhs), len(rhs)], [len(out)])
    if batches > 1:
        builder.factor({_LHS: lhs_batch, _RHS: rhs_out, _OUT: out_feature}, batches)
    builder.factor({_LHS: lhs_batch, _OUT: out_batch}, out[out_batch])
    if spatial:
        for dims in zip(attrs["lhs_dims"][2:], attrs["rhs_dims"][2:], attrs["out_dims"][2:], strict=True):
            _add_spatial(builder, dims, (lhs, rhs, out))
    if groups > 1:
        builder.factor({_LHS: lhs_feature, _RHS: rhs_out, _OUT: out_feature}, groups)
    builder.factor({_LHS: lhs_feature, _RHS: rhs_in}, rhs[rhs_in], REDUCTION)
    per_group = out[out_feature] // (groups * batches)
    if per_group > 1:
        builder.factor({_RHS: rhs_out, _OUT: out_feature}, per_group)
    return builder.build()


def _add_spatial(builder: FactorBuilder, dims: Sequence[int], shapes: Sequence[Shape]) -> None:
    """The number of windows and the window's size, the larger one first, as far as the operand's dim has room.

    Only the larger one can be split, which is the major one in the operand's dim.
    """
    remaining, window, count = (shape[dim] for dim, shape in zip(dims, shapes, strict=True))
    of_count = ({_LHS: dims[_LHS], _OUT: dims[_OUT]}, count, PERMUTATION)
    of_window = ({_LHS: dims[_LHS], _RHS: dims[_RHS]}, window, REDUCTION)
    extent, is_major = remaining, True
    for places, full, kind in (of_count, of_window) if count >= window else (of_window, of_count):
        size = min(remaining, full)
        if size > 1:
            exchange = common_parts(extent, full) if is_major else 0
            builder.factor(places, size, kind, whole=kind == REDUCTION and not exchange, exchange=exchange)
            remaining //= size
            is_major = False


@operator(
    "Convolution",
    rule=_rule,
    shape=_result,
    dtype=lambda lhs, rhs, *, dtype, **_: dtype or lhs,
    linear=((0,), (1,)),
)
def convolution(
    lhs,
    rhs,
    *,
    lhs_dims,
    rhs_dims,
    out_dims,
    strides=(),
    padding=(),
    lhs_dilation=(),
    rhs_dilation=(),
    reversal=(),
    feature_groups=1,
    batch_groups=1,
    dtype="",
):
    """Sums of products of lhs under windows of the shape of rhs, along all input features; see the module's text.

    `padding` has a pair per spatial dim, and `lhs_dilation`, `rhs_dilation` spread the elements of either. `reversal`
    turns the window around in the spatial dims that it is true for. `dtype` is the result's element type, if another.
    """
    attrs = {"strides": strides, "padding": padding, "lhs_dilation": lhs_dilation, "rhs_dilation": rhs_dilation}
    moves = _windows(rhs.shape, rhs_dims, attrs)
    target = np.result_type(widened(lhs), widened(rhs))
    x = widened(np.transpose(lhs, lhs_dims)).astype(target, copy=False)
    kernel = widened(np.transpose(rhs, rhs_dims)).astype(target, copy=False)
    x = dilated(x, 0, (1, 1, *(one.base for one in moves)), ((0, 0), (0, 0), *((one.low, one.high) for one in moves)))
    if any(reversal):
        kernel = np.flip(kernel, tuple(2 + dim for dim, turned in enumerate(reversal) if turned))
    out = _grouped(x, kernel, moves, feature_groups, batch_groups)
    return np.transpose(out, np.argsort(out_dims))


@convolution.localize
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    """Groups are split with the batch or the features that they are groups of."""
    lhs, rhs, out = placement.local_operand(0), placement.local_operand(1), placement.local_result(0)
    inner, rows = rhs[attrs["rhs_dims"][0]], out[attrs["out_dims"][0]]
    return {
        "feature_groups": lhs[attrs["lhs_dims"][1]] // inner if inner else attrs["feature_groups"],
        "batch_groups": lhs[attrs["lhs_dims"][0]] // rows if rows else attrs["batch_groups"],
    }


@convolution.exchange
def _(attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchange:
    """Of each spatial dim that is split, what the rank's windows, or its part of each window, read."""
    (lhs, rhs), (lhs_layout, rhs_layout) = (of.shape for of in placement.operands), placement.operand_layouts
    out_layout, taken, block = placement.result_layouts[0], placement.local_operand(1), placement.local_result()
    padding: list[Any] = list(attrs["padding"] or ((0, 0),) * (len(lhs) - 2))
    turned = attrs["reversal"] or (False,) * len(padding)
    moves, windows = _windows(rhs, attrs["rhs_dims"], attrs), []
    for i, dims in enumerate(zip(attrs["lhs_dims"][2:], attrs["rhs_dims"][2:], attrs["out_dims"][2:], strict=True)):
        move, (dim, window, count) = moves[i], dims
        parts, of_windows = lhs_layout.parts[dim], rhs_layout.parts[window] > 1
        if out_layout.parts[count] == 1 and not of_windows:
            continue
        starts = block_starts(taken[window] if of_windows else block[count], parts)
        firsts, offsets = (np.zeros_like(starts), starts) if of_windows else (starts, None)
        if offsets is not None and turned[i]:
            offsets = move.size - taken[window] - offsets
        slide = Slide(taken[window], move.stride, move.base, move.dilation, move.low)
        read = slid(lhs[dim], slide, firsts, block[count], offsets)
        windows.append(Fetched(_LHS, dim, lhs_layout.dims[dim], (read.run,)))
        padding[i] = (along(lhs_layout, dim, read.low), along(lhs_layout, dim, read.high))
    return Exchange(tuple(windows), {"padding": tuple(padding)})


@convolution.conservative
def _(lhs, rhs, **attrs):
    return _rule(lhs, rhs, spatial=False, **attrs)


# -- the numbers


def _grouped(x: np.ndarray, kernel: np.ndarray, moves: Sequence[Window], groups: int, batches: int) -> np.ndarray:
    """[batch, output feature, spatial ...] out of [batch, feature, spatial ...] and [in, out, spatial ...]."""
    batch, features, *space = x.shape
    inputs, outputs, *size = kernel.shape
    parts = groups * batches
    # Groups first: each has its share of the features or of the batch, and its own output features.
    shares = x.reshape(batches, batch // batches, groups, features // groups, *space)
    shares = np.moveaxis(shares, 2, 1).reshape(parts, batch // batches, features // groups, *space)
    kernels = np.moveaxis(kernel.reshape(inputs, parts, outputs // parts, *size), 1, 0)
    counts = tuple(
        max(0, (room - one.extent) // one.stride + 1) if room >= one.extent else 0
        for room, one in zip(space, moves, strict=True)
    )
    sums = _sums(shares, kernels, moves, counts)
    return np.moveaxis(sums, 0, 1).reshape(batch // batches, outputs, *counts)


def _sums(x: np.ndarray, kernel: np.ndarray, moves: Sequence[Window], counts: Shape) -> np.ndarray:
    """[group, batch, output feature, window ...]: a matrix product per place in the window, or per window if fewer."""
    shape = (*x.shape[:2], *counts, kernel.shape[2])
    if 0 in shape or 0 in kernel.shape:
        out = np.zeros(shape, x.dtype)
    elif math.prod(one.size for one in moves) <= math.prod(counts):
        out = _by_place(x, kernel, moves, counts).reshape(shape)
    else:
        out = _by_window(x, kernel, moves, counts).reshape(shape)
    return np.moveaxis(out, -1, 2)


def _by_place(x: np.ndarray, kernel: np.ndarray, moves: Sequence[Window], counts: Shape) -> np.ndarray:
    """[group, batch and window, output feature], summed over the places in the window."""
    groups, batch, features = x.shape[:3]
    last = np.moveaxis(x, 2, -1)
    out = np.zeros((groups, batch * math.prod(counts), kernel.shape[2]), x.dtype)
    for position, seen in _seen(moves, counts):
        out += last[(slice(None), slice(None), *seen)].reshape(groups, -1, features) @ kernel[(..., *position)]
    return out


def _by_window(x: np.ndarray, kernel: np.ndarray, moves: Sequence[Window], counts: Shape) -> np.ndarray:
    """[group, batch, window, output feature], window by window."""
    groups, batch = x.shape[:2]
    flat = np.moveaxis(kernel, 2, -1).reshape(groups, -1, kernel.shape[2])
    found = []
    for position in itertools.product(*map(range, counts)):
        seen = tuple(
            slice(at * one.stride, at * one.stride + one.extent, one.dilation)
            for at, one in zip(position, moves, strict=True)
        )
        found.append(x[(..., *seen)].reshape(groups, batch, -1) @ flat)
    return np.stack(found, 2)


def _seen(moves: Sequence[Window], counts: Shape) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each place in the window, with the elements that all windows have there."""
    for position in itertools.product(*(range(one.size) for one in moves)):
        starts = (at * one.dilation for at, one in zip(position, moves, strict=True))
        yield (
            position,
            tuple(
                slice(start, start + (count - 1) * one.stride + 1, one.stride)
                for start, count, one in zip(starts, counts, moves, strict=True)
            ),
        )
