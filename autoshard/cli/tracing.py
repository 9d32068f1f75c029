"""`autoshard trace`: the predicted step of a plan as a trace for Chrome or Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli.app import Devices, MeshText
from autoshard.cli.output import check_file, print_json
from autoshard.cli.planned import (
    DATASET,
    HARDWARE,
    DatasetStrategy,
    HardwareName,
    Memory,
    ModeOptions,
    Search,
    Target,
    planned_target,
)
from autoshard.cli.planning import read_ranks
from autoshard.cli.records import TraceRecord
from autoshard.util.doing import doing


def trace(
    target: Target,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.json", help="The trace to write; .json.gz packs it.")
    ] = Path("trace.json"),
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="RANKS", help="'all', or numbers. Default: the first eight.")
    ] = None,
    devices: Devices = None,
    mesh: MeshText = None,
    search: Search = None,
    hardware: HardwareName = HARDWARE,
    dataset_strategy: DatasetStrategy = DATASET,
    memory: Memory = None,
    option: ModeOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON and nothing else.")] = False,
) -> None:
    """Write the predicted step of a plan as a trace: what each rank does when, what it waits for, what lies in memory.

    chrome://tracing and https://ui.perfetto.dev open it. `autoshard run TARGET -n N --trace FOLDER` measures one.
    """
    from autoshard.exporters.trace import FEW, save_trace, trace_data

    check_file(output)
    planned = planned_target(
        target, devices, mesh, option,
        search=search, hardware=hardware, dataset_strategy=dataset_strategy, memory=memory,
    )  # fmt: skip
    world = planned.plan.mesh.devices
    chosen = range(min(world, FEW)) if ranks is None else read_ranks(ranks, world) or range(world)
    with doing("writing the trace"):
        path = save_trace(trace_data(planned, chosen), output)
    if as_json:
        print_json(TraceRecord(str(path), tuple(chosen), planned.cost.seconds))
    else:
        typer.echo(str(path))
