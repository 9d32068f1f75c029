"""Losses, and the cell that joins a model with one. `reduction` is "none", "mean" or "sum" over all rows."""

from __future__ import annotations

from typing import Any

from autoshard import ops
from autoshard.core.tensortype import dtype
from autoshard.trace.cell import Cell
from autoshard.util.errors import ShapeError

_REDUCTIONS = {"none": None, "mean": "ReduceMean", "sum": "ReduceSum"}


class _CrossEntropy(Cell):
    """Holds the two forms, for class numbers and for class probabilities, and the reduction."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ShapeError(
                f"{type(self).__name__}: reduction is {reduction!r}; it is one of {', '.join(_REDUCTIONS)}"
            )
        self.by_class = ops.SparseSoftmaxCrossEntropyWithLogits()
        self.by_probability = ops.SoftmaxCrossEntropyWithLogits()
        name = _REDUCTIONS[reduction]
        self.reduce = None if name is None else getattr(ops, name)()

    def _loss(self, logits: Any, labels: Any, sparse: bool) -> Any:
        rows = self.by_class(logits, labels) if sparse else self.by_probability(logits, labels)[0]
        return rows if self.reduce is None else self.reduce(rows)


class SoftmaxCrossEntropyWithLogits(_CrossEntropy):
    """MindSpore's: logits [n, c] against class numbers [n] (`sparse`) or class probabilities [n, c]."""

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse

    def construct(self, logits: Any, labels: Any) -> Any:
        return self._loss(logits, labels, self.sparse)


class CrossEntropyLoss(_CrossEntropy):
    """Logits [..., c] against class numbers [...], or [n, c] against class probabilities: by the labels'
    type.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def construct(self, logits: Any, labels: Any) -> Any:
        return self._loss(logits, labels, not dtype(labels.dtype).is_float)


class MSELoss(Cell):
    """The squared difference of two tensors of one shape."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.mse_loss = ops.MSELoss(reduction=reduction)

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.mse_loss(logits, labels)


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
