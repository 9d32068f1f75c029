"""`tensor.data` while a module is captured: torch.export cannot follow it.

What is read is `tensor.detach()`, which shares the numbers and stops gradients alike. Of a buffer that is set so, the
numbers are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.util.errors import GraphError


def data_functions() -> dict[Any, Callable]:
    """What stands for reading and setting it."""
    import torch

    data: Any = torch.Tensor.data
    return {data.__get__: lambda tensor, *_: tensor.detach(), data.__set__: _replace}


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
