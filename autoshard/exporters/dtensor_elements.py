"""Functions of elements, and means of them, whose gradients DTensor lacks or has wrong.

It has no rule for the gradients of some activations, and takes the number of elements of a rank's block for that of the
tensor in the gradients of some losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

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
