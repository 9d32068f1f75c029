"""Random programs on the engines numpy, torch and xla: equal to the whole program, by the planned collectives.

    python -m benchmarks.engine_programs [--count 200] [--first 0] [--engine xla]

Programs are those of `tests.oracle.grown`, of all operator families, every second with its gradient, two of four of
uneven sizes; meshes 8, 2x4, 2x2x2, 6, 3x2 and 5; plans by random, and by each mode of search in turn. The numpy engine
runs the text of the program for all ranks in one process; ranks of torch (one job for all programs of so many ranks)
and one process of XLA with 8 host devices follow. The exit code is 1 if any differ. What an engine lacks it names
before it runs: such programs are counted beside the others, and those where an answer is one of several
(`tests.oracle.undetermined`).
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from autoshard.engines.executors import check_engine_runs
from autoshard.engines.numpy_engine import NumpyRun
from autoshard.engines.text import write
from autoshard.engines.torch_engine import TorchRun
from autoshard.engines.xla_engine import XlaRun, need_devices
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import Graph, walk
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT, optimize
from autoshard.partition.lower import lower
from autoshard.partition.program import Program
from autoshard.propagate.traced import mutable_module
from autoshard.runtime.comm import Comm
from autoshard.runtime.interpret import Executor
from autoshard.runtime.launch import launch
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import default_comm
from autoshard.search import find_mode
from autoshard.search.problem import Problem
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import Traced
from autoshard.util.errors import AutoshardError
from costmodel import preset
from tests.engines.compiled_collectives import traced_differences
from tests.engines.recorded import difference
from tests.oracle.grown import grown
from tests.oracle.many import ROUNDED, assert_equal
from tests.oracle.undetermined import answers, is_one_of
from tests.partition.uneven_plans import random_plan

ROOT = Path(__file__).resolve().parents[1]
MESHES = ("8", "2x4", "2x2x2", "6", "3x2", "5")
ENGINES = ("numpy", "torch", "xla")
MODES = (
    "random", "sharding_propagation", "random", "factor", "random", "bfs", "communication", "dynamic_programming",
    "recursive_programming", "batch", "optimal",
)  # fmt: skip
WRONG = "differing"
_CARRIES = 0.2
_MOST = 8
UNDETERMINED = "equal where numpy's answer is the only one; rounding or a free sign decides"
_LIMIT = 300.0
"""Seconds that a program may take on an engine."""


@dataclass(frozen=True)
class Prepared:
    """A program, what it is fed, and what comes out of it whole."""

    seed: int
    mode: str
    program: Program
    feeds: list[np.ndarray]
    wanted: list[np.ndarray]
    graph: Graph

    def check(self, found: Sequence[np.ndarray]) -> str:
        """How what came out differs from what is wanted; empty if it does not."""
        undetermined = []
        for i, (value, got, want) in enumerate(zip(self.program.outputs, found, self.wanted, strict=True)):
            if (got.dtype, got.shape) != (want.dtype, want.shape):
                return f"{value.name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
            try:
                assert_equal(got, want, ROUNDED, value.name)
            except AssertionError as error:
                if not is_one_of(got, self._answers[i], ROUNDED):
                    return f"{value.name} differs: {' '.join(str(error).split())[:300]}"
                undetermined.append(value.name)
        return f"{UNDETERMINED} {', '.join(undetermined)}" if undetermined else ""

    @cached_property
    def _answers(self) -> list[list[np.ndarray]]:
        return answers(self.graph, self.feeds)


def prepared(seed: int) -> Prepared:
    """The program of a seed: always the same."""
    rng = np.random.default_rng([seed, 57])
    made = grown(rng, uneven=seed // 2 % 2 == 1, gradient=seed % 2 == 1)
    mesh = Mesh.parse(MESHES[seed % len(MESHES)])
    hardware = preset("cpu").for_ranks(mesh.devices)
    mode = MODES[seed // len(MESHES) % len(MODES)]
    if mode != "random" and any(map(is_nest, walk(made.graph.nodes))):
        mode = "random"  # searches take graphs without loops, or such as come out of a model
    if mode == "random":
        plan = random_plan(made.graph, mesh, rng, _CARRIES)
    else:
        traced = Traced(made.graph, {}, {}, (), ())
        plan = find_mode(mode)(Problem(made.graph, mesh, hardware, work=lambda: mutable_module(traced, mesh)))
    program = lower(plan)
    program = optimize(program, hardware, DEFAULT)[0] if seed % 3 else program
    return Prepared(
        seed, mode, program, list(made.feeds), [np.asarray(one) for one in evaluate(made.graph, made.feeds)], made.graph
    )


def outcome(one: Prepared, engine: str) -> tuple[str, bool]:
    """What running a program on an engine finds on each rank, empty where all is as it should be; if it raised."""
    try:
        found, told = _torch(one) if engine == "torch" else _here(one, engine)
    except Exception as error:  # of any kind: the others go on
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", True
    differs = one.check(found)
    return told if told and (not differs or differs.startswith(UNDETERMINED)) else differs, False


def _here(one: Prepared, engine: str) -> tuple[list[np.ndarray], str]:
    """All ranks in this process."""
    comm = LocalComm(one.program.mesh.devices)
    executor = Executor(one.program, comm)
    run = NumpyRun(one.program, comm, noted=1) if engine == "numpy" else XlaRun(one.program)
    if engine == "numpy":  # what is looked at then is what it has written
        run.consume([list(parts) for parts in executor.scatter(one.feeds)])
    found = executor.gather(run.consume([list(parts) for parts in executor.scatter(one.feeds)]))
    if not isinstance(run, XlaRun):
        return found, ""
    return found, traced_differences(run.lowered().compiler_ir("stablehlo"), one.program, run.text.grid)


def _torch(one: Prepared) -> tuple[list[np.ndarray], str]:
    """This rank."""
    comm: Comm = default_comm(one.program.mesh.devices)
    executor, run = Executor(one.program, comm), TorchRun(one.program, comm)
    found = executor.gather(run.consume([list(parts) for parts in executor.scatter(one.feeds)]))
    (rank,) = comm.ranks
    return found, difference(run.collectives.done, one.program, rank)


def run_all(folder: Path, engine: str, seeds: Iterable[int], rank: int) -> None:
    """Run programs that lie in a folder; what is found is written beside them.

    A rank of torch that fails ends its job, as others may wait for it.
    """
    for seed in seeds:
        faulthandler.dump_traceback_later(_LIMIT, exit=True)
        one: Prepared = pickle.loads((folder / f"{seed}.pickle").read_bytes())
        told, raised = outcome(one, engine)
        (folder / f"{seed}.{engine}.{rank}.json").write_text(json.dumps(told), encoding="utf-8")
        if raised and engine == "torch":
            _ended(folder, seed).touch()
            sys.exit(f"{seed}: {told}")


def sweep(seeds: Sequence[int], engines: Sequence[str], folder: Path) -> dict[tuple[int, str], str]:
    """For each program and engine what differs, or why it does not run there; empty where it is equal."""
    found: dict[tuple[int, str], str] = {}
    ready: dict[tuple[str, int], list[int]] = {}
    for seed in seeds:
        try:
            one = prepared(seed)
        except Exception as error:  # of any kind: the others go on
            found |= dict.fromkeys(((seed, engine) for engine in engines), f"{type(error).__name__}: {error}"[:300])
            continue
        (folder / f"{seed}.pickle").write_bytes(pickle.dumps(one))
        for engine in engines:
            lacking = _lacking(one.program, engine)
            if lacking:
                found[seed, engine] = lacking
            else:
                ready.setdefault((engine, one.program.mesh.devices if engine == "torch" else _MOST), []).append(seed)
    for (engine, ranks), those in ready.items():
        processes = ranks if engine == "torch" else 1
        while those:
            _start(folder, engine, ranks, those)
            # Where a job ended in the middle, the first that has nothing of some rank is the one that ended it, or the
            # one that says so.
            ended = (_ended(folder, seed).is_file() or not _is_done(folder, seed, engine, processes) for seed in those)
            done = next((i for i, one in enumerate(ended) if one), len(those))
            for seed in those[: done + 1]:
                found[seed, engine] = _first(folder, seed, engine, processes)
            those = those[done + 1 :]
    return found


def _lacking(program: Program, engine: str) -> str:
    try:
        check_engine_runs(program, engine)
        write(program)
    except AutoshardError as error:
        return f"lacks: {error}"
    return ""


def _start(folder: Path, engine: str, ranks: int, seeds: list[int]) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    arguments = ["--prepared", str(folder), engine, str(ranks), *map(str, seeds)]
    if engine == "torch":
        launch([str(Path(__file__)), *arguments], ranks)
    else:
        subprocess.run([sys.executable, str(Path(__file__)), *arguments], check=False)


def _files(folder: Path, seed: int, engine: str, ranks: int) -> list[Path]:
    return [folder / f"{seed}.{engine}.{rank}.json" for rank in range(ranks)]


def _ended(folder: Path, seed: int) -> Path:
    """Is there if a rank of torch raised, by which the job ended."""
    return folder / f"{seed}.ended"


def _is_done(folder: Path, seed: int, engine: str, ranks: int) -> bool:
    return all(one.is_file() for one in _files(folder, seed, engine, ranks))


def _first(folder: Path, seed: int, engine: str, ranks: int) -> str:
    """The first difference that any rank found."""
    files = [one for one in _files(folder, seed, engine, ranks) if one.is_file()]
    told = next(filter(None, (json.loads(one.read_text(encoding="utf-8")) for one in files)), "")
    return told or ("" if len(files) == ranks else "the run ended in it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--engine", choices=ENGINES, help="default: all")
    given = parser.parse_args()
    engines = (given.engine,) if given.engine else ENGINES
    with TemporaryDirectory(prefix="autoshard_") as folder:
        found = sweep(range(given.first, given.first + given.count), engines, Path(folder))
    wrong = {key for key, what in found.items() if _kind(what) == WRONG}
    for (seed, engine), what in found.items():
        if what:
            print(f"{seed} on {engine}: {what}")
    for engine in engines:
        kinds = Counter(_kind(what) for (_, of), what in found.items() if of == engine)
        print(f"{engine}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
    return int(bool(wrong))


def _kind(what: str) -> str:
    if what.startswith(UNDETERMINED):
        return "equal in what is determined"
    return "equal" if not what else "lacking an operator" if what.startswith("lacks") else WRONG


def on_ranks(folder: str, engine: str, ranks: str, *seeds: str) -> None:
    """What a process does that `sweep` has started."""
    rank = 0
    if engine == "xla":
        need_devices(int(ranks))
    if engine == "torch":
        (rank,) = default_comm(int(ranks)).ranks
    run_all(Path(folder), engine, map(int, seeds), rank)


if __name__ == "__main__":
    from benchmarks import engine_programs  # by its own name, so that what was written down by that name is found

    sys.exit(engine_programs.on_ranks(*sys.argv[2:]) if sys.argv[1:2] == ["--prepared"] else engine_programs.main())
