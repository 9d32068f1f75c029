"""What differs between two plans of one model, with the figures of both: what the report, the page and `--json` show.

Plans are matched by the names of operators and values, so that they may be for different meshes or hardware, or come
from files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from autoshard.exporters.plan_records import LayoutText, MoveRecord, OperatorRecord, PlanRecord
from costmodel.json_door import Record, described, schema


class FigureRecord(Record, frozen=True):
    """A figure of a step in both plans: seconds, bytes or a number. None where a plan does not tell it."""

    what: str
    unit: str
    before: float | None
    after: float | None


class SideRecord(Record, frozen=True):
    """An operator or a redistribution in one of the plans, in words; seconds and bytes of a step."""

    text: str
    layouts: tuple[LayoutText, ...]
    seconds: float | None = None
    bytes: float | None = None


class ChangeRecord(Record, frozen=True):
    """Something that is not alike in both plans; None where one has it not."""

    name: str
    op: str = ""
    before: SideRecord | None = None
    after: SideRecord | None = None


class HeadRecord(Record, frozen=True):
    """Which plan it is."""

    graph: str
    mesh: str
    search: str
    hardware: str | None = None


class DifferenceRecord(Record, frozen=True):
    """All that differs between two plans."""

    before: HeadRecord
    after: HeadRecord
    figures: Annotated[tuple[FigureRecord, ...], described("What a step costs in both, alike or not.")]
    operators: Annotated[tuple[ChangeRecord, ...], described("Those that are split in another way.")]
    redistributions: Annotated[tuple[ChangeRecord, ...], described("Those that are in one only, or go another way.")]
    inputs: Annotated[tuple[ChangeRecord, ...], described("Those that lie otherwise.")]
    alike: Annotated[int, described("Operators that are split alike.")]


def difference_schema() -> dict[str, Any]:
    """The JSON schema of what `autoshard diff --json` prints."""
    return schema(DifferenceRecord, "autoshard difference of two plans, version 1")


def difference(before: PlanRecord, after: PlanRecord) -> DifferenceRecord:
    """What differs from the first plan to the second."""
    operators = tuple(_changes(_operators(before), _operators(after)))
    names = {one.name for one in operators}
    return DifferenceRecord(
        _head(before),
        _head(after),
        tuple(_figures(before, after)),
        operators,
        tuple(_changes(_moves(before), _moves(after))),
        tuple(_changes(_inputs(before), _inputs(after))),
        sum(one.name not in names for one in before.operators),
    )


def _head(plan: PlanRecord) -> HeadRecord:
    return HeadRecord(plan.graph, plan.mesh, plan.search, plan.hardware)


Sides = dict[tuple[str, int], tuple[str, SideRecord]]
"""What is compared: by name and which one of that name it is, with its operator."""


def _changes(before: Sides, after: Sides) -> Iterator[ChangeRecord]:
    for key in dict.fromkeys((*before, *after)):
        (op, old), (other, new) = before.get(key, ("", None)), after.get(key, ("", None))
        if old is None or new is None or (old.text, old.layouts) != (new.text, new.layouts):
            yield ChangeRecord(key[0], op or other, old, new)


def _numbered(rows: Iterator[tuple[str, str, SideRecord]]) -> Sides:
    found: Sides = {}
    counts: dict[str, int] = {}
    for name, op, side in rows:
        counts[name] = counts.get(name, 0) + 1
        found[name, counts[name]] = op, side
    return found


def _operators(plan: PlanRecord) -> Sides:
    return _numbered((one.name, one.op, _operator(one)) for one in plan.operators)


def _operator(one: OperatorRecord) -> SideRecord:
    text = strategy_text(one)
    layouts = tuple(each.layout for each in one.results or ())
    return SideRecord(text, layouts, None if one.seconds is None else one.seconds * one.runs)


def strategy_text(one: OperatorRecord) -> str:
    """How an operator is split, as reports write it."""
    if one.in_strategy is None:
        return "; ".join(axes or "-" for axes in one.axes or ()) or "as its bodies"
    operands = (", ".join(map(str, parts)) for parts in one.in_strategy)
    return f"({', '.join(f'({parts})' for parts in operands)})"


def _moves(plan: PlanRecord) -> Sides:
    rows = (
        (f"{one.value} for {', '.join(one.users)}", "", _move(one))
        for one in plan.redistributions or ()
        if one.seconds or one.bytes
    )
    return _numbered(rows)


def _move(one: MoveRecord) -> SideRecord:
    text = ", ".join(f"{step.kind} over {step.axes}" for step in one.steps)
    return SideRecord(text, (one.from_, one.to), one.seconds * one.runs, one.bytes * one.runs)


def _inputs(plan: PlanRecord) -> Sides:
    rows = (
        (one.name, one.role or "", SideRecord("", (one.layout,), None, one.bytes_per_device)) for one in plan.inputs
    )
    return _numbered(rows)


_FIGURES = (
    ("a step", "seconds", "seconds"),
    ("computing", "compute_seconds", "seconds"),
    ("communication", "communication_seconds", "seconds"),
    ("hidden behind computing", "hidden_seconds", "seconds"),
    ("waiting for the host", "waiting_seconds", "seconds"),
    ("sent by a device", "bytes_per_device", "bytes"),
    ("peak memory", "peak_memory_bytes", "bytes"),
)


def _figures(before: PlanRecord, after: PlanRecord) -> Iterator[FigureRecord]:
    costs = before.cost, after.cost
    for what, name, unit in _FIGURES:
        figures = [getattr(cost, name, None) for cost in costs]
        if figures != [None, None]:
            yield FigureRecord(what, unit, *figures)
    axes = [{one.axes: one for one in cost.axes} if cost is not None else {} for cost in costs]
    for name in dict.fromkeys((*axes[0], *axes[1])):
        measured = [side[name].seconds if name in side else 0.0 for side in axes]
        yield FigureRecord(f"over {name}", "seconds", *measured)
    if all(axes):
        numbers = [float(sum(one.collectives for one in side.values())) for side in axes]
        yield FigureRecord("collectives", "", *numbers)
