"""Functions of torch that run on the blocks of DTensors, as DTensor has no rule for them or one that ignores splits.

DTensor's rule for convolutions ignores how the weight is split, that for group norms mistakes a rank's part of the
batch for all of it, and attention on CPUs and the gradients of some poolings have none. Random numbers are drawn for
whole tensors, which are the same on all ranks as long as their generators are, and those of one process: DTensor on
CPUs draws for each block by itself, other numbers on each rank of what should be whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils import _pytree as pytree

from autoshard.exporters.dtensor_blocks import block, distributed, evenly, gathered_call
from autoshard.exporters.dtensor_elements import ELEMENTWISE, MEANS, elementwise, mean
from autoshard.exporters.dtensor_slices import rows, split, unbind


def _convolution(
    func: Callable,
    mesh: DeviceMesh,
    input: Any,
    weight: Any,
    bias: Any = None,
    *args: Any,
    channels: tuple[int, int] = (0, 1),
    **kwargs: Any,
) -> Any:
    """A convolution with each mesh axis along the batch, the output channels, the input channels (which leaves terms of
    a sum), or nothing; splits of the image are gathered.

    `channels` are the weight's dims of output and of input channels.
    """
    x, w = distributed(input, mesh), distributed(weight, mesh)
    groups = kwargs.get("groups", args[3] if len(args) > 3 else 1)
    makes, takes = Shard(channels[0]), Shard(channels[1])
    ways = []
    left = {"batch": x.shape[0], "out": w.shape[makes.dim], "in": w.shape[takes.dim]}
    for axis in range(mesh.ndim):
        way = _way(x.placements[axis], w.placements[axis], makes, takes, groups)
        if way and left[way] % mesh.size(axis):
            way = ""
        if way:
            left[way] //= mesh.size(axis)
        ways.append(way)
    whole, term, batch, channel = Replicate(), Partial(), Shard(0), Shard(1)
    places = {  # the input, the weight, what comes out; their gradients
        "batch": (batch, whole, batch, batch, term),
        "out": (whole, makes, channel, term, makes),
        "in": (channel, takes, term, channel, takes),
        "": (whole,) * 5,
    }
    xs, ws, outs, x_grads, w_grads = zip(*(places[way] for way in ways), strict=True)
    made = func(block(x, mesh, xs, x_grads), block(w, mesh, ws, w_grads), None, *args, **kwargs)
    found = DTensor.from_local(made, mesh, outs, run_check=False)
    if bias is None:
        return found
    final = found.redistribute(mesh, [whole if way == "in" else one for way, one in zip(ways, outs, strict=True)])
    return final + distributed(bias, mesh).reshape(1, -1, *[1] * (x.ndim - 2))


def _way(x: Placement, w: Placement, makes: Shard, takes: Shard, groups: int) -> str:
    if x == Shard(0):
        return "batch"
    if groups > 1:
        return ""
    if w == makes:
        return "out"
    return "in" if x == Shard(1) or w == takes else ""


_transposed_convolution = functools.partial(_convolution, channels=(1, 0))


def _group_norm(
    func: Callable,
    mesh: DeviceMesh,
    input: Any,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Normalization of groups of channels with each mesh axis along the batch or nothing; DTensor's own backward takes
    the whole batch for a rank's.
    """
    x = distributed(input, mesh)
    places = evenly(x, mesh, 1)
    whole, grads = [Replicate()] * mesh.ndim, [Partial() if isinstance(one, Shard) else one for one in places]
    of_channels = [None if one is None else block(distributed(one, mesh), mesh, whole, grads) for one in (weight, bias)]
    found = func(block(x, mesh, places, places), groups, *of_channels, *args, **kwargs)
    return DTensor.from_local(found, mesh, places, run_check=False)


def _planes(func: Callable, mesh: DeviceMesh, input: Any, *args: Any, space: int = 0, **kwargs: Any) -> Any:
    """A function of each plane of an image by itself, with each mesh axis along the batch, the channels or nothing.

    `space` counts the dims of a plane; else it is all behind the first two.
    """
    x = distributed(input, mesh)
    places = evenly(x, mesh, x.ndim - space if space else 2)
    found = func(block(x, mesh, places, places), *args, **kwargs)
    return pytree.tree_map(lambda one: DTensor.from_local(one, mesh, places, run_check=False), found)


