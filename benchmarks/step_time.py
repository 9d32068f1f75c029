"""Step time: one training step of a feed-forward network by autoshard, against the same step written by hand.

    python benchmarks/step_time.py [--ranks 2] [--hidden 1024] [--batch 256] [--steps 10] [--blocks 9] [--json]

Forward, gradient and Momentum update on MPI ranks; one run times both, in blocks of steps that alternate. Losses and
parameters of both have to agree, else it is an error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOLERANCE = 1e-4
WARM_UP = 3


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; argparse's error for sizes that no run can have."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024, help="width of every layer")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each kind; the median counts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if min(options.ranks, options.hidden, options.batch, options.steps, options.blocks) < 1:
        parser.error("ranks, hidden, batch, steps and blocks are at least 1")
    if options.ranks < 2 or options.hidden % options.ranks:
        parser.error(f"--ranks {options.ranks} must be at least 2 and divide --hidden {options.hidden}")
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time both on this rank; all ranks get the same figures.

    Raises:
        SystemExit: the plan sends something else than the hand-written step, or the results differ.
    """
    from benchmarks.ffn_step import COLLECTIVES, ByAutoshard, ByHand, batch_of, difference, initial
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    values, (x, y) = initial(options.hidden), batch_of(options.batch, options.hidden)
    ours, theirs = ByAutoshard(comm, values, options.batch), ByHand(comm, values, options.batch)
    if ours.collectives != COLLECTIVES:
        sys.exit(f"not comparable: the plan sends {ours.collectives}, the hand-written step {COLLECTIVES}")
    losses: dict[Any, list[float]] = {ours: [], theirs: []}

    def block(one: ByAutoshard | ByHand, steps: int) -> float:
        """Milliseconds per step of the slowest rank."""
        comm.Barrier()
        start = time.perf_counter()
        losses[one] += [one.step(x, y) for _ in range(steps)]
        return comm.allreduce(1e3 * (time.perf_counter() - start) / steps, MPI.MAX)

    figures = _alternate(lambda steps: block(theirs, steps), lambda steps: block(ours, steps), options)
    parameters, expected = ours.parameters(), theirs.parameters()
    figures |= {
        "collectives": [str(one.step) for one in ours.planned.program.collectives],
        "first_loss": losses[ours][0],
        "last_loss": losses[ours][-1],
        "loss_difference": difference(losses[ours], losses[theirs]),
        "parameter_difference": difference([parameters[name] for name in expected], list(expected.values())),
    }
    worst = max(figures["loss_difference"], figures["parameter_difference"])
    if not worst <= TOLERANCE:
        sys.exit(f"autoshard and the hand-written step differ by {worst:.1e}; {TOLERANCE} is allowed")
    return figures


def _alternate(
    hand: Callable[[int], float], autoshard: Callable[[int], float], options: argparse.Namespace
) -> dict[str, Any]:
    """Medians over blocks. Each pair of blocks swaps its order, and gives a ratio of its own: so a load on the
    machine that comes or goes weighs on both alike."""
    for run in (hand, autoshard):
        run(WARM_UP)
    pairs = []
    for number in range(options.blocks):
        if number % 2:
            second, first = autoshard(options.steps), hand(options.steps)
        else:
            first, second = hand(options.steps), autoshard(options.steps)
        pairs.append((first, second))
    return {
        "hand_ms": statistics.median(first for first, _ in pairs),
        "autoshard_ms": statistics.median(second for _, second in pairs),
        "ratio": statistics.median(second / first for first, second in pairs),
    }


def show(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """The figures as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    size = f"{options.hidden} wide, batch {options.batch}, on {options.ranks} ranks"
    table = Table(title=f"a training step of two dense layers, {size}")
    for name in ("hand-written ms", "autoshard ms", "ratio"):
        table.add_column(name, justify="right")
    table.add_row(f"{figures['hand_ms']:.2f}", f"{figures['autoshard_ms']:.2f}", f"{figures['ratio']:.3f}")
    console = Console()
    console.print(table)
    console.print(f"both send: {'; '.join(figures['collectives'])}", markup=False)
    console.print(
        f"loss {figures['first_loss']:.4f} -> {figures['last_loss']:.4f}; largest relative difference: "
        f"losses {figures['loss_difference']:.1e}, parameters {figures['parameter_difference']:.1e}"
    )


def main(arguments: list[str]) -> int:
    """Start the ranks, or on a rank measure; the exit code."""
    from autoshard.communication import get_rank, under_launcher
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
