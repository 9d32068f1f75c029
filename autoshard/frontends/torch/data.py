"""`tensor.data` while a module is captured: torch.export cannot follow it.

What is read is `tensor.detach()`, which shares the numbers and stops gradients alike. Of a buffer that is set so, the
numbers are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from autoshard.util.errors import GraphError


@contextmanager
def data_as_detached() -> Iterator[None]:
    """Say it so, in this thread."""
    with _mode()():
        yield


@cache
def _mode() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    data: Any = torch.Tensor.data

    class DataAsDetached(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func == data.__get__:
                return args[0].detach()
            if func == data.__set__:
                return _replace(*args)
            return func(*args, **(kwargs or {}))

    return DataAsDetached


def _replace(tensor: Any, new: Any) -> None:
    """Raises GraphError: a tensor that has a gradient, or takes another shape or type."""
    import torch

    if tensor.requires_grad:
        raise GraphError("tensor.data is set of a tensor that has a gradient; say it by other functions of torch")
    if (tensor.shape, tensor.dtype) != (new.shape, new.dtype):
        raise GraphError(
            f"tensor.data of {tensor.dtype} {tuple(tensor.shape)} is set to {new.dtype} {tuple(new.shape)}; a buffer "
            "keeps its shape and type"
        )
    with torch.no_grad():
        tensor.copy_(new)
