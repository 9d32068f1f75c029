"""Convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.resample import covered, shares, with_positions
from autoshard.frontends.torch.shapes import reshaped
from autoshard.frontends.torch.table import TABLE, Call, do, translates
from autoshard.ops.body import Body
from autoshard.ops.resampling import lies_over


def _each(value: Any, count: int) -> tuple[int, ...]:
    """A number per spatial dim; torch lets one stand for all."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * count if len(given) == 1 else given


@translates("aten.convolution.default")
def _(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    space = len(weight.shape) - 2
    batched = _with_batch(x, space)
    stride, padding, dilation, extra = (_each(one, space) for one in (stride, padding, dilation, output_padding))
    if transposed:
        y = _transposed(batched, weight, stride, padding, dilation, extra, groups)
    else:
        y = _plain(batched, weight, stride, tuple((one, one) for one in padding), dilation, groups)
    return _biased(call, y, bias, space)


def convolved(call: Call, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """A convolution whose padding may be a word: "valid", or "same", which pads more behind where it is uneven."""
    space = len(weight.shape) - 2
    stride, dilation = _each(stride, space), _each(dilation, space)
    if padding == "valid":
        pairs = ((0, 0),) * space
    elif padding == "same":
        reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        pairs = tuple((far // 2, far - far // 2) for far in reach)
    else:
        pairs = tuple((one, one) for one in _each(padding, space))
    return _biased(call, _plain(_with_batch(x, space), weight, stride, pairs, dilation, groups), bias, space)


def _with_batch(x: Any, space: int) -> Any:
    return x if len(x.shape) == space + 2 else do(ops.expand_dims, x, axis=0)


def _biased(call: Call, y: Any, bias: Any, space: int) -> Any:
    """The result with a bias per feature, without the batch if it had none."""
    if bias is not None:
        y = do(ops.add, y, reshaped(bias, (bias.shape[0], *(1,) * space)))
    return reshaped(y, call.shape)


def _plain(
    x: Any, weight: Any, stride: Sequence[int], padding: Sequence[Any], dilation: Sequence[int], groups: int
) -> Any:
    space = range(2, len(weight.shape))
    return do(
        ops.convolution,
        x,
        weight,
        lhs_dims=(0, 1, *space),
        rhs_dims=(1, 0, *space),
        out_dims=(0, 1, *space),
        strides=tuple(stride),
        padding=tuple(padding),
        rhs_dilation=tuple(dilation),
        feature_groups=groups,
    )


def _transposed(
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Any:
    """The gradient of a convolution for its operand: the operand spread by the stride, the window turned around."""
    inputs, per_group, *sizes = weight.shape
    space = range(2, len(weight.shape))
    if groups > 1:  # [in, out/g, ...] as [in/g, out, ...], groups major in out
        apart = reshaped(weight, (groups, inputs // groups, per_group, *sizes))
        turned = do(ops.transpose, apart, perm=(1, 0, 2, *range(3, len(sizes) + 3)))
        weight = reshaped(turned, (inputs // groups, groups * per_group, *sizes))
    reach = [step * (size - 1) for step, size in zip(dilation, sizes, strict=True)]
    return do(
        ops.convolution,
        x,
        weight,
        lhs_dims=(0, 1, *space),
        rhs_dims=(0, 1, *space),
        out_dims=(0, 1, *space),
        lhs_dilation=tuple(stride),
        padding=tuple((far - pad, far - pad + more) for far, pad, more in zip(reach, padding, extra, strict=True)),
        rhs_dilation=tuple(dilation),
        reversal=(True,) * len(sizes),
        feature_groups=groups,
    )


# -- pooling


def _windowed(x: Any, start: Any, body: str, sizes: Any, strides: Any, pads: Any, dilations: Any, ceil: bool) -> Any:
    """The windows of the last dims put together by `body`; `ceil` lets the last window reach beyond the end."""
    count, lead = len(sizes), len(x.shape) - len(sizes)
    padding = []
    for i in range(count):
        size, reach = x.shape[lead + i], dilations[i] * (sizes[i] - 1) + 1
        more = 0
        if ceil:
            steps = -(-(size + 2 * pads[i] - reach) // strides[i])
            # A window that would begin in the padding behind the end is left out.
            steps -= steps * strides[i] >= size + pads[i]
            more = max(0, steps * strides[i] + reach - (size + 2 * pads[i]))
        padding.append((pads[i], pads[i] + more))
    return do(
        ops.reduce_window,
        x,
        start,
        dimensions=(*(1,) * lead, *sizes),
        strides=(*(1,) * lead, *strides),
        window_dilations=(*(1,) * lead, *dilations),
        padding=(*((0, 0),) * lead, *padding),
        body=Body(body),
    )


def _least(x: Any) -> np.ndarray:
    kind = dtype(x.dtype)
    return np.asarray(-math.inf if kind.is_float else np.iinfo(kind.numpy).min, kind.numpy)


def _max_pool(x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, count: int) -> Any:
    sizes = _each(size, count)
    return _windowed(
        x, _least(x), "max", sizes, _each(stride or sizes, count), _each(padding, count), _each(dilation, count), ceil
    )


def _inside(new: int, old: int, size: int, stride: int, pad: int, dilation: int) -> np.ndarray:
    """Places of the elements of each window; in place of those in the padding the first that is not."""
    places = np.arange(new)[:, None] * stride - pad + np.arange(size) * dilation
    there = (places >= 0) & (places < old)
    first = np.take_along_axis(places, np.argmax(there, 1)[:, None], 1)
    return np.where(there, places, first)


def _pools(count: int) -> None:
    @translates(f"aten.max_pool{count}d_with_indices.default")
    def _(
        call: Call, x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        turns = math.prod(_each(dilation, count)) > 1 and call.training  # ReduceWindow has no gradient there
        if call.used(1) or turns:
            given = (_each(one, count) for one in (size, stride or size, padding, dilation))
            known = zip(call.shape[-count:], x.shape[-count:], *given, strict=True)
            return with_positions(x, [_inside(*one) for one in known])
        return _max_pool(x, size, stride, padding, dilation, ceil_mode, count), None

    @translates(f"aten.max_pool{count}d.default")
    def _(
        call: Call, x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        if math.prod(_each(dilation, count)) > 1 and call.training:
            return TABLE[f"aten.max_pool{count}d_with_indices.default"](
                call, x, size, stride, padding, dilation, ceil_mode
            )[0]
        return _max_pool(x, size, stride, padding, dilation, ceil_mode, count)

    @translates(f"aten.avg_pool{count}d.default")
    def _(
        call: Call,
        x: Any,
        size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if not call.dtype.is_float:
            call.refuse("averages of whole numbers, which torch rounds")
        sizes = _each(size, count)
        strides, pads = _each(stride or sizes, count), _each(padding, count)
        sums = _sums(x, sizes, strides, pads, ceil_mode)
        if divisor_override or (not ceil_mode and (count_include_pad or not any(pads))):
            return do(ops.scalar_mul, sums, factor=1 / (divisor_override or math.prod(sizes)))
        given = zip(x.shape[-count:], sizes, strides, pads, call.shape[-count:], strict=True)
        share = shares([covered(*one, count_include_pad) for one in given])
        return do(ops.mul, sums, call.cast(share))


def _sums(x: Any, sizes: Sequence[int], strides: Sequence[int], pads: Sequence[int], ceil: bool) -> Any:
    kind = dtype(x.dtype)
    return _windowed(x, np.zeros((), kind.numpy), "add", sizes, strides, pads, (1,) * len(sizes), ceil)


for _count in (1, 2, 3):
    _pools(_count)


def _nearest(count: int) -> None:
    def translated(call: Call, x: Any, factors: Sequence[float | None]) -> Any:
        lead = len(x.shape) - count
        for dim, factor in enumerate(factors, lead):
            kind = np.float64 if call.dtype.name == "f64" else np.float32  # torch's digits
            x = do(ops.gather, x, lies_over(call.shape[dim], x.shape[dim], factor, kind), axis=dim)
        return x

    @translates(f"aten.upsample_nearest{count}d.vec")
    def _(call: Call, x: Any, size: Any, factors: Any = None) -> Any:
        return translated(call, x, factors or (None,) * count)

    @translates(f"aten.upsample_nearest{count}d.default")
    def _(call: Call, x: Any, size: Any, *factors: float | None) -> Any:
        return translated(call, x, factors or (None,) * count)


for _count in (1, 2, 3):
    _nearest(_count)
