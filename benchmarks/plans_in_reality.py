"""Whether the plan that `optimal` picks is the fastest in reality: five training steps, by many plans, on MPI ranks.

    python benchmarks/plans_in_reality.py [--ranks 8] [--plans 22] [--hardware calibrated|FILE.json]
                                          [--programs NAME,..] [--keep FOLDER] [--only-plan] [--quick] [--json]

Without --hardware the machine is calibrated first. Plans are made beforehand and taken up by the ranks from files, in
the folder to keep them in if one is named: there they are found again, so that they can be made (`--only-plan`) while
the machine does other things, and measured when it does nothing else. All take turns, round by round; those that led
then run on for the figures, so that no plan leads by luck alone. A ratio is the median over the rounds of the pick's
time to the fastest plan's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

AIM = 1.05
LEADERS = 5
"""The plans that go on to the final, besides the pick."""
TIMEOUT = 600.0
BLOCK = 0.03
"""Seconds that a plan's steps of one round take together, about."""


@dataclass(frozen=True)
class Run:
    """A plan: its seconds a step as predicted, in the first rounds and (None if it did not lead) in the final."""

    plan: str
    predicted: float
    measured: float
    final: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of one program; the first of `runs` is the pick, `ratio` its time to that of `fastest`."""

    program: str
    ratio: float
    fastest: str
    correlation: float
    runs: tuple[Run, ...]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; argparse's error for those that no run can have."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hardware", default="", help="saved hardware instead of a new calibration")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--plans", type=int, default=22, help="how many plans of a program, at most")
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds that all take part in; twice as many in the final"
    )
    parser.add_argument("--programs", default="", help="names of programs, joined by commas; default: all")
    parser.add_argument("--quick", action="store_true", help="small models, few plans and rounds, a quick calibration")
    parser.add_argument("--keep", type=Path, default=None, help="the folder that plans are kept in, and found again")
    parser.add_argument("--only-plan", action="store_true", help="make the plans and measure nothing")
    parser.add_argument("--json", action="store_true", help="figures as JSON instead of tables")
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not 2 <= options.ranks <= 64 or options.plans < 2 or options.rounds < 0:
        parser.error(f"--ranks {options.ranks} is 2 to 64, --plans {options.plans} 2 or more, --rounds above 0")
    if options.only_plan and options.keep is None:
        parser.error("--only-plan needs the folder to --keep them in")
    options.rounds = options.rounds or (3 if options.quick else 9)
    options.plans = min(options.plans, 8) if options.quick else options.plans
    known = list(programs(options.quick))
    options.names = options.programs.split(",") if options.programs else known
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"--programs {', '.join(unknown)}: known are {', '.join(known)}")
    return options


# -- programs ------------------------------------------------------------------------------------------------


def programs(quick: bool) -> dict[str, Callable[[], Any]]:
    """Training steps by name, traced, of which nothing is asked."""
    from autoshard import nn
    from autoshard.transform.train import train_step
    from benchmarks import targets
    from benchmarks.contenders import without_annotations
    from benchmarks.models import transformer_step

    whole: dict[int, tuple] = {}

    def trained(network: nn.Cell, inputs: tuple, name: str) -> Any:
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        return without_annotations(train_step(network, optimizer, *inputs, name=name).traced)

    def mlp(sizes: tuple[int, ...], batch: int) -> Callable[[], Any]:
        inputs = targets.f32(batch, sizes[0]), targets.f32(batch, sizes[-1])
        return lambda: trained(targets.Loss(targets.Mlp(sizes, whole)), inputs, "mlp")

    def transformer(hidden: int, sequence: int, batch: int) -> Callable[[], Any]:
        sizes = {"hidden": hidden, "heads": 8, "vocabulary": 4 * hidden, "sequence": sequence, "batch": batch}
        return lambda: without_annotations(transformer_step(1, 1, 1, **sizes).traced)

    def lookup(words: int, width: int, batch: int) -> Callable[[], Any]:
        tokens = targets.i32(batch, 64)
        return lambda: trained(targets.Lookup(words, width, ((1, 1, 1), (1, 1))), (tokens, tokens), "lookup")

    def experts(count: int, width: int, batch: int) -> Callable[[], Any]:
        inputs = targets.f32(batch, width), targets.f32(batch, width)
        network = lambda: targets.Loss(targets.Experts(count, width, ((1, 1, 1), (1, 1, 1))))  # noqa: E731
        return lambda: trained(network(), inputs, "experts")

    if quick:
        return {"wide layers": mlp((64, 256, 64), 48), "transformer": transformer(32, 16, 8)}
    return {
        "wide layers": mlp((384, 1536, 384), 128),
        "long batch": mlp((96, 384, 384, 96), 2048),
        "transformer": transformer(128, 64, 16),
        "lookup and loss": lookup(4096, 64, 8),
        "experts": experts(8, 128, 256),
    }


# -- before the job ------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace, hardware: str, name: str, folder: Path) -> None:
    """Write the plans of one program to the folder, and last a list of them; a list that is there is good."""
    from benchmarks.contenders import contenders
    from costmodel import preset

    if (folder / "plans").exists():
        return
    print(f"planning {name}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    traced = programs(options.quick)[name]()
    found = contenders(traced, options.ranks, preset(hardware), options.plans, options.quick)
    rows = []
    for i, one in enumerate(found):
        path = one.planned.save(folder / f"{i}.json")
        rows.append({"plan": one.name, "mesh": str(one.planned.plan.mesh), "file": str(path), "seconds": one.seconds})
    (folder / "plans").write_text(json.dumps(rows))


# -- on the ranks --------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> Outcome:
    """Time the plans in the folder on these ranks; every rank gets the same outcome."""
    from mpi4py import MPI

    from autoshard.api import plan
    from benchmarks.cost_truth import step_of

    comm = MPI.COMM_WORLD.Dup()

    def slowest(value: float) -> float:
        return comm.allreduce(value, MPI.MAX)

    (name,) = options.names
    traced, rows = programs(options.quick)[name](), json.loads((options.folder / "plans").read_text())
    runs = {one["plan"]: step_of(plan(traced, mesh=one["mesh"], search=one["file"])) for one in rows}
    pick = rows[0]["plan"]
    first = middle(in_turns(runs, slowest, options.rounds))
    leaders = [pick, *sorted((one for one in first if one != pick), key=first.__getitem__)[:LEADERS]]
    times = in_turns({one: runs[one] for one in leaders}, slowest, 2 * options.rounds)
    return judge(name, {one["plan"]: one["seconds"] for one in rows}, first, times)


def in_turns(
    runs: Mapping[str, Callable[[], object]], slowest: Callable[[float], float], rounds: int
) -> dict[str, list[float]]:
    """Seconds of one step of each in each round, the slowest rank's; rounds go forth and back in turn."""
    from benchmarks.cost_truth import seconds

    counts = {name: max(1, int(BLOCK / seconds(run, 1, slowest))) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for _ in range(rounds):
        for name in order:
            times[name].append(seconds(runs[name], counts[name], slowest))
        order.reverse()
    return times


def middle(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each."""
    return {name: statistics.median(found) for name, found in times.items()}


def judge(
    program: str, predicted: Mapping[str, float], first: Mapping[str, float], times: Mapping[str, list[float]]
) -> Outcome:
    """The outcome, from the times of the final's rounds; the pick is the first of the predictions."""
    from scipy.stats import spearmanr

    final, pick = middle(times), next(iter(predicted))
    fastest = min(final, key=final.__getitem__)
    ratio = statistics.median(a / b for a, b in zip(times[pick], times[fastest], strict=True))
    found = spearmanr([predicted[one] for one in first], [first[one] for one in first])
    runs = tuple(Run(one, predicted[one], first[one], final.get(one)) for one in predicted)
    return Outcome(program, ratio, fastest, float(found.statistic), runs)  # type: ignore[attr-defined]


# -- what comes of it ----------------------------------------------------------------------------------------


def show(outcomes: list[Outcome], ranks: int) -> None:
    """A table for each program, and one of all, on stdout."""
    from rich.console import Console
    from rich.table import Table

    from costmodel import format_seconds

    console = Console(force_terminal=False, width=120, highlight=False, markup=False)
    for outcome in outcomes:
        table = Table(title=f"{outcome.program}, {ranks} ranks")
        for name in ("plan", "predicted", "measured", "in the final"):
            table.add_column(name, justify="left" if name == "plan" else "right")
        for one in outcome.runs:
            final = "" if one.final is None else format_seconds(one.final)
            table.add_row(one.plan, format_seconds(one.predicted), format_seconds(one.measured), final)
        console.print(table)
    table = Table(title=f"the pick of optimal to the fastest (aim: at most {AIM})")
    for name in ("program", "plans", "ratio", "rank correlation", "fastest"):
        table.add_column(name, justify="left" if name in ("program", "fastest") else "right")
    for one in outcomes:
        table.add_row(one.program, str(len(one.runs)), f"{one.ratio:.3f}", f"{one.correlation:.2f}", one.fastest)
    console.print(table)
    met = sum(one.ratio <= AIM for one in outcomes)
    console.print(f"the aim is met in {met} of {len(outcomes)} programs")


def collect(options: argparse.Namespace, hardware: str, home: Path) -> list[Outcome]:
    """The outcomes of all programs, each planned here and then measured by a job of its own.

    Raises:
        SystemExit: a job failed.
    """
    from autoshard.runtime.launch import launch

    folders = {name: home / name.replace(" ", "_") for name in options.names}
    for name, folder in folders.items():
        prepare(options, hardware, name, folder)
    outcomes = []
    for name, folder in folders.items() if not options.only_plan else ():
        print(f"running {name}", file=sys.stderr)
        words = [__file__, "--programs", name, "--folder", str(folder), "--rounds", str(options.rounds)]
        code = launch([*words, *["--quick"] * options.quick], options.ranks, timeout=TIMEOUT)
        if code:
            sys.exit(f"the job of {name} ended with exit code {code}")
        data = json.loads((folder / "answer").read_text())
        outcomes.append(Outcome(**{**data, "runs": tuple(Run(**one) for one in data["runs"])}))
    return outcomes


def main(arguments: list[str]) -> int:
    """Calibrate if need be, plan, start the ranks, and report; or on a rank measure. The exit code."""
    from autoshard.mindspore.communication import get_rank, under_launcher
    from benchmarks.cost_truth import calibrated

    options = parse(arguments)
    if under_launcher():
        outcome = measure(options)
        if get_rank() == 0:
            (options.folder / "answer").write_text(json.dumps(asdict(outcome)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        hardware = options.hardware or calibrated(options.ranks, options.quick, Path(folder))
        outcomes = collect(options, hardware, options.keep or Path(folder))
    if options.only_plan:
        return 0
    if options.json:
        print(json.dumps([asdict(one) for one in outcomes], indent=2))
    else:
        show(outcomes, options.ranks)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(sys.argv[1:]))
