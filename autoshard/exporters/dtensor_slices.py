"""Slices of DTensors: taken so that each has a gradient by itself, and assigned across dims that are split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from autoshard.exporters.dtensor_blocks import distributed


def unbind(func: Callable, mesh: DeviceMesh, input: Any, dim: int = 0) -> tuple:
    """The slices of a dim. DTensor's gradient of all at once wants that of each of them."""
    return tuple(input.select(dim, i) for i in range(input.shape[dim]))


def rows(func: Callable, mesh: DeviceMesh, input: Any) -> Any:
    """What a loop over a tensor goes through."""
    return iter(unbind(func, mesh, input))


def split(func: Callable, mesh: DeviceMesh, input: Any, sizes: int | Sequence[int], dim: int = 0) -> tuple:
    """Parts of a dim, one after the other, likewise."""
    given = [sizes] * -(-input.shape[dim] // sizes) if isinstance(sizes, int) else sizes
    starts = [sum(given[:i]) for i in range(len(given))]
    return tuple(
        input.narrow(dim, start, min(size, input.shape[dim] - start)) for start, size in zip(starts, given, strict=True)
    )


def assign(target: DTensor, index: Any, value: Any) -> None:
    """`target[index] = value`, with whole tensors: where the index cuts a split dim DTensor assigns to a copy."""
    mesh, whole = target.device_mesh, [Replicate()] * target.device_mesh.ndim

    def plain(one: Any) -> Any:
        return one.redistribute(mesh, whole).to_local(grad_placements=whole) if isinstance(one, DTensor) else one

    made = plain(target).clone()
    index, value = pytree.tree_map(plain, (index, value))
    made[index] = value
    target.copy_(distributed(made, mesh).redistribute(mesh, target.placements))
