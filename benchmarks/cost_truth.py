"""Predicted against measured: step time and peak memory of many plans of several programs, on 2, 4 and 8 MPI ranks.

    python benchmarks/cost_truth.py [--hardware calibrated|FILE.json] [--ranks 2,4,8] [--quick] [--unseen] [--json]
                                    [--out FILE.json] [--plot FILE.png]

--unseen takes the programs of `unseen_programs.py` in the place of the four that the aims are told of. --out saves the
figures, and the scatter plot beside them. Without --hardware the machine is calibrated first. A step is forward,
gradient and update; its time is that of the slowest rank in the quickest of several rounds; the plans of a program take
turns, so that a load on the machine weighs on all alike. Memory is what numpy's arrays take at most, by tracemalloc, in
a run of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

AIM_CORRELATION, AIM_ERROR, AIM_MEMORY = 0.9, 0.25, 0.1
AIMS = f"rank correlation {AIM_CORRELATION}, median error {AIM_ERROR:.0%}, worst of memory {AIM_MEMORY:.0%}"
_DISTURBED = 1.3
_REFERENCE = "the whole program on each rank"
TIMEOUT = 600.0


@dataclass(frozen=True)
class Pair:
    """A plan of a program: seconds of a step, and the most bytes on a rank, as predicted and as measured.

    `slowed` is by how much the machine was slower meanwhile than when it was calibrated: work that sends nothing, on
    all ranks, took so many times as long as predicted.
    """

    program: str
    plan: str
    ranks: int
    predicted: float
    measured: float
    predicted_bytes: int
    measured_bytes: int
    slowed: float = 1.0

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)

    @property
    def memory_error(self) -> float:
        return abs(self.predicted_bytes / self.measured_bytes - 1)


@dataclass(frozen=True)
class Verdict:
    """What the pairs of one program say together."""

    program: str
    pairs: int
    correlation: float
    median_error: float
    worst_error: float
    median_memory_error: float
    worst_memory_error: float


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; argparse's error for those that no run can have."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hardware", default="", help="saved hardware instead of a new calibration")
    parser.add_argument("--ranks", default="2,4,8", help="numbers of ranks, like 2,4,8")
    parser.add_argument("--rounds", type=int, default=24, help="rounds of steps; the quickest counts")
    parser.add_argument("--quick", action="store_true", help="smaller models, and a quick calibration")
    parser.add_argument("--unseen", action="store_true", help="other programs")
    parser.add_argument("--plot", type=Path, default=None, help="where the scatter plot goes (needs matplotlib)")
    parser.add_argument("--out", type=Path, default=None, help="a .json file for the figures; the plot goes beside it")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of tables")
    parser.add_argument("--answer", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--prepared", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    words = options.ranks.split(",")
    if not all(word.isdecimal() and 2 <= int(word) <= 64 for word in words) or options.rounds < 1:
        parser.error(f"--ranks {options.ranks} are numbers from 2 to 64, and --rounds {options.rounds} is at least 1")
    if options.out is not None:
        options.plot = options.plot or options.out.with_suffix(".png")
    options.counts = sorted({int(word) for word in words})
    return options


# -- programs and their plans --------------------------------------------------------------------------------


def programs(quick: bool) -> dict[str, Callable[[tuple[int, int] | None], Any]]:
    """Training steps by name; each is made for parts (of the batch, of the weights) that annotate it, or none."""
    from autoshard import nn
    from autoshard.core.tensortype import TensorType
    from autoshard.transform.train import train_step
    from benchmarks.models import transformer_step

    class Layers(nn.Cell):
        def __init__(self, width: int, parts: tuple[int, int] | None) -> None:
            super().__init__()
            self.dense1, self.dense2 = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)
            self.activation, self.loss = nn.GELU(), nn.MSELoss()
            if parts is not None:
                self.dense1.matmul.shard(((parts[0], 1), (parts[1], 1)))

        def construct(self, x, y):
            return self.loss(self.dense2(self.activation(self.dense1(x))), y)

    def layers(width: int, batch: int) -> Callable[[tuple[int, int] | None], Any]:
        def make(parts: tuple[int, int] | None) -> Any:
            network, of = Layers(width, parts), TensorType.of((batch, width), "f32")
            return train_step(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), of, of)

        return make

    def transformer(hidden: int, sequence: int, batch: int) -> Callable[[tuple[int, int] | None], Any]:
        sizes = {"hidden": hidden, "heads": 8, "vocabulary": 4 * hidden, "sequence": sequence, "batch": batch}
        return lambda parts: transformer_step(1, *(parts or (1, 1)), **sizes)

    if quick:
        return {"layers": layers(64, 48), "transformer": transformer(32, 16, 8)}
    return {
        "wide layers": layers(384, 128),
        "long batch": layers(96, 2048),
        "transformer": transformer(128, 64, 16),
        "small transformer": transformer(64, 32, 8),
    }


def plans(make: Callable[[tuple[int, int] | None], Any], ranks: int, hardware: str) -> Iterator[tuple[str, Any]]:
    """Plans of a program that do different things, by name."""
    from autoshard.api import plan

    for parts in [(ranks // tensor, tensor) for tensor in range(1, ranks + 1) if ranks % tensor == 0]:
        yield f"{parts[0]}x{parts[1]}", plan(make(parts), devices=ranks, hardware=hardware)
    data = plan(make((ranks, 1)), devices=ranks, hardware=hardware, dataset_strategy="data_parallel")
    yield "data parallel", data
    columns = plan(make((1, ranks)), devices=ranks, hardware=hardware, dataset_strategy="data_parallel")
    yield "columns of split data", columns
    if ranks > 2:
        part = plan(make((1, 2)), devices=ranks, hardware=hardware)
        yield "1x2 and copies", part
        yield "2x1 and copies", plan(make((2, 1)), devices=ranks, hardware=hardware)


def prepared(
    ranks: int, hardware: str, made: dict[str, Callable[[tuple[int, int] | None], Any]]
) -> dict[str, tuple[dict[str, Any], Any]]:
    """The plans of each program, and its plan for one device beside as many others: made once, not by each rank."""
    from autoshard.api import plan
    from costmodel import preset

    alone = preset(hardware).for_ranks(ranks)
    return {
        name: (dict(plans(make, ranks, hardware)), plan(make(None), devices=1, hardware=alone))
        for name, make in made.items()
    }


# -- on the ranks --------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> list[Pair]:
    """Time every plan of every program on these ranks; every rank gets the same pairs."""
    from mpi4py import MPI

    from autoshard.runtime.local import LocalComm

    comm = MPI.COMM_WORLD.Dup()

    def slowest(value: float) -> float:
        return comm.allreduce(value, MPI.MAX)

    pairs: list[Pair] = []
    for program, (planned, reference) in pickle.loads(options.prepared.read_bytes()).items():
        memory = {name: slowest(peak_of(one)) for name, one in planned.items()}
        runs = {name: step_of(one) for name, one in planned.items()}
        times = quickest({**runs, _REFERENCE: step_of(reference, LocalComm(1))}, slowest, options.rounds)
        slowed = times[_REFERENCE] / reference.cost.seconds
        for name, one in planned.items():
            predicted = one.cost.seconds, times[name]
            peaks = one.cost.peak_memory_bytes, int(memory[name])
            pairs.append(Pair(program, name, comm.size, *predicted, *peaks, slowed))
    return pairs


def step_of(planned: Any, comm: Any = None) -> Callable[[], object]:
    """A training step on this rank's blocks, its parameters loaded and its data drawn at random."""
    from autoshard.engines.session import Session

    session = planned.session if comm is None else Session(planned, comm)
    session.load()
    data = drawn(session)
    return lambda: session.run(data)


