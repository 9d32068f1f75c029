"""`from_torch`: a PyTorch module, exported program or .pt2 file as a model that can be planned, run and trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autoshard.frontends.torch.checkpoints import noting_checkpoints
from autoshard.frontends.torch.export import exported, need_torch
from autoshard.frontends.torch.hooks import check_hooks
from autoshard.frontends.training import check_loss
from autoshard.util.errors import GraphError

if TYPE_CHECKING:
    from autoshard.frontends.torch.model import TorchModel

_WRAPPED = "module"


def from_torch(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: str | Callable | None = None,
    optimizer: Callable[[list], Any] | None = None,
    name: str | None = None,
    capacity_factor: float | None = None,
) -> TorchModel:
    """Import a PyTorch model.

        model = ash.from_torch(net, (x,))
        planned = ash.plan(model, mesh="dp=2 tp=4")
        y = planned.run(*model.arrays(x))

    Parameters and buffers become parameters with their qualified names, buffers that a state dict does not hold become
    constants, and what the module changes in its buffers becomes their update. A module on torch's meta device can be
    planned, but not run. A module in training mode is imported so: dropout then drops (by autoshard's own numbers, the
    same on any number of ranks) and batch norm uses the batch's statistics.

    Mixtures of experts of the package transformers are imported with their tokens by expert if `capacity_factor` is
    given, or the module has no numbers: so experts can be split, and tokens are sent to them and back. Else the form
    "grouped_mm" (their default) is imported as grouped matrix products of sorted tokens, "batched_mm" as a lookup of
    each token's weights; the "eager" form loops as often as the data says, which no graph can.

    Args:
        module: a torch.nn.Module, an ExportedProgram, or the path of a .pt2 file; the latter two have their arguments.
        args: the module's example arguments.
        kwargs: those given by name.
        loss: a path into the module's result, such as "output.loss"; or a function of torch tensors, `loss(output,
            *args, **kwargs)`, which is exported together with the module. The sum of the loss is differentiated.
        optimizer: makes an optimizer of autoshard.optim of a list of parameters, for example
            `lambda params: optim.Adam(params, 1e-3)`; the model is then a step of training. It needs a loss.
        name: what the graph is called; by default the module's class.
        capacity_factor: for how many times its equal share of the tokens each expert has room, 1.0 or more; inf: for
            all that may choose it. A run in which tokens find no room is an error. Without numbers it is 1.0.

    Raises:
        RuntimeSetupError: torch is not installed.
        ParseError: something else, or what torch.export cannot capture.
        ShapeError: dynamic shapes; or operators that autoshard has not, all of which are listed.
        GraphError: an optimizer without a loss; a loss or an optimizer of another kind; hooks of gradients.

    >>> import torch
    >>> import autoshard
    >>> model = autoshard.from_torch(torch.nn.Linear(12, 64), (torch.ones(16, 12),))
    >>> [(value.name, str(value.type)) for value in model.traced.graph.inputs]
    [('input', 'f32[16, 12]'), ('weight', 'f32[64, 12]'), ('bias', 'f32[64]')]
    """
    need_torch("importing a PyTorch model")
    from autoshard.frontends.torch.model import TorchModel

    check_loss(loss, optimizer, "from_torch")
    settings = {"loss": loss, "optimizer": optimizer, "name": name, "capacity_factor": math.inf}
    again = partial(from_torch, module, args, kwargs, **settings)
    wrapped = ""
    if optimizer is not None and hasattr(module, "named_modules"):
        check_hooks(module)
    if callable(loss):
        module, wrapped, loss = _with_loss(module, loss), _WRAPPED, "loss"
    elif _clashes(module):
        module, wrapped = _wrapper(module), _WRAPPED
    with noting_checkpoints() as noted:
        program = exported(module, args, kwargs or {}, capacity_factor)
    model = TorchModel(program, name or _name(module, wrapped), loss, optimizer, wrapped)
    if hasattr(module, "training"):
        named = module.named_modules() if noted else ()
        prefix = f"{wrapped}." if wrapped else ""
        model.recomputes = tuple(path.removeprefix(prefix) for path, part in named if id(part) in noted)
        model.module, model.example = module, (tuple(args), dict(kwargs or {}))
        model.imported_by_expert = again
    return model


def _name(module: Any, wrapped: str) -> str:
    import torch

    if not isinstance(module, torch.nn.Module):
        return "model"
    return type(getattr(module, wrapped) if wrapped else module).__name__


def _clashes(module: Any) -> bool:
    """Whether it has tensors by names such as `code`, which torch's graph modules have a use of their own for."""
    import torch

    if not isinstance(module, torch.nn.Module):
        return False
    own = (name for name, _ in (*module.named_parameters(), *module.named_buffers()))
    return any(hasattr(torch.fx.GraphModule, name) for name in own)


def _wrapper(module: Any) -> Any:
    """A module that does the same, in which the names of the other one are further down."""
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.train(module.training)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    return Wrapper()


def _with_loss(module: Any, loss: Callable) -> Any:
    """A module that returns the loss of what `module` returns."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise GraphError("from_torch: a program that is exported already takes a path for its loss, no function")

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.train(module.training)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return {"loss": loss(self.module(*args, **kwargs), *args, **kwargs)}

    return WithLoss()
