"""Measure this machine as programs meet it: `calibrate(8)` starts ranks and returns Hardware, fitted by costmodel.

What is timed is what runs later: collectives through Comm, and the operators of the training steps of small models
through the interpreter, by all ranks at once, with each number of ranks in turn, for ranks that share cores slow each
other down.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from autoshard import nn
from autoshard.api import plan
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Node
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Program
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Executor
from autoshard.runtime.launch import launch
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import MpiComm
from autoshard.transform.train import TrainStep, train_step
from autoshard.util.errors import AutoshardError
from costmodel import Hardware, Topology
from costmodel.fit import (
    CurveErrors,
    compare_device,
    compare_link,
    compare_programs,
    fit_device,
    fit_link,
    fit_programs,
)
from costmodel.measure import Agree, CollectiveSample, OperatorSample, ProgramSample, seconds_each

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
MOST_RANKS = 64
_TIMEOUT = 300.0
_COPIES = 3
"""How often a timed program does its operator: results lie in fresh memory, as those of a model do."""


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


FULL = Effort(tuple(2**k for k in range(8, 25, 2)), (48, 128, 320), 0.03, 0.1, 5)
QUICK = Effort((2**9, 2**13, 2**17, 2**20), (48, 160), 0.004, 0.012, 3)


@dataclass(frozen=True)
class Samples:
    """What one job measured; `turn` is the seconds that a fixed piece of work took on all ranks at once."""

    collectives: tuple[CollectiveSample, ...]
    operators: tuple[OperatorSample, ...]
    programs: tuple[ProgramSample, ...]
    turn: float


@dataclass(frozen=True)
class Calibration:
    """Hardware that was measured, and how it fits what was: tables with titles."""

    hardware: Hardware
    comparisons: tuple[tuple[str, tuple[CurveErrors, ...]], ...]


def calibrate(
    ranks: int, *, quick: bool = False, threads: int = 1, tell: Callable[[str], None] | None = None
) -> Calibration:
    """Measure with 2, 4, 8, ... ranks and with `ranks`, and fit.

    Operators are timed by as many ranks as have cores of their own, and by more only how much they slow each other
    down: turns on a core are longer than most operators.

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
    sizes = sorted({2, ranks}) if quick else job_sizes(ranks)
    base = max((one for one in sizes if one * threads <= _cores()), default=1)
    jobs: dict[int, Samples] = {}
    for count in sorted({base, *sizes}):
        if tell is not None:
            tell(f"measuring with {count} rank{'s' * (count > 1)}")
        jobs[count] = _job(count, QUICK if quick else FULL, threads, operators=count == base)
    return _fitted(sizes, jobs, jobs[base], f"{threads} threads each, {_cores()} cores")


