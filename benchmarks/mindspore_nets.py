"""Annotated nets in MindSpore's style in the modes that MindSpore has: bytes that a device sends and seconds of a step.

    python -m benchmarks.mindspore_nets [--nets chain diamond ...] [--modes bfs ...] [--devices 8] [--hardware cpu]
                                        [--json]

The nets are the tutorial's two dense layers (forward, and a step of training) and chains, stars, diamonds and shared
weights of matrix products, one of which is configured; wide ones, square ones and narrow ones. "nothing propagated"
splits what is configured and runs all else on every rank: no mode may cost more. Cells are the mean over the
annotations, with the worst ratio to nothing propagated behind; the last lines have the worst of all nets, and the
seconds of planning.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import autoshard as ash
from autoshard import Parameter, nn, ops
from autoshard.cost.evaluate import evaluate
from autoshard.search.greedy.bfs import unpropagated
from autoshard.search.problem import Problem
from autoshard.search.program_price import program_of
from autoshard.transform import train_step
from costmodel import format_bytes, format_seconds, preset

NONE = "nothing propagated"
MODES = ("sharding_propagation", "bfs", "dynamic_programming", "recursive_programming")
SHAPES = {"square": (64, 64, 64, 64), "wide inside": (128, 64, 256, 64), "narrow inside": (48, 64, 16, 64)}
"""Rows, and the columns of the values at both ends and inside of a net."""
ANNOTATIONS: dict[str, tuple] = {
    "some rows": ((2, 1), (1, 1)),
    "some rows and columns": ((2, 1), (1, 4)),
    "columns": ((1, 1), (1, 8)),
    "sum": ((1, 8), (8, 1)),
    "all three": ((2, 2), (2, 2)),
}
LARGER = 32
"""How many times larger than `SHAPES` the nets are that the table has."""


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Products(nn.Cell):
    """Products of which one is configured, and how they hang together."""

    def __init__(self, wiring: Callable, shapes: tuple[int, ...], place: int, annotation: tuple) -> None:
        super().__init__()
        self.wiring = wiring
        _, ends, inside, _ = shapes
        sizes = [(ends, inside), (inside, ends), (ends, inside), (ends, inside), (inside, ends)]
        for i, size in enumerate(sizes):
            setattr(self, f"w{i}", Parameter(array(*size, seed=i) / 8, name="weight"))
        self.products = [ops.MatMul() for _ in sizes]
        self.products[place].shard(annotation)

    def product(self, i: int, x: Any, weight: int | None = None) -> Any:
        return self.products[i](x, getattr(self, f"w{i if weight is None else weight}"))

    def construct(self, x: Any) -> Any:
        return self.wiring(self.product, x)


def chain(product: Callable, x: Any) -> Any:
    for i in (0, 1, 2):
        x = ops.relu(product(i, x))
    return x


def star(product: Callable, x: Any) -> Any:
    hub = product(1, ops.relu(product(0, x)))
    return product(2, hub), product(3, ops.relu(hub)), ops.reduce_sum(hub, axis=(1,))


def diamond(product: Callable, x: Any) -> Any:
    below = product(1, ops.relu(product(0, x)))
    return ops.softmax(product(4, product(2, below) + ops.relu(product(3, below))))


def shared(product: Callable, x: Any) -> Any:
    """The first weight has two users."""
    again = product(1, ops.relu(product(0, x)))
    return product(3, again, weight=0) + product(2, x)


WIRINGS = {one.__name__: one for one in (chain, star, diamond, shared)}


def tutorial(product: Callable, x: Any) -> Any:
    return product(1, ops.relu(product(0, x)))


def nets(shapes: tuple[int, ...], wiring: Callable) -> Iterator[tuple[str, nn.Cell]]:
    """A net for each annotation, and each of the two products that may bear it."""
    for name, annotation in ANNOTATIONS.items():
        for place in (0, 1):
            yield f"{name} at {place}", Products(wiring, shapes, place, annotation)


def problem_of(traced: Any, mesh: str, hardware: str) -> Problem:
    over = ash.Mesh.parse(mesh)
    return Problem(traced.graph, over, preset(hardware).for_ranks(over.devices), traced.annotations)


def families() -> dict[str, Callable[[], Iterator[Any]]]:
    """What is traced for each row of the table."""
    found: dict[str, Callable[[], Iterator[Any]]] = {}
    for shape, small in SHAPES.items():
        sizes = tuple(LARGER * size for size in small)
        for wiring in (tutorial, chain, star, diamond, shared):
            found[f"{wiring.__name__}, {shape}"] = lambda sizes=sizes, wiring=wiring: _forward(sizes, wiring)
        found[f"tutorial's training, {shape}"] = lambda sizes=sizes: _training(sizes)
    return found


def _forward(sizes: tuple[int, ...], wiring: Callable) -> Iterator[Any]:
    for _, net in nets(sizes, wiring):
        yield ash.trace(net, array(*sizes[:2]))


def _training(sizes: tuple[int, ...]) -> Iterator[Any]:
    for _, net in nets(sizes, tutorial):
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        yield train_step(nn.WithLossCell(net, nn.MSELoss()), optimizer, array(*sizes[:2]), array(*sizes[:2])).traced


def measure(traced: Any, devices: int, hardware: str, modes: list[str]) -> dict[str, dict[str, float]]:
    """Bytes, seconds of a step and of planning for each mode."""
    problem = problem_of(traced, str(devices), hardware)
    plan = unpropagated(problem, "bfs")
    cost = evaluate(program_of(plan, problem.hardware, problem.passes)[0], plan.graph, problem.hardware)
    found = {NONE: {"bytes": cost.bytes_per_device, "seconds": cost.seconds, "planning": 0.0}}
    for mode in modes:
        started = time.process_time()
        planned = ash.plan(traced, mesh=str(devices), search=mode, hardware=hardware)
        planning, cost = time.process_time() - started, planned.cost
        found[mode] = {"bytes": cost.bytes_per_device, "seconds": cost.seconds, "planning": planning}
    return found


def ratio(one: dict[str, dict[str, float]], mode: str) -> float:
    """A mode's seconds to those with nothing propagated."""
    return one[mode]["seconds"] / (one[NONE]["seconds"] or 1.0)


