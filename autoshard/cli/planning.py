"""`autoshard plan` and `autoshard dump`: plan a model from a script, and report it or write it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.app import console
from autoshard.cli.output import check_file, check_folder, print_json
from autoshard.cli.planned import AskedInStages, Target, given_of, is_whole
from autoshard.cli.progress import note
from autoshard.cli.records import FilesRecord
from autoshard.cli.target import TargetError
from autoshard.util.doing import doing
from autoshard.util.errors import ContextError

if TYPE_CHECKING:
    from rich.console import Console

    from autoshard.api import Planned
    from autoshard.pipeline import PlannedPipeline
    from autoshard.report.brief import RowFilter

MOST_LINES = 60
"""A report of so many lines is shown whole."""


def plan(
    target: Target,
    asked: AskedInStages,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the plan to a file, for --mode FILE.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
    alternatives: Annotated[
        bool,
        typer.Option("--alternatives", help="Also list the runners-up of every decision."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show all tables, and each of several equal layers.")] = False,
    top: Annotated[int | None, typer.Option("--top", metavar="N", help="Rows of each table; default: 6.")] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="BY", help="Order of rows: time, bytes or name. Default: time.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--filter", metavar="REGEX", help="Rows whose name it is found in.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAMES", help="Columns of tables, like 'name,time,cause'.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="With --json: all that `view` shows too: the timeline, memory, modules, who holds what."
        ),
    ] = False,
) -> None:
    """Plan a model or a module and report the strategies, their causes and what they cost.

    The report of a plan that is longer than a screen shows what costs most; --top, --sort, --filter and --columns
    choose, --full shows all.

    The example inputs give shapes and element types. Outputs keep the layout they come in. Times are
    predicted, for one step of one device; bytes are those that one device sends.
    """
    from autoshard.exporters.plan_json import to_json
    from autoshard.report.brief import TOP, RowFilter

    check_file(save)
    chosen_any = (top, sort, pattern, columns) != (None, None, None, None)
    if chosen_any and (full or alternatives or as_json):
        raise ContextError(
            "--top, --sort, --filter and --columns choose from the short report; leave --full and --json out"
        )
    names = tuple(name.strip() for name in columns.split(",")) if columns else ()
    chosen = RowFilter(TOP if top is None else top, sort or "time", pattern or "", names) if chosen_any else None
    if everything and not as_json:
        raise ContextError("--all goes with --json; the report shows each layer with --full")
    unlike = {"--alternatives": alternatives or None}
    unlike |= {"--full": full or None, "--all": everything or None, "--top": top, "--filter": pattern}
    unlike |= {"--sort": sort, "--columns": columns}
    planned = asked.found(target, unlike if asked.stages is not None else None)
    if save is not None:
        planned.save(save)
    if not is_whole(planned):
        if wrong := given_of(unlike):
            note(f"{wrong}: of the report of a plan in one piece; this plan is in stages, and all of it is told")
        _print_stages(planned, as_json)
        return
    if as_json:
        typer.echo(json.dumps(to_json(planned, alternatives=alternatives, everything=everything), indent=2))
        return
    _print(planned, console(), alternatives, full, chosen)


def _print_stages(planned: PlannedPipeline, as_json: bool) -> None:
    from autoshard.pipeline.planned.report import to_json as stages_to_json

    typer.echo(json.dumps(stages_to_json(planned), indent=2) if as_json else planned.report())


def _print(planned: Planned, out: Console, alternatives: bool, full: bool, choice: RowFilter | None) -> None:
    """The whole report if that is asked for or short, else what costs most."""
    from autoshard.report.brief import RowFilter, print_brief
    from autoshard.report.plan import print_report, print_summary, report

    with doing("writing the report"):
        whole = report(planned, width=out.width, alternatives=alternatives, full=full)
    if choice is None and (alternatives or full or whole.count("\n") <= MOST_LINES):
        if out.is_terminal:
            print_report(planned, out, alternatives=alternatives, full=full)
        else:
            typer.echo(whole, nl=False)
        return
    print_summary(planned, out)
    print_brief(planned, out, choice or RowFilter())
    out.print("\nall of it: --full; one operator: autoshard explain; as a page: autoshard view", soft_wrap=True)


def dump(
    target: Target,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="Folder of the rank_<r> folders."),
    ] = Path("."),
    ranks: Annotated[str, typer.Option("--ranks", metavar="RANKS", help="'all', or numbers like '0,3'.")] = "all",
    *,
    asked: AskedInStages,
    as_json: Annotated[bool, typer.Option("--json", help="Print the files as JSON and nothing else.")] = False,
) -> None:
    """Plan a model and write its IR dumps: as decided, after partitioning, and as every rank runs it.

    Of a plan in stages (--pipeline) what a rank runs are the pieces of its stages in the schedule's order, with what is
    sent and received.
    """
    check_folder(output)
    planned = asked.found(target)
    count = planned.plan.mesh.devices if is_whole(planned) else planned.devices
    with doing("writing the dumps"):
        files = tuple(map(str, planned.dump(output, ranks=read_ranks(ranks, count))))
    if as_json:
        print_json(FilesRecord(files))
    else:
        typer.echo("\n".join(files))


def read_ranks(text: str, world: int) -> list[int] | None:
    """The ranks that an option names; None for all.

    Raises:
        TargetError: no list of ranks, or one that is not there.
    """
    if text == "all":
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < world for word in words):
        raise TargetError(f"cannot read the ranks {text!r}; write 'all' or numbers from 0 to {world - 1}, like '0,1'")
    return [int(word) for word in words]
