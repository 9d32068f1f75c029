"""torch.utils.checkpoint: modules that run once more for their gradients, noted while a module is captured.

Of the numbers it makes no difference. A step of training makes again what such modules compute (`transform.recompute`).
Functions that are no module's are kept as all else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from autoshard.frontends.torch.patch import Patches

_NOTING = Patches()

_NOTED: ContextVar[dict[int, Any] | None] = ContextVar("checkpointed_modules", default=None)
_WHOLE = ("__call__", "forward", "_call_impl", "_wrapped_call_impl")
"""Methods of a module that are all of it."""


@contextmanager
def noting_checkpoints() -> Iterator[dict[int, Any]]:
    """Notes the modules that `checkpoint` runs inside, by identity."""
    noted: dict[int, Any] = {}
    token = _NOTED.set(noted)
    try:
        with _NOTING.active():
            yield noted
    finally:
        _NOTED.reset(token)


def note_checkpoint(function: Any) -> None:
    """Note what `checkpoint` runs, if it is a module."""
    noted = _NOTED.get()
    module = _module_of(function)
    if noted is not None and module is not None:
        noted[id(module)] = module


def _module_of(function: Any) -> Any:
    """The module that a function is all of: itself, its method, or a function of it with arguments given before."""
    import torch

    first = getattr(function, "__self__", None)
    while isinstance(function, partial):
        first = function.args[0] if function.args else getattr(function.func, "__self__", None)
        function = function.func
    if isinstance(function, torch.nn.Module):
        return function
    is_whole = getattr(function, "__name__", "") in _WHOLE
    return first if is_whole and isinstance(first, torch.nn.Module) else None


@_NOTING.replaces("torch.utils.checkpoint", "_checkpoint_without_reentrant_generator")
def _dispatcher(own: Callable, inside: Callable[[], bool]) -> Callable:
    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        if inside():
            note_checkpoint(function)
        return own(function, *args, **kwargs)

    return run
