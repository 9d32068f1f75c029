"""What `.grad` of a planned module's parameters holds between `loss.backward()` and the step: that there are gradients.

Their numbers stay inside of the program. So whatever would read or change them (`clip_grad_norm_`, a `GradScaler`, a
norm to log) says so by its line, where parameters without a `.grad` would be passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autoshard.util.errors import RuntimeSetupError, at
from autoshard.util.source import caller

INSTEAD = (
    "what clips gradients is planned with the step: optimizer=lambda params: optim.AdamW(params, 1e-3, clip_norm=1.0), "
    "or clip_value=..., and so is what scales the loss: loss_scale=optim.DynamicLossScale()"
)


class PlannedGradient(torch.Tensor):
    """The gradient of a parameter, which has a shape and a type here, but no numbers."""

    of: str

    @staticmethod
    def __new__(cls, of: torch.Tensor, name: str) -> PlannedGradient:
        made = torch.Tensor._make_wrapper_subclass(cls, of.shape, dtype=of.dtype, device=of.device)
        made.of = name
        return made

    def __init__(self, of: torch.Tensor, name: str) -> None:
        super().__init__()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PlannedGradient({self.of}, inside of the program)"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TYPE_ALONE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise _unreadable(args)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _unreadable(args)


_TYPE_ALONE = {
    getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "ndim", "requires_grad", "grad_fn", "is_sparse")
}
"""What asks a tensor for no numbers."""


def _unreadable(args: Any) -> RuntimeSetupError:
    found = next((one for one in pytree.tree_leaves(args) if isinstance(one, PlannedGradient)), None)
    of = "" if found is None else f" of {found.of}"
    return RuntimeSetupError(
        f"the gradient{of} stays inside of the planned step, so that nothing can read or change it between backward() "
        f"and step(){at(caller(installed=False))}; {INSTEAD}"
    )


def show_gradients(parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Let `.grad` of parameters say that there are gradients."""
    for name, one in parameters:
        one.grad = PlannedGradient(one, name)


def has_gradients(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether all of them have their gradient in the program, and none another one."""
    return all(isinstance(one.grad, PlannedGradient) for one in parameters)


__all__ = ["PlannedGradient", "has_gradients", "show_gradients"]
