"""Hooks of gradients, which a step of autoshard does not call: refused, as it would learn something else without them.

torch.export forgets those of tensors and parameters, and fails on those of modules without saying why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.frontends.torch.patch import WHILE_CAPTURING
from autoshard.util.errors import GraphError, ParseError

_WAY_OUT = "say what becomes of a gradient by a torch.autograd.Function"


def check_hooks(module: Any) -> None:
    """Raises GraphError if a parameter, or a module in the module, has a hook that sees or changes gradients."""
    kinds = {
        "register_hook": ("parameter", module.named_parameters(), ("_backward_hooks",)),
        "register_post_accumulate_grad_hook": (
            "parameter", module.named_parameters(), ("_post_accumulate_grad_hooks",)
        ),
        "register_full_backward_hook": ("module", module.named_modules(), ("_backward_hooks", "_backward_pre_hooks")),
    }  # fmt: skip
    for call, (kind, members, attributes) in kinds.items():
        for name, one in members:
            if any(getattr(one, attribute, None) for attribute in attributes):
                raise GraphError(
                    f"training {type(module).__name__}: its {kind} {name!r} has a hook of gradients ({call}), which a "
                    f"step does not call; remove it, and {_WAY_OUT}"
                )


@WHILE_CAPTURING.replaces("torch:Tensor", "register_hook")
def _refusing(own: Callable, inside: Callable[[], bool]) -> Callable:
    """Refuse hooks that are put on tensors."""

    def register_hook(self: Any, hook: Any) -> Any:
        if inside():
            raise ParseError(f"hooks of gradients (Tensor.register_hook) are not captured; {_WAY_OUT}")
        return own(self, hook)

    return register_hook
