"""`gradients_mean`: what gradients are multiplied by so that they are those of MindSpore's parallel modes.

In data_parallel MindSpore's ranks each differentiate the loss over their own rows, and add the gradients up; with
gradients_mean=True they divide the sum by the number of ranks. Here the loss over the rows of all is differentiated.
"""

from __future__ import annotations

from typing import Any

from autoshard.mindspore.context import ParallelMode, ParallelSettings
from autoshard.trace.cell import Cell
from autoshard.util.errors import ContextError

_ADDED = ("sum", "none")
"""Reductions by which the loss over all rows is the sum of the ranks' losses."""


def gradient_scale(parallel: ParallelSettings, devices: int, network: Any, loss_fn: Any) -> float:
    """What gradients of the loss over all rows are multiplied by.

    Raises:
        ContextError: gradients_mean=True beside a loss that is a sum, in other modes than data_parallel; in that mode a
            loss that does not tell how it reduces rows.
    """
    inner = network
    while (
        not hasattr(inner, "loss_fn")
        and not hasattr(inner, "reduction")
        and isinstance(getattr(inner, "network", None), Cell)
    ):
        inner = inner.network  # of a PipelineCell or the like
    # A network without a loss function returns its loss itself.
    loss = loss_fn if loss_fn is not None else getattr(inner, "loss_fn", inner)
    reduction = getattr(loss, "reduction", None)
    if parallel.parallel_mode != ParallelMode.DATA_PARALLEL:
        if parallel.gradients_mean and reduction in _ADDED:
            raise ContextError(
                f"gradients_mean=True with a loss of reduction={reduction!r}: gradients are those of the loss over the "
                "whole batch; give the loss reduction='mean', or leave gradients_mean False"
            )
        return 1.0
    if devices == 1:
        return 1.0
    # Of the full batch every rank has all rows.
    if parallel.full_batch or reduction == "mean":
        ranks_sum = float(devices)
    elif reduction in _ADDED:
        ranks_sum = 1.0
    else:
        raise ContextError(
            "data_parallel adds up the gradients of each rank's own loss, but the loss "
            f"({type(loss).__name__}) does not tell how it reduces rows: give it an "
            "attribute reduction, 'mean' or 'sum', or use parallel_mode='semi_auto_parallel', whose gradients are "
            "those of the loss over all rows"
        )
    return ranks_sum / devices if parallel.gradients_mean else ranks_sum
