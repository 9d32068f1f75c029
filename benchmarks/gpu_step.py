"""A training step of Llama's layers on one device: by the engine torch, and as one writes it with `torch.compile`.

`step_times(device, sizes)` is called by `benchmarks.gpu`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import llama_step
from benchmarks.engine_ranks import LlamaLayer
from benchmarks.stepping import MOMENTUM, ByAutoshard, Task

ENGINE, COMPILED = "engine torch", "engine torch-compiled"
EAGER, BY_HAND = "PyTorch by hand", "PyTorch by hand, torch.compile"
TOLERANCE = 1e-3


@dataclass(frozen=True)
class StepSizes:
    """Of the layers: hidden dim, tokens of a batch, heads, tokens of a sequence, layers; and steps that are timed."""

    hidden: int
    batch: int
    heads: int
    sequence: int
    layers: int
    steps: int = 20
    rounds: int = 5


GPU = StepSizes(2048, 4096, 16, 2048, 2, steps=5, rounds=3)
CPU = StepSizes(64, 64, 4, 16, 1, steps=2, rounds=2)


class _OneRank:
    """What stands for a communicator of one rank."""

    @staticmethod
    def Get_size() -> int:
        return 1


def step_times(device: str, sizes: StepSizes) -> dict[str, Any]:
    """Milliseconds of a step by name, and their ratio to the best of those by hand, in rounds that alternate.

    Raises:
        ValueError: losses differ.
    """
    task = llama_step.task(sizes.hidden, sizes.batch, 1, sizes.heads, sizes.sequence, sizes.layers)
    planned = ByAutoshard(_OneRank(), task).planned
    runs = {
        ENGINE: _on_engine(planned, task, device, compiled=False),
        COMPILED: _on_engine(planned, task, device, compiled=True),
        EAGER: _by_hand(task, sizes, device, compiled=False),
        BY_HAND: _by_hand(task, sizes, device, compiled=True),
    }
    losses = {name: [one() for _ in range(3)] for name, one in runs.items()}  # to warm up: kernels are made
    for name, own in losses.items():
        worst = max(abs(a - b) / abs(b) for a, b in zip(own, losses[EAGER], strict=True))
        if not worst <= TOLERANCE:
            raise ValueError(f"losses of {name!r} differ from those by hand by {worst:.1e}: {own}, {losses[EAGER]}")
    rounds = [{name: _timed(one, sizes.steps, device) for name, one in runs.items()} for _ in range(sizes.rounds)]
    best = [min(one[EAGER], one[BY_HAND]) for one in rounds]
    return {
        "milliseconds": {name: 1e3 * statistics.median(one[name] for one in rounds) for name in runs},
        "ratio": {
            name: statistics.median(one[name] / least for one, least in zip(rounds, best, strict=True)) for name in runs
        },
        "predicted_peak_bytes": planned.cost.peak_memory_bytes,
        "peak_bytes": _peak(runs[ENGINE], device),
    }


def _on_engine(planned: Any, task: Task, device: str, compiled: bool) -> Callable[[], float]:
    model = planned.to_torch(compiled=compiled, device=device.partition(":")[0])
    optimizer = model.optimizer()
    x, y = (torch.from_numpy(one).to(model.device) for one in (task.x, task.y))

    def step() -> float:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return _read_last(step)


def _by_hand(task: Task, sizes: StepSizes, device: str, compiled: bool) -> Callable[[], float]:
    layers = (LlamaLayer(task.values, i, sizes.heads, sizes.sequence) for i in range(sizes.layers))
    net = torch.nn.Sequential(*layers).to(device)
    run = torch.compile(net) if compiled else net
    x, y = (torch.from_numpy(one).to(device) for one in (task.x, task.y))
    optimizer = torch.optim.SGD(net.parameters(), task.rate, MOMENTUM)

    def step() -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return _read_last(step)


def _read_last(step: Callable[[], Any]) -> Callable[[], float]:
    """The step, whose loss is read: so the host waits for the device at each step, in all alike."""
    return lambda: float(step().detach())


def _timed(step: Callable[[], float], steps: int, device: str) -> float:
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def _peak(step: Callable[[], float], device: str) -> int | None:
    """Bytes that a step takes at its peak beside what lies there before; None on CPUs, where torch does not count."""
    if device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return torch.cuda.max_memory_allocated() - before
