"""Step time and memory: a training step of a network by autoshard, against the same written by hand.

    python benchmarks/step_time.py [--task ffn|attention] [--ranks 2] [--hidden 1024] [--batch 256] [--heads 16]
        [--sequence 64] [--steps 10] [--blocks 9] [--json]

Forward, gradient and Momentum update on MPI ranks; one run times all, in blocks of steps that alternate. Losses and
parameters of the first steps have to agree, else it is an error; of later ones they part as soon as a rounding takes an
element of a ReLU to the other side of 0. Memory is what numpy's arrays take at most on a rank during a step, by
tracemalloc: the parameters' blocks, their states and the data among them, in runs of their own.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.stepping import Task

TOLERANCE = 1e-4
WARM_UP, COMPARED = 3, 10
HAND, SESSION, MODEL = "hand-written", "autoshard", "autoshard, in Model.train"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; argparse's error for sizes that no run can have."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", choices=("ffn", "attention"), default="ffn", help="what is trained")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024, help="width of every layer")
    parser.add_argument("--batch", type=int, default=256, help="points, or tokens of all sequences")
    parser.add_argument("--heads", type=int, default=16, help="of attention")
    parser.add_argument("--sequence", type=int, default=64, help="tokens that attend to each other")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each kind; the median counts")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of a table")
    options = parser.parse_args(arguments)
    if min(options.hidden, options.batch, options.steps, options.blocks) < 1:
        parser.error("hidden, batch, steps and blocks are at least 1")
    if options.ranks < 2 or options.hidden % options.ranks:
        parser.error(f"--ranks {options.ranks} must be at least 2 and divide --hidden {options.hidden}")
    if options.task == "attention" and not _fits(options):
        parser.error(
            f"--heads {options.heads} must be a multiple of --ranks {options.ranks} and divide --hidden "
            f"{options.hidden}, and --sequence {options.sequence} must divide --batch {options.batch}"
        )
    return options


def _fits(options: argparse.Namespace) -> bool:
    if min(options.heads, options.sequence) < 1:
        return False
    return not (options.heads % options.ranks or options.hidden % options.heads or options.batch % options.sequence)


def task_of(options: argparse.Namespace) -> Task:
    """What the contestants train."""
    from benchmarks import attention_step, ffn_step

    sizes = options.hidden, options.batch, options.ranks
    if options.task == "attention":
        return attention_step.task(*sizes, options.heads, options.sequence)
    return ffn_step.task(*sizes)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all on this rank; every rank gets the same figures.

    Raises:
        SystemExit: the plan sends something else than the hand-written step, or the results differ.
    """
    from mpi4py import MPI

    from benchmarks.cost_truth import peak_of
    from benchmarks.stepping import COLLECTIVES, ByAutoshard, ByModel, Contestant

    comm = MPI.COMM_WORLD.Dup()
    task = task_of(options)
    x, y = task.x, task.y
    hand, ours, model = task.by_hand(comm, task), ByAutoshard(comm, task), ByModel(comm, task)
    if ours.collectives != COLLECTIVES:
        sys.exit(
            f"not comparable: for these sizes the plan sends {ours.collectives}, the hand-written step {COLLECTIVES}"
        )

    def block(one: Contestant, steps: int) -> float:
        """Milliseconds per step of the slowest rank."""
        comm.Barrier()
        return 1e3 * comm.allreduce(one.run(x, y, steps), MPI.MAX)

    runs: dict[str, Contestant] = {HAND: hand, SESSION: ours, MODEL: model}
    for one in runs.values():
        one.run(x, y, COMPARED)
    parameters = {name.removeprefix("attention."): value for name, value in ours.parameters().items()}
    together, losses = slice(len(hand.losses)), "losses in Model.train"
    difference = compare(
        {"losses": ours.losses, losses: model.losses[together], **parameters},
        {"losses": hand.losses, losses: hand.losses, **hand.parameters()},
    )
    times = alternate({name: lambda steps, one=one: block(one, steps) for name, one in runs.items()}, options)
    peaks = {HAND: peak_by_hand(lambda: task.by_hand(comm, task), x, y), SESSION: peak_of(ours.planned)}
    peaks = {name: comm.allreduce(found, MPI.MAX) for name, found in peaks.items()}
    return {
        "task": task.name,
        "milliseconds": {name: statistics.median(found) for name, found in times.items()},
        "ratio": {name: paired(found, times[HAND]) for name, found in times.items() if name != HAND},
        "peak_bytes": peaks,
        "memory_ratio": peaks[SESSION] / peaks[HAND],
        "collectives": [str(one.step) for one in ours.planned.program.collectives],
        "first_loss": hand.losses[0],
        "last_loss": hand.losses[-1],
        "difference": difference,
    }


