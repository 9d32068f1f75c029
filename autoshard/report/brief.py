"""A plan on one screen: what a step costs, and the modules, operators, redistributions and inputs that cost most.

Each row is one line: names are cut in their middle, and columns left out where the console is narrow. Equal layers are
one row, which counts as all of them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from autoshard.report.folding import fold_rows
from autoshard.report.modules import dearest_modules, module_tree
from autoshard.report.summary import Summary, summarize
from autoshard.util.errors import PlanError
from autoshard.util.near import did_you_mean
from costmodel import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.search.planned import PlannedData

TOP = 6
"""Rows of a table unless others are asked for."""
SORTS = ("time", "bytes", "name")
COLUMNS = {
    "modules": ("name", "time", "share", "redistributed", "sent"),
    "operators": ("name", "op", "in_strategy", "cause", "time", "share"),
    "redistributions": ("value", "by", "for", "bytes", "time", "share"),
    "inputs": ("name", "is", "layout", "type", "bytes"),
}
"""The columns of each table."""
_IF_WIDE = ("in_strategy", "cause", "for", "type")
_WIDE = 110
"""Characters from which on these columns are shown, too."""
_FIGURES = ("time", "share", "sent", "redistributed", "bytes")
_WORDS = ("name", "value", "for", "cause", "in_strategy", "layout", "by")
_GAP, _LEAST = 3, 12
"""Blanks between columns, and the characters that words get at least."""
_DEAR = 0.05
"""Share of the step from which on a row is marked."""


@dataclass(frozen=True)
class RowFilter:
    """Which rows are shown: so many, in which order, and those whose name a pattern is found in; and which columns.

    Raises:
        PlanError: an order or a column that is none, or a pattern that is no regular expression.
    """

    top: int = TOP
    sort: str = "time"
    pattern: str = ""
    columns: tuple[str, ...] = ()
    """Those to show, in this order, of tables that have them; none: as many as fit."""

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise PlanError(f"cannot sort by {self.sort!r}; rows are sorted by {', '.join(SORTS)}")
        if self.top < 1:
            raise PlanError(f"cannot show {self.top} rows; at least one")
        known = list(dict.fromkeys(name for names in COLUMNS.values() for name in names))
        for name in self.columns:
            if name not in known:
                hint = did_you_mean(name, known, 1)
                raise PlanError(f"no table has a column {name!r}{hint}; there are {', '.join(known)}")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise PlanError(f"cannot filter by {self.pattern!r}: {error}") from None


@dataclass(frozen=True)
class _Line:
    """A row: its cells, and what it is sorted by, for all that it stands for."""

    name: str
    cells: tuple[str, ...]
    seconds: float
    nbytes: float


def print_brief(planned: PlannedData, console: Console, choice: RowFilter) -> None:
    """Print the tables to a console."""
    summary, step, wide = summarize(planned), planned.cost.seconds, console.width >= _WIDE
    tables = {
        "modules": _modules(summary, step),
        "operators": _operators(summary, step),
        "redistributions": _moves(summary, step),
        "inputs": _inputs(summary),
    }
    found = False
    for title, lines in tables.items():
        shown = _Shown(title, _columns(title, choice, wide), list(lines), choice, step)
        if shown.lines and shown.columns:
            found = True
            console.print()
            console.print(shown.table(console.width))
    if choice.pattern and not found:
        console.print(f"\nno row has a name with {choice.pattern!r} in it")


def _columns(title: str, choice: RowFilter, wide: bool) -> list[str]:
    """The columns of a table that are shown."""
    if choice.columns:
        return [name for name in choice.columns if name in COLUMNS[title]]
    return [name for name in COLUMNS[title] if wide or name not in _IF_WIDE]


class _Shown:
    """The rows of a table that are chosen, and how many are left."""

    def __init__(self, title: str, columns: Sequence[str], lines: list[_Line], choice: RowFilter, step: float) -> None:
        found = [one for one in lines if re.search(choice.pattern, one.name)]
        keys: dict[str, Callable[[_Line], tuple]] = {
            "time": lambda one: (-one.seconds, -one.nbytes),
            "bytes": lambda one: (-one.nbytes, -one.seconds),
            "name": lambda one: (one.name,),
        }
        found.sort(key=keys[choice.sort])
        places = [COLUMNS[title].index(name) for name in columns]
        self.columns, self.step = columns, step
        self.lines = [replace(one, cells=tuple(one.cells[i] for i in places)) for one in found[: choice.top]]
        left = len(found) - len(self.lines)
        self.title = f"{title}: {len(self.lines)} of {len(found)} rows (--top {len(found)})" if left else title

    def table(self, width: int) -> Table:
        made = Table(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
        made.pad_edge = False
        widths = self._widths(width)
        for name in self.columns:
            made.add_column(name, justify="right" if name in _FIGURES else "left", no_wrap=True)
        for one in self.lines:
            style = "yellow" if self.step and one.seconds >= _DEAR * self.step else None
            cells = (shortened(cell, wide) for cell, wide in zip(one.cells, widths, strict=True))
            made.add_row(*cells, style=style)
        return made

    def _widths(self, width: int) -> list[int]:
        """How wide each column may be: names and words share what figures leave."""
        wanted = [max(map(len, cells)) for cells in zip(self.columns, *(one.cells for one in self.lines), strict=True)]
        words = [i for i, name in enumerate(self.columns) if name in _WORDS]
        left = width - _GAP * (len(wanted) - 1) - sum(size for i, size in enumerate(wanted) if i not in words)
        while words and sum(wanted[i] for i in words) > left and max(wanted[i] for i in words) > _LEAST:
            widest = max(words, key=lambda i: wanted[i])
            wanted[widest] -= 1
        return wanted


def shortened(name: str, most: int) -> str:
    """A name of at most so many characters, its middle left out at dots where that serves.

    >>> shortened("transformer.h.{0..11}.attn.c_attn.matmul", 30)
    'transformer.h.….c_attn.matmul'
    """
    if len(name) <= most:
        return name
    parts = re.split(r"\.(?![^{]*\})", name)
    for keep in range(len(parts) - 1, 0, -1):
        head, tail = parts[: (keep + 1) // 2], parts[len(parts) - keep // 2 :] if keep > 1 else []
        short = ".".join((*head, "…", *tail))
        if len(short) <= most and tail:
            return short
    return f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"


def _modules(summary: Summary, step: float) -> Iterator[_Line]:
    for name, module, times in dearest_modules(module_tree(summary), step):
        whole, moved = times * (module.seconds + module.move_seconds), times * module.move_seconds
        cells = (
            name,
            format_seconds(whole),
            _share(whole, step),
            format_seconds(moved),
            format_bytes(times * module.nbytes),
        )
        yield _Line(name, cells, whole, times * module.nbytes)


def _operators(summary: Summary, step: float) -> Iterator[_Line]:
    rows = summary.operators
    told = [(one.node.label, one.node.op.name, str(one.decision.strategy), str(one.decision.cause)) for one in rows]
    for row in fold_rows([(*cells, f"{one.seconds:.9g}") for cells, one in zip(told, rows, strict=True)]):
        members = [rows[i] for i in row.stands_for]
        seconds = sum(one.seconds * one.times for one in members)
        sent = sum(move.nbytes * move.times for one in members for move in one.moves)
        first, count = members[0], len(members)
        each = f"{count} x {format_seconds(first.seconds * first.times)}" if count > 1 else format_seconds(seconds)
        yield _Line(row.cells[0], (*row.cells[:4], each, _share(seconds, step)), seconds, sent)


def _moves(summary: Summary, step: float) -> Iterator[_Line]:
    rows = [one for one in summary.moves if one.nbytes]
    cells = [
        (
            one.value.name,
            ", ".join(_by(one)),
            ", ".join(one.users),
            f"{one.nbytes * one.times:.9g}",
            f"{one.seconds:.9g}",
        )
        for one in rows
    ]
    for row in fold_rows(cells):
        members = [rows[i] for i in row.stands_for]
        seconds, sent = (
            sum(of(one) * one.times for one in members) for of in (lambda one: one.seconds, lambda one: one.nbytes)
        )
        count = f"{len(members)} x " if len(members) > 1 else ""
        first = members[0]
        told = (
            f"{count}{format_bytes(first.nbytes * first.times)}",
            f"{count}{format_seconds(first.seconds * first.times)}",
        )
        yield _Line(row.cells[0], (*row.cells[:3], *told, _share(seconds, step)), seconds, sent)


def _by(move) -> Iterator[str]:
    return (f"{one.step.kind} {one.step.groups}" for one in move.collectives if one.step.communicates)


def _inputs(summary: Summary) -> Iterator[_Line]:
    rows = summary.inputs
    cells = [(one.value.name, one.role, f"[{one.layout}]", str(one.value.type), str(one.nbytes)) for one in rows]
    for row in fold_rows(cells):
        members = [rows[i] for i in row.stands_for]
        held = sum(one.nbytes for one in members)
        count = f"{len(members)} x " if len(members) > 1 else ""
        told = f"{count}{format_bytes(members[0].nbytes)}"
        yield _Line(row.cells[0], (*row.cells[:4], told), 0.0, held)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""
