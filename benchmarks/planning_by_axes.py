"""Planning time of a transformer block in every search mode, by the shape of the mesh: many axes, many devices.

    python benchmarks/planning_by_axes.py [--meshes 2x2x2 1024 ...] [--modes bfs optimal ...] [--kinds forward training]
                                          [--limit 60] [--json]

Without `--meshes`: 2 to 10 axes of 2, 8 to 16,384 devices on one axis, and shapes with axes of mixed and prime sizes
and of size 1. The block is attention and a feed-forward layer, nothing annotated; "training" adds gradients and Adam.
Each cell is planned in a process of its own that has planned nothing before, and is ended at the limit. A cell is the
seconds of planning, and the plan's seconds of a step by the evaluator; of `optimal` also how far that is above its
bound, and `part` where the bound speaks of a part of all strategies.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

AXES = [(2,) * count for count in range(2, 11)]
DEVICES = [(8,), (64,), (512,), (1024,), (4096,), (16384,)]
MIXED = [(7,), (13,), (30,), (2, 3, 5), (2, 1, 4, 1), (2, 3, 4, 5, 7), (8, 8, 8, 8, 4)]
HIDDEN, HEADS, SEQUENCE, BATCH = 1024, 16, 1024, 64
KINDS = ("forward", "training")


def parse_sizes(text: str) -> tuple[int, ...]:
    """A type for argparse: '2x2x2' is three axes of 2, '1024' as many devices on one axis."""
    try:
        sizes = tuple(map(int, text.split("x")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 2x2x2 or 1024") from None
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a size below 1")
    return sizes


def show_sizes(sizes: tuple[int, ...]) -> str:
    """What `parse_sizes` reads."""
    return "x".join(map(str, sizes))


def traced_block(kind: str) -> Any:
    """The block, or its training step, as a graph."""
    from autoshard import nn, trace
    from autoshard.core.tensortype import TensorType
    from autoshard.transform.train import train_step

    block = nn.TransformerBlock(HIDDEN, HEADS, 4 * HIDDEN, causal=True)
    of = TensorType.of((BATCH, SEQUENCE, HIDDEN), "f32")
    if kind == "forward":
        return trace(block, of)

    class Loss(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.loss = block, nn.MSELoss()

        def construct(self, x, y):
            return self.loss(self.network(x), y)

    network = Loss()
    return train_step(network, nn.Adam(network.trainable_params(), learning_rate=1e-3), of, of)


def measure(traced: Any, sizes: tuple[int, ...], mode: str, hardware: str, limit: float) -> dict[str, Any]:
    """The figures of one cell, from a process that ends with it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_plan, args=(traced, sizes, mode, hardware, limit, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        process.join()
        late = process.exitcode == -signal.SIGXCPU
        return {"refused": f"more than {limit:g} s" if late else "its process ended without an answer"}
    finally:
        process.join()


def _plan(traced: Any, sizes: tuple[int, ...], mode: str, hardware: str, limit: float, answer: Connection) -> None:
    import autoshard
    from autoshard.util.errors import AutoshardError

    where: dict[str, Any] = {"devices": sizes[0]} if len(sizes) == 1 else {"mesh": show_sizes(sizes)}
    started = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(started + limit), resource.RLIM_INFINITY))
    try:
        planned = autoshard.plan(traced, search=mode, hardware=hardware, **where)
    except AutoshardError as error:
        answer.send({"refused": str(error)})
        return
    planning = time.process_time() - started
    stats = planned.plan.search_stats
    seconds = planned.cost.seconds
    told = {name: stats[name] for name in ("gap", "restricted") if name in stats}
    answer.send({"planning": planning, "seconds": seconds, **told})


def show_cell(cell: dict[str, Any]) -> str:
    """A cell of the table."""
    from costmodel import format_seconds

    if "refused" in cell:
        return cell["refused"] if cell["refused"].startswith("more than") else "-"
    told = f"{cell['planning']:.1f} s, {format_seconds(cell['seconds'])}"
    if "gap" in cell:
        told += f" +{100 * cell['gap']:.1f} %{' part' if cell['restricted'] else ''}"
    return told


def show(rows: list[dict[str, Any]], modes: list[str]) -> None:
    """A table per kind of graph, and why cells are empty."""
    console = Console()
    for kind in dict.fromkeys(row["kind"] for row in rows):
        table = Table(title=f"a transformer block, {kind}: seconds of planning, seconds of a step")
        table.add_column("mesh")
        for mode in modes:
            table.add_column(mode, justify="right")
        for row in rows:
            if row["kind"] == kind:
                table.add_row(row["mesh"], *(show_cell(row["modes"][mode]) for mode in modes))
        console.print(table)
    refused = {(mode, cell["refused"]) for row in rows for mode, cell in row["modes"].items() if "refused" in cell}
    for mode, why in sorted(refused):
        console.print(f"{mode}: {why}", soft_wrap=True, highlight=False)
    spent = [cell["planning"] for row in rows for cell in row["modes"].values() if "planning" in cell]
    console.print(f"the longest planning took {max(spent, default=0.0):.1f} s", highlight=False)


def main() -> None:
    from autoshard.search import search_modes

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--meshes", nargs="+", type=parse_sizes, default=AXES + DEVICES + MIXED)
    parser.add_argument("--modes", nargs="+", default=list(search_modes()))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--limit", type=float, default=60.0, help="processor seconds after which a cell is ended")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    graphs = {kind: traced_block(kind) for kind in options.kinds}
    tasks = [(kind, sizes) for kind in options.kinds for sizes in options.meshes]
    for kind, sizes in track(tasks, "planning", console=Console(stderr=True), transient=True):
        cells = {mode: measure(graphs[kind], sizes, mode, options.hardware, options.limit) for mode in options.modes}
        rows.append({"kind": kind, "mesh": show_sizes(sizes), "modes": cells})
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    show(rows, options.modes)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
