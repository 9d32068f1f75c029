"""Convolutions and pools with MindSpore's names and meaning, on tensors [N, C, H, W] (or without W)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.primitive import primitive
from autoshard.ops.body import Body
from autoshard.util.errors import ShapeError

Pairs = tuple[tuple[int, int], ...]


def each(given: int | Sequence[int], count: int, what: str) -> tuple[int, ...]:
    """A number per spatial dim; one stands for all, and four are those of all dims of [N, C, H, W]."""
    numbers = (given,) if isinstance(given, int) else tuple(given)
    numbers = numbers * count if len(numbers) == 1 else numbers[2:] if len(numbers) == count + 2 else numbers
    if len(numbers) != count or not all(isinstance(one, int) for one in numbers):
        raise ShapeError(f"{what} is {given!r}; it is a whole number, or {count} of them")
    return numbers


def pads(mode: str, pad: int | Sequence[int], sizes: Sequence[int], of: Sequence[Sequence[int]], what: str) -> Pairs:
    """Padding before and behind each spatial dim.

    Args:
        mode: "valid": none; "same": for ceil(size / stride) windows, the odd one behind; "pad": `pad`.
        pad: a number, one per dim, or a number before and one behind for each dim.
        sizes: of the spatial dims.
        of: per dim the reach of its window and its stride.
    """
    word, count = mode.lower(), len(sizes)
    if word not in ("valid", "same", "pad"):
        raise ShapeError(f"{what}: pad_mode is {mode!r}; it is 'same', 'valid' or 'pad'")
    given = (pad,) if isinstance(pad, int) else tuple(pad)
    if word != "pad" and any(given):
        raise ShapeError(f"{what}: padding {pad!r} needs pad_mode 'pad', not {mode!r}")
    if word == "valid":
        return ((0, 0),) * count
    if word == "same":
        total = [
            max(0, (-(-size // step) - 1) * step + reach - size) for size, (reach, step) in zip(sizes, of, strict=True)
        ]
        return tuple((one // 2, one - one // 2) for one in total)
    if len(given) == 2 * count:
        return tuple((given[2 * i], given[2 * i + 1]) for i in range(count))
    return tuple((one, one) for one in each(pad, count, f"{what}: padding"))


def reach(size: int, dilation: int) -> int:
    """How many elements a window of so many reaches over."""
    return (size - 1) * dilation + 1


def check_format(data_format: str, what: str) -> None:
    if data_format != "NCHW":
        raise ShapeError(f"{what}: data_format is {data_format!r}; only 'NCHW' is offered here")


def convolve(x: Any, weight: Any, mode: str, pad: Any, stride: Any, dilation: Any, group: int, what: str) -> Any:
    """x [N, C, ...] under weight [out, C / group, ...]."""
    count = len(weight.shape) - 2
    steps, spread = each(stride, count, f"{what}: stride"), each(dilation, count, f"{what}: dilation")
    of = [(reach(size, far), step) for size, far, step in zip(weight.shape[2:], spread, steps, strict=True)]
    space = range(2, count + 2)
    return core.convolution(
        x,
        weight,
        lhs_dims=(0, 1, *space),
        rhs_dims=(1, 0, *space),
        out_dims=(0, 1, *space),
        strides=steps,
        padding=pads(mode, pad, x.shape[2:], of, what),
        rhs_dilation=spread,
        feature_groups=group,
    )


def back_sizes(
    sizes: Sequence[int], kernel: Sequence[int], pad_mode: str, pad: Any, stride: Any, dilation: Any, group: int = 1
) -> tuple[int, ...]:
    """The least sizes that a convolution with these settings makes `sizes` of."""
    return tuple(size for size, _ in _back(sizes, kernel, pad_mode, pad, stride, dilation, "Conv2DTranspose"))


def _back(sizes: Any, kernel: Any, mode: str, pad: Any, stride: Any, dilation: Any, what: str) -> list[Any]:
    """Per spatial dim the size that `sizes` come from, and what the convolution pads it with."""
    count = len(sizes)
    steps, spread = each(stride, count, f"{what}: stride"), each(dilation, count, f"{what}: dilation")
    of = [(reach(size, far), step) for size, far, step in zip(kernel, spread, steps, strict=True)]
    wide = [size * step for size, step in zip(sizes, steps, strict=True)]
    own = pads(mode, pad, wide, of, what)
    # Windows that do not reach from one to the next leave zeros between them, and behind the last one.
    gaps = [0 if mode.lower() == "pad" else max(0, step - far) for far, step in of]
    given = zip(wide, of, own, gaps, strict=True)
    return [(size - step + far - sum(pair) + gap, pair) for size, (far, step), pair, gap in given]


def convolve_back(
    x: Any, weight: Any, mode: str, pad: Any, stride: Any, dilation: Any, group: int, what: str, result: Sequence[int]
) -> Any:
    """The gradient of `convolve` for its x, of spatial sizes `result`: x [N, C, ...] spread by the stride under weight
    [C, out / group, ...] turned around.
    """
    inputs, per_group, *sizes = weight.shape
    count = len(sizes)
    steps, spread = each(stride, count, f"{what}: stride"), each(dilation, count, f"{what}: dilation")
    found = _back(x.shape[2:], sizes, mode, pad, steps, spread, what)
    more = [size - least for size, (least, _) in zip(result, found, strict=True)]
    if not all(0 <= one < max(step, far) for one, step, far in zip(more, steps, spread, strict=True)):
        raise ShapeError(
            f"{what}: x {tuple(x.shape)} cannot become {tuple(result)} in its spatial dims; it becomes "
            f"{tuple(least for least, _ in found)}"
        )
    if group > 1:  # [in, out / g, ...] as [in / g, out, ...], groups major in out
        apart = core.reshape(weight, shape=(group, inputs // group, per_group, *sizes))
        turned = core.transpose(apart, perm=(1, 0, 2, *range(3, count + 3)))
        weight = core.reshape(turned, shape=(inputs // group, group * per_group, *sizes))
    padding = []
    for size, old, (_, (before, _)), kernel, step, far in zip(
        result, x.shape[2:], found, sizes, steps, spread, strict=True
    ):
        low = reach(kernel, far) - 1 - before
        padding.append((low, size + reach(kernel, far) - 1 - low - reach(old, step)))
    space = range(2, count + 2)
    return core.convolution(
        x,
        weight,
        lhs_dims=(0, 1, *space),
        rhs_dims=(0, 1, *space),
        out_dims=(0, 1, *space),
        lhs_dilation=steps,
        padding=tuple(padding),
        rhs_dilation=spread,
        reversal=(True,) * count,
        feature_groups=group,
    )


@primitive("Conv2D", core.convolution)
def Conv2D(
    x,
    weight,
    *,
    out_channel,
    kernel_size,
    mode=1,
    pad_mode="valid",
    pad=0,
    stride=1,
    dilation=1,
    group=1,
    data_format="NCHW",
):
    """Sums of products of x [N, C, H, W] under windows of weight [out_channel, C / group, kernel_size]."""
    check_format(data_format, "Conv2D")
    kernel = each(kernel_size, 2, "Conv2D: kernel_size")
    if mode != 1:
        raise ShapeError(f"Conv2D: mode is {mode!r}; only 1, a convolution, is offered here")
    if tuple(weight.shape) != (out_channel, x.shape[1] // group, *kernel):
        raise ShapeError(
            f"Conv2D of {tuple(x.shape)}: weight is {tuple(weight.shape)}, but out_channel, channels per group and "
            f"kernel_size say {(out_channel, x.shape[1] // group, *kernel)}"
        )
    return convolve(x, weight, pad_mode, pad, stride, dilation, group, "Conv2D")


@primitive("Conv2DTranspose", core.convolution)
def Conv2DTranspose(
    dout,
    weight,
    input_size,
    *,
    out_channel,
    kernel_size,
    pad_mode="valid",
    pad=0,
    pad_list=None,
    mode=1,
    stride=1,
    dilation=1,
    group=1,
    data_format="NCHW",
):
    """The gradient of Conv2D for its x of shape `input_size`: dout [N, out_channel, H, W], weight as there."""
    check_format(data_format, "Conv2DTranspose")
    kernel = each(kernel_size, 2, "Conv2DTranspose: kernel_size")
    if mode != 1 or pad_list is not None:
        raise ShapeError(f"Conv2DTranspose: mode is {mode!r} and pad_list {pad_list!r}; only 1 and None are offered")
    batch, features, *sizes = input_size
    if tuple(weight.shape) != (out_channel, features // group, *kernel) or batch != dout.shape[0]:
        raise ShapeError(
            f"Conv2DTranspose of {tuple(dout.shape)} to {tuple(input_size)}: weight is {tuple(weight.shape)}; "
            f"out_channel, channels per group and kernel_size say {(out_channel, features // group, *kernel)}"
        )
    return convolve_back(dout, weight, pad_mode, pad, stride, dilation, group, "Conv2DTranspose", sizes)


# -- pools


def pooled(x: Any, body: str, start: Any, kernel: Sequence[int], steps: Sequence[int], padding: Pairs, far: Any) -> Any:
    """What `body` makes of the elements in each window of the last dims."""
    lead = (1,) * (len(x.shape) - len(kernel))
    return core.reduce_window(
        x,
        np.asarray(start, element(x.dtype).numpy),
        dimensions=(*lead, *kernel),
        strides=(*lead, *steps),
        window_dilations=(*lead, *far),
        padding=(*((0, 0) for _ in lead), *padding),
        body=Body(body),
    )


def more_behind(sizes: Sequence[int], padding: Pairs, of: Sequence[Sequence[int]]) -> Pairs:
    """The padding with so much more behind that no element is left over (`ceil_mode`).

    A window that would begin in the padding behind the end is left out.
    """
    found = []
    for size, (low, high), (extent, step) in zip(sizes, padding, of, strict=True):
        steps = -(-(size + low + high - extent) // step)
        steps -= steps * step >= size + low
        found.append((low, high + max(0, steps * step + extent - (size + low + high))))
    return tuple(found)


def covered(size: int, kernel: int, step: int, pad: tuple[int, int], whole: tuple[int, int] | None) -> np.ndarray:
    """How many elements each window along a dim covers; padding `whole` counts as elements."""
    low, high = pad
    counted = (0, size) if whole is None else (-whole[0], size + whole[1])
    starts = np.arange(0, size + low + high - kernel + 1, step) - low
    return np.minimum(starts + kernel, counted[1]) - np.maximum(starts, counted[0])


def average(
    x: Any,
    kernel: Sequence[int],
    steps: Sequence[int],
    padding: Pairs,
    counted: Pairs | None,
    divisor: int | None = None,
) -> Any:
    """Means under windows; `counted` is the padding that counts as elements, `divisor` stands for their number."""
    sums = pooled(x, "add", 0, kernel, steps, padding, (1,) * len(kernel))
    if divisor:
        return core.scalar_mul(sums, factor=1 / divisor)
    lines = [
        covered(size, window, step, pad, None if counted is None else counted[i])
        for i, (size, window, step, pad) in enumerate(zip(x.shape[-len(kernel) :], kernel, steps, padding, strict=True))
    ]
    if all((line == window).all() for line, window in zip(lines, kernel, strict=True)):
        return core.scalar_mul(sums, factor=1 / math.prod(kernel))
    share = np.ones((), np.float64)
    for line in lines:
        share = share[..., None] / line
    return core.mul(sums, share.astype(element(x.dtype).numpy))


def least(x: Any) -> Any:
    """What no element is smaller than."""
    kind = element(x.dtype)
    return -math.inf if kind.is_float else np.iinfo(kind.numpy).min


def _pool_strategy(attrs: Any, given: Any, out: Any) -> tuple[Any, Any]:
    """The number that windows start from is whole."""
    return ((*given, ()) if isinstance(given, tuple) else given), out


@primitive("MaxPool", core.reduce_window, _pool_strategy)
def MaxPool(x, *, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW"):
    """The largest element under each window of [N, C, H, W]."""
    check_format(data_format, "MaxPool")
    kernel, steps = each(kernel_size, 2, "MaxPool: kernel_size"), each(strides, 2, "MaxPool: strides")
    padding = pads(pad_mode, 0, x.shape[2:], list(zip(kernel, steps, strict=True)), "MaxPool")
    return pooled(x, "max", least(x), kernel, steps, padding, (1, 1))


@primitive("AvgPool", core.reduce_window, _pool_strategy)
def AvgPool(x, *, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW"):
    """The mean of the elements under each window of [N, C, H, W]; padding is not counted."""
    check_format(data_format, "AvgPool")
    kernel, steps = each(kernel_size, 2, "AvgPool: kernel_size"), each(strides, 2, "AvgPool: strides")
    padding = pads(pad_mode, 0, x.shape[2:], list(zip(kernel, steps, strict=True)), "AvgPool")
    return average(x, kernel, steps, padding, None)
