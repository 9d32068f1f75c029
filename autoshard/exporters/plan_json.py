"""A plan as plain data for json: operators, redistributions, inputs, conflicts, and what it costs.

Seconds and bytes are predictions for one step of one device; strategies are nested lists of parts per dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autoshard.core.strategy import Parts
from autoshard.cost.evaluate import Cost
from autoshard.cost.memory import MemoryUse
from autoshard.plan.plan import Cause, Conflict, Option
from autoshard.report.summary import InputRow, Move, OperatorRow, summarize

if TYPE_CHECKING:
    from autoshard.api import Planned


def to_json(planned: Planned, *, alternatives: bool = False) -> dict[str, Any]:
    """The plan as dicts and lists of plain values; `alternatives` adds the runners-up of every decision."""
    plan, summary = planned.plan, summarize(planned)
    return {
        "graph": plan.graph.name,
        "mesh": str(plan.mesh),
        "devices": plan.mesh.devices,
        "hardware": planned.hardware.name,
        "search": plan.search,
        "started_from": plan.started_from,
        "inputs": [_input(row) for row in summary.inputs],
        "operators": [_operator(row, alternatives) for row in summary.operators],
        "redistributions": [_move(move) for move in summary.moves],
        "conflicts": [_conflict(one) for one in plan.conflicts],
        "outputs": [
            {"name": value.name, "type": str(value.type), "layout": str(layout)}
            for value, layout in zip(plan.graph.outputs, plan.outputs, strict=True)
        ],
        "cost": _cost(planned.cost),
        "search_stats": dict(plan.search_stats),
    }


def _operator(row: OperatorRow, alternatives: bool) -> dict[str, Any]:
    node, strategy = row.node, row.decision.strategy
    found = {
        "name": node.label,
        "op": node.op.name,
        "in_strategy": _lists(strategy.in_strategy),
        "out_strategy": _lists([layout.parts for layout in row.layouts]),
        **_cause(row.decision.cause),
        "device_matrix": list(strategy.device_matrix),
        "operands": [value.name for value in node.operands],
        "results": [
            {"name": value.name, "type": str(value.type), "layout": str(layout)}
            for value, layout in zip(node.results, row.layouts, strict=True)
        ],
        "seconds": row.seconds,
        "source": None if node.source is None else str(node.source),
    }
    if row.depth:
        found |= {"depth": row.depth, "runs": row.times}
    if alternatives:
        found["alternatives"] = [_option(option) for option in row.decision.alternatives]
    return found


def _cause(cause: Cause) -> dict[str, Any]:
    found: dict[str, Any] = {"cause": cause.kind, "cause_from": list(cause.neighbours)}
    return {**found, "left_out": list(cause.lost)} if cause.lost else found


def _option(option: Option) -> dict[str, Any]:
    return {
        "in_strategy": _lists(option.strategy.in_strategy),
        "redistribution_seconds": option.edge_seconds,
        "completion_seconds": option.completion_seconds,
        "seconds": option.work_seconds,
    }


def _move(move: Move) -> dict[str, Any]:
    return {
        "value": move.value.name,
        "from": str(move.before),
        "to": str(move.after),
        "bytes": move.nbytes,
        "seconds": move.seconds,
        "runs": move.times,
        "users": list(move.users),
        "steps": [
            {
                "kind": one.step.kind,
                "axes": str(one.step.groups),
                "ranks": one.step.groups.size,
                "dim": one.step.dim,
                "to_dim": one.step.to_dim,
                "bytes": one.nbytes_moved,
                "seconds": seconds,
            }
            for one, seconds in zip(move.collectives, move.step_seconds, strict=True)
        ],
    }


def _conflict(one: Conflict) -> dict[str, Any]:
    return {
        "value": one.value,
        "producer": one.producer,
        "consumer": one.consumer,
        "from": str(one.before),
        "to": str(one.after),
        "bytes": one.nbytes,
        "seconds": one.seconds,
    }


def _input(row: InputRow) -> dict[str, Any]:
    return {
        "name": row.value.name,
        "role": row.role,
        "type": str(row.value.type),
        "layout": str(row.layout),
        "parts": list(row.layout.parts),
        **_cause(row.cause),
        "bytes_per_device": row.nbytes,
    }


def _cost(cost: Cost) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seconds": cost.seconds,
        "compute_seconds": cost.compute_seconds,
        "communication_seconds": cost.communication_seconds,
        "axes": [
            {"axes": one.axes, "seconds": one.seconds, "bytes": one.nbytes, "collectives": one.collectives}
            for one in cost.axes
        ],
        "bytes_per_device": cost.bytes_per_device,
        "peak_memory_bytes": cost.peak_memory_bytes,
    }
    return found if cost.memory is None else {**found, "memory": _memory(cost.memory)}


def _memory(use: MemoryUse) -> dict[str, Any]:
    """When memory is fullest and with what, and the bytes at each moment of the step."""
    held = [
        {"name": one.what, "kind": one.kind, "bytes": one.nbytes, "first": one.first, "last": one.last}
        for one in use.at(use.peak_moment)
    ]
    return {"peak_at": use.peak_at, "peak_moment": use.peak_moment, "held": held, "timeline": use.timeline.tolist()}


def _lists(parts: Parts | Sequence[tuple[int, ...]]) -> list[list[int]]:
    return [list(one) for one in parts]