def alternate(blocks: Mapping[str, Callable[[int], float]], options: argparse.Namespace) -> dict[str, list[float]]:
    """The times of each contestant's blocks, after a warm-up. Rounds go forth and back in turn, so that a load on
    the machine that comes or goes weighs on all alike."""
    for run in blocks.values():
        run(WARM_UP)
    times: dict[str, list[float]] = {name: [] for name in blocks}
    order = list(blocks)
    for _ in range(options.blocks):
        for name in order:
            times[name].append(blocks[name](options.steps))
        order.reverse()
    return times


def peak_by_hand(make: Callable[[], Any], x: Any, y: Any) -> int:
    """The most bytes of arrays on this rank during a step of what `make` makes, the data among them."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        one = make()
        one.step(x, y)
        tracemalloc.reset_peak()
        one.step(x, y)
        return tracemalloc.get_traced_memory()[1] - before + x.nbytes + y.nbytes
    finally:
        tracemalloc.stop()


def paired(found: list[float], base: list[float]) -> float:
    """The median of the ratios of blocks that ran in one round."""
    return statistics.median(one / other for one, other in zip(found, base, strict=True))


def compare(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The largest difference, each relative to the largest value of what it is of.

    Raises:
        SystemExit: a difference above the tolerance.
    """
    import numpy as np

    worst = 0.0
    for name, other in expected.items():
        one, other = np.asarray(found[name]), np.asarray(other)
        difference = float(np.abs(one - other).max() / np.abs(other).max())
        if not difference <= TOLERANCE:
            sys.exit(
                f"{name} of autoshard and of the hand-written step differ by {difference:.1e} of the largest value;"
                f" {TOLERANCE} is allowed"
            )
        worst = max(worst, difference)
    return worst


def show(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """The figures as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    from costmodel import format_bytes

    size = f"{options.hidden} wide, batch {options.batch}, {options.ranks} ranks"
    table = Table(title=f"training step of {figures['task']}\n{size}")
    for name in ("by", "ms", "ratio", "peak memory", "ratio of memory"):
        table.add_column(name, justify="left" if name == "by" else "right")
    for name, milliseconds in figures["milliseconds"].items():
        peak = figures["peak_bytes"].get(name)
        memory = ("", "") if peak is None else (format_bytes(peak), f"{peak / figures['peak_bytes'][HAND]:.3f}")
        table.add_row(name, f"{milliseconds:.2f}", f"{figures['ratio'].get(name, 1.0):.3f}", *memory)
    # Ranks write to a pseudo terminal wherever the output goes in the end, so no colours.
    console = Console(force_terminal=False, width=100, highlight=False, markup=False)
    console.print(table)
    console.print(f"each sends {'; '.join(figures['collectives'])}")
    console.print(
        f"loss {figures['first_loss']:.4f} -> {figures['last_loss']:.4f}, largest relative difference of losses "
        f"and parameters of {COMPARED} steps {figures['difference']:.1e}"
    )


def main(arguments: list[str]) -> int:
    """Start the ranks, or on a rank measure; the exit code."""
    from autoshard.mindspore.communication import get_rank, under_launcher
    from autoshard.runtime.launch import launch

    options = parse(arguments)
    if not under_launcher():
        return launch([__file__, *arguments], options.ranks)
    figures = measure(options)
    if get_rank() == 0 and options.json:
        print(json.dumps({**vars(options), **figures}, indent=2))
    elif get_rank() == 0:
        show(options, figures)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(sys.argv[1:]))
