"""Modules that take gradients inside (torch.func.grad, vjp, jvp, ...), which torch.export does not capture.

They are traced to ATen overloads first, by make_fx, which goes through functorch's transformations; torch.export then
captures the trace under the module's own names of parameters.

torch.autograd.grad alone is captured by `autograd.py`. Beside functorch it is refused: outside of functorch the trace
holds what autograd keeps for it as detached tensors, so that a second gradient would stop there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from autoshard.util.errors import ParseError

_WORDS = ("functorch tensor", "tensor of functorch", "has no attribute 'constant'")
"""What torch.export says of values inside of functorch's transformations."""


def takes_inner_gradients(error: Exception) -> bool:
    """Whether torch.export failed for a transformation of functorch."""
    return any(word in str(error) for word in _WORDS)


def check_constants(program: Any) -> None:
    """Raises ParseError if torch.export took a value inside of a transformation of functorch for a constant."""
    import torch
    from torch._C._functorch import is_functorch_wrapped_tensor

    for name, one in program.constants.items():
        if isinstance(one, torch.Tensor) and is_functorch_wrapped_tensor(one):
            raise ParseError(f"{name} is a tensor of functorch, which torch.export took for a constant")


@contextmanager
def traced_through(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """While it lasts, calling the module replays what it does with these arguments, without transformations."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def state() -> dict[str, Any]:
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def functional(held: dict[str, Any], given: tuple, named: dict[str, Any]) -> Any:
        return torch.func.functional_call(module, held, given, named)

    own = module.forward
    with _functorch_alone():
        replay = make_fx(functional, tracing_mode="fake")(state(), tuple(args), dict(kwargs))

    @wraps(own)
    def forward(*given: Any, **named: Any) -> Any:
        return replay(state(), given, named)

    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@contextmanager
def _functorch_alone() -> Iterator[None]:
    """Refuse torch.autograd.grad to all but functorch, which computes its gradients by it."""
    from unittest.mock import patch  # only here: ranks start without it

    import torch
    from torch._functorch import eager_transforms

    own, functorchs, inside = torch.autograd.grad, eager_transforms._autograd_grad, []

    def grad(*args: Any, **kwargs: Any) -> Any:
        if not inside:
            raise ParseError(
                "torch.autograd.grad is not captured in a module that uses torch.func's transformations, too; say it "
                "by torch.func.grad"
            )
        return own(*args, **kwargs)

    def within(*args: Any, **kwargs: Any) -> Any:
        inside.append(True)
        try:
            return functorchs(*args, **kwargs)
        finally:
            inside.pop()

    with patch.object(torch.autograd, "grad", grad), patch.object(eager_transforms, "_autograd_grad", within):
        yield