def show(rows: dict[str, list[dict[str, dict[str, float]]]], modes: list[str]) -> None:
    console, table = Console(), Table(title="bytes that a device sends, seconds of a step")
    table.add_column("nets")
    for mode in (NONE, *modes):
        table.add_column(mode, justify="right")
    for name, found in rows.items():
        cells = [_cell([one[mode] for one in found]) for mode in (NONE, *modes)]
        worst = ["", *(f", worst {max(ratio(one, mode) for one in found):.2f} x" for mode in modes)]
        table.add_row(name, *(f"{cell}{more}" for cell, more in zip(cells, worst, strict=True)))
    console.print(table)
    every = [one for found in rows.values() for one in found]
    for mode in modes:
        worst, planning = max(ratio(one, mode) for one in every), math.fsum(one[mode]["planning"] for one in every)
        told = f"at worst {worst:.6f} of {NONE}, on {len(every)} nets planned in {planning:.1f} s"
        console.print(f"{mode}: {told}", highlight=False, soft_wrap=True)


def _cell(some: list[dict[str, float]]) -> str:
    nbytes, seconds = (statistics.fmean(one[what] for one in some) for what in ("bytes", "seconds"))
    return f"{format_bytes(nbytes)}, {format_seconds(seconds)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=[""], help="parts of the names of the rows")
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen = {name: made for name, made in families().items() if any(part in name for part in options.nets)}
    rows = {
        name: [measure(traced, options.devices, options.hardware, options.modes) for traced in made()]
        for name, made in track(chosen.items(), "planning", console=Console(stderr=True), transient=True)
    }
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    show(rows, options.modes)


if __name__ == "__main__":
    main()
