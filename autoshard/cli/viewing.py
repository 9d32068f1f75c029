"""`autoshard view` and `autoshard diff`: a plan as a page to look at, and two plans side by side."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from autoshard.cli.app import console
from autoshard.cli.output import check_file, print_json
from autoshard.cli.planned import AUTO, Asked, AskedInStages, given_of, is_whole, note_one_piece
from autoshard.cli.records import ViewRecord
from autoshard.util.doing import doing
from autoshard.util.errors import ContextError, PlanError

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET [TARGET]",
        help="What `autoshard plan` takes: SCRIPT.py:FUNCTION or MODULE.mlir; or the FILE.json of "
        "`autoshard plan --json --all`. A second one is shown beside the first.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="MODE|FILE", help="Beside it the same target by another mode or saved plan."),
]


def view(
    targets: Targets,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page to write; FILE.svg with --plot.")
    ] = Path("plan.html"),
    against: Against = None,
    plotted: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="WHAT",
            help="Write one picture instead, 'timeline' or 'memory', to -o FILE.svg, .png or .pdf (needs matplotlib).",
        ),
    ] = None,
    *,
    asked: AskedInStages,
    show: Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON and nothing else.")] = False,
) -> None:
    """Write a page to look at a plan: what costs most, when, what lies in memory, who holds what, and why.

    One file, which any browser opens, offline. Two targets, or --against, show two plans side by side with what
    differs. A plan in stages (--pipeline) shows the schedule, what each group does and holds, and how stages are split.
    """
    from autoshard.view.page import view_of
    from autoshard.view.plots import FORMATS, check_plot, plot

    if plotted is not None:
        check_plot(plotted, output)
        if against is not None or len(targets) > 1:
            raise ContextError("--plot draws one plan: give one target, without --against")
    elif output.suffix in FORMATS:
        raise ContextError(
            f"{output} is no page; say which picture of the plan to draw there: --plot timeline or memory"
        )
    check_file(output)
    unlike = {"--against": against, "--plot": plotted, "a second target": targets[1:] or None}
    if asked.stages is not None or (asked.search == AUTO and not any(unlike.values())):
        planned = asked.found(targets[0], unlike)
        seconds = planned.cost.seconds if is_whole(planned) else planned.price.seconds
        with doing("writing the page"):
            planned.view().save(output)
        _report(output, (seconds,), as_json, show)
        return
    if AUTO in (asked.search, against):
        note_one_piece(given_of(unlike))
    plans = _plans(targets, against, asked)
    with doing("writing the page" if plotted is None else "drawing"):
        if plotted is None:
            view_of(*zip(*plans, strict=True)).save(output)
        else:
            plot(plans[0][0], plotted, output)
    _report(output, tuple(data["cost"]["seconds"] for data, _ in plans), as_json, show)


def _report(output: Path, seconds: tuple[float, ...], as_json: bool, show: bool) -> None:
    if as_json:
        print_json(ViewRecord(str(output), output.stat().st_size, seconds))
    else:
        typer.echo(str(output))
    if show and not webbrowser.open(output.resolve().as_uri()):
        raise ContextError(f"no browser is found on this machine; {output} is written, open it in one elsewhere")


def diff(
    targets: Targets,
    against: Against = None,
    *,
    asked: Asked,
    as_json: Annotated[bool, typer.Option("--json", help="Print what differs as JSON and nothing else.")] = False,
) -> None:
    """Tell what differs between two plans: what a step costs, strategies, redistributions, layouts of inputs.

    The plans are of two targets, or of one target by two modes (--mode and --against). Files are those of `plan --json`
    or `plan --save`; the latter have no figures.
    """
    from autoshard.cli.differing import print_difference
    from autoshard.exporters.difference import difference
    from autoshard.exporters.plan_records import PlanRecord
    from costmodel.json_door import convert, plain

    plans = _plans(targets, against, asked)
    if len(plans) != 2:
        raise ContextError("diff compares two plans: name two targets, or one with --against MODE")
    found = difference(*(convert(one, PlanRecord) for one, _ in plans))
    if as_json:
        typer.echo(json.dumps(plain(found), indent=2))
    else:
        print_difference(found, console())


def _plans(targets: list[str], against: str | None, asked: Asked) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """The data of the plans, one or two, each with what can be taken away of it."""
    if len(targets) + (against is not None) > 2:
        raise ContextError("one plan or two can be shown: give one or two targets, or one with --against")
    from autoshard.exporters.plan_json import to_json
    from autoshard.view.page import exported

    def planned(target: str, mode: str | None) -> tuple[dict[str, Any], dict[str, str]]:
        if target.endswith(".json"):
            return _from_file(Path(target), mode), {}
        found = asked.planned(target, mode)
        with doing("collecting what to show"):
            return to_json(found, everything=True), exported(found)

    ways = [(one, asked.search) for one in targets] + ([(targets[0], against)] if against is not None else [])
    return [planned(*one) for one in ways]


def _from_file(path: Path, mode: str | None) -> dict[str, Any]:
    from autoshard.exporters.plan_file import read_plan
    from costmodel.json_door import plain

    if mode is not None:
        raise PlanError(f"{path} is a plan already; --mode {mode} and --against go with a script or a module")
    return plain(read_plan(path))
