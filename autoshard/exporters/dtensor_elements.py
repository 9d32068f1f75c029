"""Functions of elements, and means of them, whose gradients DTensor lacks or has wrong.

It has no rule for the gradients of some activations, and takes the number of elements of a rank's block for that of the
tensor in the gradients of some losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils import _pytree as pytree

from autoshard.exporters.dtensor_blocks import block, distributed

ELEMENTWISE = (
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "log_sigmoid", "logsigmoid", "relu6", "softshrink",
)  # fmt: skip
MEANS = (
    "binary_cross_entropy", "huber_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss",
)  # fmt: skip
GATHERED = (
    "cosine_embedding_loss", "cummax", "cummin", "cumprod", "fractional_max_pool2d", "fractional_max_pool3d",
    "index_put", "multilabel_soft_margin_loss", "nanquantile", "prelu", "prod", "quantile", "trace",
)  # fmt: skip
"""Functions whose gradients mix whole tensors and blocks, or take the one for the other; operands are gathered."""


def elementwise(
    func: Callable, mesh: DeviceMesh, input: Any, *args: Any, inplace: bool = False, **kwargs: Any
) -> DTensor:
    """A function of each element by itself, however its tensor is split."""
    x = distributed(input, mesh)
    places = [one if isinstance(one, Shard) else Replicate() for one in x.placements]
    own = block(x, mesh, places, places)
    local = func(own.clone() if inplace else own, *args, **kwargs)  # its gradient may want what is overwritten
    made = DTensor.from_local(local, mesh, places, run_check=False, shape=x.shape, stride=x.stride())
    return input.copy_(made) if inplace else made


def mean(func: Callable, mesh: DeviceMesh, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
    """A loss of elements, which are reduced as the tensor that they are.

    Raises:
        NotImplementedError: `reduction` is told in the old way, by size_average and reduce.
    """
    if kwargs.get("size_average") is not None or kwargs.get("reduce") is not None or len(args) > 2:
        raise NotImplementedError("only losses of two tensors, with reduction by name")
    made = func(*args, reduction="none", **kwargs)
    return made if reduction == "none" else getattr(torch, reduction)(made)


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
