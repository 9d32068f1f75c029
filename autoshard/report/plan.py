"""The report of a plan: what was decided, why, what moves, and what it costs, as tables of text.

`report(planned)` returns the text; `print_report(planned, console)` prints it, coloured where it can. Equal layers are
one row (`report_folding.py`) unless all rows are wanted.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from autoshard.layout.layout import Layout
from autoshard.plan.plan import Option, Plan
from autoshard.report.folding import Cells, FoldedRow, fold_rows
from autoshard.report.summary import InputRow, Move, OperatorRow, summarize
from autoshard.report.totals import totals
from autoshard.report.whole import Gathering, gathered
from autoshard.search.planned import PlannedData
from costmodel import format_bytes, format_seconds

Fold = Callable[..., tuple[FoldedRow, ...]]

UNLIMITED = 1000
"""Columns that no table needs, long lists being wrapped: the width of a report that goes to no terminal."""

_TEXT_WIDTH = 110
_MOST_NAMES = 8
_INDENT = "  "
"""Before the names of operators inside of a loop, a branch or a manual computation."""


def report(planned: PlannedData, *, width: int = UNLIMITED, alternatives: bool = False, full: bool = False) -> str:
    """The report as plain text within `width` columns; `alternatives` adds every decision's runners-up, `full` shows
    each of several equal layers."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, highlight=False, markup=False)
    print_report(planned, console, alternatives=alternatives, full=full)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_report(planned: PlannedData, console: Console, *, alternatives: bool = False, full: bool = False) -> None:
    """Print the report to a console."""
    summary = summarize(planned)
    print_summary(planned, console)
    fold = _each if full else fold_rows
    moves = fold([_move(one) for one in summary.moves], name=1, apart=(0,))
    numbers = {i + 1: one.cells[0] for one in moves for i in one.stands_for}
    tables = [_operators(summary.operators, numbers, fold)]
    if moves:
        tables.append(_moves(moves))
    whole = tuple(gathered(summary.operators))
    if whole:
        tables.append(_whole(whole, numbers, fold))
    if planned.plan.conflicts:
        tables.append(_conflicts(planned.plan, fold))
    tables.append(_inputs(summary.inputs, fold))
    if any(row.decision.alternatives for row in summary.operators):
        tables.append(_runners_up(summary.operators, fold))
    if alternatives:
        tables.append(_alternatives(summary.operators, fold))
    for table in tables:
        console.print()
        console.print(table)


def print_summary(planned: PlannedData, console: Console) -> None:
    """Print what was planned, and what a step of it costs."""
    width = min(console.width, _TEXT_WIDTH)
    console.print(_header(planned, width), soft_wrap=True)
    console.print()
    for line in totals(planned):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        console.print(
            "\n".join(textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)), soft_wrap=True
        )


def _header(planned: PlannedData, width: int) -> str:
    plan = planned.plan
    title = f"{plan.graph.name} on mesh {plan.mesh} ({plan.mesh.devices} devices, {planned.hardware.name})"
    origin = textwrap.wrap(f"{plan.search}: {plan.started_from}", width, subsequent_indent="  ")
    ignored = f"it does not follow what was asked of {names_of(planned.ignored)}" if planned.ignored else ""
    return "\n".join((title, *origin, *textwrap.wrap(ignored, width, subsequent_indent="  ")))


