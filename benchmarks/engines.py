"""Time of a training step by engine, beside what one would write without autoshard, all alternating in one run.

    python -m benchmarks.engines [--task ffn|attention|llama] [--ranks 2] [--hidden 256] [--batch 128] [--heads 8]
        [--sequence 64] [--layers 1] [--steps 4] [--blocks 5] [--json]

Forward, gradient and Momentum update of one network, split alike: two dense layers, an attention block, or layers of
Llama, each a whole transformer block. Engines are autoshard's numpy (over MPI), torch (gloo), torch-compiled, and xla
(host devices of JAX). Beside them run a step in numpy and mpi4py by hand, one under `jax.shard_map` by hand, `jax.jit`
with the plan's shardings as in- and out-shardings, and PyTorch's DTensor by an exported plan. One job of MPI ranks and
one process of JAX hold them; a file says whose turn it is, all others sleep meanwhile. Losses have to agree, else it is
an error. Printed are medians of the blocks' steps, and the median ratio to the best of the peers in the same round: of
the time that passes, and of the time of processors of all ranks together, which says more where other work runs beside
(ranks that wait for a message use it, too).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.stepping import Task

NUMPY, TORCH, COMPILED, XLA = "numpy", "torch", "torch-compiled", "xla"
BY_HAND, DTENSOR = "numpy and mpi4py by hand", "DTensor by the exported plan"
SHARD_MAP, JIT = "shard_map by hand", "jax.jit with the plan's shardings"
RANKS = (NUMPY, TORCH, COMPILED, BY_HAND, DTENSOR)
"""What runs on MPI ranks."""
DEVICES = (XLA, SHARD_MAP, JIT)
"""What runs on JAX's devices, in one process."""
LLAMA = "llama"
PEERS = (BY_HAND, DTENSOR, SHARD_MAP, JIT)
TOLERANCE = 1e-3
_NAP = 0.004
_PATIENCE = 600.0
Run = Callable[[int], Sequence[float]]
"""Does so many steps, and returns their losses."""
Seconds = tuple[float, float]
"""Of a step: those that pass on the slowest rank, and those of processors, of all ranks together."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("ffn", "attention", LLAMA), default="ffn", help="what is trained")
    for name, size in (
        ("ranks", 2), ("hidden", 256), ("batch", 128), ("heads", 8), ("sequence", 64), ("layers", 1),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--steps", type=int, default=4, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of a table")
    parser.add_argument("--serve", choices=("ranks", "devices"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if min(given.hidden, given.batch, given.steps, given.blocks, given.sequence, given.layers) < 1 or given.ranks < 2:
        parser.error("sizes, layers, steps and blocks are at least 1, ranks at least 2")
    if given.hidden % given.ranks or given.hidden % given.heads or given.heads % given.ranks:
        parser.error(f"--ranks {given.ranks} must divide --heads {given.heads}, and that --hidden {given.hidden}")
    if given.batch % given.sequence:
        parser.error(f"--sequence {given.sequence} must divide --batch {given.batch}")
    return given


def task_of(given: argparse.Namespace) -> Task:
    """What is trained."""
    from benchmarks import attention_step, ffn_step, llama_step

    sizes = given.hidden, given.batch, given.ranks
    if given.task == "attention":
        # Breadth-first propagation sends other messages than the step by hand with sequences of 256 on 8 ranks.
        return replace(attention_step.task(*sizes, given.heads, given.sequence), search="sharding_propagation")
    if given.task == LLAMA:
        return llama_step.task(*sizes, given.heads, given.sequence, given.layers)
    return ffn_step.task(*sizes)


# -- whose turn it is


def serve(folder: Path, rank: str, runs: Mapping[str, Run]) -> None:
    """Run what a file in the folder says, until it says that all is done; `rank` names this process."""
    _write(folder / f"ready.{rank}", "")
    last = ""
    while True:
        turn = _read(folder / "turn")
        if turn == last:
            time.sleep(_NAP)
            continue
        last = turn
        number, steps, name = turn.split(" ", 2)
        if name == "end":
            return
        if name in runs:
            start, used = time.perf_counter(), time.process_time()
            losses = [float(one) for one in runs[name](int(steps))]
            seconds = [(time.perf_counter() - start) / int(steps), (time.process_time() - used) / int(steps)]
            _write(folder / f"done.{number}.{rank}", json.dumps([*seconds, losses]))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


class Turns:
    """Gives each in turn its block of steps."""

    def __init__(self, folder: Path, ranks: int, processes: Sequence[subprocess.Popen]) -> None:
        self._folder, self._processes, self._number = folder, processes, 0
        self._of = {name: [f"r{rank}" for rank in range(ranks)] for name in RANKS} | {name: ["d"] for name in DEVICES}
        self._await([f"ready.{one}" for one in (*self._of[NUMPY], "d")])

    def block(self, name: str, steps: int) -> tuple[Seconds, list[float]]:
        """What a step takes, and the losses."""
        self._number += 1
        _write(self._folder / "turn", f"{self._number} {steps} {name}")
        files = [f"done.{self._number}.{one}" for one in self._of[name]]
        self._await(files)
        found = [json.loads(_read(self._folder / one)) for one in files]
        walls, used, losses = zip(*found, strict=True)
        return (max(walls), sum(used)), losses[0]

    def end(self) -> None:
        _write(self._folder / "turn", "0 0 end")

    def _await(self, names: Sequence[str]) -> None:
        until = time.monotonic() + _PATIENCE
        while not all((self._folder / name).is_file() for name in names):
            if any(one.poll() not in (None, 0) for one in self._processes) or time.monotonic() > until:
                self.end()
                sys.exit(f"what should run has ended, or did nothing for {_PATIENCE:.0f} s")
            time.sleep(_NAP)


def measure(given: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """Milliseconds of a step, and ratios to the best peer, by name."""
    with TemporaryDirectory(prefix="autoshard_") as made:
        common = [*arguments, "--folder", made]
        module = [sys.executable, "-m", "autoshard", "run", "-n", str(given.ranks), str(Path(__file__))]
        processes = [
            subprocess.Popen([*module, *common, "--serve", "ranks"], stdout=subprocess.DEVNULL),
            subprocess.Popen([sys.executable, str(Path(__file__)), *common, "--serve", "devices"]),
        ]
        try:
            turns = Turns(Path(made), given.ranks, processes)
            rounds = _alternate(turns, given)
            turns.end()
            for one in processes:
                one.wait(_PATIENCE)
        finally:
            for one in processes:
                one.terminate()
    return {
        "milliseconds": {name: 1e3 * statistics.median(one[name][0] for one in rounds) for name in rounds[0]},
        "ratio": _ratios([{name: one[0] for name, one in row.items()} for row in rounds]),
        "cpu_milliseconds": {name: 1e3 * statistics.median(one[name][1] for one in rounds) for name in rounds[0]},
        "cpu_ratio": _ratios([{name: one[1] for name, one in row.items()} for row in rounds]),
    }


def _ratios(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name the median ratio to the best peer of the same round."""
    best = [min(one[name] for name in PEERS) for one in rounds]
    return {
        name: statistics.median(one[name] / least for one, least in zip(rounds, best, strict=True))
        for name in rounds[0]
    }


