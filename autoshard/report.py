"""The report of a plan: what was decided, why, what moves, and what it costs, as tables of text.

`report(planned)` returns the text; `print_report(planned, console)` prints it, coloured where it can.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from autoshard.layout.layout import Layout
from autoshard.plan import Option, Plan
from autoshard.report_totals import totals
from autoshard.report_whole import Gathering, gathered
from autoshard.summary import InputRow, Move, OperatorRow, summarize
from costmodel import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.api import Planned

UNLIMITED = 1000
"""Columns that no table needs, long lists being wrapped: the width of a report that goes to no terminal."""

_TEXT_WIDTH = 110
_INDENT = "  "
"""Before the names of operators inside of a loop, a branch or a manual computation."""


def report(planned: Planned, *, width: int = UNLIMITED, alternatives: bool = False) -> str:
    """The report as plain text within `width` columns; `alternatives` adds every decision's runners-up."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, highlight=False, markup=False)
    print_report(planned, console, alternatives=alternatives)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_report(planned: Planned, console: Console, *, alternatives: bool = False) -> None:
    """Print the report to a console."""
    summary = summarize(planned)
    console.print(_header(planned), soft_wrap=True)
    tables = [_operators(summary.operators)]
    if summary.moves:
        tables.append(_moves(summary.moves))
    whole = tuple(gathered(summary.operators))
    if whole:
        tables.append(_whole(whole))
    if planned.plan.conflicts:
        tables.append(_conflicts(planned.plan))
    tables.append(_inputs(summary.inputs))
    if any(row.decision.alternatives for row in summary.operators):
        tables.append(_runners_up(summary.operators))
    if alternatives:
        tables.append(_alternatives(summary.operators))
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    console.print("\n".join(totals(planned)), soft_wrap=True)


def _header(planned: Planned) -> str:
    plan = planned.plan
    title = f"{plan.graph.name} on mesh {plan.mesh} ({plan.mesh.devices} devices, {planned.hardware.name})"
    origin = textwrap.wrap(f"{plan.search}: {plan.started_from}", _TEXT_WIDTH, subsequent_indent="  ")
    return "\n".join((title, *origin))


# Columns whose cells may be long, and where they are wrapped.
_LIMITS = {"in_strategy": 48, "instead": 48, "cause": 48, "why": 60, "by": 26, "for": 48, "first": 24}


def _table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge = False
    for name in columns:
        limit = _LIMITS.get(name)
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", max_width=limit)
    return table


def _operators(rows: Sequence[OperatorRow]) -> Table:
    table = _table("operators", "name", "op", "in_strategy", "result", "cause", "time", "first", right=("time",))
    for row in rows:
        table.add_row(
            f"{_INDENT * row.depth}{row.node.label}",
            row.node.op.name,
            str(row.decision.strategy),
            "; ".join(map(_shown, row.layouts)),
            str(row.decision.cause),
            _repeated(row.seconds, row.times),
            ", ".join(f"#{move.number}" for move in row.moves),
        )
    return table


def _runners_up(rows: Sequence[OperatorRow]) -> Table:
    """For each decision the best that was not chosen, and what it would have cost more then."""
    table = _table("runners-up", "name", "in_strategy", "instead", "costs more", right=("costs more",))
    for row in rows:
        chosen, others = row.decision.chosen, row.decision.alternatives
        if others:
            best = min(others, key=_seconds)
            more = _seconds(best) - _seconds(chosen)
            shown = f"{'-' if more < 0 else ''}{format_seconds(abs(more))}"
            table.add_row(row.node.label, str(chosen.strategy), str(best.strategy), shown)
    return table


def _seconds(option: Option) -> float:
    return option.edge_seconds + option.completion_seconds + option.work_seconds


def _moves(moves: Sequence[Move]) -> Table:
    table = _table(
        "redistributions",
        "#",
        "value",
        "from",
        "to",
        "by",
        "bytes",
        "time",
        "for",
        right=("#", "bytes", "time"),
    )
    for move in moves:
        table.add_row(
            str(move.number),
            move.value.name,
            _shown(move.before),
            _shown(move.after),
            ", ".join(str(one.step) for one in move.collectives),
            format_bytes(move.nbytes),
            _repeated(move.seconds, move.times),
            ", ".join(move.users),
        )
    return table


def _whole(rows: Sequence[Gathering]) -> Table:
    """Operators that gather what came split; `more work` is what ranks compute alike because of it."""
    columns = ("name", "op", "gathers", "dim", "why", "bytes", "time", "more work")
    table = _table("run whole although split", *columns, right=("dim", "bytes", "time", "more work"))
    for row in rows:
        table.add_row(
            row.node.label,
            row.node.op.name,
            f"{row.move.value.name} (#{row.move.number})",
            str(row.dim),
            row.why,
            format_bytes(row.nbytes),
            _repeated(row.seconds, row.times),
            _repeated(row.work_seconds, row.times),
        )
    return table


def _conflicts(plan: Plan) -> Table:
    columns = ("value", "left by", "as", "wanted by", "as ", "bytes", "time")
    table = _table("conflicts between configured operators", *columns, right=("bytes", "time"))
    for one in plan.conflicts:
        table.add_row(
            one.value,
            one.producer,
            _shown(one.before),
            one.consumer,
            _shown(one.after),
            format_bytes(one.nbytes),
            format_seconds(one.seconds),
        )
    return table


def _inputs(rows: Sequence[InputRow]) -> Table:
    table = _table("inputs", "name", "is", "type", "layout", "cause", "a device holds", right=("a device holds",))
    for row in rows:
        table.add_row(
            row.value.name,
            row.role,
            str(row.value.type),
            _shown(row.layout),
            str(row.cause),
            format_bytes(row.nbytes),
        )
    return table


def _alternatives(rows: Sequence[OperatorRow]) -> Table:
    times = ("redistribution", "completion", "work")
    table = _table("alternatives (the chosen one first)", "name", "in_strategy", "leaves", *times, right=times)
    for row in rows:
        chosen, *others = row.decision.chosen, *row.decision.alternatives
        table.add_row(row.node.label, *_priced(chosen))
        for option in others:
            table.add_row("", *_priced(option))
    return table


def _priced(option: Option) -> tuple[str, ...]:
    seconds = (option.edge_seconds, option.completion_seconds, option.work_seconds)
    leaves = "; ".join(map(_shown, option.strategy.result_layouts))
    return str(option.strategy), leaves, *map(format_seconds, seconds)


def _repeated(seconds: float, times: int) -> str:
    """A time, and how often a step takes it."""
    return format_seconds(seconds) if times == 1 else f"{times} x {format_seconds(seconds)}"


def _shown(layout: Layout) -> str:
    return f"[{layout}]"
