"""Overloads that decompositions would take apart, said directly, so that most graphs need none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.norm import reduced
from autoshard.frontends.torch.pointwise import as_type, binary, inside
from autoshard.frontends.torch.shapes import spread
from autoshard.frontends.torch.table import TABLE, Call, axis, cast, do, number, translates
from autoshard.frontends.torch.window import convolved


@translates(
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten.type_as.default",
    "aten._autocast_to_reduced_precision.default",
    "aten._autocast_to_full_precision.default",
)
def _(call: Call, x: Any, *args: Any, **options: Any) -> Any:
    return call.cast(x)


@translates("aten.view_as.default", "aten.reshape_as.default", "aten.view.dtype")
def _(call: Call, x: Any, other: Any) -> Any:
    if str(call.node.target) == "aten.view.dtype":
        call.refuse("a view of a tensor's bits as another element type")
    return do(ops.reshape, x, shape=call.shape)


@translates("aten.expand_as.default")
def _(call: Call, x: Any, other: Any) -> Any:
    return do(ops.broadcast_to, x, shape=call.shape)


@translates("aten.broadcast_tensors.default")
def _(call: Call, tensors: Sequence[Any]) -> Any:
    shape = np.broadcast_shapes(*(tuple(one.shape) for one in tensors))
    return [spread(one, shape) for one in tensors]


@translates("aten.swapaxes.default", "aten.swapdims.default", "aten.movedim.int")
def _(call: Call, x: Any, a: int, b: int) -> Any:
    rank = len(x.shape)
    perm, a, b = list(range(rank)), axis(a, rank), axis(b, rank)
    if "movedim" in str(call.node.target):
        perm.insert(b, perm.pop(a))
    else:
        perm[a], perm[b] = b, a
    return do(ops.transpose, x, perm=tuple(perm))


@translates("aten.narrow.default")
def _(call: Call, x: Any, dim: int, start: int, length: int) -> Any:
    return TABLE["aten.slice.Tensor"](call, x, dim, start, start + length)


@translates("aten.__and__.Tensor", "aten.__and__.Scalar")
def _(call: Call, x: Any, y: Any) -> Any:
    return _bitwise(call, ops.logical_and, ops.bitwise_and, x, y)


@translates("aten.__or__.Tensor", "aten.__or__.Scalar")
def _(call: Call, x: Any, y: Any) -> Any:
    return _bitwise(call, ops.logical_or, ops.bitwise_or, x, y)


@translates("aten.__xor__.Tensor", "aten.__xor__.Scalar")
def _(call: Call, x: Any, y: Any) -> Any:
    return _bitwise(call, ops.logical_xor, ops.bitwise_xor, x, y)


def _bitwise(call: Call, logical: Any, bits: Any, x: Any, y: Any) -> Any:
    return binary(call, logical if call.dtype.name == "bool" else bits, x, y)


@translates("aten.copy.default")
def _(call: Call, x: Any, source: Any, non_blocking: bool = False) -> Any:
    return spread(call.cast(source), call.shape)


@translates("aten.relu6.default")
def _(call: Call, x: Any) -> Any:
    return inside(call, x, 0, 6)


@translates("aten.hardsigmoid.default")
def _(call: Call, x: Any) -> Any:
    return do(ops.scalar_mul, inside(call, do(ops.scalar_add, x, addend=3.0), 0, 6), factor=1 / 6)


@translates("aten.hardswish.default")
def _(call: Call, x: Any) -> Any:
    hard = do(ops.scalar_mul, _between(call, do(ops.scalar_add, x, addend=3.0), 0, 6), factor=1 / 6)
    return do(ops.mul, x, hard)


def _between(call: Call, x: Any, low: float, high: float) -> Any:
    return do(ops.minimum, do(ops.maximum, x, as_type(low, call.dtype)), as_type(high, call.dtype))


def _convolution(count: int) -> None:
    @translates(f"aten.conv{count}d.default", f"aten.conv{count}d.padding")
    def _(
        call: Call,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        return convolved(call, x, weight, bias, stride, padding, dilation, groups)


for _count in (1, 2, 3):
    _convolution(_count)


@translates("aten.batch_norm.default")
def _(
    call: Call, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, _: Any
) -> Any:
    if training:  # without running statistics: others are left to decompositions
        return TABLE["aten._native_batch_norm_legit.no_stats"](call, x, weight, bias, True, momentum, eps)[0]
    return TABLE["aten._native_batch_norm_legit_no_training.default"](call, x, weight, bias, mean, var, momentum, eps)[
        0
    ]


@translates("aten.group_norm.default")
def _(call: Call, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True) -> Any:
    return TABLE["aten.native_group_norm.default"](
        call, x, weight, bias, x.shape[0], x.shape[1], _space(x.shape), groups, eps
    )[0]


def _space(shape: Sequence[int]) -> int:
    """Elements per channel."""
    count = 1
    for size in shape[2:]:
        count *= size
    return count


@translates("aten.binary_cross_entropy.default")
def _(call: Call, x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    one, least = number(1, call.dtype), number(-100, call.dtype)
    yes = do(ops.maximum, do(ops.log, x), least)
    no = do(ops.maximum, do(ops.log1p, do(ops.neg, x)), least)
    loss = do(ops.neg, do(ops.add, do(ops.mul, target, yes), do(ops.mul, do(ops.sub, one, target), no)))
    if call.training and not (isinstance(x, np.ndarray) and isinstance(target, np.ndarray)):
        # Of the logarithms' own gradients, that of a certain and right answer would be no number.
        variance = do(ops.maximum, do(ops.mul, x, do(ops.sub, one, x)), number(1e-12, call.dtype))
        cotangent = do(ops.cotangent, loss)
        slope = do(ops.mul, cotangent, do(ops.div, do(ops.sub, x, target), variance))
        of_target = do(ops.mul, cotangent, do(ops.sub, no, yes))
        made = do(ops.custom_gradient, loss, x, target, cotangent, slope, of_target, outputs=1, inputs=2)
        loss = made[0] if isinstance(made, tuple | list) else made
    return reduced(loss if weight is None else do(ops.mul, loss, weight), reduction)


@translates("aten.multilabel_margin_loss.default")
def _(call: Call, x: Any, target: Any, reduction: int = 1) -> Any:
    """By [batch, label, class]. torch's own decomposition takes what follows the first -1 for class 0."""
    size, zero = x.shape[-1] if x.shape else 1, number(0, call.dtype)
    rows = (-1, 1, size)
    x, target = do(ops.reshape, x, shape=rows), do(ops.reshape, target, shape=(-1, size, 1))
    ends = cast(do(ops.less, target, number(0, dtype(target.dtype))), call.dtype)
    named = do(ops.equal, do(ops.cum_sum, ends, axis=1), zero)
    place = do(ops.reshape, target, shape=(-1, size))
    of_class = do(ops.one_hot, place, depth=size, on_value=1, off_value=0, dtype=call.dtype.name)
    of_class = do(ops.mul, of_class, cast(named, call.dtype))
    other = do(ops.equal, do(ops.reduce_sum, of_class, axis=(1,), keep_dims=True), zero)
    of_label = do(ops.reduce_sum, do(ops.mul, of_class, x), axis=(2,), keep_dims=True)
    margin = do(ops.relu, do(ops.scalar_add, do(ops.sub, x, of_label), addend=1.0))
    margin = do(ops.select, do(ops.logical_and, named, other), margin, zero)
    loss = do(ops.scalar_mul, do(ops.reduce_sum, margin, axis=(1, 2)), factor=1 / size)
    return reduced(loss, reduction) if reduction else do(ops.reshape, loss, shape=call.shape)
