"""Models in stages on MPI ranks, by every schedule: outputs and updates beside those of the unsplit step.

    python -m benchmarks.pipeline_samples sample_code/07_torch_models/samples.py:gpt2_training ...
        [--mesh pp=2,dp=2,tp=2] [--micro-batches 4] [--schedules 1f1b zbv ...] [--rows rows.jsonl]

Each row is what `autoshard run SCRIPT.py:NAME -n 8 --mesh MESH --pipeline pp --micro-batches 4 --schedule S --check`
does; the ranks are started once for all of them, and a model is loaded and compared with once. Printed per
model and schedule are the largest differences, relative to an output's largest element and to the step of an update, or
why the model has no stages. The exit code is 1 if one differs or does not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.cli import model_run
from autoshard.cli.target import load_target
from autoshard.frontends.targets import cuttable_target
from autoshard.frontends.torch.export import seed_torch
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.planning import each_schedule, plan_pipeline
from autoshard.pipeline.schedules import SCHEDULES
from autoshard.runtime.launch import launch
from autoshard.util.errors import AutoshardError, ScheduleError, StageError

LIMIT = 1800.0
"""Seconds after which the ranks are ended."""


def rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What came of models in stages, by schedule: differences, or an error."""
    with TemporaryDirectory(prefix="autoshard_") as folder:
        paths: dict[Path, dict[str, str]] = {}
        for number, target in enumerate(given.targets):
            name = target.rpartition(":")[2]
            try:
                for schedule, found in prepared(target, given):
                    row = {"model": name, "schedule": schedule}
                    if isinstance(found, AutoshardError):
                        yield {**row, "refused": str(found)}
                        continue
                    path = Path(folder) / f"{number}.{schedule}.pickle"
                    model_run.write(found, path)
                    paths[path] = row
            except AutoshardError as error:
                yield {"model": name, "schedule": "any", "refused": str(error)}
        if not paths:
            return
        code = launch([model_run.__file__, *map(str, paths)], Mesh.parse(given.mesh).devices, timeout=LIMIT)
        for path, row in paths.items():
            told = path.with_suffix(".json")
            yield {**row, **(json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {"failed": code})}


def prepared(
    target: str, given: argparse.Namespace
) -> Iterator[tuple[str, model_run.Prepared | StageError | ScheduleError]]:
    """What ranks are to run, by schedule; or why a schedule cannot be."""
    seed_torch(model_run.SEED)
    model, inputs = load_target(target)
    traced, mesh = cuttable_target(model, inputs), Mesh.parse(given.mesh)
    plan = partial(
        plan_pipeline, traced, mesh=mesh, pipeline=given.pipeline, micro_batches=given.micro_batches,
        search=given.search,
    )  # fmt: skip
    wanted = None
    for schedule, planned in each_schedule(plan, mesh.sizes[given.pipeline], given.micro_batches):
        if schedule not in given.schedules:
            continue
        if isinstance(planned, AutoshardError):
            yield schedule, planned
            continue
        data = model_run.inputs_of(planned, model, inputs)
        wanted = wanted or model_run.wanted_of(planned, model, data)
        yield schedule, model_run.Prepared(planned, data, wanted, silent=True)


def told(row: dict[str, Any]) -> str:
    """A row as a line."""
    begin = f"{row['model']:26} {row['schedule']:17}"
    if "refused" in row:
        return f"{begin} refused: {row['refused']}"
    if "failed" in row:
        return f"{begin} did not run: exit code {row['failed']}"
    state = "differs: " + "; ".join(row["wrong"]) if row["wrong"] else "equal"
    step = f"{row['step_difference']:.1e}" if row["updates"] else "-"
    return f"{begin} {row['difference']:.1e}  {step:7}  {row['collectives']:4} collectives  {row['whose']}  {state}"


def main() -> int:
    """Run the models that are named, and print a line for each schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="SCRIPT.py:NAME")
    parser.add_argument("--mesh", default="pp=2,dp=2,tp=2")
    parser.add_argument("--pipeline", default="pp", metavar="AXIS")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--search", default=None, metavar="MODE")
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES))
    parser.add_argument("--rows", type=Path, default=None, metavar="FILE.jsonl", help="Where rows are written, too.")
    given = parser.parse_args()
    worst = 0
    for row in rows(given):
        print(told(row), flush=True)
        worst |= "refused" not in row and ("failed" in row or bool(row["wrong"]))
        if given.rows is not None:
            with given.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return worst


if __name__ == "__main__":
    sys.exit(main())
