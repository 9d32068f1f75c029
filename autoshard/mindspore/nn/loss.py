"""Losses with MindSpore's names, arguments and defaults, and the cell that joins a model with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard import ops as core
from autoshard.core.tensortype import dtype as element
from autoshard.mindspore import ops
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.cell import Cell
from autoshard.util.errors import ShapeError

_REDUCTIONS = {"none": None, "mean": "ReduceMean", "sum": "ReduceSum"}


class LossBase(Cell):
    """Base of losses: `get_loss(x, weights)` reduces x times the weights as `reduction` says: mean, sum or none."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ShapeError(
                f"{type(self).__name__}: reduction is {reduction!r}; it is one of {', '.join(_REDUCTIONS)}"
            )
        self.reduction = reduction
        name = _REDUCTIONS[reduction]
        self.reduce = None if name is None else getattr(ops, name)()

    def get_loss(self, x: Any, weights: Any = 1.0) -> Any:
        x = x if isinstance(weights, float) and weights == 1 else ops.mul(weights, x)
        return x if self.reduce is None else self.reduce(x)


class SoftmaxCrossEntropyWithLogits(LossBase):
    """Logits [n, c] against class numbers [n] (`sparse`) or class probabilities [n, c].

    Class numbers become probabilities by `one_hot` where that or `softmax_cross_entropy` has a strategy.
    """

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse
        self.sparse_softmax_cross_entropy = core.primitive_class(core.sparse_softmax_cross_entropy_with_logits)()
        self.softmax_cross_entropy = ops.SoftmaxCrossEntropyWithLogits()
        self.one_hot = ops.OneHot()

    def construct(self, logits: Any, labels: Any) -> Any:
        by_one_hot = (self.one_hot.in_strategy, self.softmax_cross_entropy.in_strategy) != (None, None)
        if self.sparse and by_one_hot:
            on, off = (np.asarray(value, element(logits.dtype).numpy) for value in (1, 0))
            labels = self.one_hot(labels, logits.shape[-1], on, off)
        if self.sparse and not by_one_hot:
            rows = self.sparse_softmax_cross_entropy(logits, labels)
        else:
            rows = self.softmax_cross_entropy(logits, labels)[0]
        return as_tensors(self.get_loss(rows))


class _FunctionLoss(LossBase):
    """A loss that a function of `autoshard.mindspore.ops` computes; attributes are its further arguments."""

    function: Callable

    def __init__(self, reduction: str = "mean", **given: Any) -> None:
        super().__init__(reduction)
        self.given = given

    def construct(self, logits: Any, labels: Any) -> Any:
        return type(self).function(logits, labels, reduction=self.reduction, **self.given)


class CrossEntropyLoss(_FunctionLoss):
    """Logits [N, C] against class numbers [N] or class probabilities [N, C], by the labels' type.

    Rows of class `ignore_index` do not count; `weight` has a number per class.
    """

    function = staticmethod(ops.cross_entropy)

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__(reduction, weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)


class NLLLoss(_FunctionLoss):
    """Minus logarithms of probabilities [N, C] of class numbers [N]."""

    function = staticmethod(ops.nll_loss)

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction, weight=weight, ignore_index=ignore_index)


class MSELoss(LossBase):
    """The squared difference of two tensors of one shape."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.mse_loss = core.primitive_class(core.mse_loss)(reduction=reduction)

    def construct(self, logits: Any, labels: Any) -> Any:
        return as_tensors(self.mse_loss(logits, labels))


class L1Loss(_FunctionLoss):
    """The absolute difference of two tensors of one shape."""

    function = staticmethod(ops.l1_loss)

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)


class MAELoss(L1Loss):
    """L1Loss under another name."""


class SmoothL1Loss(_FunctionLoss):
    """d^2 / (2 beta) of differences d below beta, else |d| - beta / 2."""

    function = staticmethod(ops.smooth_l1_loss)

    def __init__(self, beta: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction, beta=beta)


class HuberLoss(_FunctionLoss):
    """d^2 / 2 of differences d below delta, else delta (|d| - delta / 2)."""

    function = staticmethod(ops.huber_loss)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction, delta=delta)


class BCELoss(_FunctionLoss):
    """The cross entropy of probabilities with probabilities."""

    function = staticmethod(ops.binary_cross_entropy)

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction, weight=weight)


class BCEWithLogitsLoss(_FunctionLoss):
    """The cross entropy of the sigmoid of logits with probabilities."""

    function = staticmethod(ops.binary_cross_entropy_with_logits)

    def __init__(self, reduction: str = "mean", weight: Any = None, pos_weight: Any = None) -> None:
        super().__init__(reduction, weight=weight, pos_weight=pos_weight)


class CTCLoss(LossBase):
    """For each sequence the negative logarithm of the probability of its labels, over all alignments (Graves 2006).

    `construct(log_probs, targets, input_lengths, target_lengths)`: see `ops.ctc_loss`.
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def construct(self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any:
        lengths = input_lengths, target_lengths
        return ops.ctc_loss(log_probs, targets, *lengths, self.blank, self.reduction, self.zero_infinity)


class KLDivLoss(LossBase):
    """labels (log(labels) - logits), where logits are logarithms of probabilities."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__("sum" if reduction == "batchmean" else reduction)
        self.reduction = reduction

    def construct(self, logits: Any, labels: Any) -> Any:
        return ops.kl_div(logits, labels, self.reduction)


class WithLossCell(Cell):
    """`construct(*data, label)`: the loss of the backbone's result. The backbone's names stay as they are
    without it.
    """

    def __init__(self, backbone: Cell, loss_fn: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.loss_fn = loss_fn

    def prefixes(self, label: str, part: object) -> bool:
        return label != "backbone"

    def construct(self, *data: Any) -> Any:
        *inputs, label = data
        return self.loss_fn(self.backbone(*inputs), label)
