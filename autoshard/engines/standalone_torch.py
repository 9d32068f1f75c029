"""Exported code on torch: this process is a rank of `torch.distributed`.

This file needs numpy and torch, and files that need no more: exported code carries it.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autoshard.engines.standalone import BoundaryValue, StandalonePlan, arguments_of, arrays_of, finished
from autoshard.engines.torch_collectives import TorchCollectives, TorchControl

aten: Any = torch.ops.aten


def constant(kind: str, shape: tuple[int, ...], packed: str) -> torch.Tensor:
    """A tensor of these bytes (zlib, base64)."""
    data = bytearray(zlib.decompress(b64decode(packed)))
    host = torch.frombuffer(data, dtype=getattr(torch, kind)).reshape(shape)
    return host.to(torch.get_default_device())


def on_host(x: torch.Tensor, of: BoundaryValue) -> np.ndarray:
    return x.to(getattr(torch, of.host_dtype.name)).resolve_conj().cpu().numpy()


def start(ranks: int, device: str = "auto") -> tuple[str, str]:
    """Join the other ranks, by the variables that torchrun sets.

    Returns:
        Where this rank computes, and where lies what it sends.
    """
    chosen, wire, backends = chosen_device(device)
    if not dist.is_initialized():
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise SystemExit(
                f"{', '.join(missing)} not set: start it with torchrun --nproc-per-node {ranks}, or set them"
            )
        dist.init_process_group(backends)
    elif "nccl" not in str(dist.get_backend_config()):
        wire = "cpu"
    if dist.get_world_size() != ranks:
        raise SystemExit(f"the plan is for {ranks} ranks, but {dist.get_world_size()} are running")
    torch.set_num_threads(1)
    return chosen, wire


def chosen_device(asked: str) -> tuple[str, str, str]:
    """Where this rank computes, where lies what it sends, and torch.distributed's backends.

    auto is cuda where torch sees a CUDA device, else cpu. Ranks of a host take its CUDA devices in turn; where several
    share one, which NCCL refuses, they send by gloo, through copies on the host.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cpu" or (asked == "auto" and not count):
        return "cpu", "cpu", "gloo"
    if asked not in ("auto", "cuda"):
        raise SystemExit(f"unknown device {asked!r}; known are auto, cpu, cuda")
    if not count:
        raise SystemExit("device cuda was asked for, but torch sees no CUDA device; take cpu, or auto")
    local, size = (int(os.environ.get(f"LOCAL_{name}", os.environ.get(name, 0))) for name in ("RANK", "WORLD_SIZE"))
    device, own = f"cuda:{local % count}", size <= count and dist.is_nccl_available()
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("highest")  # f32 is f32: TF32 keeps 10 bits of a factor's 23
    torch.backends.cudnn.allow_tf32 = False
    return device, device if own else "cpu", "cpu:gloo,cuda:nccl" if own else "gloo"


def run(
    plan: StandalonePlan, step: Callable, given: Mapping[str, np.ndarray], steps: int = 1, device: str = "auto"
) -> dict[str, np.ndarray]:
    """Whole inputs in, whole outputs of the last step out, on every rank."""
    return run_on(*start(plan.grid.size, device), plan, step, given, steps)


def run_on(
    device: str, wire: str, plan: StandalonePlan, step: Callable, given: Mapping[str, np.ndarray], steps: int
) -> dict[str, np.ndarray]:
    """`run` on a device, where all ranks are there."""
    rank = dist.get_rank()
    collectives = TorchCollectives(plan.grid, rank, device, wire)
    collectives.prepare(plan.axes)
    pairs = zip(plan.inputs, arrays_of(plan.inputs, given), strict=True)
    blocks = [
        torch.tensor(one.pad(array)[one.block(plan.grid, rank)]).to(device, getattr(torch, one.dtype))
        for one, array in pairs
    ]
    made: tuple = ()
    with torch.no_grad(), torch.device(device):
        for _ in range(steps):
            made = step(TorchControl(), collectives, *blocks)
            for out, into in plan.updates.items():
                blocks[into] = made[out]
    return {one.name: _whole(plan, one, x) for one, x in zip(plan.outputs, made, strict=True)}


def _whole(plan: StandalonePlan, one: BoundaryValue, x: torch.Tensor) -> np.ndarray:
    own = torch.tensor(on_host(x, one))
    parts = [torch.empty_like(own) for _ in range(plan.grid.size)]
    dist.all_gather(parts, own.contiguous())
    return one.join(plan.grid, [part.numpy() for part in parts])


def main(plan: StandalonePlan, step: Callable, text: str) -> None:
    """Run from the command line."""
    commanded(plan.outputs, text, lambda given, steps, device: run(plan, step, given, steps, device))


def commanded(outputs: Sequence[BoundaryValue], text: str, run: Callable[[Any, int, str], Mapping[str, Any]]) -> None:
    """Run what the command line says (inputs by name, steps, device); the first rank tells the outputs."""
    told = arguments_of(text, ("auto", "cpu", "cuda"))
    given = dict(np.load(told.inputs)) if told.inputs else {}
    found = run(given, told.steps, told.device)
    if dist.get_rank() == 0:
        finished(outputs, found, told.outputs)
    dist.destroy_process_group()
