"""MindSpore's functions of images: other sizes, and channels that become pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.primitive import as_tensors, plain
from autoshard.ops.resampling import averaging, lies_over, taps
from autoshard.util.errors import ShapeError

_RANKS = {"nearest": (3, 4, 5), "linear": (3,), "bilinear": (4,), "trilinear": (5,), "area": (3, 4, 5)}


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Any:
    """x [N, C, ...] with other sizes of the dims behind the channels.

    Args:
        size: the sizes, one for all or one each.
        scale_factor: how many times as large; where that makes no whole number, `recompute_scale_factor` must be True,
            and the size is rounded down.
        mode: "nearest"; "linear", "bilinear" and "trilinear" of 3, 4 and 5 dims; "area", means of what a place covers.
        align_corners: of linear modes: whether the first and last elements stay as they are.
    """
    if mode not in _RANKS or len(input.shape) not in _RANKS[mode]:
        of = "; ".join(f"{name} of {' or '.join(map(str, ranks))} dims" for name, ranks in _RANKS.items())
        raise ShapeError(f"interpolate: mode is {mode!r} and input {tuple(input.shape)}; offered are {of}")
    linear = mode.endswith("linear")
    if align_corners is not None and not linear:
        raise ShapeError(f"interpolate: align_corners is {align_corners!r}; mode {mode!r} takes none")
    x = input
    for dim, new in enumerate(_sizes(input, size, scale_factor, recompute_scale_factor), 2):
        if mode == "area":
            x = _averaged(x, dim, new)
        elif linear and (new != x.shape[dim]):
            x = _linear(x, dim, new, bool(align_corners))
        elif new != x.shape[dim]:
            x = core.gather(x, lies_over(new, x.shape[dim], None), axis=dim)
    return as_tensors(x)


def _sizes(x: Any, size: Any, factor: Any, recompute: bool | None) -> Sequence[int]:
    count = len(x.shape) - 2
    if (size is None) == (factor is None):
        raise ShapeError(f"interpolate: size is {size!r} and scale_factor {factor!r}; one of the two is given")
    given = plain(size if factor is None else factor)
    each = given if isinstance(given, tuple) else (given,) * count
    if len(each) != count or any(isinstance(one, bool) or one <= 0 for one in each):
        raise ShapeError(
            f"interpolate: {'size' if factor is None else 'scale_factor'} is {given!r}; it is a number above 0, or "
            f"{count} of them"
        )
    if factor is None:
        return each
    exact = [old * one for old, one in zip(x.shape[2:], each, strict=True)]
    if not recompute and any(one != int(one) for one in exact):
        raise ShapeError(
            f"interpolate: scale_factor {given!r} of {tuple(x.shape[2:])} makes {exact}; give size, or "
            "recompute_scale_factor=True, which rounds down"
        )
    return [int(one) for one in exact]


def _linear(x: Any, dim: int, new: int, corners: bool) -> Any:
    low, high, far = taps(new, x.shape[dim], corners, None)
    first, second = (core.gather(x, places, axis=dim) for places in (low, high))
    share = far.reshape(new, *(1,) * (len(x.shape) - 1 - dim)).astype(element(x.dtype).numpy)
    return core.add(first, core.mul(core.sub(second, first), share))


def _averaged(x: Any, dim: int, new: int) -> Any:
    """Means of windows along a dim, by a product with a matrix, or, where they divide it, of what lies in them."""
    size = x.shape[dim]
    if size % new == 0:
        apart = core.reshape(x, shape=(*x.shape[:dim], new, size // new, *x.shape[dim + 1 :]))
        return core.reduce_mean(apart, axis=(dim + 1,))
    order = [*(i for i in range(len(x.shape)) if i != dim), dim]
    matrix = averaging(new, size).astype(element(x.dtype).numpy)
    made = core.matmul(core.transpose(x, perm=tuple(order)), matrix, transpose_b=True)
    return core.transpose(made, perm=tuple(int(i) for i in np.argsort(order)))


def upsample(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Any:
    """The same as `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Means of windows, so many that the last two dims are `output_size`; None keeps a dim."""
    given = plain(output_size)
    sizes = given if isinstance(given, tuple) else (given, given)
    if len(sizes) != 2 or len(input.shape) not in (3, 4):
        raise ShapeError(
            f"adaptive_avg_pool2d: output_size is {given!r} and input {tuple(input.shape)}; it is a number or two, of "
            "3 or 4 dims"
        )
    if tuple(sizes) == (1, 1):
        return as_tensors(core.reduce_mean(input, axis=(-2, -1), keep_dims=True))
    x, first = input, len(input.shape) - 2
    for dim, size in enumerate(sizes, first):
        x = x if size in (None, x.shape[dim]) else _averaged(x, dim, size)
    return as_tensors(x)


def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """x [..., C r^2, H, W] as [..., C, H r, W r]."""
    r = upscale_factor
    if len(input.shape) < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle: input is {tuple(input.shape)}; its last dims are {r * r} times channels, and a plane"
        )
    *lead, channels, height, width = input.shape
    count = len(lead)
    apart = core.reshape(input, shape=(*lead, channels // (r * r), r, r, height, width))
    perm = (*range(count), count, count + 3, count + 1, count + 4, count + 2)
    moved = core.transpose(apart, perm=perm)
    return as_tensors(core.reshape(moved, shape=(*lead, channels // (r * r), height * r, width * r)))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """x [..., C, H r, W r] as [..., C r^2, H, W]."""
    r = downscale_factor
    if len(input.shape) < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        raise ShapeError(f"pixel_unshuffle: input is {tuple(input.shape)}; {r} divides its last two dims")
    *lead, channels, height, width = input.shape
    count = len(lead)
    apart = core.reshape(input, shape=(*lead, channels, height // r, r, width // r, r))
    moved = core.transpose(apart, perm=(*range(count), count, count + 2, count + 4, count + 1, count + 3))
    return as_tensors(core.reshape(moved, shape=(*lead, channels * r * r, height // r, width // r)))
