"""Losses as primitives with MindSpore's names and meaning."""

from __future__ import annotations

from typing import Any

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops.entries import dims_of, leading, refused, taken
from autoshard.mindspore.ops.primitive import primitive
from autoshard.util.errors import ShapeError


def reduced(losses: Any, reduction: str, what: str) -> Any:
    """The losses, their mean or their sum."""
    if reduction not in ("none", "mean", "sum"):
        raise ShapeError(f"{what}: reduction is {reduction!r}; it is one of none, mean, sum")
    if reduction == "none":
        return losses
    return core.reduce_mean(losses) if reduction == "mean" else core.reduce_sum(losses)


@primitive("SoftmaxCrossEntropyWithLogits", core.softmax_cross_entropy_with_logits)
def SoftmaxCrossEntropyWithLogits(logits, labels):
    """The cross entropy of each row of logits with class probabilities; and its slope, softmax - labels."""
    return core.softmax_cross_entropy_with_logits(logits, labels)


@primitive("SparseSoftmaxCrossEntropyWithLogits", core.sparse_softmax_cross_entropy_with_logits)
def SparseSoftmaxCrossEntropyWithLogits(logits, labels, *, is_grad=False):
    """The mean cross entropy of rows of logits with class numbers; with `is_grad` its slope for the logits."""
    if not is_grad:
        return core.reduce_mean(core.sparse_softmax_cross_entropy_with_logits(logits, labels))
    hot = core.one_hot(labels, depth=logits.shape[-1], dtype=element(logits.dtype).name)
    return core.scalar_mul(core.sub(core.softmax(logits), hot), factor=1 / labels.shape[0])


@primitive("SmoothL1Loss", core.abs, leading(1))
def SmoothL1Loss(prediction, target, *, beta=1.0, reduction="none"):
    """d^2 / (2 beta) of differences d below beta, else |d| - beta / 2."""
    far = core.abs(core.sub(prediction, target))
    near = core.less(far, core.fill(shape=(), value=beta, dtype=element(far.dtype).name))
    square = core.scalar_mul(core.square(far), factor=0.5 / beta)
    return reduced(core.select(near, square, core.scalar_add(far, addend=-0.5 * beta)), reduction, "SmoothL1Loss")


@primitive("SigmoidCrossEntropyWithLogits", core.sub)
def SigmoidCrossEntropyWithLogits(logits, label):
    """The cross entropy of the sigmoid of each logit with a probability."""
    return core.sub(core.softplus(logits), core.mul(logits, label))


def _weighted(losses: Any, weight: Any) -> Any:
    return losses if weight is None else core.mul(losses, weight)


@primitive("BCEWithLogitsLoss", core.softplus, leading(1))
def BCEWithLogitsLoss(input, target, weight=None, posWeight=None, *, reduction="mean"):
    """The binary cross entropy of the sigmoid of logits, times weights; `posWeight` those of what is to be 1."""
    if posWeight is None:
        losses = core.sub(core.softplus(input), core.mul(input, target))
    else:
        no = core.mul(core.scalar_add(core.neg(target), addend=1), core.softplus(input))
        losses = core.add(core.mul(core.mul(posWeight, target), core.softplus(core.neg(input))), no)
    return reduced(_weighted(losses, weight), reduction, "BCEWithLogitsLoss")


_TINY = 1e-12
"""What MindSpore adds under the logarithms of BinaryCrossEntropy."""


@primitive("BinaryCrossEntropy", core.log, leading(1))
def BinaryCrossEntropy(input, target, weight=None, *, reduction="mean"):
    """The cross entropy of probabilities with probabilities, times weights."""
    yes = core.mul(target, core.log(core.scalar_add(input, addend=_TINY)))
    rest = core.scalar_add(core.neg(input), addend=1 + _TINY)
    no = core.mul(core.scalar_add(core.neg(target), addend=1), core.log(rest))
    return reduced(_weighted(core.neg(core.add(yes, no)), weight), reduction, "BinaryCrossEntropy")


@primitive("KLDivLoss", core.sub)
def KLDivLoss(logits, labels, *, reduction="mean"):
    """labels (log(labels) - logits): logits are logarithms of probabilities; "batchmean" divides a sum by dim 0."""
    found = core.mul(labels, core.sub(core.log(labels), logits))
    # 0 log(0) is 0.
    none = core.less_equal(labels, core.zeros_like(labels))
    found = core.masked_fill(found, none, value=0.0)
    if reduction == "batchmean":
        return core.scalar_mul(core.reduce_sum(found), factor=1 / logits.shape[0])
    return reduced(found, reduction, "KLDivLoss")


def _nll_strategy(attrs: Any, given: Any, out: Any) -> tuple[Any, Any]:
    """Class numbers are looked up as [n, 1]."""
    ranks = [dims_of(one) for one in given] if isinstance(given, tuple) else []
    if len(ranks) not in (2, 3) or ranks[:2] != [2, 1]:
        raise refused(given, "(parts of logits, (parts of labels,), (parts of weight,)), such as ((4, 1), (4,), (1,))")
    return (given[0], taken(given[1], (0, None))), out


@primitive("NLLLoss", core.gather_d, _nll_strategy)
def NLLLoss(logits, labels, weight, *, reduction="mean", ignore_index=-100):
    """Minus the logarithm of the probability of each row's class, times the weight of the class; and all weights.

    A mean divides by them; rows of class `ignore_index` do not count.
    """
    index, share = counted(labels, weight, ignore_index)
    picked = core.squeeze(core.gather_d(logits, core.expand_dims(index, axis=-1), dim=-1), axis=-1)
    losses, total = core.mul(core.neg(picked), share), core.reduce_sum(share)
    if reduction == "mean":
        return core.div(core.reduce_sum(losses), total), total
    return reduced(losses, reduction, "NLLLoss"), total


def counted(labels: Any, weight: Any, ignore: int) -> tuple[Any, Any]:
    """Class numbers without those that are ignored, and the weight of each row."""
    kind = element(labels.dtype).name
    seen = core.not_equal(labels, core.fill(shape=(), value=ignore, dtype=kind))
    index = core.select(seen, labels, core.zeros_like(labels))
    of_class = core.gather(weight, index, axis=0, bound=weight.shape[0])
    return index, core.mul(of_class, core.cast(seen, dtype=element(weight.dtype).name))
