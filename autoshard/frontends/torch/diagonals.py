"""`tensor.fill_diagonal_(value)` as a change of the view that the diagonal is.

torch makes one of its own of how the tensor lies in memory, of which nothing could tell the gradient any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def diagonal_functions() -> dict[Any, Callable]:
    """What stands for filling it."""
    import torch

    own = torch.Tensor.fill_diagonal_

    def fill_diagonal_(tensor: Any, fill_value: Any, wrap: bool = False) -> Any:
        if tensor.dim() < 2 or len({*tensor.shape}) > 1 and (wrap or tensor.dim() > 2):
            return own(tensor, fill_value, wrap)
        view = tensor
        while view.dim() > 1:
            view = view.diagonal()
        view.fill_(fill_value)
        return tensor

    return {own: fill_diagonal_}