def names_of(names: Sequence[str]) -> str:
    """The first of the names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# Columns whose cells may be long, and where they are wrapped.
_LIMITS = {"in_strategy": 48, "instead": 48, "cause": 48, "why": 60, "by": 26, "for": 48, "first": 24}


def _table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge = False
    for name in columns:
        limit = _LIMITS.get(name)
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", max_width=limit)
    return table


def _filled(table: Table, rows: Iterable[FoldedRow]) -> Table:
    for row in rows:
        table.add_row(*row.cells)
    return table


def _each(rows: Sequence[Cells], name: int = 0, apart: Sequence[int] = ()) -> tuple[FoldedRow, ...]:
    """Every row by itself, in place of `fold_rows`."""
    return tuple(FoldedRow(tuple(cells), (i,)) for i, cells in enumerate(rows))


def _operators(rows: Sequence[OperatorRow], numbers: Mapping[int, str], fold: Fold) -> Table:
    table = _table("operators", "name", "op", "in_strategy", "result", "cause", "time", "first", right=("time",))
    cells = [
        (
            f"{_INDENT * row.depth}{row.node.label}",
            row.node.op.name,
            str(row.decision.strategy),
            "; ".join(map(_shown, row.layouts)),
            str(row.decision.cause),
            _repeated(row.seconds, row.times),
            ", ".join(f"#{numbers[move.number]}" for move in row.moves),
        )
        for row in rows
    ]
    return _filled(table, fold(cells))


def _runners_up(rows: Sequence[OperatorRow], fold: Fold) -> Table:
    """For each decision the best that was not chosen, and what it would have cost more then."""
    table = _table("runners-up", "name", "in_strategy", "instead", "costs more", right=("costs more",))
    cells = []
    for row in rows:
        chosen, others = row.decision.chosen, row.decision.alternatives
        if others:
            best = min(others, key=_seconds)
            more = _seconds(best) - _seconds(chosen)
            shown = f"{'-' if more < 0 else ''}{format_seconds(abs(more))}"
            cells.append((row.node.label, chosen.strategy.label, best.strategy.label, shown))
    return _filled(table, fold(cells))


def _seconds(option: Option) -> float:
    return option.edge_seconds + option.completion_seconds + option.work_seconds


def _moves(rows: Iterable[FoldedRow]) -> Table:
    columns = ("#", "value", "from", "to", "by", "bytes", "time", "for")
    return _filled(_table("redistributions", *columns, right=("#", "bytes", "time")), rows)


def _move(move: Move) -> Cells:
    return (
        str(move.number),
        move.value.name,
        _shown(move.before),
        _shown(move.after),
        ", ".join(str(one.step) for one in move.collectives),
        format_bytes(move.nbytes),
        _repeated(move.seconds, move.times),
        ", ".join(move.users),
    )


def _whole(rows: Sequence[Gathering], numbers: Mapping[int, str], fold: Fold) -> Table:
    """Operators that gather what came split; `more work` is what ranks compute alike because of it."""
    columns = ("name", "op", "gathers", "dim", "why", "bytes", "time", "more work")
    table = _table("run whole although split", *columns, right=("dim", "bytes", "time", "more work"))
    cells = [
        (
            row.node.label,
            row.node.op.name,
            f"{row.move.value.name} (#{numbers[row.move.number]})",
            str(row.dim),
            row.why,
            format_bytes(row.nbytes),
            _repeated(row.seconds, row.times),
            _repeated(row.work_seconds, row.times),
        )
        for row in rows
    ]
    return _filled(table, fold(cells))


def _conflicts(plan: Plan, fold: Fold) -> Table:
    columns = ("value", "left by", "as", "wanted by", "as ", "bytes", "time")
    table = _table("conflicts between configured operators", *columns, right=("bytes", "time"))
    cells = [
        (
            one.value,
            one.producer,
            _shown(one.before),
            one.consumer,
            _shown(one.after),
            format_bytes(one.nbytes),
            format_seconds(one.seconds),
        )
        for one in plan.conflicts
    ]
    return _filled(table, fold(cells))


def _inputs(rows: Sequence[InputRow], fold: Fold) -> Table:
    table = _table("inputs", "name", "is", "type", "layout", "cause", "a device holds", right=("a device holds",))
    cells = [
        (row.value.name, row.role, str(row.value.type), _shown(row.layout), str(row.cause), format_bytes(row.nbytes))
        for row in rows
    ]
    return _filled(table, fold(cells))


def _alternatives(rows: Sequence[OperatorRow], fold: Fold) -> Table:
    times = ("redistribution", "completion", "work")
    columns = ("name", "in_strategy", "leaves", *times)
    table = _table("alternatives (the chosen one first)", *columns, right=times)
    for row in fold([tuple(_options(one)) for one in rows]):
        for begin in range(0, len(row.cells), len(columns)):
            table.add_row(*row.cells[begin : begin + len(columns)])
    return table


def _options(row: OperatorRow) -> Iterator[str]:
    """The cells of an operator's options, one after the other, so that equal layers can be told by all of them."""
    for i, option in enumerate((row.decision.chosen, *row.decision.alternatives)):
        yield from _priced("" if i else row.node.label, option)


def _priced(name: str, option: Option) -> Cells:
    seconds = (option.edge_seconds, option.completion_seconds, option.work_seconds)
    leaves = "; ".join(map(_shown, option.strategy.result_layouts))
    return name, str(option.strategy), leaves, *map(format_seconds, seconds)


def _repeated(seconds: float, times: int) -> str:
    """A time, and how often a step takes it."""
    return format_seconds(seconds) if times == 1 else f"{times} x {format_seconds(seconds)}"


def _shown(layout: Layout) -> str:
    return f"[{layout}]"
