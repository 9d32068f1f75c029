"""`autoshard schedule`: a schedule of a pipeline by name or from a file, checked, simulated, drawn."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.output import check_file
from autoshard.util.doing import doing
from autoshard.util.errors import ScheduleError

if TYPE_CHECKING:
    from autoshard.pipeline.schedules import Durations, Schedule, ScheduleTimeline


def schedule(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, zbv, dualpipev, or torch's name for it, or "
            "a file of comma-separated actions, a row per rank.",
        ),
    ],
    stages: Annotated[
        int | None, typer.Option("--stages", metavar="P", help="Stages of the model in all; not needed for a file.")
    ] = None,
    micro_batches: Annotated[
        int | None,
        typer.Option("--micro-batches", metavar="M", help="Parts of the batch; not needed for a file."),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option("--chunks", metavar="V", help="Stages of each rank: 1, or 2 where the schedule is about several."),
    ] = None,
    durations: Annotated[
        str,
        typer.Option(
            "--durations",
            metavar="F,I,W",
            help="Seconds of forward, input gradient and weight gradient of one micro batch in one stage.",
        ),
    ] = "1,1,1",
    transfer: Annotated[
        str, typer.Option("--transfer", metavar="C", help="Seconds of a message from rank to rank.")
    ] = "0",
    transfers: Annotated[
        bool, typer.Option("--transfers", help="Print sends and receives, too (--csv, --json).")
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the rows that torch.distributed.pipelining reads.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the rows to a file, too; FILE.svg: draw them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows, times, bubble and memory as JSON.")] = False,
) -> None:
    """Show who does what and when in a pipeline, how long ranks wait, and how much they hold.

    The schedule is checked first: every action once, after what it reads, no deadlock. Times are those of the longest
    path; the bubble is the part of all ranks' time in which they wait.
    """
    from autoshard.pipeline.schedules import csv_text, save_schedule, simulate, with_transfers
    from autoshard.pipeline.schedules.picture import schedule_svg
    from autoshard.util.files import write_atomically

    check_file(output)
    found = _schedule(name, stages, micro_batches, chunks)
    with doing("simulating the schedule"):
        line = simulate(found, _durations(durations, transfer, found.stages))
    shown = with_transfers(found) if transfers else found
    if output is not None and output.suffix == ".svg":
        write_atomically(output, schedule_svg(line), ScheduleError)
    elif output is not None:
        save_schedule(shown, output)
    if as_json:
        typer.echo(json.dumps(_facts(line, shown), indent=2))
    elif as_csv:
        typer.echo(csv_text(shown), nl=False)
    else:
        _print(line)


def _schedule(name: str, stages: int | None, micro_batches: int | None, chunks: int | None) -> Schedule:
    from autoshard.pipeline.schedules import check, load_schedule, make_schedule, schedule_kind

    if name.endswith(".csv") or Path(name).is_file():
        found = load_schedule(name)
        has = {"--stages": found.stages, "--micro-batches": found.micro_batches}
        for option, given in {"--stages": stages, "--micro-batches": micro_batches}.items():
            if given is not None and given != has[option]:
                raise ScheduleError(f"{option} {given} is given, and {name} has {has[option]}; leave {option} out")
        if chunks is not None:
            raise ScheduleError(f"--chunks {chunks} is given, and {name} says which rank runs which stages")
        return found
    kind = schedule_kind(name)
    if stages is None or micro_batches is None:
        option = "--stages P" if stages is None else "--micro-batches M"
        raise ScheduleError(f"schedule {kind.name} needs {option}")
    each = kind.chunks if chunks is None else chunks
    if each < 1 or stages < 1 or stages % each:
        raise ScheduleError(
            f"{stages} stages cannot be given to ranks of {each} stages each (--chunks): give a multiple of {each}"
            if each >= 1
            else f"--chunks {each}: each rank has at least one stage"
        )
    return check(make_schedule(kind.name, stages // each, micro_batches, chunks))


def _durations(durations: str, transfer: str, stages: int) -> Durations:
    from autoshard.pipeline.schedules import Durations

    parts = [_seconds(part, "--durations") for part in durations.split(",")]
    if len(parts) != 3:
        raise ScheduleError(f"--durations {durations}: give three, of forward, input gradient and weight gradient")
    return Durations.equal(stages, parts[0], (parts[1], parts[2]), _seconds(transfer, "--transfer"))


def _seconds(text: str, option: str) -> Fraction:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ScheduleError(f"{option}: {text!r} is no number of seconds from 0 on")
    return Fraction(text.strip())


def _facts(line: ScheduleTimeline, shown: Schedule) -> dict:
    from autoshard.pipeline.schedules import peak_activations, period

    step = line.schedule
    return {
        "schedule": step.name,
        "stages": step.stages,
        "ranks": step.ranks,
        "micro_batches": step.micro_batches,
        "ranks_of_stages": list(step.ranks_of_stages),
        "rows": [shown.cells(rank) for rank in range(step.ranks)],
        "makespan": float(line.makespan),
        "bubble_share": line.bubble_share,
        "busy": [float(busy) for busy in line.busy],
        "idle": [float(idle) for idle in line.idle],
        "peak_activations": list(peak_activations(step)),
        "seconds": [
            {str(action): [float(line.starts[action]), float(line.ends[action])] for action in order}
            for order in line.orders
        ],
    } | {"period": float(period(step, line.durations))}


def _print(line: ScheduleTimeline) -> None:
    from autoshard.pipeline.schedules import peak_activations, period
    from autoshard.pipeline.schedules.grid import grid

    step = line.schedule
    typer.echo(f"{step.name}: {step.stages} stages on {step.ranks} ranks, {step.micro_batches} micro batches\n")
    try:
        typer.echo(grid(line))
    except ScheduleError as error:
        typer.echo(f"{error}; --csv prints the rows, -o FILE.svg draws them")
    every = float(period(step, line.durations))
    typer.echo(f"\nstep    {float(line.makespan):g} s, or {every:g} s from step to step without a barrier")
    typer.echo(f"bubble  {100 * line.bubble_share:.1f} % of all ranks' time")
    held = ", ".join(f"{peak:g}" for peak in peak_activations(step))
    typer.echo(f"memory  activations of {held} stages x micro batches at once, rank by rank")
