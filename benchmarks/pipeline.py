"""Steps in stages and without, on 2, 4 and 8 MPI ranks: predicted beside measured, idle shares too.

    autoshard calibrate -n 4
    python -m benchmarks.pipeline --hardware calibrated

A stack of dense layers is trained for a few steps; the fastest one counts. Measured are seconds of a step without the
loading of parameters, and for each group of ranks the share of the step for which they waited for others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

RANKS = (2, 4, 8)


def main() -> None:
    """Run all sizes and print a table; as a rank (`--as-rank`) one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--as-rank", metavar="MESH", default=None)
    given = parser.parse_args()
    if given.as_rank is not None:
        run_as_rank(given)
        return
    print(
        f"{'ranks':>5}  {'mesh':12}  {'predicted ms':>12}  {'measured ms':>12}  idle shares predicted | measured, in %"
    )
    for ranks in given.ranks:
        meshes = [f"dp={ranks}", f"pp={ranks}", *([f"pp=2,dp={ranks // 2}"] if ranks > 2 else [])]
        for mesh in meshes:
            print_row(ranks, mesh, measured(ranks, mesh))


def measured(ranks: int, mesh: str) -> dict:
    """The figures of one mesh, from ranks of their own."""
    own = [one for one in sys.argv[1:] if one != "--as-rank"]
    command = [sys.executable, "-m", "autoshard", "run", "-n", str(ranks), __file__, *own, "--as-rank", mesh]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise SystemExit(f"{mesh}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def print_row(ranks: int, mesh: str, row: dict) -> None:
    """One line of the table."""
    shares = [" ".join(f"{100 * one:.0f}" for one in row[name]) for name in ("predicted_idle", "measured_idle")]
    times = [f"{1e3 * row[name]:12.2f}" for name in ("predicted", "measured")]
    print(f"{ranks:5}  {mesh:12}  {times[0]}  {times[1]}  {shares[0]} | {shares[1]}", flush=True)


def training_step(hidden: int, layers: int, rows: int):
    """A training step of a stack of dense layers, and its data."""
    from autoshard import nn, ops
    from autoshard.trace import set_seed
    from autoshard.transform import train_step

    set_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Dense(hidden, hidden), nn.Tanh())]
    net = nn.SequentialCell(*parts)
    x, y = (np.random.default_rng(i).normal(size=(rows, hidden)).astype(np.float32) for i in range(2))

    def loss(x, y):
        return ops.reduce_mean(ops.square(net(x) - y))

    return train_step(loss, nn.SGD(net.trainable_params(), 0.1), x, y), (x, y)


def run_as_rank(given: argparse.Namespace) -> None:
    """Plan, run and measure on the ranks that are there; rank 0 prints the figures."""
    from autoshard.mindspore.communication import get_rank

    step, data = training_step(given.hidden, given.layers, given.rows)
    row = staged(step, data, given) if "pp" in given.as_rank else unstaged(step, data, given)
    if get_rank() == 0:
        print(json.dumps(row))


def staged(step, data, given: argparse.Namespace) -> dict:
    """The figures of a pipeline."""
    from autoshard.pipeline import plan_pipeline

    planned = plan_pipeline(
        step.traced,
        mesh=given.as_rank,
        micro_batches=given.micro_batches,
        schedule=given.schedule,
        hardware=given.hardware,
    )
    arrays = step.traced.inputs(*data)
    best = min((planned.session.run(arrays) for _ in range(given.steps)), key=lambda ran: ran.seconds)
    idle = [1 - busy / best.seconds for busy in best.busy]
    means = [float(np.mean([idle[rank] for rank in group.ranks])) for group in planned.groups] if idle else []
    return {
        "predicted": planned.price.seconds,
        "measured": best.seconds,
        "predicted_idle": list(planned.price.idle),
        "measured_idle": means,
    }


def unstaged(step, data, given: argparse.Namespace) -> dict:
    """The figures of the same step in one piece, the batch whole."""
    from time import perf_counter

    from autoshard import plan

    planned = plan(step, mesh=given.as_rank, hardware=given.hardware)
    session = planned.session
    session.load()
    arrays = step.traced.inputs(*data)
    blocks = [session._cut(arrays[i], i) for i in session._data]
    seconds = []
    for _ in range(given.steps):
        session.comm.barrier()
        begun = perf_counter()
        session.run(blocks)
        session.comm.barrier()
        seconds.append(perf_counter() - begun)
    return {"predicted": planned.cost.seconds, "measured": min(seconds), "predicted_idle": [], "measured_idle": []}


if __name__ == "__main__":
    main()
