"""A plan with its figures as plain data for JSON: the form of plan files, with what each part of it costs.

Seconds and bytes are predictions for one step of one device; strategies are nested lists of parts per dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autoshard.cost.memory import HeldBytes, MemoryUse
from autoshard.cost.prices import prices_for
from autoshard.exporters.plan_file import plan_record
from autoshard.exporters.plan_records import (
    AxisCostRecord,
    ConflictRecord,
    CostRecord,
    HeldRecord,
    InputRecord,
    MemoryRecord,
    MoveRecord,
    OperatorRecord,
    OptionRecord,
    StepRecord,
    ValueRecord,
)
from autoshard.exporters.step_json import step_fields
from autoshard.ir.graph import walk
from autoshard.plan.plan import Conflict, Option
from autoshard.report.summary import InputRow, Move, OperatorRow, summarize
from autoshard.search.alternatives import options_around
from costmodel.json_door import plain, with_fields

if TYPE_CHECKING:
    from autoshard.search.planned import PlannedData


def to_json(planned: PlannedData, *, alternatives: bool = False, everything: bool = False) -> dict[str, Any]:
    """The plan as dicts and lists of plain values; `alternatives` adds the runners-up of every decision.

    `everything` adds what a view shows: the timeline, what lies in memory when, modules, which rank holds what, and
    what else each operator could be.
    """
    plan, summary = planned.plan, summarize(planned)
    record = plan_record(plan)
    around = options_around(plan, prices_for(planned.hardware)) if everything else {}
    numbers = {options: i for i, options in enumerate(dict.fromkeys(around.values()))}
    places = {node: numbers[options] for node, options in around.items()}
    rows = {row.node: row for row in summary.operators}
    inputs = {row.value: row for row in summary.inputs}
    found = with_fields(
        record,
        hardware=planned.hardware.name,
        ignored=planned.ignored,
        inputs=tuple(_input(one, inputs[value]) for one, value in zip(record.inputs, plan.graph.inputs, strict=True)),
        operators=tuple(
            _operator(one, rows[node], alternatives, places.get(node)) if node in rows else one
            for one, node in zip(record.operators, walk(plan.graph.nodes), strict=True)
        ),
        redistributions=tuple(map(_move, summary.moves)),
        conflicts=tuple(map(_conflict, plan.conflicts)),
        cost=_cost(planned, everything),
        options=tuple(tuple(map(_option, one)) for one in numbers) if everything else None,
        **(step_fields(planned, summary) if everything else {}),
    )
    return plain(found)


def _operator(one: OperatorRecord, row: OperatorRow, alternatives: bool, around: int | None) -> OperatorRecord:
    node, strategy = row.node, row.decision.strategy
    return with_fields(
        one,
        op=node.op.name,
        in_strategy=_tuples(strategy.in_strategy),
        out_strategy=_tuples(layout.parts for layout in row.layouts),
        device_matrix=tuple(strategy.device_matrix),
        operands=tuple(value.name for value in node.operands),
        results=tuple(
            ValueRecord(name=value.name, type=str(value.type), layout=str(layout))
            for value, layout in zip(node.results, row.layouts, strict=True)
        ),
        seconds=row.seconds,
        source=None if node.source is None else str(node.source),
        depth=row.depth,
        runs=row.times,
        why=str(row.decision.cause),
        alternatives=tuple(map(_option, row.decision.alternatives)) if alternatives else None,
        around=around,
    )


def _option(option: Option) -> OptionRecord:
    return OptionRecord(
        in_strategy=_tuples(option.strategy.in_strategy),
        redistribution_seconds=option.edge_seconds,
        completion_seconds=option.completion_seconds,
        seconds=option.work_seconds,
        leaves=tuple(map(str, option.strategy.result_layouts)),
    )


def _move(move: Move) -> MoveRecord:
    steps, node = zip(move.collectives, move.step_seconds, strict=True), move.serves
    return MoveRecord(
        value=move.value.name,
        from_=str(move.before),
        to=str(move.after),
        bytes=move.nbytes,
        seconds=move.seconds,
        runs=move.times,
        users=tuple(move.users),
        serves=None if node is None else node.label,
        source=None if node is None or node.source is None else str(node.source),
        steps=tuple(
            StepRecord(
                kind=one.step.kind,
                axes=str(one.step.groups),
                ranks=one.step.groups.size,
                dim=one.step.dim,
                to_dim=one.step.to_dim,
                bytes=one.nbytes_moved,
                seconds=seconds,
            )
            for one, seconds in steps
        ),
    )


def _conflict(one: Conflict) -> ConflictRecord:
    return ConflictRecord(
        value=one.value,
        producer=one.producer,
        consumer=one.consumer,
        from_=str(one.before),
        to=str(one.after),
        bytes=one.nbytes,
        seconds=one.seconds,
    )


def _input(one: InputRecord, row: InputRow) -> InputRecord:
    parts, nbytes = tuple(row.layout.parts), int(row.nbytes)
    return with_fields(one, role=row.role, parts=parts, bytes_per_device=nbytes, why=str(row.cause))


def _cost(planned: PlannedData, everything: bool) -> CostRecord:
    cost = planned.cost
    return CostRecord(
        seconds=cost.seconds,
        compute_seconds=cost.compute_seconds,
        communication_seconds=cost.communication_seconds,
        hidden_seconds=cost.hidden_seconds,
        axes=tuple(
            AxisCostRecord(axes=one.axes, seconds=one.seconds, bytes=one.nbytes, collectives=one.collectives)
            for one in cost.axes
        ),
        bytes_per_device=cost.bytes_per_device,
        peak_memory_bytes=cost.peak_memory_bytes,
        device_memory_bytes=planned.hardware.device.memory_bytes,
        waiting_seconds=cost.waiting_seconds or None,
        memory=None if cost.memory is None else _memory(cost.memory, everything),
    )


def _memory(use: MemoryUse, everything: bool) -> MemoryRecord:
    """When memory is fullest and with what, and the bytes at each moment of the step; or all that lies there ever."""
    some = [one for one in use.held if one.nbytes] if everything else use.at(use.peak_moment)
    held = tuple(map(_held, some))
    found = MemoryRecord(peak_at=use.peak_at, peak_moment=use.peak_moment, timeline=tuple(use.timeline.tolist()))
    return with_fields(found, everything=held) if everything else with_fields(found, held=held)


def _held(one: HeldBytes) -> HeldRecord:
    return HeldRecord(name=one.what, kind=one.kind, bytes=one.nbytes, first=one.first, last=one.last)


def _tuples(parts: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, parts))