def drawn(session: Any) -> list[Any]:
    """Blocks of random data for a session's inputs, each in memory of its own."""
    from autoshard.runtime.array import cut

    random, data = np.random.default_rng(0), []
    for register in session.data:
        of = register.whole
        floats = of.dtype.numpy.kind == "f"
        array = (random.normal(size=of.shape) if floats else random.integers(0, 8, of.shape)).astype(of.dtype.numpy)
        data.append([np.array(block) for block in cut(array, register.layout, session.comm.ranks)])
    return data


def quickest(runs: dict[str, Callable[[], object]], slowest: Callable[[float], float], rounds: int) -> dict[str, float]:
    """Seconds of one step of each: the slowest rank's, in the quickest round."""
    counts = {name: max(1, int(0.02 / seconds(run, 1, slowest))) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, counts[name], slowest))
    return {name: min(found) for name, found in times.items()}


def seconds(run: Callable[[], object], count: int, slowest: Callable[[float], float]) -> float:
    """Seconds of one of `count` runs, from when all ranks begin until all are done."""
    slowest(0.0)
    start = time.perf_counter()
    for _ in range(count):
        run()
    slowest(0.0)
    return slowest(time.perf_counter() - start) / count


def peak_of(planned: Any, comm: Any = None) -> int:
    """The most bytes of arrays on this rank during a training step, its parameters and its data among them.

    Arrays are counted from where the parameters are loaded; one step before that leaves behind what is made only once.
    """
    from autoshard.engines.session import Session

    session = planned.session if comm is None else Session(planned, comm)
    session.load()
    session.run(drawn(session))
    session.drop()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        data = drawn(session)
        session.load()
        session.run(data)  # the blocks that it was loaded with may lie in the parameters' own memory
        tracemalloc.reset_peak()
        session.run(data)
        return (tracemalloc.get_traced_memory()[1] - before) // len(session.comm.ranks)
    finally:
        tracemalloc.stop()


