"""Of which mask places are that a module asks for by nonzero, so that a loop over them can go over the whole mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from autoshard.util.errors import GraphError

_MOST = 1024
"""Places of a mask that a loop may go over, each with nodes of its own."""


def place_functions() -> dict[Any, Callable]:
    """What stands for asking for places, and for a list of them in another shape."""
    import torch

    own = torch.Tensor

    def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
        found = torch.nonzero(input, as_tuple=as_tuple)
        for i, one in enumerate(found if as_tuple else [found]):
            _masks()[one] = input, i if as_tuple else None
        return found

    def where(condition: Any, *others: Any, **options: Any) -> Any:
        return torch.where(condition, *others, **options) if others or options else nonzero(condition, as_tuple=True)

    shapes = {
        one: _shaped(one) for one in (own.flatten, own.squeeze, own.view, own.reshape, torch.flatten, torch.squeeze)
    }
    return {torch.nonzero: nonzero, own.nonzero: nonzero, torch.where: where, **shapes}


@cache
def _masks() -> Any:
    """The mask, and which coordinate (None: all, in a row), by the tensor of its places."""
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()


def _shaped(func: Callable) -> Callable:
    def shaped(tensor: Any, *args: Any, **options: Any) -> Any:
        found = func(tensor, *args, **options)
        mask, column = _masks().get(tensor, (None, 0))
        if mask is not None and found.dim() == 1 and (column is not None or mask.dim() == 1):
            _masks()[found] = mask, 0 if column is None else column
        return found

    return shaped


def places_of(values: Any) -> Iterator[tuple[Any, Any]] | None:
    """All places of the mask that values are places of, and whether it holds there; None: they are of none.

    Raises:
        GraphError: there are too many.
    """
    import torch

    mask, column = _masks().get(values, (None, 0)) if isinstance(values, torch.Tensor) else (None, 0)
    if mask is None:
        return None
    if math.prod(mask.shape) > _MOST:
        raise GraphError(
            f"a loop goes over the places of a mask {tuple(mask.shape)}, each by itself; say it by tensors"
        )
    return _all_places(mask, column)


def _all_places(mask: Any, column: int | None) -> Iterator[tuple[Any, Any]]:
    import torch

    holds = mask.reshape(-1) != 0
    for i in range(holds.shape[0]):
        place = [i // math.prod(mask.shape[dim + 1 :]) % size for dim, size in enumerate(mask.shape)]
        yield torch.tensor(place if column is None else place[column]), holds[i]
