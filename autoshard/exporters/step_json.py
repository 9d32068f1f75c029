"""The step of a plan as Records: when each piece runs, the modules, and which rank holds what under each layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoshard.cost.evaluate import axes_of
from autoshard.cost.prices import prices_for
from autoshard.cost.timeline import scheduled
from autoshard.exporters.plan_records import ModuleRecord, PlacementRecord, TaskRecord
from autoshard.ir.graph import Node, Value, inner_values
from autoshard.layout.layout import Layout
from autoshard.partition.program import (
    Collective,
    Compute,
    Instruction,
    ManualCollective,
    Nest,
    Wait,
    communicates,
    walk,
)
from autoshard.plan.plan import Plan
from autoshard.report.modules import Module, module_tree
from autoshard.report.summary import Summary
from autoshard.search.planned import PlannedData

COMPUTE = "compute"
MOST_HELD = 2**22
"""Numbers that placements have at most: a plan for thousands of devices tells layouts as text only."""


def step_fields(planned: PlannedData, summary: Summary) -> dict[str, Any]:
    """The fields of a PlanRecord that tell of the step."""
    return {
        "timeline": tuple(_tasks(planned, summary)),
        "modules": _module(module_tree(summary)),
        "placements": _placements(planned.plan, summary),
        "types": {value.name: str(value.type) for value in _made_by_none(planned.plan)},
    }


def _tasks(planned: PlannedData, summary: Summary) -> Iterator[TaskRecord]:
    nodes: dict[Node | None, int] = {row.node: i for i, row in enumerate(summary.operators)}
    moves = {one: i for i, move in enumerate(summary.moves) for one in move.collectives}
    for one in scheduled(planned.program, prices_for(planned.hardware).instructions):
        inside = () if isinstance(one.instruction, Nest) else walk((one.instruction,))
        numbers = (moves[each] for each in inside if each in moves)
        yield TaskRecord(
            start=one.start,
            seconds=one.end - one.start,
            lane=lane_of(one.instruction),
            moment=one.moment,
            operator=nodes.get(node_of(one.instruction)),
            redistributions=tuple(dict.fromkeys(numbers)),
            exposed=one.exposed,
        )


def lane_of(one: Instruction) -> str:
    """The lane that an instruction takes: the mesh axes that it talks over, `compute` for all else, loops included."""
    if isinstance(one, Nest | Wait) or not communicates(one):
        return COMPUTE
    first = next(each for each in walk((one,)) if isinstance(each, Collective | ManualCollective))
    return ".".join(axes_of(first.step))


def node_of(one: Instruction) -> Node | None:
    """The operator that an instruction runs, if it runs one."""
    if isinstance(one, Compute):
        return one.composite or one.node
    return one.node if isinstance(one, Nest | ManualCollective) else None


def _module(one: Module) -> ModuleRecord:
    return ModuleRecord(
        name=one.name,
        copies=one.copies,
        operators=one.operators,
        modules=tuple(map(_module, one.children)),
        seconds=one.seconds,
        redistribution_seconds=one.move_seconds,
        bytes=one.nbytes,
    )


def _made_by_none(plan: Plan) -> Iterator[Value]:
    """The arguments of regions: what loops and branches start from."""
    known = {value for node in plan.decisions for value in node.results}
    yield from (value for value in inner_values(plan.graph) if value not in known)


def _placements(plan: Plan, summary: Summary) -> dict[str, PlacementRecord]:
    moved = (layout for move in summary.moves for layout in (move.before, move.after))
    layouts = {str(one): one for one in (*plan.layouts.values(), *plan.outputs, *moved)}
    numbers = sum(one.rank * plan.mesh.devices for one in layouts.values())
    return {} if numbers > MOST_HELD else {text: _placement(one) for text, one in layouts.items()}


def _placement(layout: Layout) -> PlacementRecord:
    mesh = layout.mesh
    held = (tuple(mesh.index(rank, refs) for rank in range(mesh.devices)) for refs in layout.dims)
    axes = ".".join(map(mesh.show_ref, layout.partial))
    return PlacementRecord(layout.parts, tuple(held), f"{layout.reduction} over {axes}" if axes else "")
