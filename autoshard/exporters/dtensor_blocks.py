"""Blocks of DTensors: what a rank holds of one, whole tensors, and which splits leave blocks equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils import _pytree as pytree


def gathered_call(func: Callable, mesh: DeviceMesh, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """What a function returns for whole tensors, which every rank computes alike."""
    whole = [Replicate()] * mesh.ndim

    def plain(one: Any) -> Any:
        return one.redistribute(mesh, whole).to_local(grad_placements=whole) if isinstance(one, DTensor) else one

    def wrapped(one: Any) -> Any:
        return DTensor.from_local(one, mesh, whole, run_check=False) if isinstance(one, torch.Tensor) else one

    args, kwargs = pytree.tree_map(plain, (args, dict(kwargs)))
    return pytree.tree_map(wrapped, func(*args, **kwargs))


def some_empty(one: DTensor) -> bool:
    """Whether some rank has an empty block of a tensor that is not empty, as of 3 rows split twice in 2."""
    sizes = [one.device_mesh.size(axis) for axis in range(one.device_mesh.ndim)]
    return all(one.shape) and not all(smallest_block(one.shape, one.placements, sizes))


def smallest_block(shape: Sequence[int], placements: Sequence[Placement], sizes: Sequence[int]) -> list[int]:
    """The least size that a block has of each dim, when dims are split one mesh axis after another as by torch.chunk.

    Not always the last block has it: of 7 rows 4 and 3, and of the 4 in three parts 2, 2 and none.
    """
    found = [{size} for size in shape]
    for placement, parts in zip(placements, sizes, strict=True):
        if isinstance(placement, Shard):
            found[placement.dim] = {part for size in found[placement.dim] for part in _chunks(size, parts)}
    return list(map(min, found))


def _chunks(size: int, parts: int) -> set[int]:
    full = -(-size // parts)
    return {max(0, min(full, size - full * i)) for i in range(parts)}


def distributed(one: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    if isinstance(one, DTensor):
        return one
    return DTensor.from_local(one, mesh, [Replicate()] * mesh.ndim, run_check=False)


def block(one: DTensor, mesh: DeviceMesh, placements: Sequence[Placement], grads: Sequence[Placement]) -> torch.Tensor:
    """A rank's block; `grads` says what its gradient is, as ranks compute it from their blocks."""
    return one.redistribute(mesh, placements).to_local(grad_placements=grads)


def evenly(x: DTensor, mesh: DeviceMesh, dims: int) -> list[Placement]:
    """The splits of the first dims as they are, where blocks are equal."""
    left, places = list(x.shape[:dims]), []
    for axis, placement in enumerate(x.placements):
        dim = placement.dim if isinstance(placement, Shard) else dims
        if dim < dims and left[dim] % mesh.size(axis) == 0:
            left[dim] //= mesh.size(axis)
            places.append(placement)
        else:
            places.append(Replicate())
    return places