def _alternate(turns: Turns, given: argparse.Namespace) -> list[dict[str, Seconds]]:
    """What a step of each takes in each round; rounds go forth and back, so that a load weighs on all alike."""
    from autoshard.engines.numpy_engine import NOTED

    order, rounds, warm = [*RANKS, *DEVICES], [], max(given.steps, NOTED + 1)  # by then all have compiled, or written
    losses: dict[str, list[float]] = {name: turns.block(name, warm)[1] for name in order}
    for _ in range(given.blocks):
        found = {}
        for name in order:
            found[name], more = turns.block(name, given.steps)
            losses[name] += more
        rounds.append(found)
        order.reverse()
    for name, own in losses.items():
        worst = max(abs(one - other) / abs(other) for one, other in zip(own, losses[BY_HAND], strict=True))
        if not worst <= TOLERANCE:
            sys.exit(f"losses of {name!r} differ from those by hand by {worst:.1e}: {own[:3]}, {losses[BY_HAND][:3]}")
    return rounds


def show(given: argparse.Namespace, figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    sizes = f"{given.hidden} wide, batch {given.batch}, sequence {given.sequence}"
    title = f"{given.task}: {sizes}, {given.ranks} ranks, {os.cpu_count()} cores"
    table = Table("by", "ms", "to the best peer", "ms of processors", "to the best peer", title=title)
    for name in (*RANKS, *DEVICES):
        row = [
            f"{figures[kind + part][name]:.{digits}f}"
            for kind in ("", "cpu_")
            for part, digits in (("milliseconds", 2), ("ratio", 3))
        ]
        table.add_row(name, *row)
    Console(width=100).print(table)


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    if given.serve == "ranks":
        from benchmarks.engine_ranks import contestants

        rank, runs = contestants(task_of(given), given)
        serve(Path(given.folder), f"r{rank}", runs)
    elif given.serve == "devices":
        from autoshard.engines.xla_engine import need_devices
        from benchmarks.engine_devices import contestants

        need_devices(given.ranks)
        serve(Path(given.folder), "d", contestants(task_of(given), given))
    else:
        figures = measure(given, arguments)
        print(json.dumps(figures)) if given.json else show(given, figures)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(sys.argv[1:]))
