"""What torch itself makes of a model's example: its outputs, and its parameters and buffers after one run or one step.

A step of training is that of torch's autograd and of the optimizer of torch.optim that does what autoshard's does.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from autoshard.frontends.results import picked, plain
from autoshard.frontends.torch.autograd import takes_gradients
from autoshard.frontends.torch.flex import PLAIN_FLEX_ATTENTION
from autoshard.frontends.torch.tensors import array_of
from autoshard.trace.clipping import Clipping
from autoshard.trace.loss_scale import LossScale
from autoshard.trace.optim import SGD, Adam, AdamW, Momentum, Optimizer
from autoshard.trace.parameter import Parameter
from autoshard.util.errors import GraphError, at
from autoshard.util.source import shown


class RunsInTorch(Protocol):
    """A model of PyTorch with its example, as `TorchModel` is one: what running it takes."""

    name: str
    program: Any
    module: Any
    example: tuple[tuple, dict[str, Any]]
    loss: Any
    optimizer: Any
    wrapped: str

    def get_parameters(self) -> Iterator[Parameter]: ...


def outputs_in_torch(model: RunsInTorch) -> list[np.ndarray]:
    """What torch returns for the example: all tensors in it in order, or the loss.

    Raises:
        GraphError: the module fails on it.
    """
    import torch
    from torch.utils import _pytree as pytree

    with torch.set_grad_enabled(model.optimizer is not None or takes_gradients(model.program.graph)):
        found = _result(model, _module(model))
    return [array_of(one) for one in pytree.tree_leaves(found) if hasattr(one, "dtype")]


def state_in_torch(model: RunsInTorch) -> dict[str, np.ndarray]:
    """The model's parameters and buffers, by name, after torch ran the example once, or did one step of training.

    Raises:
        GraphError: an optimizer to which none of torch.optim is equal; or the module fails.
    """
    import torch

    module = _module(model)
    with torch.set_grad_enabled(model.optimizer is not None or takes_gradients(model.program.graph)):
        found = _result(model, module)
    held = _named(model, module)
    if model.optimizer is not None:
        step = torch_optimizer(model.optimizer, held)
        trained = [held[one.name] for one in model.optimizer.parameters]
        if _differentiate(found.sum(), model.optimizer.scaling, trained):
            _clip(model.optimizer.clipping, trained)
            step.step()
    return {name: array_of(held[name]) for name in (one.name for one in model.get_parameters()) if name in held}


def _module(model: RunsInTorch) -> Any:
    """A copy of what was imported, so that nothing changes in it."""
    return model.program.module() if model.module is None else _copy(model.module)


def _copy(module: Any) -> Any:
    """A deep copy, also of what an earlier run left in attributes (recurrent states): torch copies leaves alone."""
    import torch

    attributes = [value for part in module.modules() for value in vars(part).values()]
    left = [value for value in attributes if isinstance(value, torch.Tensor) and not value.is_leaf]
    return copy.deepcopy(module, {id(value): value.detach().clone() for value in left})


def _result(model: RunsInTorch, module: Any) -> Any:
    args, kwargs = copy.deepcopy(model.example)
    try:
        with PLAIN_FLEX_ATTENTION.active():
            found = module(*args, **kwargs)
    except Exception as error:  # of any kind: it is the module's own
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise GraphError(
            f"{model.name} cannot be compared with PyTorch, which fails on the example: {type(error).__name__}: "
            f"{error}{at(f'{shown(last.filename)}:{last.lineno}')}"
        ) from error
    return found if model.loss is None else picked(plain(found), model.loss)


def _named(model: RunsInTorch, module: Any) -> dict[str, Any]:
    """Parameters and buffers under all their names, without the prefix that the model leaves out."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    prefix = f"{model.wrapped}." if model.wrapped else ""
    return {name.removeprefix(prefix): tensor for name, tensor in named}


# -- optimizers


def torch_optimizer(optimizer: Optimizer, tensors: Mapping[str, Any]) -> Any:
    """The optimizer of torch that does what one of autoshard does in its first step.

    Args:
        tensors: the torch parameters by the names of autoshard's.

    Raises:
        GraphError: there is none.
    """
    make = next((_MAKERS[kind] for kind in type(optimizer).__mro__ if kind in _MAKERS), None)
    paper = optimizer.attrs.get("form", "paper") == "paper" and getattr(optimizer, "loss_scale", 1) == 1
    # Of a class that somebody derived nobody knows what it does; those of MindSpore's names are derived, too.
    if make is None or not paper or not type(optimizer).__module__.startswith("autoshard."):
        known = ", ".join(one.__name__ for one in _MAKERS)
        raise GraphError(
            f"{type(optimizer).__name__} has no counterpart in torch.optim that is known here, so that a step cannot "
            f"be compared with torch's; known are {known} of autoshard.optim"
        )
    groups = [
        {"params": [tensors[one.name] for one in group.params], "lr": _first(optimizer, group.learning_rate),
         "weight_decay": group.weight_decay}
        for group in optimizer.groups
    ]  # fmt: skip
    return make(groups, optimizer.attrs)


def _differentiate(loss: Any, scaling: LossScale | None, tensors: list[Any]) -> bool:
    """Make gradients, by a scale if there is one; whether the step is to be done with them."""
    if scaling is None:
        loss.backward()
        return True
    scale = float(scaling.scale.data) if isinstance(scaling.scale, Parameter) else scaling.scale
    (loss * scale).backward()
    grads = [one.grad for one in tensors if one.grad is not None]
    for grad in grads if scaling.divides else ():
        grad.copy_((grad.cdouble() if grad.is_complex() else grad.double()) / scale)
    return scaling.skipped is None or all(bool(grad.isfinite().all()) for grad in grads)


def _clip(clipping: Clipping, tensors: list[Any]) -> None:
    import torch

    if clipping.norm is not None:
        torch.nn.utils.clip_grad_norm_(tensors, clipping.norm)
    if clipping.value is not None:
        torch.nn.utils.clip_grad_value_(tensors, clipping.value)


def _first(optimizer: Optimizer, rate: Any) -> float:
    """The rate of the first step."""
    if callable(rate):
        return float(np.asarray(rate(np.zeros((), np.int32))))
    return float(rate) if isinstance(rate, int | float) else float(rate[0])


def _sgd(groups: list[dict[str, Any]], attrs: Mapping[str, Any]) -> Any:
    import torch

    return torch.optim.SGD(groups, momentum=attrs.get("momentum", 0.0), nesterov=attrs.get("nesterov", False))


def _adam(groups: list[dict[str, Any]], attrs: Mapping[str, Any]) -> Any:
    import torch

    kind = torch.optim.AdamW if attrs["decoupled"] else torch.optim.Adam
    return kind(groups, betas=(attrs["beta1"], attrs["beta2"]), eps=attrs["eps"])


_MAKERS: dict[type, Callable[[list[dict[str, Any]], Mapping[str, Any]], Any]] = {
    SGD: _sgd, Momentum: _sgd, Adam: _adam, AdamW: _adam,
}  # fmt: skip
