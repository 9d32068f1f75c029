"""Losses. Cross entropies with their classes split run as their parts; the others split anywhere as they are.

A mean divides by a `count` that `localize` sets to the global number of elements: ranks' terms just add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.axes import letters, words
from autoshard.ops.known import surely
from autoshard.ops.norm import log_softmax, shifted, softmax, softmax_grad
from autoshard.ops.options import Filling, Storage
from autoshard.ops.pointwise import add, mul, sub
from autoshard.ops.reduce import reduce_sum, spread
from autoshard.ops.registry import Operator, operator
from autoshard.ops.unary import cast, exp, into, log, neg
from autoshard.util.errors import ShapeError

Shape = tuple[int, ...]


# -- cross entropy with class probabilities


def _logits_type(logits: DType, *others: DType) -> DType:
    if not logits.is_float:
        raise ShapeError(f"a cross entropy takes logits of a float type, not {logits}")
    return logits


def _column(g: Any) -> Any:
    """A value per row as a column beside the classes."""
    return spread(g, shape=(*g.shape, 1), axis=-1)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


@operator("SoftmaxCrossEntropyWithLogits", rule="n [c], n [c] -> n, n [c]", dtype=_logits_type, flops=20)
def softmax_cross_entropy_with_logits(logits, labels):
    """Cross entropy of `logits` with class probabilities `labels`; and its slope for the logits, softmax - labels.

    As in MindSpore that slope is what the loss passes back, also where labels do not add up to 1, and none goes to the
    labels.
    """
    log_p = _log_softmax(logits)
    loss = -np.einsum("nc,nc->n", labels, log_p)
    slope = np.exp(log_p, out=log_p)
    slope -= labels
    return loss, slope


@softmax_cross_entropy_with_logits.gradient
def _(g, y, logits, labels):
    parts = [] if g[0] is None else [mul(_column(g[0]), y[1])]
    if g[1] is not None:
        parts.append(softmax_grad(g[1], softmax(logits)))
    return (parts[0] if len(parts) == 1 else add(*parts)), None


@softmax_cross_entropy_with_logits.decompose
def _(logits, labels):
    loss = neg(reduce_sum(mul(labels, log_softmax_parts(logits)), axis=-1))
    return loss, sub(softmax_parts(logits), labels)


def _parts(op: Operator) -> Callable:
    """The decomposition of a softmax along the last dim, whose parts may split the classes."""

    def apply(x: Any) -> Any:
        assert op.decomposition is not None
        return op.decomposition(x, axis=-1)

    return apply


softmax_parts, log_softmax_parts = _parts(softmax), _parts(log_softmax)


# -- cross entropy with class numbers


def _sparse_rule(logits: Shape, labels: Shape) -> str:
    what = "SparseSoftmaxCrossEntropyWithLogits"
    if not logits or tuple(labels) != tuple(logits[:-1]):
        raise ShapeError(
            f"{what}: labels {tuple(labels)} must have the shape of logits {tuple(logits)} without classes"
        )
    rows = letters(len(labels))
    (last,) = letters(1, skip=len(labels))
    return f"{words([*rows, f'[{last}]'])}, {words(rows)} -> {words(rows)}"


def _picked(labels: np.ndarray, classes: int) -> np.ndarray:
    """The class numbers as indices of the last dim. Raises as `class_numbers` does."""
    return class_numbers.run(labels, classes=classes)[..., None]


@operator(
    "ClassNumbers",
    rule="... -> ...",
    dtype=lambda labels, **_: labels,
    flops=0,
    storage=Storage(view="same"),
    filling=Filling(fills={0: 0}),
)
def class_numbers(labels, *, classes):
    """The labels themselves, after a check that all are numbers of classes.

    Raises:
        ShapeError: one is not in 0..classes - 1.
    """
    if labels.size and surely((labels.min() < 0) | (labels.max() >= classes)):
        raise ShapeError(
            f"SparseSoftmaxCrossEntropyWithLogits: labels from {labels.min()} to {labels.max()}, "
            f"but classes are 0..{classes - 1}"
        )
    return labels


@class_numbers.gradient
def _(g, y, labels, classes):
    return None


@operator(
    "SparseSoftmaxCrossEntropyWithLogits",
    rule=_sparse_rule,
    dtype=_logits_type,
    flops=18,
    filling=Filling(fills={1: 0}),
    storage=Storage(scratch=1.1),
)
def sparse_softmax_cross_entropy_with_logits(logits, labels):
    """Cross entropy of each row of `logits` [..., c] with the class number in `labels` [...]."""
    shifted = logits - logits.max(-1, keepdims=True)
    picked = np.take_along_axis(shifted, _picked(labels, logits.shape[-1]), -1)[..., 0]
    return np.log(np.exp(shifted, out=shifted).sum(-1)) - picked


@sparse_softmax_cross_entropy_with_logits.gradient
def _(g, y, logits, labels):
    return sparse_softmax_cross_entropy_grad(g, logits, labels), None


def _one_hot(labels: Any, logits: Any) -> Any:
    """Labels as probabilities, with classes that ranks may split."""
    from autoshard.ops.index import one_hot

    classes = logits.shape[-1]
    return one_hot(class_numbers(labels, classes=classes), depth=classes, dtype=element_type(logits.dtype).name)


@sparse_softmax_cross_entropy_with_logits.decompose
def _(logits, labels):
    from autoshard.ops.index import gather_d

    x = shifted(logits, -1)
    index = _column(class_numbers(labels, classes=logits.shape[-1]))
    picked = reduce_sum(gather_d(x, index, dim=-1), axis=-1)
    return sub(log(reduce_sum(exp(x), axis=-1)), picked)


def _sparse_grad_rule(g: Shape, logits: Shape, labels: Shape) -> str:
    if tuple(g) != tuple(labels):
        raise ShapeError(f"SparseSoftmaxCrossEntropyGrad: g {tuple(g)} must have the shape of labels {tuple(labels)}")
    left, _ = _sparse_rule(logits, labels).split(" -> ")
    whole, rows = left.split(", ")
    return f"{rows}, {left} -> {whole}"


@operator(
    "SparseSoftmaxCrossEntropyGrad",
    rule=_sparse_grad_rule,
    dtype=lambda g, logits, labels: _logits_type(logits),
    linear=((0,),),
    filling=Filling(fills={2: 0}, over=((1,),)),
    flops=16,
    storage=Storage(scratch=0.1),
)
def sparse_softmax_cross_entropy_grad(g, logits, labels, *, out=None):
    """Gradient of SparseSoftmaxCrossEntropyWithLogits: (softmax - one hot) times g per row."""
    slope = into(out, np.subtract, logits, logits.max(-1, keepdims=True))
    np.exp(slope, out=slope)
    slope /= slope.sum(-1, keepdims=True)
    at = _picked(labels, logits.shape[-1])
    np.put_along_axis(slope, at, np.take_along_axis(slope, at, -1) - 1, -1)
    slope *= g[..., None]
    return slope


@sparse_softmax_cross_entropy_grad.decompose
def _(g, logits, labels):
    return mul(sub(softmax_parts(logits), _one_hot(labels, logits)), _column(g))


# -- elementwise losses with a reduction


def _reduction(reduction: object, what: str) -> bool:
    """Whether elements are added up."""
    if reduction not in ("mean", "sum", "none"):
        raise ShapeError(f"{what}: reduction is {reduction!r}; it is 'mean', 'sum' or 'none'")
    return reduction != "none"


def _elementwise_rule(name: str) -> Callable[..., str]:
    def rule(x: Shape, y: Shape, *, reduction: str, **_: object) -> str:
        if tuple(x) != tuple(y):
            raise ShapeError(f"{name} takes operands of one shape, not {tuple(x)} and {tuple(y)}")
        text = words(letters(len(x)))
        return f"{text}, {text} -> {'()' if _reduction(reduction, name) else text}"

    return rule


def _grad_rule(name: str) -> Callable[..., str]:
    def rule(g: Shape, x: Shape, y: Shape, **attrs: Any) -> str:
        operands, result = _elementwise_rule(name)(x, y, **attrs).split(" -> ")
        return f"{result}, {operands} -> {operands.split(', ')[0]}"

    return rule


def _divisor(shape: Shape, reduction: str, count: float) -> float:
    return (count or math.prod(shape)) if reduction == "mean" else 1


def _global_count(operand: int) -> Callable:
    def localize(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
        return {"count": attrs["count"] or placement.operands[operand].elements}

    return localize


def _real_pair(*operands: DType, **_: object) -> DType:
    floats = [one for one in operands if one.is_float]
    return max(floats, key=lambda one: one.itemsize) if floats else element_type("f32")


def _elementwise_loss(name: str, value: Callable, slope: Callable, total: Callable | None, text: str):
    """A loss of the difference x - y and its gradient, from kernels; `total` is a faster sum of `value`, `slope` gets
    the difference, whose memory it may use, and a factor, by which it multiplies."""

    @operator(name, rule=_elementwise_rule(name), dtype=_real_pair, flops=3, filling=Filling(neutral="yes"))
    def loss(x, y, *, reduction="mean", count=0):
        if not _reduction(reduction, name):
            return value(x, y)
        added = total(x, y) if total is not None else value(x, y).sum()
        return added / _divisor(x.shape, reduction, count)

    @operator(
        f"{name}Grad",
        rule=_grad_rule(name),
        dtype=_real_pair,
        linear=((0,),),
        flops=3,
        filling=Filling(over=((1, 2),)),
    )
    def grad(g, x, y, *, reduction="mean", count=0, out=None):
        return slope(into(out, np.subtract, x, y), g / _divisor(x.shape, reduction, count))

    @loss.gradient
    def _(g, r, x, y, **attrs):
        dx = grad(g, x, y, **attrs)
        return tuple(
            _of_type(one, operand) if element_type(operand.dtype).is_float else None
            for one, operand in ((dx, x), (neg(dx), y))
        )

    loss.localize(_global_count(0))
    grad.localize(_global_count(1))
    loss.__doc__ = f"{text}; reduction is mean, sum or none. `count` is what a mean divides by (0: all elements)."
    grad.__doc__ = f"Gradient of {name} for x."
    return loss, grad


def _of_type(g: Any, x: Any) -> Any:
    kind = element_type(x.dtype)
    return g if element_type(g.dtype) == kind else cast(g, dtype=kind.name)


def _squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    difference = (x - y).reshape(-1)
    return np.dot(difference, difference)


def _times(change: np.ndarray, factor: Any) -> np.ndarray:
    own = isinstance(change, np.ndarray) and change.dtype == np.result_type(change, factor)
    return np.multiply(change, factor, out=change if own else None)


def _twice(difference: np.ndarray, factor: Any) -> np.ndarray:
    return _times(difference, 2 * factor)


def _signs(difference: np.ndarray, factor: Any) -> np.ndarray:
    return _times(np.sign(difference, out=difference if isinstance(difference, np.ndarray) else None), factor)


mse_loss, mse_loss_grad = _elementwise_loss(
    "MSELoss", lambda x, y: np.square(x - y), _twice, _squares, "Squared differences"
)
l1_loss, l1_loss_grad = _elementwise_loss("L1Loss", lambda x, y: np.abs(x - y), _signs, None, "Absolute differences")
