"""MindSpore's functions of layers: products, normalization, embeddings, convolutions, pooling, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops import index as lookups
from autoshard.mindspore.ops import math as elementwise
from autoshard.mindspore.ops import neural, shapes, windows
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.initializer import next_seed
from autoshard.util.errors import ShapeError


def matmul(input: Any, other: Any) -> Any:
    """The product of matrices, with batches in front that broadcast, as numpy's; vectors are rows and columns."""
    left, right = len(input.shape), len(other.shape)
    if not left or not right:
        raise ShapeError("matmul: an operand has no dims; use mul")
    x = core.expand_dims(input, axis=0) if left == 1 else input
    w = core.expand_dims(other, axis=1) if right == 1 else other
    flat = len(w.shape) == 2
    batch = () if flat else np.broadcast_shapes(tuple(x.shape[:-2]), tuple(w.shape[:-2]))
    if not flat:
        x = core.broadcast_to(x, shape=(*batch, *x.shape[-2:])) if tuple(x.shape[:-2]) != batch else x
        w = core.broadcast_to(w, shape=(*batch, *w.shape[-2:])) if tuple(w.shape[:-2]) != batch else w
    y = core.matmul(x, w) if flat else core.batch_matmul(x, w)
    gone = (*((len(y.shape) - 2,) if left == 1 else ()), *((len(y.shape) - 1,) if right == 1 else ()))
    return as_tensors(core.squeeze(y, axis=gone) if gone else y)


def dense(input: Any, weight: Any, bias: Any = None) -> Any:
    """input times the transposed weight [out, in], plus the bias."""
    y = core.matmul(input, weight, transpose_b=True)
    return as_tensors(y if bias is None else core.add(y, bias))


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta input + alpha mat1 mat2."""
    product = core.scalar_mul(core.matmul(mat1, mat2), factor=alpha)
    return as_tensors(core.add(core.scalar_mul(input, factor=beta), product))


def baddbmm(input: Any, batch1: Any, batch2: Any, beta: float = 1, alpha: float = 1) -> Any:
    """beta input + alpha batch1 batch2, of matrices in batches."""
    product = core.scalar_mul(core.batch_matmul(batch1, batch2), factor=alpha)
    return as_tensors(core.add(core.scalar_mul(input, factor=beta), product))


def outer(input: Any, vec2: Any) -> Any:
    """The products of each element of a vector with each of another."""
    return as_tensors(core.mul(core.expand_dims(input, axis=1), core.expand_dims(vec2, axis=0)))


def dot(input: Any, other: Any) -> Any:
    """Sums of products over the last dim of one and the last but one of the other, or its only one."""
    ranks = len(input.shape), len(other.shape)
    if 0 in ranks or ranks[1] > 2:
        raise ShapeError(
            f"dot of {tuple(input.shape)} and {tuple(other.shape)}: the first has dims, the second has 1 or 2 here"
        )
    return matmul(input, other)


def mv(mat: Any, vec: Any) -> Any:
    """A matrix times a vector."""
    if (len(mat.shape), len(vec.shape)) != (2, 1):
        raise ShapeError(f"mv of {tuple(mat.shape)} and {tuple(vec.shape)}: it takes a matrix and a vector")
    return matmul(mat, vec)


def einsum(equation: str, *operands: Any) -> Any:
    """Sums of products by Einstein's notation."""
    return neural.Einsum(equation)(operands)


