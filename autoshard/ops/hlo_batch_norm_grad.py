"""Gradients of batch normalization, and what it is out of smaller operators, which lets ranks split the batch.

With y = (x - mean) * rate * scale + offset and rate = 1 / sqrt(variance + epsilon), see Ioffe and Szegedy 2015, section
3.
"""

from __future__ import annotations

import math
from typing import Any

from autoshard.ops.hlo_batch_norm import batch_norm_grad, batch_norm_inference, batch_norm_training
from autoshard.ops.pointwise import add, mul, sub
from autoshard.ops.reduce import reduce_mean, reduce_sum
from autoshard.ops.shape import broadcast_to, reshape
from autoshard.ops.unary import neg, rsqrt, scalar_add, scalar_mul, square


def _others(x: Any, feature: int) -> tuple[int, ...]:
    return tuple(dim for dim in range(len(x.shape)) if dim != feature % len(x.shape))


def _beside(vector: Any, x: Any, feature: int) -> Any:
    """A vector of features as a tensor that stretches over x."""
    at = feature % len(x.shape)
    return reshape(vector, shape=tuple(size if dim == at else 1 for dim, size in enumerate(x.shape)))


def _rate(variance: Any, epsilon: float) -> Any:
    return rsqrt(scalar_add(variance, addend=epsilon))


def _count(x: Any, feature: int) -> int:
    return math.prod(x.shape[dim] for dim in _others(x, feature))


@batch_norm_inference.gradient
def _(g, y, x, scale, offset, mean, variance, epsilon, feature):
    over, rate = _others(x, feature), _rate(variance, epsilon)
    slope = mul(scale, rate)
    total = reduce_sum(g, axis=over)
    moved = reduce_sum(mul(g, sub(x, _beside(mean, x, feature))), axis=over)
    for_scale = mul(moved, rate)
    for_variance = scalar_mul(mul(mul(for_scale, scale), square(rate)), factor=-0.5)
    return mul(g, _beside(slope, x, feature)), for_scale, total, neg(mul(total, slope)), for_variance


@batch_norm_training.gradient
def _(g, y, x, scale, offset, epsilon, feature):
    for_y, for_mean, for_variance = g
    _, mean, variance = y
    count, parts = _count(x, feature), []
    for_scale = for_offset = None
    if for_y is not None:
        for_x, for_scale, for_offset = batch_norm_grad(
            x, scale, mean, variance, for_y, epsilon=epsilon, feature=feature
        )
        parts.append(for_x)
    if for_mean is not None:
        share = scalar_mul(_beside(for_mean, x, feature), factor=1 / count)
        parts.append(broadcast_to(share, shape=tuple(x.shape)))
    if for_variance is not None:
        centered = sub(x, _beside(mean, x, feature))
        parts.append(mul(centered, scalar_mul(_beside(for_variance, x, feature), factor=2 / count)))
    for_x = parts[0]
    for one in parts[1:]:
        for_x = add(for_x, one)
    return for_x, for_scale, for_offset


@batch_norm_training.decompose
def _(x, scale, offset, epsilon, feature):
    over = _others(x, feature)
    mean = reduce_mean(x, axis=over)
    centered = sub(x, _beside(mean, x, feature))
    variance = reduce_mean(square(centered), axis=over)
    slope = mul(scale, _rate(variance, epsilon))
    return add(mul(centered, _beside(slope, x, feature)), _beside(offset, x, feature)), mean, variance


@batch_norm_grad.decompose
def _(x, scale, mean, variance, g, epsilon, feature):
    over, rate, count = _others(x, feature), _rate(variance, epsilon), _count(x, feature)
    unit = mul(sub(x, _beside(mean, x, feature)), _beside(rate, x, feature))
    total, weighted = reduce_sum(g, axis=over), reduce_sum(mul(g, unit), axis=over)
    shared = add(_beside(total, x, feature), mul(unit, _beside(weighted, x, feature)))
    slope = _beside(mul(scale, rate), x, feature)
    return mul(slope, sub(g, scalar_mul(shared, factor=1 / count))), weighted, total
