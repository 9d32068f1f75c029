"""MindSpore's losses as functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore.ops import loss, neural
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.util.errors import ShapeError


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Squared differences."""
    return as_tensors(core.mse_loss(input, target, reduction=reduction))


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Absolute differences."""
    return as_tensors(core.l1_loss(input, target, reduction=reduction))


def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """d^2 / 2 of differences d below delta, else delta (|d| - delta / 2)."""
    found = loss.SmoothL1Loss(delta, reduction)(input, target)
    return as_tensors(core.scalar_mul(found, factor=delta))


def nll_loss(
    inputs: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Minus logarithms of probabilities [N, C] of class numbers [N]."""
    if len(inputs.shape) != 2:
        raise ShapeError(f"nll_loss: inputs are {tuple(inputs.shape)}; only [N, C] is offered here")
    kind = element(inputs.dtype).name
    own = core.fill(shape=(inputs.shape[1],), value=1, dtype=kind) if weight is None else weight
    found, total = loss.NLLLoss(reduction, ignore_index)(inputs, target, own)
    if not label_smoothing:
        return found
    _, share = loss.counted(target, own, ignore_index)
    each = core.mul(core.neg(core.reduce_sum(core.mul(inputs, own), axis=(1,))), _seen(target, ignore_index, kind))
    evenly = (
        core.div(core.reduce_sum(each), total) if reduction == "mean" else loss.reduced(each, reduction, "nll_loss")
    )
    kept = core.scalar_mul(found, factor=1 - label_smoothing)
    return as_tensors(core.add(kept, core.scalar_mul(evenly, factor=label_smoothing / inputs.shape[1])))


def _seen(target: Any, ignore: int, kind: str) -> Any:
    return core.cast(
        core.not_equal(target, core.fill(shape=(), value=ignore, dtype=element(target.dtype).name)), dtype=kind
    )


def _by_class(logits: Any, labels: Any, ignore: int, reduction: str) -> Any:
    """The cross entropy with class numbers as one operator, without rows of the class that is ignored."""
    kind = element(logits.dtype).name
    seen = core.not_equal(labels, core.fill(shape=(), value=ignore, dtype=element(labels.dtype).name))
    rows = core.sparse_softmax_cross_entropy_with_logits(logits, core.select(seen, labels, core.zeros_like(labels)))
    count = core.cast(seen, dtype=kind)
    rows = core.mul(rows, count)
    if reduction != "mean":
        return as_tensors(loss.reduced(rows, reduction, "cross_entropy"))
    return as_tensors(core.div(core.reduce_sum(rows), core.reduce_sum(count)))


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Logits [N, C] against class numbers [N] or class probabilities [N, C]."""
    if len(input.shape) != 2:
        raise ShapeError(
            f"cross_entropy: logits are {tuple(input.shape)}; only [N, C] is offered (MindSpore has classes in dim 1, "
            "autoshard.nn.TokenLoss takes them in the last)"
        )
    sparse = not element(target.dtype).is_float
    if sparse and weight is None and not label_smoothing:
        return _by_class(input, target, ignore_index, reduction)
    logs = neural.LogSoftmax(-1)(input)
    if sparse:
        return nll_loss(logs, target, weight, ignore_index, reduction, label_smoothing)
    if label_smoothing:
        rest = label_smoothing / input.shape[-1]
        target = core.scalar_add(core.scalar_mul(target, factor=1 - label_smoothing), addend=rest)
    parts = core.mul(logs, target if weight is None else core.mul(target, weight))
    rows = core.neg(core.reduce_sum(parts, axis=(-1,)))
    return as_tensors(loss.reduced(rows, reduction, "cross_entropy"))


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """For each sequence the negative logarithm of the probability of its labels, over all alignments.

    Args:
        log_probs: logarithms of the classes' probabilities [frames, batch, classes]; of one sequence without the batch.
        targets: labels [batch, most], of which each sequence has the first `target_lengths`.
        input_lengths: how many frames each sequence has.
        reduction: "mean" divides each loss by its number of labels, and takes the mean.
        zero_infinity: a sequence without an alignment has the loss 0, not infinity.
    """
    alone = len(log_probs.shape) == 2
    x = core.expand_dims(log_probs, axis=1) if alone else log_probs
    labels = core.reshape(targets, shape=(1, -1)) if alone else targets
    lengths = [one if hasattr(one, "dtype") else np.asarray(one, np.int32) for one in (input_lengths, target_lengths)]
    frames, counts = (core.reshape(one, shape=(1,)) if alone else one for one in lengths)
    shapes = [tuple(one.shape) for one in (x, labels, frames, counts)]
    if len(shapes[0]) != 3 or len(shapes[1]) != 2 or {shape[0] for shape in shapes[1:]} != {shapes[0][1]}:
        raise ShapeError(
            f"ctc_loss: log_probs {shapes[0]}, targets {shapes[1]}, input_lengths {shapes[2]}, target_lengths "
            f"{shapes[3]}; they are [frames, batch, classes], [batch, most], [batch] and [batch]"
        )
    losses = core.ctc_loss(x, labels, frames, counts, blank=blank, zero_infinity=zero_infinity, normalized=True)
    if reduction == "mean":
        least = core.maximum(counts, core.ones_like(counts))
        losses = core.div(losses, core.cast(least, dtype=element(losses.dtype).name))
    found = loss.reduced(losses, reduction, "ctc_loss")
    return as_tensors(core.squeeze(found, axis=(0,)) if alone and reduction == "none" else found)