# -- what comes of it ----------------------------------------------------------------------------------------


def judge(pairs: list[Pair]) -> list[Verdict]:
    """A verdict for each program, over all its plans and numbers of ranks."""
    from scipy.stats import spearmanr

    verdicts = []
    for program in dict.fromkeys(one.program for one in pairs):
        own = [one for one in pairs if one.program == program]
        found = spearmanr([one.predicted for one in own], [one.measured for one in own])
        errors, memory = [one.error for one in own], [one.memory_error for one in own]
        correlation = float(found.statistic)  # type: ignore[attr-defined]
        middle = statistics.median(errors), max(errors), statistics.median(memory), max(memory)
        verdicts.append(Verdict(program, len(own), correlation, *middle))
    return verdicts


def show(pairs: list[Pair], verdicts: list[Verdict]) -> None:
    """Both as tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    from costmodel import format_bytes, format_seconds

    console = Console(force_terminal=False, width=120, highlight=False, markup=False)
    table = Table(title="predicted and measured")
    for name in (
        "program",
        "plan",
        "ranks",
        "predicted",
        "measured",
        "error",
        "slowed",
        "bytes predicted",
        "measured",
        "error",
    ):
        table.add_column(name, justify="left" if name in ("program", "plan") else "right")
    for one in pairs:
        times = format_seconds(one.predicted), format_seconds(one.measured), f"{one.error:.0%}", f"{one.slowed:.1f} x"
        memory = format_bytes(one.predicted_bytes), format_bytes(one.measured_bytes), f"{one.memory_error:.0%}"
        table.add_row(one.program, one.plan, str(one.ranks), *times, *memory)
    console.print(table)
    table = Table(title=f"by program (aims: {AIMS})")
    for name in (
        "program",
        "pairs",
        "rank correlation",
        "median error",
        "worst",
        "median error of memory",
        "worst of memory",
    ):
        table.add_column(name, justify="left" if name == "program" else "right")
    for one in verdicts:
        errors = f"{one.median_error:.0%}", f"{one.worst_error:.0%}"
        errors += f"{one.median_memory_error:.0%}", f"{one.worst_memory_error:.0%}"
        table.add_row(one.program, str(one.pairs), f"{one.correlation:.3f}", *errors)
    console.print(table)
    middle = statistics.median(one.error for one in pairs)
    console.print(f"{len(pairs)} pairs, median error {middle:.0%}, of memory {_memory(pairs):.0%}")
    calm = [one.error for one in pairs if one.slowed <= _DISTURBED]
    found = f", median error {statistics.median(calm):.0%}" if calm else ""
    console.print(f"{len(calm)} pairs while the machine was as fast as when it was calibrated{found}")


def _memory(pairs: list[Pair]) -> float:
    return statistics.median(one.memory_error for one in pairs)


def draw(pairs: list[Pair], path: Path) -> str:
    """Write the scatter plot; a line that says where it is, or why there is none."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found]
    except ImportError:
        return "no plot: matplotlib is not installed; `pip install autoshard[viz]` brings it"
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    markers = dict(zip(sorted({one.ranks for one in pairs}), "os^Dv*", strict=False))
    for i, program in enumerate(dict.fromkeys(one.program for one in pairs)):
        for ranks, marker in markers.items():
            own = [one for one in pairs if (one.program, one.ranks) == (program, ranks)]
            x, y = [1e3 * one.measured for one in own], [1e3 * one.predicted for one in own]
            axes.scatter(x, y, marker=marker, color=f"C{i}", label=f"{program}, {ranks} ranks")
    ends = [f(1e3 * t for one in pairs for t in (one.predicted, one.measured)) for f in (min, max)]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
    axes.legend(fontsize="x-small")
    figure.savefig(path)
    return f"plot: {path}"