def _samples(func: Callable, mesh: DeviceMesh, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of each sample of a batch by itself."""
    return _planes(func, mesh, input, *args, space=input.ndim - 1, **kwargs)


def _attention(func: Callable, mesh: DeviceMesh, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention with each mesh axis along the batch, the heads or nothing.

    Shapes: query (batch, heads, length, width); a mask goes along where its dims are not of size 1.
    """
    drops = kwargs.get("dropout_p", args[1] if len(args) > 1 else 0.0)
    q, k, v = (distributed(one, mesh) for one in (query, key, value))
    mask = kwargs.pop("attn_mask", args[0] if args else None)
    places: list[Placement] = []
    sizes = [list(one.shape[:2]) for one in (q, k, v)]
    for axis, placement in enumerate(q.placements):
        split = placement if placement in (Shard(0), Shard(1)) and q.ndim == 4 else Replicate()
        if isinstance(split, Shard) and any(own[split.dim] % mesh.size(axis) for own in sizes):
            split = Replicate()
        if isinstance(split, Shard):
            for own in sizes:
                own[split.dim] //= mesh.size(axis)
        places.append(split)
    blocks = [block(one, mesh, places, places) for one in (q, k, v)]
    if mask is not None:
        along = [Replicate() if _is_one(mask, one) else _of_mask(mask, one) for one in places]
        grads = [
            Partial() if isinstance(was, Shard) and not isinstance(now, Shard) else now
            for was, now in zip(places, along, strict=True)
        ]
        mask = block(distributed(mask, mesh), mesh, along, grads)
    if drops:
        kwargs |= dict(zip(("dropout_p", "is_causal"), args[1:], strict=False))
        kept = _drawn_like(q, (*q.shape[:-1], k.shape[-2]), places, 1 - drops).to_local()
        found = _dropping_attention(blocks[0], blocks[1], blocks[2], mask, kept / (1 - drops), **kwargs)
    else:
        found = func(*blocks, mask, *args[1:], **kwargs)
    return DTensor.from_local(found, mesh, places, run_check=False)


def _dropping_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    kept: torch.Tensor,
    *,
    dropout_p: float,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention with its weights multiplied by `kept`, as torch itself computes it where it drops."""
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.ops.aten._safe_softmax(scores, -1) * kept @ value


def _is_one(mask: torch.Tensor, placement: Placement) -> bool:
    """Whether a mask is the same along the dim that is split, counted from the left of four dims."""
    if not isinstance(placement, Shard):
        return False
    dim = placement.dim - (4 - mask.ndim)
    return dim < 0 or mask.shape[dim] == 1


def _of_mask(mask: torch.Tensor, placement: Placement) -> Placement:
    return Shard(placement.dim - (4 - mask.ndim)) if isinstance(placement, Shard) else placement


def _multi_head(func: Callable, mesh: DeviceMesh, *args: Any, **kwargs: Any) -> Any:
    """The function behind torch.nn.MultiheadAttention. No mode sees what it calls inside, so that attention and dropout
    there are put in their places for this call.
    """
    functional = torch.nn.functional
    attention = functools.partial(_attention, functional.scaled_dot_product_attention, mesh)
    dropout = functools.partial(_dropout, functional.dropout, mesh)
    with mock.patch.multiple(functional, scaled_dot_product_attention=attention, dropout=dropout):
        return func(*args, **kwargs)


def _grouped(
    func: Callable, mesh: DeviceMesh, input: Any, weight: Any, offs: Any = None, bias: Any = None, **kwargs: Any
) -> Any:
    """Products of groups of rows, each with its own matrix, with each mesh axis along the rows, the groups (which
    leaves terms of a sum), the columns, what is summed (likewise), or nothing.

    Shapes: input (rows, width), weight (groups, width, columns); `offs` says where each group of rows ends.
    """
    if offs is None or bias is not None or input.ndim != 2 or weight.ndim != 3:
        raise NotImplementedError("only groups of rows")
    x, w = distributed(input, mesh), distributed(weight, mesh)
    whole, term, rows, inner = Replicate(), Partial(), Shard(0), Shard(1)
    places = {  # the input, the weight, what comes out; their gradients
        "rows": (rows, whole, rows, rows, term),
        "groups": (whole, Shard(0), term, term, Shard(0)),
        "columns": (whole, Shard(2), inner, term, Shard(2)),
        "inner": (inner, inner, term, inner, inner),
        "": (whole,) * 5,
    }
    left = {"rows": x.shape[0], "groups": w.shape[0], "columns": w.shape[2], "inner": w.shape[1]}
    ways, row, group = [], 0, 0
    for axis in range(mesh.ndim):
        position, count = mesh.get_local_rank(axis), mesh.size(axis)
        way = _group_way(x, w, axis)
        way = "" if way and left[way] % count else way
        if way:
            left[way] //= count
        row += position * left["rows"] if way == "rows" else 0
        group += position * left["groups"] if way == "groups" else 0
        ways.append(way)
    xs, ws, outs, x_grads, w_grads = zip(*(places[way] for way in ways), strict=True)
    own, matrices = block(x, mesh, xs, x_grads), block(w, mesh, ws, w_grads)
    ends = distributed(offs, mesh).full_tensor()
    ends = torch.cat([ends.new_zeros(1), ends]).sub(row).clamp(0, len(own))[group : group + left["groups"] + 1]
    first, last = int(ends[0]), int(ends[-1])
    inside = own[first:last]
    made = func(inside, matrices, offs=(ends[1:] - first).to(torch.int32), **kwargs) if last > first else None
    made = inside @ matrices[0] if made is None else made
    made = torch.nn.functional.pad(made, (0, 0, first, len(own) - last))
    return DTensor.from_local(made, mesh, outs, run_check=False)


def _group_way(x: DTensor, w: DTensor, axis: int) -> str:
    """What a mesh axis does to products of groups; where rows and matrices are split by it, the larger stays."""
    of_rows, of_matrices = x.placements[axis], w.placements[axis]
    if of_rows == Shard(0) and (not isinstance(of_matrices, Shard) or x.numel() > w.numel()):
        return "rows"
    if of_matrices in (Shard(0), Shard(2)):
        return "groups" if of_matrices == Shard(0) else "columns"
    return "inner" if Shard(1) in (of_rows, of_matrices) else ""


def _drawn(func: Callable, mesh: DeviceMesh, *args: Any, **kwargs: Any) -> Any:
    return gathered_call(func, mesh, args, kwargs)


def _drawn_like(
    x: DTensor, shape: Sequence[int], places: Sequence[Placement], chance: float, strides: Sequence[int] = ()
) -> DTensor:
    """Ones with a chance, else zeros, drawn for a whole tensor, of which each rank keeps its block."""
    form = torch.empty(shape, device="meta") if not strides else torch.empty_strided(shape, strides, device="meta")
    local = x.to_local()
    whole = torch.empty_like(form, dtype=local.dtype, device=local.device).bernoulli_(chance)
    return distributed(whole, x.device_mesh).redistribute(x.device_mesh, places)


def _dropout(
    func: Callable, mesh: DeviceMesh, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """Dropout of the same elements as of the whole tensor."""
    if not training or p in (0.0, 1.0):
        return func(input, p, training, inplace)
    x = distributed(input, mesh)
    places = [one if type(one) is Shard else Replicate() for one in x.placements]
    kept = _drawn_like(x, x.shape, places, 1 - p, x.stride()).div_(1 - p)
    return input.mul_(kept) if inplace else x.redistribute(mesh, places) * kept


LOCAL: Mapping[str, Callable] = {
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "conv_transpose1d": _transposed_convolution,
    "conv_transpose2d": _transposed_convolution,
    "conv_transpose3d": _transposed_convolution,
    "group_norm": _group_norm,
    "interpolate": _planes,
    "local_response_norm": _samples,
    "split": split,
    "split_with_sizes": split,
    "unbind": unbind,
    "__iter__": rows,
    **{f"lp_pool{space}d": functools.partial(_planes, space=space) for space in (1, 2, 3)},
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(MEANS, mean),
    **{
        f"{kind}_pool{space}d": functools.partial(_planes, space=space)
        for kind in ("avg", "max", "adaptive_avg", "adaptive_max")
        for space in (1, 2, 3)
    },
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
    "dropout": _dropout,
    "_grouped_mm": _grouped,
    "grouped_mm": _grouped,
    **dict.fromkeys(
        (
            "alpha_dropout",
            "bernoulli",
            "dropout1d",
            "dropout2d",
            "dropout3d",
            "feature_alpha_dropout",
            "gumbel_softmax",
            "multinomial",
            "normal",
            "poisson",
            "rand_like",
            "randint_like",
            "randn_like",
            "rrelu",
        ),
        _drawn,
    ),
}
