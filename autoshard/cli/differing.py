"""What differs between two plans, as tables of text: figures first, then operators, redistributions and inputs."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from autoshard.exporters.difference import ChangeRecord, DifferenceRecord, FigureRecord, HeadRecord, SideRecord
from autoshard.report.folding import fold_rows
from costmodel import format_bytes, format_count, format_seconds

_MOST = 20
"""Rows of a table; what has changed most comes first."""


def print_difference(found: DifferenceRecord, console: Console) -> None:
    """Print it to a console."""
    for name, head in (("A", found.before), ("B", found.after)):
        console.print(f"{name}: {_head(head)}", soft_wrap=True)
    console.print()
    console.print(_figures(found.figures))
    tables = (("operators", found.operators), ("redistributions", found.redistributions), ("inputs", found.inputs))
    for title, rows in tables:
        if rows:
            console.print()
            console.print(_changes(title, rows))
    console.print()
    console.print(f"{format_count(found.alike, 'operator')} split alike", soft_wrap=True)


def _head(one: HeadRecord) -> str:
    return f"{one.graph} on mesh {one.mesh} by {one.search}" + (f", {one.hardware}" if one.hardware else "")


def _figures(rows: tuple[FigureRecord, ...]) -> Table:
    table = Table("", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("A", "B", "B less A", "%"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in rows:
        table.add_row(one.what, *_sides(one))
    return table


def _sides(one: FigureRecord) -> Iterator[str]:
    yield from ("-" if side is None else _figure(side, one.unit) for side in (one.before, one.after))
    if one.before is None or one.after is None:
        return
    more = one.after - one.before
    yield _signed(more, one.unit) if more else "0"
    yield f"{more / one.before:+.1%}" if one.before and more else ""


def _figure(value: float, unit: str) -> str:
    return {"seconds": format_seconds, "bytes": format_bytes}.get(unit, "{:.0f}".format)(value)


def _signed(value: float, unit: str) -> str:
    return f"{'-' if value < 0 else '+'}{_figure(abs(value), unit)}"


def _changes(title: str, rows: tuple[ChangeRecord, ...]) -> Table:
    ordered = sorted(rows, key=lambda one: -abs(_more(one)))
    cells = [(one.name, _side(one.before), _side(one.after), _signed(_more(one), "seconds")) for one in ordered]
    folded = fold_rows(cells)
    shown = f"{title} that differ: {len(rows)}" + (f", the first of them {_MOST} rows" if len(folded) > _MOST else "")
    table = Table(title=shown, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge = False
    for name in ("name", "A", "B"):
        table.add_column(name, overflow="fold", max_width=48)
    table.add_column("B less A", justify="right", no_wrap=True)
    for row in folded[:_MOST]:
        table.add_row(*row.cells)
    return table


def _more(one: ChangeRecord) -> float:
    return _seconds(one.after) - _seconds(one.before)


def _seconds(side: SideRecord | None) -> float:
    return (side.seconds or 0.0) if side else 0.0


def _side(side: SideRecord | None) -> str:
    if side is None:
        return "-"
    layouts = " -> ".join(f"[{one}]" for one in side.layouts)
    return f"{side.text} {layouts}".strip()
