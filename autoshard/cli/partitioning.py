"""`autoshard partition`: the collectives of a target's program, what each moves, and which operator it serves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.app import console
from autoshard.cli.planned import Asked, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from autoshard.optimize import Saving
    from autoshard.partition.traffic import Traffic


def partition(
    target: Target,
    asked: Asked,
    as_json: Annotated[bool, typer.Option("--json", help="Print the collectives as JSON and nothing else.")] = False,
    passes: Annotated[bool, typer.Option("--passes", help="Also tell what each pass over the program saved.")] = False,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Also let collectives run beside operators, where these do not need them.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--no-passes", help="The program as the plan was lowered, no passes run.")
    ] = False,
) -> None:
    """List the collectives of the program that every rank runs: kind, bytes, group, axes, the operator served.

    Bytes are those that one device sends under a bandwidth-optimal algorithm. A collective in a loop counts once in
    the total, as it stands in the program; what a whole step sends is told apart.
    """
    from autoshard.partition.traffic import to_json, traffic_of

    planned = asked.planned(target)
    planned = replace(planned, passes=() if plain else (*planned.passes, *(["overlap"] if overlap else [])))
    found = traffic_of(planned.program)
    if as_json:
        typer.echo(json.dumps(to_json(found), indent=2))
        return
    _print(found, console())
    if passes:
        _print_savings(planned.savings, console())


def _print_savings(savings: Sequence[Saving], out: Console) -> None:
    from costmodel import format_bytes, format_seconds

    figures = ("bytes saved", "messages saved", "peak memory saved", "a step takes", "with overlap")
    table = _new("pass", *figures, right=figures)
    for one in savings:
        sizes = (f"{'-' * (n < 0)}{format_bytes(abs(n))}" for n in (one.nbytes, one.peak))
        nbytes, peak = sizes
        times = (format_seconds(n) for n in (one.after.seconds, one.after.overlapped_seconds))
        table.add_row(one.name, nbytes, str(one.collectives), peak, *times)
    out.print()
    out.print(table if savings else "no passes have run")


def _new(*titles: str, right: Sequence[str]) -> Table:
    """A table with figures in the columns `right`."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left")
    return table


def _print(found: Sequence[Traffic], out: Console) -> None:
    from autoshard.partition.traffic import bytes_moved
    from costmodel import format_bytes, format_count

    figures = ("bytes a device sends", "group", "times")
    table = _new("kind", "bytes a device sends", "group", "axes", "times", "operator", right=figures)
    for one in found:
        cells = format_bytes(one.bytes_moved), str(one.group_size), " ".join(one.axes), str(one.executions)
        table.add_row(one.kind, *cells, one.operator)
    if found:
        out.print(table)
    once, all_of_them = bytes_moved(found), bytes_moved(found, executed=True)
    loops = "" if once == all_of_them else f", {format_bytes(all_of_them)} in a step with its loops"
    count = format_count(len(found), "collective")
    out.print(f"{count}, a device sends {format_bytes(once)}{loops}")
