"""Blocks of a plan as DTensors: each layout has a DeviceMesh of its own, with an axis for each dim that it splits.

So any layout is one of `Shard(dim)` and `Replicate()` alone, over several axes in any order and of uneven sizes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from autoshard.engines.torch_library import torch_dtype
from autoshard.layout.layout import Layout
from autoshard.partition.program import Register
from autoshard.runtime.array import array_dtype
from autoshard.util.errors import PlanError, RuntimeSetupError


def check_says(register: Register) -> None:
    """Check that a DTensor can say how a register lies.

    Raises:
        PlanError: it is partial, or lies in larger blocks than the least ones.
    """
    if register.layout.partial:
        raise PlanError(f"{register.name} is partial [{register.layout}]: what enters and leaves a module is whole")
    least = register.layout.local_shape(register.true.shape)
    if register.local.shape != least:
        raise PlanError(
            f"{register.name} {register.true} [{register.layout}] lies in blocks of {list(register.local.shape)} as "
            f"other layouts split it more finely, where a DTensor has blocks of {list(least)}; choose sizes or a mesh "
            "that divide"
        )


@lru_cache(maxsize=1 << 8)
def placements_of(layout: Layout, device: str) -> tuple[DeviceMesh, tuple[Any, ...]]:
    """The DeviceMesh of a layout on devices of a type, and placements on it."""
    split = [dim for dim, parts in enumerate(layout.parts) if parts > 1]
    rest = layout.mesh.devices // layout.split
    sizes = [*(layout.parts[dim] for dim in split), *([rest] if rest > 1 or not split else [])]
    ranks = np.empty(sizes, np.int64)
    counted: dict[tuple[int, ...], int] = {}
    for rank in range(layout.mesh.devices):
        position = tuple(int(layout.mesh.index(rank, layout.dims[dim])) for dim in split)
        copy = counted.get(position, 0)
        counted[position] = copy + 1
        ranks[(*position, copy)[: len(sizes)]] = rank
    mesh = _mesh(tuple(sizes), tuple(ranks.reshape(-1).tolist()), device)
    return mesh, (*(Shard(dim) for dim in split), *[Replicate()] * (len(sizes) - len(split)))


@lru_cache(maxsize=1 << 8)
def _mesh(sizes: tuple[int, ...], ranks: tuple[int, ...], device: str) -> DeviceMesh:
    return DeviceMesh(device, torch.tensor(ranks).reshape(sizes))


def dtensor(block: torch.Tensor, register: Register, rank: int) -> DTensor:
    """A rank's block, with its padding, as a DTensor, which shares its memory where nothing is padded."""
    shape, inside = register.true.shape, _inside(block, register, rank)
    mesh, placements = placements_of(register.layout, block.device.type)
    strides = tuple(int(np.prod(shape[dim + 1 :])) for dim in range(len(shape)))
    return DTensor.from_local(inside, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)


def whole_of(block: torch.Tensor, register: Register, rank: int) -> torch.Tensor:
    """The whole tensor that the ranks' blocks are of; they all call it together."""
    return block if register.layout.split == 1 else dtensor(block, register, rank).full_tensor()


def block_of(tensor: Any, register: Register, rank: int) -> torch.Tensor:
    """A rank's block, padded, of a DTensor that lies as the register does, or of a whole tensor.

    Raises:
        RuntimeSetupError: a tensor of another shape, or a DTensor that lies another way.
    """
    shape = register.true.shape
    if tuple(tensor.shape) != shape:
        raise RuntimeSetupError(f"{register.name} has shape {list(shape)}, not {list(tensor.shape)}")
    if isinstance(tensor, DTensor):
        mesh, placements = placements_of(register.layout, tensor._local_tensor.device.type)
        if tensor.device_mesh != mesh or tensor.placements != placements:
            raise RuntimeSetupError(
                f"{register.name} is a DTensor {tensor.placements} on {tensor.device_mesh}, but lies as "
                f"{placements} on {mesh}"
            )
        inside = tensor._local_tensor  # `to_local` goes through autograd, for every parameter of every step
    else:
        inside = tensor[register.layout.block(rank, register.whole.shape)]
    inside = inside.detach().to(torch_dtype(array_dtype(register.whole.dtype)))
    return _padded(inside, register.local.shape)


def replace_block(tensor: Any, block: torch.Tensor | None, register: Register, rank: int) -> None:
    """Put another block where a DTensor's own lies; None: let that go, until there is another."""
    local = tensor._local_tensor  # to_local gives views of parameters, which do not let its memory go
    local.data = local.new_empty(0) if block is None else _inside(block, register, rank)


def _inside(block: torch.Tensor, register: Register, rank: int) -> torch.Tensor:
    """A rank's block without its padding."""
    sizes = tuple(one.stop - one.start for one in register.layout.block(rank, register.true.shape))
    inside = block if tuple(block.shape) == sizes else block[tuple(map(slice, sizes))]
    return inside.contiguous()


def _padded(block: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if tuple(block.shape) == tuple(shape):
        return block.contiguous()
    made = block.new_zeros(tuple(shape))
    made[tuple(map(slice, block.shape))] = block
    return made
