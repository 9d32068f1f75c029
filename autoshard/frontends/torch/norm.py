"""Softmax, normalisation and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.frontends.torch.reduce import variance
from autoshard.frontends.torch.shapes import reshaped
from autoshard.frontends.torch.table import Call, axis, cast, do, number, translates


@translates("aten._softmax.default", "aten.softmax.int")
def _(call: Call, x: Any, dim: int, *args: Any, **options: Any) -> Any:
    return _along(ops.softmax, call.cast(x), dim)


def _along(op: Any, x: Any, dim: int) -> Any:
    """An operator along a dim; torch takes a scalar for a vector of one."""
    line = x if x.shape else do(ops.reshape, x, shape=(1,))
    return reshaped(do(op, line, axis=axis(dim, len(line.shape))), tuple(x.shape))


@translates("aten._safe_softmax.default")
def _(call: Call, x: Any, dim: int, *args: Any, **options: Any) -> Any:
    """The softmax, which is zero where all are minus infinity, as for queries that see no key."""
    dim = axis(dim, len(x.shape))
    x = call.cast(x)
    blind = do(ops.equal, do(ops.reduce_max, x, axis=(dim,), keep_dims=True), number(-math.inf, call.dtype))
    found = do(ops.softmax, do(ops.masked_fill, x, blind, value=0.0), axis=dim)
    return do(ops.masked_fill, found, blind, value=0.0)


@translates("aten._log_softmax.default", "aten.log_softmax.int")
def _(call: Call, x: Any, dim: int, *args: Any, **options: Any) -> Any:
    return _along(ops.log_softmax, call.cast(x), dim)


def _parameter(x: Any, given: Any, shape: Sequence[int], usual: float) -> Any:
    """A norm's weight or bias in the type of x; where there is none, one that does nothing."""
    kind = dtype(x.dtype)
    return np.full(tuple(shape), usual, kind.numpy) if given is None else cast(given, kind)


def _layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    gamma, beta = _parameter(x, weight, shape, 1), _parameter(x, bias, shape, 0)
    return do(ops.layer_norm, x, gamma, beta, begin_norm_axis=len(x.shape) - len(shape), epsilon=eps)


