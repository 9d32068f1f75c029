"""Modules that convert themselves as they run (`self.classifier.to(dtype)`), while they are captured.

A conversion to what the parameters are already changes nothing, and torch would exchange the tensors that stand for
them nevertheless, which it cannot do in a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from autoshard.frontends.torch.patch import Patch


@contextmanager
def conversions_as_needed() -> Iterator[None]:
    """Convert what is of another type or elsewhere alone, in this thread."""
    with _patch().active():
        yield


@cache
def _patch() -> Patch:
    import torch

    return Patch(torch.nn.Module, "_apply", _applying)


def _applying(own: Callable, inside: Callable[[], bool]) -> Callable:
    def _apply(self: Any, fn: Callable, recurse: bool = True) -> Any:
        if inside() and all(_stays(one, fn(one)) for one in _tensors(self, recurse)):
            return self
        return own(self, fn, recurse)

    return _apply


def _tensors(module: Any, recurse: bool) -> Iterator[Any]:
    yield from module.parameters(recurse)
    yield from module.buffers(recurse)


def _stays(tensor: Any, converted: Any) -> bool:
    return (tensor.dtype, tensor.device) == (converted.dtype, converted.device)
