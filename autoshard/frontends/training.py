"""What a step of training is imported with, checked: a loss, and an optimizer made of the model's parameters."""

from __future__ import annotations

from typing import Any

from autoshard.trace.optim import Optimizer
from autoshard.util.errors import GraphError

_FITTING = "a function of the list of parameters that makes an optimizer of autoshard.optim, such as {example}"


def check_loss(loss: Any, optimizer: Any, caller: str) -> None:
    """That a loss is a path or a function, and is there if there is an optimizer.

    Raises:
        GraphError: it is not.
    """
    if optimizer is not None and loss is None:
        raise GraphError(
            f"{caller}: an optimizer needs a loss: a path such as 'loss', 'output' for the whole result, or a function"
        )
    if not (loss is None or isinstance(loss, str) or callable(loss)):
        raise GraphError(
            f"{caller}: loss is {loss!r}, but has to be a path into the result, such as 'loss', or a function of it"
        )


def made_optimizer(optimizer: Any, parameters: list, caller: str, also: str = "") -> Optimizer:
    """The optimizer that `optimizer` makes of the parameters.

    Args:
        also: what else the caller takes, in words.

    Raises:
        GraphError: it is no function, fails as those of other packages do, or makes something else.
    """
    fitting = _FITTING.format(example="lambda params: optim.Adam(params, 1e-3)") + also
    if not callable(optimizer):
        raise GraphError(f"{caller}: optimizer is {optimizer!r}, but has to be {fitting}")
    try:
        made = optimizer(parameters)
    except TypeError as error:
        raise GraphError(f"{caller}: the optimizer cannot be made ({error}); it has to be {fitting}") from error
    if not isinstance(made, Optimizer):
        raise GraphError(f"{caller}: optimizer makes a {type(made).__name__}, but has to be {fitting}")
    return made