@translates("aten.native_layer_norm.default")
def _(call: Call, x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    over = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    return _layer_norm(x, shape, weight, bias, eps), *_statistics(call, x, over, eps)


def _statistics(call: Call, x: Any, over: tuple[int, ...], eps: float) -> tuple[Any, ...]:
    """Mean and 1 / sqrt(variance + eps) over some dims, in the shapes of the results, if there are any and are used."""
    if len(call.results) < 2:
        return ()
    of = call.results[1]
    if of is None or not (call.used(1) or call.used(2)):
        return None, None
    scale = do(ops.rsqrt, do(ops.scalar_add, variance(x, over, 0, False), addend=eps))
    mean = do(ops.reduce_mean, x, axis=over)
    return reshaped(cast(mean, of.dtype), of.shape), reshaped(cast(scale, of.dtype), of.shape)


@translates("aten.layer_norm.default")
def _(call: Call, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any) -> Any:
    return _layer_norm(x, shape, weight, bias, eps)


def _only_first(call: Call) -> None:
    if len(call.results) > 1 and (call.used(1) or call.used(2)):
        call.refuse("its statistics are used beside its result")


@translates("aten.rms_norm.default")
def _(call: Call, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    epsilon = float(np.finfo(np.float32).eps) if eps is None else eps
    return do(
        ops.rms_norm,
        x,
        _parameter(x, weight, shape, 1),
        begin_norm_axis=len(x.shape) - len(shape),
        epsilon=epsilon,
    )


@translates("aten._fused_rms_norm.default")
def _(call: Call, x: Any, shape: Sequence[int], weight: Any, eps: float | None) -> Any:
    _only_first(call)
    begin, epsilon = len(x.shape) - len(shape), float(np.finfo(np.float32).eps) if eps is None else eps
    return do(ops.rms_norm, x, _parameter(x, weight, shape, 1), begin_norm_axis=begin, epsilon=epsilon), None


def _along_channels(x: Any, values: Any) -> Any:
    """One number per channel, dim 1, shaped to meet x."""
    return reshaped(values, tuple(size if i == 1 else 1 for i, size in enumerate(x.shape)))


@translates("aten.native_group_norm.default")
def _(call: Call, x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, group: int, eps: float) -> Any:
    apart = reshaped(x, (n, group, c // group * hxw))
    y = reshaped(_layer_norm(apart, (c // group * hxw,), None, None, eps), x.shape)
    y = y if weight is None else do(ops.mul, y, _along_channels(x, weight))
    y = y if bias is None else do(ops.add, y, _along_channels(x, bias))
    return y, *_statistics(call, apart, (2,), eps)


# -- batch norm (Ioffe and Szegedy 2015)


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, eps: float) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, statistics and parameters per channel."""
    scale = do(ops.rsqrt, do(ops.scalar_add, var, addend=eps))
    scale = scale if weight is None else do(ops.mul, scale, weight)
    y = do(ops.mul, do(ops.sub, x, _along_channels(x, mean)), _along_channels(x, scale))
    return y if bias is None else do(ops.add, y, _along_channels(x, bias))


@translates("aten._native_batch_norm_legit_no_training.default")
def _(call: Call, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    return call.cast(_batch_norm(x, weight, bias, mean, var, eps)), *_no_statistics(call)


def _no_statistics(call: Call) -> tuple[Any, ...]:
    """What torch returns for statistics that it has not made: nothing, in tensors of no elements."""
    return tuple(None if of is None else np.zeros(of.shape, of.dtype.numpy) for of in call.results[1:3])


@translates("aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.no_stats")
def _(call: Call, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """With the batch's own statistics; the running ones move towards them by `momentum`, the variance unbiased."""
    training, momentum, eps = rest[-3:]
    if not training:
        mean, var = rest[:2]
        return call.cast(_batch_norm(x, weight, bias, mean, var, eps)), *_no_statistics(call), mean, var
    over = tuple(i for i in range(len(x.shape)) if i != 1)
    mean, var = do(ops.reduce_mean, x, axis=over), variance(x, over, 0, False)
    y = call.cast(_batch_norm(x, weight, bias, mean, var, eps))
    known = _statistics(call, x, over, eps)
    if len(rest) == 3:
        return y, *known
    count = math.prod(x.shape) // x.shape[1]
    unbiased = do(ops.unbiased, var, count=count) if count > 1 else var
    moved = (_moved(old, new, momentum) for old, new in zip(rest[:2], (mean, unbiased), strict=True))
    return y, *known, *moved


def _moved(old: Any, new: Any, momentum: float) -> Any:
    kept = do(ops.scalar_mul, old, factor=1 - momentum)
    fresh = do(ops.scalar_mul, cast(do(ops.stop_gradient, new), dtype(old.dtype)), factor=momentum)
    return do(ops.add, kept, fresh)


# -- losses


@translates("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def _(call: Call, x: Any, target: Any, weight: Any, reduction: int, ignore: int) -> Any:
    return _likelihood(x, target, weight, reduction, ignore)


@translates("aten.nll_loss_nd.default", "aten.nll_loss.default")
def _(call: Call, x: Any, target: Any, weight: Any = None, reduction: int = 1, ignore: int = -100) -> Any:
    return _likelihood(x, target, weight, reduction, ignore)[0]


def _likelihood(
    x: Any, target: Any, weight: Any, reduction: int, ignore: int, smoothing: float = 0.0
) -> tuple[Any, Any]:
    """-x at the target's class, over rows whose target is not `ignore`; and the sum of the rows' weights.

    Of the loss a share of `smoothing` is spread over all classes (Szegedy et al. 2016, section 7), each by its weight.
    """
    channel = 1 if len(x.shape) > 1 else 0
    counts, index = _counted(target, ignore)
    picked = do(ops.gather_d, x, do(ops.expand_dims, index, axis=channel), dim=channel)
    losses = do(ops.neg, do(ops.squeeze, picked, axis=(channel,)))
    if not smoothing:
        return _averaged(losses, counts, index, weight, reduction)
    evenly = do(ops.reduce_mean, _by_class(x, weight, channel), axis=(channel,))
    evenly = do(ops.scalar_mul, evenly, factor=-smoothing)
    return _averaged(do(ops.scalar_mul, losses, factor=1 - smoothing), counts, index, weight, reduction, evenly)


def _by_class(x: Any, weight: Any, channel: int) -> Any:
    """x, times the weights of its classes if there are any."""
    if weight is None:
        return x
    return do(ops.mul, x, do(ops.reshape, weight, shape=(-1, *(1 for _ in x.shape[channel + 1 :]))))


def _counted(target: Any, ignore: int) -> tuple[Any, Any]:
    """Which rows count, and the classes, 0 in those that do not."""
    whole = dtype(target.dtype)
    counts = do(ops.not_equal, target, number(ignore, whole))
    return counts, do(ops.select, counts, target, number(0, whole))


def _averaged(
    losses: Any, counts: Any, index: Any, weight: Any, reduction: int, weighted: Any = None
) -> tuple[Any, Any]:
    """Losses of the rows that count: each (reduction 0), their mean (1) or sum (2); and the sum of weights.

    Those of `weighted` are added, which have their weights already.
    """
    one = share = cast(counts, dtype(losses.dtype))
    if weight is not None:
        share = do(ops.mul, share, do(ops.gather, weight, index, axis=0))
    losses, total = do(ops.mul, losses, share), do(ops.reduce_sum, share)
    losses = losses if weighted is None else do(ops.add, losses, do(ops.mul, weighted, one))
    if reduction == 0:
        return losses, total
    summed = do(ops.reduce_sum, losses)
    return (do(ops.div, summed, total) if reduction == 1 else summed), total


@translates("aten.cross_entropy_loss.default")
def _(
    call: Call,
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore: int = -100,
    smoothing: float = 0.0,
) -> Any:
    """Of [rows, classes] with class numbers in one operator, whose classes ranks may split; else by its parts."""
    channel = 1 if len(x.shape) > 1 else 0
    soft = dtype(target.dtype).is_float
    if soft:
        shares = cast(target, dtype(x.dtype))
        if smoothing:
            shares = do(ops.scalar_mul, shares, factor=1 - smoothing)
            shares = do(ops.scalar_add, shares, addend=smoothing / x.shape[channel])
        parts = do(ops.mul, do(ops.log_softmax, x, axis=channel), _by_class(shares, weight, channel))
        return reduced(do(ops.neg, do(ops.reduce_sum, parts, axis=(channel,))), reduction)
    if channel == 0 or len(x.shape) > 2 or smoothing:
        logs = do(ops.log_softmax, x, axis=channel)
        return _likelihood(logs, target, weight, reduction, ignore, smoothing)[0]
    counts, index = _counted(target, ignore)
    losses = do(ops.sparse_softmax_cross_entropy_with_logits, x, index)
    return _averaged(losses, counts, index, weight, reduction)[0]


@translates("aten.mse_loss.default")
def _(call: Call, x: Any, y: Any, reduction: int = 1) -> Any:
    return reduced(do(ops.square, do(ops.sub, x, y)), reduction)


@translates("aten.l1_loss.default")
def _(call: Call, x: Any, y: Any, reduction: int = 1) -> Any:
    return reduced(do(ops.abs, do(ops.sub, x, y)), reduction)


def reduced(losses: Any, reduction: int) -> Any:
    """Losses by torch's number of a reduction: each (0), their mean (1) or sum (2)."""
    return losses if reduction == 0 else do(ops.reduce_mean if reduction == 1 else ops.reduce_sum, losses)
