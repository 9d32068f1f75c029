"""`autoshard trace`: the predicted step of a plan as a trace for Chrome or Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoshard.cli.output import check_file, print_json
from autoshard.cli.planned import AskedInStages, Target, is_whole
from autoshard.cli.planning import read_ranks
from autoshard.cli.records import TraceRecord
from autoshard.util.doing import doing

if TYPE_CHECKING:
    from autoshard.api import Planned
    from autoshard.pipeline import PlannedPipeline


def trace(
    target: Target,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.json", help="The trace to write; .json.gz packs it.")
    ] = Path("trace.json"),
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="RANKS", help="'all', or numbers. Default: the first eight; or of each group."),
    ] = None,
    *,
    asked: AskedInStages,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON and nothing else.")] = False,
) -> None:
    """Write the predicted step of a plan as a trace: what each rank does when, what it waits for, what lies in memory.

    chrome://tracing and https://ui.perfetto.dev open it. `autoshard run TARGET -n N --trace FOLDER` measures one. In
    stages (--pipeline) ranks have a lane of the schedule's actions, too, and arrows lead from group to group.
    """
    from autoshard.exporters.trace import save_trace

    check_file(output)
    planned = asked.found(target)
    if is_whole(planned):
        data, seconds = _in_one_piece(planned, ranks), planned.cost.seconds
    else:
        data, seconds = _of_stages(planned, ranks), planned.price.seconds
    with doing("writing the trace"):
        path = save_trace(data, output)
    if as_json:
        shown = dict.fromkeys(one["pid"] for one in data["traceEvents"])
        print_json(TraceRecord(str(path), tuple(shown), seconds))
    else:
        typer.echo(str(path))


def _in_one_piece(planned: Planned, ranks: str | None) -> dict[str, Any]:
    from autoshard.exporters.trace import trace_data

    world = planned.plan.mesh.devices
    with doing("tracing the step"):
        return trace_data(planned, None if ranks is None else read_ranks(ranks, world) or range(world))


def _of_stages(planned: PlannedPipeline, ranks: str | None) -> dict[str, Any]:
    from autoshard.pipeline.exports.trace import stages_trace

    chosen = None if ranks is None else read_ranks(ranks, planned.devices) or range(planned.devices)
    with doing("tracing the step"):
        return stages_trace(planned, chosen)
