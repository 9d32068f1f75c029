"""Measure this machine as programs meet it: `calibrate(8)` starts ranks and returns Hardware, fitted by costmodel.

What is timed is what runs later: collectives as programs prepare them, and training steps of small models as the engine
has written them, whole and by operator, alone on each rank and split among them, by all ranks at once, with each number
of ranks in turn, for ranks that share cores slow each other down.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, product
from pathlib import Path

import numpy as np

from autoshard.calibrate.programs import PlannedStep, measure_operators, measure_steps, planned_steps, priced
from autoshard.layout.mesh import Mesh
from autoshard.runtime.comm import Comm
from autoshard.runtime.launch import launch
from autoshard.runtime.mpi import MpiComm
from autoshard.util.errors import AutoshardError
from costmodel import Hardware, Topology, format_count
from costmodel.fit import (
    CurveErrors,
    compare_device,
    compare_link,
    compare_programs,
    fit_device,
    fit_link,
    fit_programs,
)
from costmodel.measure import Agree, CollectiveSample, OperatorSample, seconds_in_turn

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
MOST_RANKS = 64
_TIMEOUT = 300.0
_LEAST_SHARE = 0.5
"""Of making what is sent and sending it, the share that sending has at least, whatever clocks say of making alone."""


class CalibrationError(AutoshardError):
    """A machine that cannot be measured."""


@dataclass(frozen=True)
class Effort:
    """How much to measure: bytes of messages, model sizes, seconds for each figure and how many rounds make it."""

    nbytes: tuple[int, ...]
    widths: tuple[int, ...]
    operator_seconds: float
    collective_seconds: float
    rounds: int

    @staticmethod
    def from_text(text: str) -> Effort:
        """What `text` wrote."""
        data = json.loads(text)
        return Effort(**data | {name: tuple(data[name]) for name in ("nbytes", "widths")})

    def text(self) -> str:
        """One word of a command line."""
        return json.dumps(asdict(self))

    def undisturbed(self) -> Effort:
        """The same for ranks that have cores of their own: no turns have to average out, and of many short rounds
        some are free of what else the machine does."""
        return replace(self, rounds=8 * self.rounds)


FULL = Effort(tuple(2**k for k in range(8, 25, 2)), (48, 128, 288), 0.03, 0.06, 5)
QUICK = Effort((2**9, 2**13, 2**17, 2**20), (48, 160), 0.004, 0.012, 3)


@dataclass(frozen=True)
class Samples:
    """What one job measured; of each program the seconds."""

    collectives: tuple[CollectiveSample, ...]
    operators: tuple[OperatorSample, ...]
    programs: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredJob:
    """The programs that ranks ran, and what they measured."""

    programs: tuple[PlannedStep, ...]
    samples: Samples


@dataclass(frozen=True)
class Calibration:
    """Hardware that was measured, and how it fits what was: tables with titles."""

    hardware: Hardware
    comparisons: tuple[tuple[str, tuple[CurveErrors, ...]], ...]


def calibrate(
    ranks: int, *, quick: bool = False, threads: int = 1, tell: Callable[[str], None] | None = None
) -> Calibration:
    """Measure with 2, 4, 8, ... ranks and with `ranks`, and fit.

    Operators are timed by as many ranks as have cores of their own, and with more only how much longer whole programs
    take: turns on a core are longer than most operators.

    Args:
        ranks: the most ranks that later jobs have, from 2 up.
        quick: with 2 and with `ranks` alone, fewer sizes and less time for each: rougher.
        threads: BLAS threads per rank; those of later jobs.
        tell: is given a line of progress before each job.

    Raises:
        CalibrationError: fewer than 2 ranks or too many, or a job that failed.
        RuntimeSetupError: there is no MPI.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise CalibrationError(f"cannot calibrate with {ranks} ranks; a job has 2 to {MOST_RANKS}")
    sizes, effort = sorted({2, ranks}) if quick else job_sizes(ranks), QUICK if quick else FULL
    base = max((one for one in sizes if one * threads <= _cores()), default=1)
    jobs: dict[int, MeasuredJob] = {}
    for count in sorted({base, *sizes}):
        if tell is not None:
            tell(f"measuring with {count} rank{'s' * (count > 1)}")
        jobs[count] = _job(count, effort, threads, operators=count == base)
    return _fitted(
        sizes, jobs, jobs[base].samples, f"{format_count(threads, 'thread')} each, {format_count(_cores(), 'core')}"
    )


