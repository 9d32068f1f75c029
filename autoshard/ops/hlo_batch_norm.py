"""StableHLO's batch normalization: with given statistics, with those of the batch, and the gradient of the latter.

One dim holds the features; statistics are taken over all others. Of training and its gradient Shardy has no rule;
ours lets ranks have features of their own, with the rest of each whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autoshard.core.rule import PASS, REPLICATE, Rule
from autoshard.ops.axes import axis_index
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.folding import widened
from autoshard.ops.options import Spreading
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


def _rule(wide: Sequence[int], vectors: Sequence[int], operands: int, results: int, kind: str, what: str) -> Callable:
    """A rule whose tensors `wide` have the operand's dims, and `vectors` its features alone."""

    def rule(*shapes: Shape, feature: int, **_: object) -> Rule:
        x = shapes[0]
        at = axis_index(feature, len(x), what)
        for tensor, shape in enumerate(shapes):
            wanted = x if tensor in wide else (x[at],)
            if shape != wanted:
                raise ShapeError(f"{what} of {x} with features in dim {at}: operand {tensor} is {shape}, not {wanted}")
        ranks = [len(x) if tensor in wide else 1 for tensor in range(operands + results)]
        builder = FactorBuilder(ranks[:operands], ranks[operands:])
        for dim, size in enumerate(x):
            places = {tensor: dim for tensor in wide}
            if dim == at:
                builder.factor(places | {tensor: 0 for tensor in vectors}, size)
            else:
                builder.factor(places, size, kind)
        return builder.build()

    return rule


def _beside(vector: np.ndarray, x: np.ndarray, feature: int) -> np.ndarray:
    """A vector of features as a tensor that stretches over x."""
    return widened(vector).reshape([-1 if dim == feature else 1 for dim in range(x.ndim)])


def _others(x: np.ndarray, feature: int) -> tuple[int, ...]:
    return tuple(dim for dim in range(x.ndim) if dim != feature)


@operator(
    "BatchNormInference",
    rule=_rule((0, 5), (1, 2, 3, 4), 5, 1, PASS, "BatchNormInference"),
    dtype=lambda x, *_, **__: x,
)
def batch_norm_inference(x, scale, offset, mean, variance, *, epsilon, feature):
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, each a vector over the dim `feature` of x."""
    wide = widened(x)
    scale, offset, mean, variance = (_beside(one, x, feature) for one in (scale, offset, mean, variance))
    return (wide - mean) / np.sqrt(variance + wide.dtype.type(epsilon)) * scale + offset


@operator(
    "BatchNormTraining",
    rule=_rule((0, 3), (1, 2, 4, 5), 3, 3, REPLICATE, "BatchNormTraining"),
    dtype=lambda x, *_, **__: x,
    spread=Spreading(foreign=True),
)
def batch_norm_training(x, scale, offset, *, epsilon, feature):
    """x normalized by the mean and variance of each feature, then scaled and moved; also that mean and variance."""
    wide, over = widened(x), _others(x, feature)
    mean, variance = wide.mean(over), wide.var(over)
    y = batch_norm_inference.run(x, scale, offset, mean, variance, epsilon=epsilon, feature=feature)
    return y, mean, variance


@operator(
    "BatchNormGrad",
    rule=_rule((0, 4, 5), (1, 2, 3, 6, 7), 5, 3, REPLICATE, "BatchNormGrad"),
    dtype=lambda x, *_, **__: x,
    spread=Spreading(foreign=True),
)
def batch_norm_grad(x, scale, mean, variance, g, *, epsilon, feature):
    """Gradients of BatchNormTraining for x, scale and offset; `mean` and `variance` are what it found."""
    wide, gradient, over = widened(x), widened(g), _others(x, feature)
    scale, mean, variance = (_beside(one, x, feature) for one in (scale, mean, variance))
    rate = 1 / np.sqrt(variance + wide.dtype.type(epsilon))
    normal = (wide - mean) * rate
    count = math.prod(x.shape[dim] for dim in over)
    total = gradient.sum(over, keepdims=True)
    weighted = (gradient * normal).sum(over, keepdims=True)
    grad_x = scale * rate * (gradient - (total + normal * weighted) / wide.dtype.type(count))
    return grad_x, weighted.reshape(-1), total.reshape(-1)
