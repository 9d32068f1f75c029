"""TrainOneStepCell: a step of training when called, split over the ranks as the context says."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.mindspore.model import Model
from autoshard.mindspore.tensor import Tensor
from autoshard.trace.cell import Cell
from autoshard.trace.parameter import active
from autoshard.util.errors import GraphError


class TrainOneStepCell(Cell):
    """`step(*data)` does a step of training and gives the loss; the network returns its loss.

        step = TrainOneStepCell(WithLossCell(net, loss), optimizer)
        loss = step(data, label)

    Args:
        sens, return_grad: MindSpore's; only what they are by default.

    Raises:
        GraphError: other settings; called within a trace.
    """

    def __init__(self, network: Cell, optimizer: Any, sens: Any = None, return_grad: bool = False) -> None:
        super().__init__()
        if sens not in (None, 1, 1.0) or return_grad:
            raise GraphError("TrainOneStepCell: sens and return_grad are not offered; leave them out")
        if type(self).construct is not Cell.construct:
            raise GraphError(
                f"{type(self).__name__}: a TrainOneStepCell with a construct of its own is not offered; what is done "
                "to gradients (clipping) goes into the construct(self, gradients) of a subclass of the optimizer, and "
                "what is done to the loss into the network"
            )
        self.network, self.optimizer = network, optimizer
        self.model = Model(network, None, optimizer)

    def prefixes(self, label: str, part: object) -> bool:
        return label != "network"

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if active() is not None or kwargs:
            raise GraphError("TrainOneStepCell is called with arrays, by position, outside of a traced model")
        return np.asarray(self.model.train_once(*inputs), np.float32).view(Tensor)
