"""Exported code on torch: this process is a rank of `torch.distributed`.

This file needs numpy and torch, and files that need no more: exported code carries it.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping
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
    return torch.frombuffer(data, dtype=getattr(torch, kind)).reshape(shape)


def on_host(x: torch.Tensor, of: BoundaryValue) -> np.ndarray:
    return x.to(getattr(torch, of.host_dtype.name)).resolve_conj().cpu().numpy()


def start(ranks: int) -> None:
    """Join the other ranks, by the variables that torchrun sets."""
    if not dist.is_initialized():
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise SystemExit(
                f"{', '.join(missing)} not set: start it with torchrun --nproc-per-node {ranks}, or set them"
            )
        dist.init_process_group("gloo")
    if dist.get_world_size() != ranks:
        raise SystemExit(f"the plan is for {ranks} ranks, but {dist.get_world_size()} are running")
    torch.set_num_threads(1)


def run(plan: StandalonePlan, step: Callable, given: Mapping[str, np.ndarray], steps: int = 1) -> dict[str, np.ndarray]:
    """Whole inputs in, whole outputs of the last step out, on every rank."""
    start(plan.grid.size)
    rank = dist.get_rank()
    collectives = TorchCollectives(plan.grid, rank)
    collectives.prepare(plan.axes)
    pairs = zip(plan.inputs, arrays_of(plan.inputs, given), strict=True)
    blocks = [
        torch.tensor(one.pad(array)[one.block(plan.grid, rank)]).to(getattr(torch, one.dtype)) for one, array in pairs
    ]
    made: tuple = ()
    with torch.no_grad():
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
    told = arguments_of(text)
    given = dict(np.load(told.inputs)) if told.inputs else {}
    found = run(plan, step, given, told.steps)
    if dist.get_rank() == 0:
        finished(plan.outputs, found, told.outputs)
    dist.destroy_process_group()