def collect(options: argparse.Namespace, hardware: str) -> list[Pair]:
    """Pairs of all numbers of ranks, each measured by a job of its own.

    Raises:
        SystemExit: a job failed.
    """
    from autoshard.runtime.launch import launch
    from benchmarks.unseen_programs import unseen_programs

    pairs: list[Pair] = []
    made = unseen_programs() if options.unseen else programs(options.quick)
    with tempfile.TemporaryDirectory() as folder:
        for count in options.counts:
            answer, plans_file = Path(folder) / f"{count}.json", Path(folder) / f"{count}.pickle"
            plans_file.write_bytes(pickle.dumps(prepared(count, hardware, made)))
            words = [__file__, "--prepared", str(plans_file), "--answer", str(answer), "--rounds", str(options.rounds)]
            code = launch(words, count, timeout=TIMEOUT)
            if code:
                sys.exit(f"the job of {count} ranks ended with exit code {code}")
            pairs += [Pair(**one) for one in json.loads(answer.read_text())]
    return sorted(pairs, key=lambda one: (one.program, one.ranks))


def main(arguments: list[str]) -> int:
    """Calibrate if need be, start the ranks, and report; or on a rank measure. The exit code."""
    from autoshard.mindspore.communication import get_rank, under_launcher

    options = parse(arguments)
    if under_launcher():
        pairs = measure(options)
        if get_rank() == 0:
            options.answer.write_text(json.dumps([asdict(one) for one in pairs]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        pairs = collect(options, options.hardware or calibrated(options.counts[-1], options.quick, Path(folder)))
    verdicts = judge(pairs)
    figures = json.dumps({"pairs": [asdict(o) for o in pairs], "programs": [asdict(o) for o in verdicts]}, indent=2)
    if options.out is not None:
        options.out.write_text(figures + "\n")
    if options.json:
        print(figures)
    else:
        show(pairs, verdicts)
    if options.plot is not None:
        print(draw(pairs, options.plot), file=sys.stderr)
    return 0


def calibrated(ranks: int, quick: bool, folder: Path) -> str:
    """Measure this machine; the file in the folder that its hardware is saved to."""
    from autoshard.calibrate import calibrate
    from costmodel import save

    found = calibrate(ranks, quick=quick, tell=lambda line: print(line, file=sys.stderr))
    return str(save(found.hardware, folder / "hardware.json"))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(sys.argv[1:]))