def _fitted(sizes: list[int], jobs: dict[int, Samples], base: Samples, where: str) -> Calibration:
    device = fit_device("this machine", base.operators, machine_memory(), f"measured: {where}")
    comparisons = [("operators by themselves", compare_device(device, base.operators))]
    device = fit_programs(device, base.programs)
    comparisons.append(("operators in programs", compare_programs(device, base.programs)))
    found: list[tuple[int, Hardware]] = []
    for count in sizes:
        job, source = jobs[count], f"measured: {count} ranks, {where}"
        link = fit_link("MPI", job.collectives, source)
        slowed = replace(device.slowed(job.turn / base.turn), memory_bytes=machine_memory() // count, source=source)
        found.append((count, Hardware(f"{count} ranks", slowed, Topology(((None, link),)))))
        comparisons.append((f"collectives of {count} ranks", compare_link(link, job.collectives)))
    return Calibration(replace(found[-1][1], name="calibrated", by_ranks=tuple(found)), tuple(comparisons))


def job_sizes(ranks: int) -> list[int]:
    """Numbers of ranks to measure with: the powers of 2 below `ranks`, and `ranks`."""
    return [2**k for k in range(1, ranks.bit_length()) if 2**k < ranks] + [ranks]


def _job(ranks: int, effort: Effort, threads: int, operators: bool) -> Samples:
    """What ranks started for it measured."""
    with tempfile.TemporaryDirectory(prefix="autoshard-") as folder:
        answer = Path(folder) / "samples.json"
        words = [__file__, str(answer), effort.text(), *["--operators"] * operators]
        code = launch(words, ranks, threads=threads, timeout=_TIMEOUT)
        if code or not answer.is_file():
            raise CalibrationError(f"measuring with {ranks} ranks failed: the job ended with exit code {code}")
        data = json.loads(answer.read_text())
    return Samples(
        tuple(CollectiveSample(**one) for one in data["collectives"]),
        tuple(OperatorSample(**one) for one in data["operators"]),
        tuple(ProgramSample(one["name"], tuple(map(tuple, one["work"])), one["seconds"]) for one in data["programs"]),
        data["turn"],
    )


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- on the ranks --------------------------------------------------------------------------------------------


def measure(comm: Comm, effort: Effort, operators: bool) -> Samples:
    """Time collectives, if asked operators, and a piece of work on these ranks; all call this together."""
    agree, effort = _agreement(comm), effort if comm.world > _cores() else effort.undisturbed()
    timed = tuple(measure_operators(effort, agree)) if operators else ()
    programs = tuple(measure_programs(effort, agree)) if operators else ()
    turn = seconds_each(_work(), agree, budget=20 * effort.collective_seconds, rounds=effort.rounds)
    return Samples(tuple(measure_collectives(comm, effort, agree)), timed, programs, turn)


def _work() -> Callable[[], object]:
    """Products and pointwise work as in models, about a millisecond of them."""
    a, b = np.ones((192, 192), np.float32), np.ones((192, 768), np.float32)
    return lambda: np.maximum(np.tanh(a @ b) - 1, 0) @ b.T


def _agreement(comm: Comm) -> Agree:
    mesh = Mesh.flat(comm.world)
    groups = mesh.groups(mesh.all_axes)

    def agree(seconds: float) -> float:
        own = [np.array([seconds])] * len(comm.ranks)
        return float(comm.all_reduce(own, groups, "max")[0][0])

    return agree


def measure_collectives(comm: Comm, effort: Effort, agree: Agree) -> Iterator[CollectiveSample]:
    """Each kind, in groups of each size that divides the ranks, all groups at once, for each number of bytes."""
    for size in (one for one in range(2, comm.world + 1) if comm.world % one == 0):
        for nbytes, kind in product(effort.nbytes, KINDS):
            action, counted = _collective(comm, kind, size, nbytes)
            seconds = seconds_each(action, agree, budget=effort.collective_seconds, rounds=effort.rounds)
            yield CollectiveSample(kind, size, counted, seconds)


def _collective(comm: Comm, kind: str, size: int, nbytes: int) -> tuple[Callable[[], object], int]:
    """A call of the collective in groups of `size`, and the bytes that its prices count, about `nbytes`.

    Dims 0 and 1 take turns, for one needs copies that the other does not.
    """
    mesh = Mesh([(name, count) for name, count in (("outer", comm.world // size), ("inner", size)) if count > 1])
    groups = mesh.groups((mesh.ref("inner"),))
    columns = max(1, round(nbytes / (4 * size * size)))
    rows = size if kind != "all_gather" else 1
    parts = [np.ones((rows, size * columns), np.float32) for _ in comm.ranks]
    counted = parts[0].nbytes * (size if kind == "all_gather" else 1)

    def shifted(rank: int) -> int:
        return rank - rank % size + (rank + 1) % size

    turns: dict[str, tuple[Callable[[], object], ...]] = {
        "all_reduce": (lambda: comm.all_reduce(parts, groups),),
        "permute": (lambda: comm.permute(parts, shifted),),
        "all_gather": tuple(lambda dim=dim: comm.all_gather(parts, groups, dim) for dim in (0, 1)),
        "reduce_scatter": tuple(lambda dim=dim: comm.reduce_scatter(parts, groups, dim) for dim in (0, 1)),
        "all_to_all": tuple(lambda dim=dim: comm.all_to_all(parts, groups, dim, 1 - dim) for dim in (0, 1)),
    }
    calls = turns[kind]
    done = [0]

    def action() -> None:
        calls[done[0] % len(calls)]()
        done[0] += 1

    return action, counted


def measure_operators(effort: Effort, agree: Agree) -> Iterator[OperatorSample]:
    """Each operator of the training steps of small models, in each shape it has there, on all ranks at once."""
    for node in _catalogue(effort.widths):
        action = _program(node)
        agree(0.0)
        own = seconds_each(action, budget=effort.operator_seconds, rounds=effort.rounds) / _COPIES
        seconds = agree(own)
        yield OperatorSample(*_work_of(node), seconds)


def measure_programs(effort: Effort, agree: Agree) -> Iterator[ProgramSample]:
    """The training steps of the small models, whole, on all ranks at once."""
    for width in effort.widths:
        for step in _models(width):
            planned = plan(step, devices=1)
            run = _executed(planned.program)
            agree(0.0)
            own = seconds_each(run, budget=10 * effort.operator_seconds, rounds=effort.rounds)
            work = tuple(_work_of(node) for node in planned.graph.nodes)
            yield ProgramSample(f"{planned.graph.name}, {width} wide", work, agree(own))


def _work_of(node: Node) -> tuple[str, str, float, int]:
    """What costmodel prices an operator by: its name and dtype, its operations, and the bytes it touches."""
    nbytes = sum(one.nbytes for one in (*node.operand_types, *node.result_types))
    return node.op.name, node.result_types[0].dtype.name, float(node.op.flops(node.operand_types, node.attrs)), nbytes


def _catalogue(widths: tuple[int, ...]) -> list[Node]:
    """Operators to time, one of each sort; results that need no operand are not worth it."""
    found: dict[object, Node] = {}
    for step in (step for width in widths for step in _models(width)):
        for node in step.graph.nodes:
            if node.operands and node.op.has_rule:
                key = (node.op.name, node.operand_types, repr(sorted(node.attrs.items())))
                found.setdefault(key, node)
    return list(found.values())


def _models(width: int) -> Iterator[TrainStep]:
    """Training steps with most operators that models are made of."""
    rows = TensorType.of((2 * width, width), "f32")
    layers = _Layers(width)
    yield train_step(layers, nn.Momentum(layers.trainable_params(), 0.1, 0.9), rows, rows, name="layers")
    tokens = TensorType.of((4, max(8, width // 4)), "i32")
    decoder = _Decoder(width)
    yield train_step(decoder, nn.Adam(decoder.trainable_params(), 0.1), tokens, tokens, name="decoder")


class _Layers(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense1, self.relu, self.dense2 = nn.Dense(width, 4 * width), nn.ReLU(), nn.Dense(4 * width, width)
        self.loss = nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.dense2(self.relu(self.dense1(x))), y)


class _Decoder(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * width, width)
        self.layer = nn.TransformerBlock(width, 4, 4 * width, causal=True)
        self.head, self.loss = nn.Dense(width, 2 * width, has_bias=False), nn.TokenLoss()

    def construct(self, ids, labels):
        return self.loss(self.head(self.layer(self.embed(ids))), labels)


def _program(node: Node) -> Callable[[], object]:
    """A run of a program that does the operator several times over, on this rank alone."""

    def several(*operands):
        return [node.op(*operands, **node.attrs) for _ in range(_COPIES)]

    return _executed(plan(several, node.operand_types, devices=1).program)


def _executed(program: Program) -> Callable[[], object]:
    """A run of a program of one rank on made-up inputs."""
    executor = Executor(program, LocalComm(1))
    blocks = executor.scatter([_array(one.whole) for one in program.inputs])
    return lambda: executor.run(blocks)


def _array(of: TensorType) -> np.ndarray:
    """Values that every operator takes: floats from 0.5 to 1.5, and indices 0 and 1."""
    random = np.random.default_rng(0)
    if of.dtype.numpy.kind in "iub":
        return random.integers(0, 2, of.shape).astype(of.dtype.numpy)
    return random.uniform(0.5, 1.5, of.shape).astype(of.dtype.numpy)


def main(arguments: list[str]) -> None:
    """Measure on this rank; rank 0 writes the samples to the file that is named first."""
    comm = MpiComm()
    found = measure(comm, Effort.from_text(arguments[1]), "--operators" in arguments)
    if comm.ranks[0] == 0:
        Path(arguments[0]).write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
