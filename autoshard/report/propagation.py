"""The report of a propagation: the sharding of every value and why, conflicts, and what nothing is known of.

`report(spread)` returns the text; `print_report(spread, console)` prints it; `to_json(spread)` is the same as data.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from autoshard.core.tensortype import TensorType
from autoshard.frontends.propagated import PropagatedData
from autoshard.layout.sdy_text import show_sharding
from autoshard.layout.sharding import Sharding
from autoshard.propagate.conflicts import AxisConflict, conflicts
from autoshard.propagate.descriptions import Descriptions, axes_text, joined, operator_name
from autoshard.propagate.mutable_ir import MutableValue
from autoshard.propagate.record import ARGUMENT, Output
from autoshard.propagate.values import get_sharding
from costmodel import format_seconds

UNLIMITED = 1000
"""Columns of a report that goes to no terminal; long cells are wrapped in any case."""


class ValueRow(NamedTuple):
    """A value of the finished program, or an output."""

    name: str
    type: TensorType
    sharding: Sharding | None
    at: MutableValue | Output


class Wall(NamedTuple):
    """An operator that has no rule, so that shardings do not pass it."""

    name: str
    count: int
    sources: tuple[str, ...]


# -- what there is to tell


@lru_cache(maxsize=16)
def descriptions_of(spread: PropagatedData) -> Descriptions:
    """The words for a propagation."""
    names = spread.imported.output_names if spread.imported is not None else ()
    return Descriptions(spread.record, spread.graph.name, spread.sources, names)


def value_rows(spread: PropagatedData) -> Iterator[ValueRow]:
    """The values of the program in its order: in the text that is written, not in the one that was read.

    Of values that each use has its own copy of, those with other shardings than the ones before are told as well.
    """
    words = descriptions_of(spread)
    by_function: dict[str, list[Sharding | None]] = {}
    for value in spread.vals():
        if value.origin is None or not value.is_tensor:
            continue
        name, sharding = words.holder(value), get_sharding(value)
        known = by_function.setdefault(name, [])
        if sharding not in known:
            known.append(sharding)
            copy = f" copy {len(known)}" if len(known) > 1 else ""
            yield ValueRow(f"{name}{copy}", value.type, sharding, value)


def output_rows(spread: PropagatedData) -> Iterator[ValueRow]:
    """The outputs of the main function."""
    main = spread.module.main
    if main is None:
        return
    words = descriptions_of(spread)
    returned = main.blocks[0].terminator.operands
    for i, (value, sharding) in enumerate(zip(returned, main.attrs["outputs"], strict=True)):
        output = Output(main, i)
        yield ValueRow(words.output(output), value.type, sharding, output)


def cause_text(spread: PropagatedData, row: ValueRow) -> str:
    """In a few words, where the axes of a value came from: `from %28 (asked of argument %arg27)`."""
    words, sharding = descriptions_of(spread), row.sharding
    if sharding is None or not any(dim.axes for dim in sharding.dims):
        return ""
    parts: dict[str, None] = {}
    for dim, spec in enumerate(sharding.dims):
        for axis in spec.axes:
            for cause in spread.history.trace(row.at, dim, axis):
                request = words.request(cause.request)
                if cause.origin is None:
                    own = cause.request.what == ARGUMENT or cause.request.at is row.at
                    parts["asked" if own else request] = None
                else:
                    origin = words.holder(cause.origin)
                    parts[f"from {origin}" if request.endswith(f" {origin}") else f"from {origin} ({request})"] = None
    return ", ".join(parts)


def walls(spread: PropagatedData) -> list[Wall]:
    """The operators without a rule, the most frequent first."""
    words = descriptions_of(spread)
    found: dict[str, list[str]] = {}
    for op in spread.log.without_rule:
        found.setdefault(operator_name(op), []).append(words.line(op))
    rows = [Wall(name, len(lines), tuple(dict.fromkeys(filter(None, lines)))) for name, lines in found.items()]
    return sorted(rows, key=lambda row: (-row.count, row.name))


@lru_cache(maxsize=16)
def all_conflicts(spread: PropagatedData) -> tuple[AxisConflict, ...]:
    """The conflicts of a propagation."""
    return tuple(conflicts(spread.history))


def sharding_at(spread: PropagatedData, conflict: AxisConflict) -> Sharding:
    """A sharding of the mesh that a conflict is about."""
    record = spread.record
    for side in (conflict.wanted, conflict.against):
        found = record.end.get(side.holder) or record.start.get(side.holder)
        if found is not None and not found.mesh.is_empty:
            return found
    raise AssertionError("a conflict is between values of which one has a sharding")


def shown(sharding: Sharding | None, meshes: int = 0) -> str:
    """A sharding as text, without the name of its mesh where there is but one mesh."""
    if sharding is None:
        return ""
    text = show_sharding(sharding)
    prefix = f"<@{sharding.mesh_name}, "
    return text.removeprefix(prefix).removesuffix(">") if meshes == 1 and text.startswith(prefix) else text


# -- as data


def to_json(spread: PropagatedData) -> dict[str, Any]:
    """The report as data for other programs; the keys stay."""
    return {
        "pass": spread.which,
        "values": [_json_row(spread, row) for row in value_rows(spread)],
        "outputs": [_json_row(spread, row) for row in output_rows(spread)],
        "conflicts": [_json_conflict(spread, one) for one in all_conflicts(spread)],
        "without_rule": [
            {"name": wall.name, "count": wall.count, "sources": list(wall.sources)} for wall in walls(spread)
        ],
        "warnings": list(spread.log.warnings),
        "steps": len(spread.log.events),
        "seconds": spread.seconds,
    }


def _json_row(spread: PropagatedData, row: ValueRow) -> dict[str, Any]:
    sharding = show_sharding(row.sharding) if row.sharding is not None else None
    return {"name": row.name, "type": str(row.type), "sharding": sharding, "cause": cause_text(spread, row)}


def _json_conflict(spread: PropagatedData, conflict: AxisConflict) -> dict[str, Any]:
    words, sharding = descriptions_of(spread), sharding_at(spread, conflict)

    def side(of: Any) -> dict[str, Any]:
        return {"value": words.holder(of.holder), "dim": of.dim, "axes": axes_text(of.axes, sharding)}

    return {
        "operator": words.operator(conflict.op),
        "source": words.line(conflict.op),
        "wanted": side(conflict.wanted),
        "into": side(conflict.into),
        "against": side(conflict.against),
        "decided": conflict.decided,
        "left": conflict.left,
        "priority": conflict.priority,
        "reason": conflict.why,
        "text": words.conflict(conflict, sharding),
    }


# -- as text


def report(spread: PropagatedData, *, width: int = UNLIMITED) -> str:
    """The report as plain text within `width` columns."""
    out = io.StringIO()
    print_report(spread, Console(file=out, width=width, color_system=None, highlight=False, markup=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_report(spread: PropagatedData, console: Console) -> None:
    """Print the report: all values, then what `print_notes` prints."""
    rows, outputs = list(value_rows(spread)), list(output_rows(spread))
    split = sum(row.sharding is not None and not row.sharding.is_replicated for row in rows)
    console.print(
        f"{spread.graph.name}, pass {spread.which}: {split} of {len(rows)} values are split, "
        f"in {len(spread.log.events)} steps that took {format_seconds(spread.seconds)}",
        soft_wrap=True,
    )
    for name, mesh in spread.module.meshes.items():
        console.print(f"mesh @{name} is {mesh}, {mesh.devices} devices", soft_wrap=True)
    for title, found in (("values", rows), ("outputs", outputs)):
        console.print()
        console.print(_rows_table(spread, title, found))
    print_notes(spread, console)


def print_notes(spread: PropagatedData, console: Console) -> None:
    """Print what people should know besides the shardings: conflicts, operators without a rule, warnings."""
    if all_conflicts(spread):
        console.print()
        console.print(_conflicts_table(spread))
    if walls(spread):
        console.print()
        console.print(_walls_table(spread))
    for warning in spread.log.warnings:
        console.print(f"\nwarning: {warning}", soft_wrap=True)


def _table(title: str, *columns: str, limits: tuple[int, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    table.pad_edge = False
    for i, name in enumerate(columns):
        table.add_column(name, overflow="fold", max_width=limits[i] if i < len(limits) and limits[i] else None)
    return table


def _rows_table(spread: PropagatedData, title: str, rows: list[ValueRow]) -> Table:
    table = _table(title, "name", "type", "sharding", "cause", limits=(40, 0, 60, 60))
    meshes = len(spread.module.meshes)
    for row in rows:
        table.add_row(row.name, str(row.type), shown(row.sharding, meshes) or "-", cause_text(spread, row) or "-")
    return table


def _conflicts_table(spread: PropagatedData) -> Table:
    words = descriptions_of(spread)
    table = _table(
        "conflicts", "at", "axes", "of", "did not spread to", "because", "source", limits=(30, 20, 24, 24, 60)
    )
    for one in all_conflicts(spread):
        sharding = sharding_at(spread, one)
        table.add_row(
            words.operator(one.op),
            axes_text(one.wanted.axes, sharding),
            words.dim(one.wanted.holder, one.wanted.dim),
            words.target(one),
            words.why(one, sharding) + ("" if one.left else " (at that time)"),
            words.line(one.op),
        )
    return table


def _walls_table(spread: PropagatedData) -> Table:
    table = _table("operators without a rule: shardings do not pass them", "operator", "count", "source")
    for wall in walls(spread):
        more = f" and {len(wall.sources) - 3} more" if len(wall.sources) > 3 else ""
        table.add_row(
            wall.name, str(wall.count), joined(wall.sources[:3]) if not more else ", ".join(wall.sources[:3]) + more
        )
    return table
