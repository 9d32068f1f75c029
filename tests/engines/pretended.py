"""A device of torch that is not there: tensors that say they lie on it, whose numbers the CPU holds and computes.

    with pretended() as device:
        x = torch.ones(3, device=device)
        x + torch.ones(3)               # raises Mixed: the other operand lies on the CPU

It refuses what a CUDA device refuses: operators on tensors of several devices, but for single numbers of the CPU. So
what runs on it, equal to numpy, makes all its constants where it computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretended"
_COPIES = ("_to_copy", "copy_", "lift_fresh", "_has_compatible_shallow_copy_type")
"""Operators that take tensors of several devices."""


class Mixed(RuntimeError):
    """An operator was given tensors of several devices."""


class Pretended(torch.Tensor):
    """A tensor that says that it lies on the device."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> Pretended:
        strides, offset = inner.stride(), inner.storage_offset()
        return torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, inner.shape, strides, offset, dtype=inner.dtype, device=device
        )

    def __init__(self, inner: torch.Tensor, device: torch.device) -> None:
        self.on_host = inner

    @property
    def data(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.Tensor.data.__get__(self)  # pyright: ignore[reportAttributeAccessIssue]

    @data.setter
    def data(self, other: Pretended) -> None:
        torch.Tensor.data.__set__(self, other)  # pyright: ignore[reportAttributeAccessIssue]
        self.on_host = other.on_host

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called outside of the mode that pretends the device")


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = [one for one in pytree.tree_leaves((args, kwargs or {})) if isinstance(one, torch.Tensor)]
        if any(isinstance(one, DTensor) for one in leaves):
            return NotImplemented  # it calls the operator again, on its blocks
        devices = {one.device for one in leaves if one.ndim or isinstance(one, Pretended)}
        name = func.__name__.partition(".")[0]
        if len(devices) > 1 and name not in _COPIES:
            raise Mixed(f"{func} of tensors on {', '.join(sorted(map(str, devices)))}")
        given, named = pytree.tree_map(_inner, (args, kwargs or {}))
        asked = named.get("device")
        if asked is not None:
            named["device"] = "cpu"
        made = func(*given, **named)
        target = torch.device(asked) if asked is not None else next(iter(devices), torch.device("cpu"))
        if name == "copy_":
            return args[0]
        return made if target.type == "cpu" else pytree.tree_map(lambda one: _outer(one, target, leaves), made)


def _inner(one: Any) -> Any:
    return one.on_host if isinstance(one, Pretended) else one


def _outer(one: Any, target: torch.device, given: list[torch.Tensor]) -> Any:
    """What stands for a result: an operand, if it is its memory that was changed."""
    if not isinstance(one, torch.Tensor):
        return one
    known = [before for before in given if _inner(before) is one]
    return known[0] if known else Pretended(one, target)


@cache
def _registered() -> None:
    begin = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if begin is None:
        raise RuntimeError("this torch knows no devices that are written in Python")
    begin(NAME)


@contextlib.contextmanager
def pretended() -> Iterator[str]:
    """The device's name, while it is there."""
    _registered()
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) copies from CPUs, which the mode sees
    try:
        with _Mode():
            yield f"{NAME}:0"
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)
