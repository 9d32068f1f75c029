"""Functions of torch on blocks of DTensors, on two gloo ranks, beside the same on whole tensors: values and gradients.

Prints a line for each that is not equal, and how many there were.
"""

from __future__ import annotations

import datetime
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

from autoshard.exporters.dtensor import _Filled

ELEMENTWISE = ("relu6", "hardswish", "hardsigmoid", "logsigmoid", "softshrink", "hardshrink")
Function = Callable[[torch.Tensor], Any]
RANKS, ROWS, COLUMNS = 2, 8, 6
LABELS = torch.arange(ROWS) % COLUMNS


def _image(function: Function) -> Function:
    return lambda x: function(x.reshape(2, 1, 4, 6))


def _assigned(index: Any, value: Function) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        made[index] = value(x)
        return made

    return function


def _attended(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def _binary(x: torch.Tensor) -> torch.Tensor:
    return (x.detach() > 0).float()


FUNCTIONS: Mapping[str, Function] = {
    **{name: getattr(F, name) for name in ELEMENTWISE},
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.25),
    "relu6 in place": lambda x: nn.ReLU6(inplace=True)(x * 2),
    "hardswish in place": lambda x: nn.Hardswish(inplace=True)(x * 2),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.2])),
    **{f"{name} mean": lambda x, name=name: getattr(F, name)(x, x.detach() * 2) for name in (
        "mse_loss", "smooth_l1_loss", "huber_loss")},
    "mse_loss sum": lambda x: F.mse_loss(x, x.detach() * 2, reduction="sum"),
    "mse_loss none": lambda x: F.mse_loss(x, x.detach() * 2, reduction="none"),
    "bce": lambda x: F.binary_cross_entropy(torch.sigmoid(x), _binary(x)),
    "bce weight": lambda x: F.binary_cross_entropy(torch.sigmoid(x), _binary(x), torch.full((ROWS, 1), 0.3)),
    "soft margin": lambda x: F.soft_margin_loss(x, _binary(x) * 2 - 1),
    "multilabel": lambda x: F.multilabel_soft_margin_loss(x, _binary(x)),
    "cosine": lambda x: F.cosine_embedding_loss(x, x.flip(1), torch.ones(ROWS)),
    "cross entropy": lambda x: F.cross_entropy(x, LABELS),
    **{name: lambda x, name=name: getattr(x, name)(1) for name in ("cumprod", "prod", "cumsum")},
    **{name: lambda x, name=name: getattr(x, name)(1).values for name in ("cummax", "cummin")},
    "trace": lambda x: torch.trace(x[:COLUMNS]),
    "quantile": lambda x: torch.quantile(x, 0.3, dim=1),
    "unbind": lambda x: x.unbind(1)[2],
    "loop": lambda x: sum((row * i for i, row in enumerate(x)), torch.zeros(())),
    "split": lambda x: torch.split(x, [3, 5], 0)[0],
    "split in equal parts": lambda x: x.split(4, dim=-1)[1],
    "index_put": lambda x: x.index_put((torch.tensor([0, 1]), torch.tensor([1, 2])), torch.tensor([1.0, 2.0])),
    "column assigned": _assigned((slice(None), 0), lambda x: x[:, 1] * 3),
    "rows assigned": _assigned((torch.tensor([1, 2]), slice(1, 3)), lambda x: x[:2, 3:5]),
    "masked rows assigned": lambda x: _assigned(x.detach()[:, 0] > 0, lambda _: 1.5)(x),
    "local_response_norm": lambda x: F.local_response_norm(x.reshape(2, 4, 6), 3),
    "lp_pool": _image(lambda x: F.lp_pool2d(x.abs() + 0.1, 2.0, 2)),
    "avg_pool": _image(lambda x: F.avg_pool2d(x, 2)),
    "interpolate": _image(lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic")),
    "attention": lambda x: _attended(x.reshape(1, 2, 4, 6)),
}  # fmt: skip


def _slopes(result: torch.Tensor) -> torch.Tensor:
    """Another for each element."""
    return torch.arange(1, result.numel() + 1).reshape(result.shape) / result.numel()


def _whole(function: Function, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = given.clone().requires_grad_()
    made = function(x)
    (made * _slopes(made)).sum().backward()
    return made.detach(), x.grad


def _split(function: Function, given: torch.Tensor, mesh: Any, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = distribute_tensor(given.clone(), mesh, [Shard(dim)]).requires_grad_()
    with implicit_replication(), _Filled(mesh):
        made = function(x)
        made = made.full_tensor() if isinstance(made, DTensor) else made
    (made * _slopes(made)).sum().backward()
    assert isinstance(x.grad, DTensor)
    return made.detach(), x.grad.full_tensor()


def _wrong(mesh: Any) -> Iterator[str]:
    given = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    for name, function in FUNCTIONS.items():
        wanted, slope = _whole(function, given)
        for dim in (0, 1):
            found, own = _split(function, given, mesh, dim)
            if not torch.allclose(found, wanted, atol=1e-5) or (
                slope is not None and not torch.allclose(own, slope, atol=1e-4)
            ):
                yield f"{name}, dim {dim} split"


def run(rank: int, meeting: str, queue: Any) -> None:
    """All functions on one rank."""
    logging.disable(logging.WARNING)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=limit)
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("d",))  # type: ignore[attr-defined]
    try:
        queue.put([f"rank {rank}: {one}" for one in _wrong(mesh)])
    except Exception as error:
        queue.put([f"rank {rank}: {error!r}"])
    dist.destroy_process_group()


def main() -> int:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run, args=(rank, f"{folder}/meeting", queue)) for rank in range(RANKS)]
        for one in ranks:
            one.start()
        wrong = [line for _ in ranks for line in queue.get(timeout=200)]
        for one in ranks:
            one.join(timeout=20)
    print(*wrong, f"{len(FUNCTIONS)} functions", sep="\n")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
