"""The models of `sample_code` on the engines torch and xla: equal to their framework, by the planned collectives.

    python -m benchmarks.engine_sweep [NAME ...] [--engine xla] [--mesh dp=2,tp=4] [--search factor] [--limit 300]

Each model is planned once; ranks of torch (gloo under mpiexec), and one process with a host device for each rank of
XLA, then run it as `autoshard run SCRIPT.py:NAME --check` does, and compare what they did with the plan: kinds, groups
and elements of what torch's ranks did; kinds, groups and bytes in XLA's compiled HLO. The exit code is 1 if any differ.
One process, or one job of ranks, runs all models; where it fails or a model goes beyond the limit, another one goes on.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import pickle
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from autoshard.api import Planned
from autoshard.cli import model_run
from autoshard.engines.executors import check_engine_runs
from autoshard.engines.torch_engine import TorchRun
from autoshard.engines.xla_engine import XlaRun, need_devices
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.communication import get_rank
from autoshard.runtime.launch import launch
from autoshard.util.errors import AutoshardError
from tests.engines.compiled_collectives import differences
from tests.engines.recorded import difference

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_code"
SCRIPTS = {"torch": SAMPLES / "07_torch_models/samples.py", "jax": SAMPLES / "08_jax_models/samples.py"}
_TORCH = ("gpt2", "llama", "qwen2", "bert", "vit", "resnet", "mixtral", "t5")
_TORCH_TRAINED = tuple(f"{name}_training" for name in ("gpt2", "llama", "mixtral", "resnet"))
_JAX = ("lm", "vit", "cnn", "gpt", "moe")
_ENDINGS = ("", "_training", "_annotated", "_training_annotated")
NAMES = (
    *(f"torch:{name}" for name in (*_TORCH, *_TORCH_TRAINED, "mixtral_batched")),
    *(f"jax:{name}{ending}" for name in _JAX for ending in _ENDINGS[:2]),
    "jax:gpt_gradient",
    "jax:lm_bfloat16",
    *(f"torch:{name}_annotated" for name in (*_TORCH, *_TORCH_TRAINED)),
    *(f"jax:{name}{ending}" for name in _JAX for ending in _ENDINGS[2:]),
)
Found = dict[str, Any]


def prepare(
    name: str, mesh: Mesh, engines: Sequence[str], folder: Path, search: str | None = None
) -> dict[str, Path | str]:
    """Plan a model, and write it down for each engine: the file, or why it does not run there."""
    framework, _, function = name.partition(":")
    try:
        path = model_run.prepare(f"{SCRIPTS[framework]}:{function}", mesh, search, True, folder)
    except Exception as error:  # the other models go on
        return dict.fromkeys(engines, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    prepared, found = model_run.prepared_in(path), {}
    assert isinstance(prepared.planned, Planned)
    for engine in engines:
        try:
            check_engine_runs(prepared.planned.program, engine)
        except AutoshardError as error:
            found[engine] = str(error)
            continue
        found[engine] = folder / f"{name.replace(':', '_')}.{engine}.pickle"
        found[engine].write_bytes(pickle.dumps(replace(prepared, engine=engine)))
    path.unlink()
    return found


def run(path: Path) -> None:
    """Run what was prepared, on the ranks that are there; what is found lies beside it."""
    prepared = model_run.prepared_in(path)
    assert isinstance(prepared.planned, Planned)
    begun = perf_counter()
    try:
        code = model_run.run(prepared, path)
    except Exception as error:  # the other models go on: what any of them raises is what the table is for
        traceback.print_exc()
        _write(path, {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
        if prepared.engine == "torch":
            sys.exit(1)  # others may wait for this rank
        return
    executor = prepared.planned.session_on(prepared.engine).executor
    if isinstance(executor, XlaRun):
        told = differences(executor.lowered(), executor.program, executor.text.grid)
    else:
        assert isinstance(executor, TorchRun)
        told = difference(executor.collectives.done, executor.program, get_rank())
    count = len(prepared.planned.program.collectives)
    _write(path, {"equal": not code, "other": told, "collectives": count, "seconds": perf_counter() - begun})


def _write(path: Path, found: Found) -> None:
    path.with_suffix(f".{get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    if not get_rank():
        print(path.stem, found, flush=True)


def outcome(path: Path, ranks: int) -> Found:
    """What all ranks found: what the first did, and the first difference of any."""
    files = [one for rank in range(ranks) if (one := path.with_suffix(f".{rank}.json")).is_file()]
    rows = [json.loads(one.read_text(encoding="utf-8")) for one in files]
    if not is_done(path, ranks) and not any("error" in row for row in rows):
        return {"error": f"the run ended in it; {len(rows)} ranks were done"}
    wrong = next((row for row in rows if row.get("error") or row.get("other")), {})
    return {**rows[0], **{key: wrong[key] for key in ("error", "other") if wrong.get(key)}}


def sweep(
    names: Sequence[str],
    mesh: Mesh,
    engines: Sequence[str],
    folder: Path,
    search: str | None = None,
    limit: float = 600.0,
) -> dict[tuple[str, str], Found]:
    """What each model did on each engine, in `limit` seconds each."""
    paths: dict[tuple[str, str], Path | str] = {}
    for name in names:
        paths |= {(name, engine): path for engine, path in prepare(name, mesh, engines, folder, search).items()}
    for engine in engines:
        ready = [path for (_, of), path in paths.items() if of == engine and isinstance(path, Path)]
        while ready:
            _start(engine, ready, mesh.devices, limit)
            done = list(takewhile(lambda path: is_done(path, mesh.devices), ready))
            told = bool(done) and "error" in outcome(done[-1], mesh.devices)
            ready = ready[len(done) + (not told) :]  # what ended the process is the last one done, or the one behind
    return {
        key: outcome(path, mesh.devices) if isinstance(path, Path) else {"error": path} for key, path in paths.items()
    }


def is_done(path: Path, ranks: int) -> bool:
    """Whether each rank has written down what it found: one on XLA, which runs them all."""
    count = 1 if ".xla." in path.name else ranks
    return all(path.with_suffix(f".{rank}.json").is_file() for rank in range(count))


def _start(engine: str, paths: Sequence[Path], ranks: int, limit: float) -> None:
    arguments = [str(Path(__file__)), "--prepared", str(ranks), str(limit), *map(str, paths)]
    if engine == "torch":
        code = launch(arguments, ranks)
        if code in (130, 143):
            sys.exit(code)  # somebody ended it
    else:
        subprocess.run([sys.executable, *arguments], check=False)


def table(found: dict[tuple[str, str], Found]) -> Table:
    made = Table("model", "engine", "equal", "collectives", "as planned", "s")
    for (name, engine), row in found.items():
        if "error" in row:
            made.add_row(name, engine, "did not run", "", row["error"], "")
        else:
            equal, seconds = "yes" if row["equal"] else "differs", f"{row['seconds']:.1f}"
            made.add_row(name, engine, equal, str(row["collectives"]), row["other"] or "yes", seconds)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="torch:NAME or jax:NAME; default: all")
    parser.add_argument("--engine", choices=("torch", "xla"), help="default: both")
    parser.add_argument("--mesh", default="dp=2,tp=4")
    parser.add_argument("--search", help="how to plan; default: as autoshard.plan does")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a model on an engine; default: 600")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no model {', '.join(unknown)}; known are {', '.join(NAMES)}")
    engines = (given.engine,) if given.engine else ("torch", "xla")
    with TemporaryDirectory(prefix="autoshard_") as folder:
        found = sweep(given.names or NAMES, Mesh.parse(given.mesh), engines, Path(folder), given.search, given.limit)
    Console(width=150).print(table(found))
    wrong = [row for row in found.values() if "error" in row or not row["equal"] or row["other"]]
    print(f"{len(found) - len(wrong)} of {len(found)} equal, by the planned collectives")
    return int(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepared"]:
        if ".xla." in sys.argv[4]:
            need_devices(int(sys.argv[2]))
        for one in sys.argv[4:]:
            faulthandler.dump_traceback_later(float(sys.argv[3]), exit=True)
            run(Path(one))
    else:
        sys.exit(main())