def layer_norm(
    input: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """x without mean and scale over its last dims of `normalized_shape`, times the weight plus the bias."""
    last = shapes.axes(normalized_shape)
    if tuple(input.shape[len(input.shape) - len(last) :]) != last:
        raise ShapeError(f"layer_norm: normalized_shape {last} are not the last dims of {tuple(input.shape)}")
    kind = element(input.dtype).name
    gamma = core.fill(shape=last, value=1, dtype=kind) if weight is None else weight
    beta = core.fill(shape=last, value=0, dtype=kind) if bias is None else bias
    return as_tensors(core.layer_norm(input, gamma, beta, begin_norm_axis=len(input.shape) - len(last), epsilon=eps))


def batch_norm(
    input_x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """x with mean and scale of each channel taken out, times the weight plus the bias."""
    made = neural.BatchNorm(is_training=training, epsilon=eps, momentum=momentum)
    return made(input_x, weight, bias, running_mean, running_var)[0]


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Any:
    """The rows of the weight by whole numbers."""
    if padding_idx is not None or max_norm is not None or scale_grad_by_freq:
        raise ShapeError("embedding: padding_idx, max_norm and scale_grad_by_freq are not offered here")
    return lookups.Gather()(weight, input, 0)


def dropout(input: Any, p: float = 0.5, training: bool = True, seed: int | None = None) -> Any:
    """While training, a share `p` of the elements set to 0 and the others scaled by 1 / (1 - p).

    Outside of a cell nothing counts its uses, so that in a trace every step would drop the same elements: there it is
    refused; nn.Dropout draws anew.
    """
    if not training or p == 0:
        return input
    if not isinstance(input, np.ndarray):
        raise ShapeError("ops.dropout in a traced model would drop the same elements in every step; use nn.Dropout")
    counter = np.zeros((), np.int32)
    return as_tensors(core.dropout(input, counter, rate=p, seed=next_seed() if seed is None else seed))


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    pad_mode: str = "valid",
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Sums of products of x [N, C, H, W] under windows of weight [out, C / groups, h, w], plus a bias per channel."""
    return _convolved(input, weight, bias, (pad_mode, padding, stride, dilation, groups), 2, "conv2d")


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    pad_mode: str = "valid",
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Sums of products of x [N, C, L] under windows of weight [out, C / groups, length], plus a bias per channel."""
    return _convolved(input, weight, bias, (pad_mode, padding, stride, dilation, groups), 1, "conv1d")


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    pad_mode: str = "valid",
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Sums of products of x [N, C, D, H, W] under windows of weight [out, C / groups, d, h, w], plus a bias."""
    return _convolved(input, weight, bias, (pad_mode, padding, stride, dilation, groups), 3, "conv3d")


def _convolved(x: Any, weight: Any, bias: Any, made: Sequence[Any], count: int, what: str) -> Any:
    if len(x.shape) != count + 2 or len(weight.shape) != count + 2:
        raise ShapeError(
            f"{what}: input is {tuple(x.shape)} and weight {tuple(weight.shape)}; both have {count + 2} dims"
        )
    mode, padding, stride, dilation, groups = made
    y = windows.convolve(x, weight, mode, padding, stride, dilation, groups, what)
    return as_tensors(y if bias is None else core.add(y, elementwise.along(bias, y, 1)))


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """x without mean and scale of each group of channels (dim 1) of a sample, times the weight plus the bias."""
    if len(input.shape) < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ShapeError(
            f"group_norm: input is {tuple(input.shape)}; its dim 1 has channels that num_groups {num_groups} divides"
        )
    batch, channels, *space = input.shape
    grouped = core.reshape(input, shape=(batch, num_groups, channels // num_groups, *space))
    y = core.reshape(core.standardize(grouped, begin_norm_axis=2, epsilon=eps)[0], shape=tuple(input.shape))
    y = y if weight is None else core.mul(y, elementwise.along(weight, y, 1))
    return as_tensors(y if bias is None else core.add(y, elementwise.along(bias, y, 1)))


def max_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """The largest element under each window of the last two dims."""
    if return_indices:
        raise ShapeError("max_pool2d: return_indices=True is not offered here")
    kernel = windows.each(kernel_size, 2, "max_pool2d: kernel_size")
    steps = kernel if stride is None else windows.each(stride, 2, "max_pool2d: stride")
    far = windows.each(dilation, 2, "max_pool2d: dilation")
    of = [(windows.reach(size, one), step) for size, one, step in zip(kernel, far, steps, strict=True)]
    pads = windows.pads("pad", padding, x.shape[-2:], of, "max_pool2d")
    pads = windows.more_behind(x.shape[-2:], pads, of) if ceil_mode else pads
    return as_tensors(windows.pooled(x, "max", windows.least(x), kernel, steps, pads, far))


def avg_pool2d(
    input_x: Any,
    kernel_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> Any:
    """The mean of the elements under each window of the last two dims."""
    kernel, steps = (windows.each(one, 2, "avg_pool2d") for one in (kernel_size, stride))
    of = list(zip(kernel, steps, strict=True))
    own = windows.pads("pad", padding, input_x.shape[-2:], of, "avg_pool2d")
    pads = windows.more_behind(input_x.shape[-2:], own, of) if ceil_mode else own
    counted = own if count_include_pad else None
    return as_tensors(windows.average(input_x, kernel, steps, pads, counted, divisor_override or None))
