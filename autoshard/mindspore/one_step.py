"""TrainOneStepCell: a step of training when called, split over the ranks as the context says; with a scale, too."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.mindspore.gradients import GradOperation
from autoshard.mindspore.model import Model
from autoshard.mindspore.nn.layers import Identity
from autoshard.mindspore.nn.loss_scale import ScaleOfCell
from autoshard.mindspore.tensor import Tensor
from autoshard.trace.cell import Cell
from autoshard.trace.loss_scale import LossScale, checked_scale
from autoshard.trace.parameter import Parameter, active
from autoshard.util.errors import ContextError, GraphError


class TrainOneStepCell(Cell):
    """`step(*data)` does a step of training and gives the loss; the network returns its loss.

        step = TrainOneStepCell(WithLossCell(net, loss), optimizer)
        loss = step(data, label)

    A subclass may have a `construct` of its own, which takes gradients, treats them, applies the optimizer itself and
    returns the loss; all of it is the step that is planned:

        class Clipping(TrainOneStepCell):
            def construct(self, *inputs):
                loss = self.network(*inputs)
                sens = ops.fill(loss.dtype, loss.shape, self.sens)
                gradients = self.grad(self.network, self.weights)(*inputs, sens)
                self.optimizer(ops.clip_by_global_norm(self.grad_reducer(gradients), 1.0))
                return loss

    Args:
        sens: a number that the loss is multiplied by; the optimizer's `loss_scale` divides gradients by it again.
        return_grad: MindSpore's; False only.

    Raises:
        GraphError: other settings; called within a trace.
        ContextError: sens is no number above 0.
    """

    def __init__(self, network: Cell, optimizer: Any, sens: Any = None, return_grad: bool = False) -> None:
        super().__init__()
        if return_grad:
            raise GraphError("TrainOneStepCell: return_grad is not offered; leave it out")
        self.network, self.optimizer = network, optimizer
        self.weights = getattr(optimizer, "parameters", ())
        self.sens = 1.0 if sens is None else checked_scale(sens, "TrainOneStepCell: sens")
        self.grad = GradOperation(get_by_list=True, sens_param=True)
        self.grad_no_sens = GradOperation(get_by_list=True)
        self.reducer_flag, self.grad_reducer = False, Identity()
        self.model = Model(network, None, optimizer)
        if type(self).construct is not Cell.construct:
            self.model.own_step = self
        elif sens is not None:
            self.model.scaling = LossScale(self.sens, divides=False, skips=False)

    def prefixes(self, label: str, part: object) -> bool:
        return label != "network"

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if active() is not None and self.model.own_step is self:
            return super().__call__(*inputs, **kwargs)
        if active() is not None or kwargs:
            raise GraphError("TrainOneStepCell is called with arrays, by position, outside of a traced model")
        return np.asarray(self.model.train_once(*inputs), np.float32).view(Tensor)


class TrainOneStepWithLossScaleCell(TrainOneStepCell):
    """`step(*data)` does a step by a scaled loss, unless its gradients overflow; the loss, whether it overflowed, and
    the scale that follows.

        update = DynamicLossScaleUpdateCell(2**12, 2, 1000)
        step = TrainOneStepWithLossScaleCell(WithLossCell(net, loss), optimizer, update)
        loss, overflow, scale = step(data, label)

    Args:
        scale_sense: a cell that changes the scale; or a tensor of one number, which `set_sense_scale` changes.

    Raises:
        GraphError: as TrainOneStepCell.
        ContextError: another scale_sense.
    """

    def __init__(self, network: Cell, optimizer: Any, scale_sense: Any) -> None:
        super().__init__(network, optimizer)
        if self.model.own_step is not None:
            raise GraphError(
                f"{type(self).__name__}: a TrainOneStepWithLossScaleCell with a construct of its own is not offered; "
                "what is done to gradients (clipping) goes into the construct(self, gradients) of a subclass of the "
                "optimizer, and what is done to the loss into the network"
            )
        self.scaling = ScaleOfCell(scale_sense, "TrainOneStepWithLossScaleCell: scale_sense")
        self.model.scaling = self.scaling

    @property
    def scale_sense(self) -> Parameter:
        """The scale as it stands."""
        return self.scaling.scale

    def set_sense_scale(self, sens: Any) -> None:
        """Go on with another scale, of the shape of the one before.

        Raises:
            ContextError: no tensor of such a number.
        """
        given = np.asarray(sens)
        if given.shape != self.scale_sense.shape:
            raise ContextError(f"set_sense_scale: {sens!r} has no shape {self.scale_sense.shape}, as the scale has")
        checked_scale(given.item(), "set_sense_scale: sens")
        self.scale_sense.set_data(given.astype(np.float32))

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        assert self.scaling.skipped is not None
        before = int(self.scaling.skipped.asnumpy())
        loss = super().__call__(*inputs, **kwargs)
        overflow = int(self.scaling.skipped.asnumpy()) > before
        scale = np.asarray(self.scale_sense.asnumpy()).copy()
        return loss, np.asarray(overflow).view(Tensor), scale.view(Tensor)
