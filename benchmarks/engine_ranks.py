"""What `benchmarks.engines` runs on MPI ranks: engines numpy, torch and torch-compiled, a step by hand, DTensor."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import autoshard as ash
from autoshard.exporters.dtensor import parallelize
from autoshard.trace.optim import State
from benchmarks.engines import BY_HAND, COMPILED, DTENSOR, LLAMA, NUMPY, TORCH, Run
from benchmarks.llama_step import COLUMNS, EPSILON, NORMS, ROWS
from benchmarks.stepping import MOMENTUM, ByAutoshard, Stepwise, Task


def contestants(task: Task, given: argparse.Namespace) -> tuple[int, dict[str, Run]]:
    """The rank of this process, and each by its name."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    ours, hand = ByAutoshard(comm, task), task.by_hand(comm, task)
    runs: dict[str, Run] = {NUMPY: _steps(ours, task), BY_HAND: _steps(hand, task)}
    runs[TORCH] = on_torch(ours.planned, task)
    runs[COMPILED] = on_torch(ours.planned, task, compiled=True)
    runs[DTENSOR] = by_dtensor(task, given)
    return comm.Get_rank(), runs


def _steps(one: Stepwise, task: Task) -> Run:
    return lambda steps: [one.step(task.x, task.y) for _ in range(steps)]


def on_torch(planned: Any, task: Task, compiled: bool = False) -> Run:
    """The planned step as a module of torch."""
    for one in planned.traced.parameters.values():
        own = task.own_name(one.name)
        if own is not None and not isinstance(one, State):
            one.set_data(task.values[own])
    model = planned.to_torch(compiled=compiled)
    optimizer = model.optimizer()
    x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)

    def step() -> float:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return lambda steps: [step() for _ in range(steps)]


class LlamaLayer(torch.nn.Module):
    """One layer of Llama, with weights as `benchmarks.llama_step` has them."""

    def __init__(self, values: Mapping[str, np.ndarray], number: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.heads, self.sequence = heads, sequence
        for name in (*COLUMNS, *ROWS):
            value = values[f"{number}.{name}"]
            layer = torch.nn.Linear(*value.shape, bias=False)
            layer.weight = torch.nn.Parameter(torch.from_numpy(value.T.copy()))
            self.add_module(name, layer)
        for name in NORMS:
            self.add_module(name, torch.nn.RMSNorm(len(values[f"{number}.{name}"]), EPSILON))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of = dict(self.named_children())
        tokens = of["norm1"](x)
        q, k, v = (_by_heads(of[name](tokens), self.heads, self.sequence) for name in ("query", "key", "value"))
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + of["output"](made.transpose(1, 2).reshape(x.shape))
        tokens = of["norm2"](x)
        return x + of["down"](torch.nn.functional.silu(of["gate"](tokens)) * of["up"](tokens))


def _by_heads(x: torch.Tensor, heads: int, sequence: int) -> torch.Tensor:
    return x.view(-1, sequence, heads, x.shape[1] // heads).transpose(1, 2)


class Net(torch.nn.Module):
    """The task's network in torch: weights lie [in, out] as those of the others."""

    def __init__(self, values: Mapping[str, np.ndarray], heads: int, sequence: int) -> None:
        super().__init__()
        self.heads, self.sequence = heads, sequence
        for name in dict.fromkeys(name.partition(".")[0] for name in values):
            layer = torch.nn.Linear(*values[f"{name}.weight"].shape)
            layer.weight = torch.nn.Parameter(torch.from_numpy(values[f"{name}.weight"].T.copy()))
            layer.bias = torch.nn.Parameter(torch.from_numpy(values[f"{name}.bias"].copy()))
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = dict(self.named_children())
        if "dense1" in layers:
            return layers["dense2"](torch.relu(layers["dense1"](x)))
        q, k, v = (_by_heads(layers[name](x), self.heads, self.sequence) for name in ("query", "key", "value"))
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return layers["output"](made.transpose(1, 2).reshape(x.shape))


def by_dtensor(task: Task, given: argparse.Namespace) -> Run:
    """The network split by DTensor as a plan says, trained by torch's autograd and SGD."""
    if given.task == LLAMA:
        layers = (LlamaLayer(task.values, i, given.heads, given.sequence) for i in range(given.layers))
        net: torch.nn.Module = torch.nn.Sequential(*layers)
    else:
        net = Net(task.values, given.heads, given.sequence)
    x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)
    planned = ash.plan(ash.from_torch(net, (x,)), mesh=f"tp={given.ranks}", search="megatron")
    split = parallelize(net, planned)
    optimizer = torch.optim.SGD(split.parameters(), task.rate, MOMENTUM)

    def step() -> float:
        loss = torch.nn.functional.mse_loss(split(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return lambda steps: [step() for _ in range(steps)]