def _fitted(sizes: list[int], jobs: dict[int, MeasuredJob], base: Samples, where: str) -> Calibration:
    device = fit_device("this machine", base.operators, machine_memory(), f"measured: {where}")
    comparisons = [("operators by themselves", compare_device(device, base.operators))]
    found: list[tuple[int, Hardware]] = []
    for count in sizes:
        samples, source = jobs[count].samples, f"measured: {count} ranks, {where}"
        link = fit_link("MPI", samples.collectives, source)
        here = Hardware(f"{count} ranks", device, Topology(((None, link),)))
        programs = tuple(priced(jobs[count].programs, samples.programs, here))
        slowdown = fit_programs(programs)
        own = device.slowed(slowdown.computing)
        own = replace(own, memory_bytes=machine_memory() // count, packing_seconds=slowdown.packing, source=source)
        own_link = link.slowed(slowdown.talking, slowdown.each)
        found.append((count, replace(here, device=own, topology=Topology(((None, own_link),)))))
        comparisons.append((f"collectives of {count} ranks by themselves", compare_link(link, samples.collectives)))
        comparisons.append((f"programs on {count} ranks", compare_programs(slowdown, programs)))
    return Calibration(replace(found[-1][1], name="calibrated", by_ranks=tuple(found)), tuple(comparisons))


def job_sizes(ranks: int) -> list[int]:
    """Numbers of ranks to measure with: the powers of 2 below `ranks`, and `ranks`."""
    return [2**k for k in range(1, ranks.bit_length()) if 2**k < ranks] + [ranks]


def _job(ranks: int, effort: Effort, threads: int, operators: bool) -> MeasuredJob:
    """What ranks started for it measured."""
    programs = planned_steps(ranks, effort.widths)
    with tempfile.TemporaryDirectory(prefix="autoshard-") as folder:
        answer, plans = Path(folder) / "samples.json", Path(folder) / "plans.pickle"
        plans.write_bytes(pickle.dumps(programs))
        words = [__file__, str(answer), str(plans), effort.text(), *["--operators"] * operators]
        code = launch(words, ranks, threads=threads, timeout=_TIMEOUT)
        if code or not answer.is_file():
            raise CalibrationError(f"measuring with {ranks} ranks failed: the job ended with exit code {code}")
        data = json.loads(answer.read_text())
    found = Samples(
        tuple(CollectiveSample(**one) for one in data["collectives"]),
        tuple(OperatorSample(**one) for one in data["operators"]),
        tuple(data["programs"]),
    )
    return MeasuredJob(programs, found)


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- on the ranks --------------------------------------------------------------------------------------------


def measure(comm: Comm, effort: Effort, programs: Sequence[PlannedStep], operators: bool) -> Samples:
    """Time collectives, programs and, if asked, their operators on these ranks; all call this together."""
    agree, effort = _agreement(comm), effort if comm.world > _cores() else effort.undisturbed()
    timed = measure_operators(programs, comm, 20 * effort.operator_seconds) if operators else ()
    whole = measure_steps(programs, comm, agree, 10 * effort.operator_seconds, effort.rounds)
    return Samples(tuple(measure_collectives(comm, effort, agree)), tuple(timed), tuple(whole))


def _agreement(comm: Comm) -> Agree:
    mesh = Mesh.flat(comm.world)
    groups = mesh.groups(mesh.all_axes)

    def agree(seconds: float) -> float:
        own = [np.array([seconds])] * len(comm.ranks)
        return float(comm.all_reduce(own, groups, "max")[0][0])

    return agree


def measure_collectives(comm: Comm, effort: Effort, agree: Agree) -> Iterator[CollectiveSample]:
    """Each kind, in groups of each size that divides the ranks, all groups at once, for each number of bytes.

    What is sent has just been made, as in programs: it lies in the caches of the rank that made it, and others wait
    for it longer than for what they were sent before.
    """
    for size in (one for one in range(2, comm.world + 1) if comm.world % one == 0):
        for nbytes, kind in product(effort.nbytes, KINDS):
            making, sending, counted = _collective(comm, kind, size, nbytes)

            def both(making: Callable[[], object] = making, sending: Callable[[], object] = sending) -> None:
                making()
                sending()

            found = seconds_in_turn([both, making], agree, budget=effort.collective_seconds, rounds=effort.rounds)
            seconds = max(found[0] - found[1], _LEAST_SHARE * found[0])
            yield CollectiveSample(kind, size, counted, seconds)


def _collective(
    comm: Comm, kind: str, size: int, nbytes: int
) -> tuple[Callable[[], object], Callable[[], object], int]:
    """What makes the parts, a call of the collective in groups of `size`, and the bytes that its prices count, about
    `nbytes`.

    Dims 0 and 1 take turns, for one needs copies that the other does not.
    """
    mesh = Mesh([(name, count) for name, count in (("outer", comm.world // size), ("inner", size)) if count > 1])
    groups = mesh.groups((mesh.ref("inner"),))
    columns, kind_of = max(1, round(nbytes / (4 * size * size))), np.dtype(np.float32)
    rows = size if kind != "all_gather" else 1
    parts = [np.ones((rows, size * columns), kind_of) for _ in comm.ranks]
    counted = parts[0].nbytes * (size if kind == "all_gather" else 1)

    def made() -> None:
        for part in parts:
            np.negative(part, out=part)

    def shifted(rank: int) -> int:
        return rank - rank % size + (rank + 1) % size

    if kind == "permute":
        return made, lambda: comm.permute(parts, shifted), counted
    dims = ((0, 0),) if kind == "all_reduce" else ((0, 1), (1, 0))
    turns = cycle([comm.prepared(kind, parts[0].shape, kind_of, groups, *pair) for pair in dims])
    return made, lambda: next(turns)(parts), counted


def main(arguments: list[str]) -> None:
    """Measure on this rank; rank 0 writes the samples to the file that is named first."""
    comm, (answer, plans, effort) = MpiComm(), arguments[:3]
    programs = pickle.loads(Path(plans).read_bytes())
    found = measure(comm, Effort.from_text(effort), programs, "--operators" in arguments)
    if comm.ranks[0] == 0:
        Path(answer).write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
