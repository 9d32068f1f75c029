"""Plans in stages as files: `stages_data(planned)` is the JSON, `load_stages(path, traced, hardware)` reads it for the
same step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoshard.exporters.plan_file import FileHead, plan_of, plan_record
from autoshard.exporters.plan_records import STAGES_FORMAT, STAGES_VERSION
from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.exports.records import StageGroupRecord, StageOrderRecord, StagesRecord
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.stage_plan import stage_graph
from autoshard.pipeline.schedules import read_schedule
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stages.assign import assign_nodes, forward_nodes
from autoshard.pipeline.stages.cut import cut_as_assigned
from autoshard.pipeline.stages.whole import StagedStep, whole_step
from autoshard.pipeline.transfers.group import RankGroup, group_hardware
from autoshard.plan.plan import Plan
from autoshard.search.ring_attention import with_rings
from autoshard.trace.function import Traced
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.micro.statistics import BATCH
from autoshard.transform.recompute import AGAIN, recompute
from autoshard.util.errors import AutoshardError, PlanError
from autoshard.util.files import parse_json, read_bytes
from costmodel import Hardware
from costmodel.json_door import plain


def stages_data(planned: PipelineData) -> dict[str, Any]:
    """A plan in stages as dicts and lists of plain values."""
    pipeline, order = planned.whole.pipeline, planned.schedule
    owners = {value.name: stage.number for stage in pipeline.stages for value in stage.parameters}
    return plain(
        StagesRecord(
            format=STAGES_FORMAT,
            version=STAGES_VERSION,
            graph=planned.graph.name,
            micro_batches=order.micro_batches,
            schedule=StageOrderRecord(order.name, tuple(tuple(order.cells(rank)) for rank in range(order.ranks))),
            groups=tuple(StageGroupRecord(str(group.mesh), group.ranks, group.hardware) for group in planned.groups),
            operators={node.results[0].name: stage for node, stage in pipeline.cut.items() if node.results},
            parameters=owners,
            stages=tuple(map(plan_record, planned.plans)),
            again=tuple(value.name for value in planned.graph.values if value.name.endswith(AGAIN)),
            statistics="batch" if planned.statistics == BATCH else "micro_batch",
            loss_pieces=planned.loss_pieces,
        )
    )


def read_stages_file(path: str | Path) -> StagesRecord:
    """What a file of a plan in stages says.

    Raises:
        PlanError: no such file, or no plan in stages; the message has the place.
    """
    data, where = read_bytes(path, "plan", PlanError), f"the plan {path}"
    head = parse_json(data, FileHead, where, PlanError)
    if (head.format, head.version) != (STAGES_FORMAT, STAGES_VERSION):
        raise PlanError(
            f"{path} is no plan in stages: its format is {head.format!r}, version {head.version}, not "
            f"{STAGES_FORMAT!r}, version {STAGES_VERSION}; `autoshard plan --pipeline ... --save` writes one"
        )
    return parse_json(data, StagesRecord, where, PlanError)


def load_stages(path: str | Path, traced: Traced, hardware: Hardware, passes: tuple[str, ...]) -> PipelineData:
    """The plan in stages that a file says, for a step with the same names and types.

    Args:
        hardware: what prices are for.

    Raises:
        PlanError: no such file, no plan in stages, or one for another step, with the first things that differ.
    """
    record, where = read_stages_file(path), f"the plan in {path}"
    try:
        return _loaded(record, traced, hardware, passes, where)
    except PlanError:
        raise
    except AutoshardError as error:
        raise PlanError(f"{where} cannot be used: {error}") from None


def _loaded(
    record: StagesRecord, traced: Traced, hardware: Hardware, passes: tuple[str, ...], where: str
) -> PipelineData:
    order = _order(record, where)
    groups = tuple(RankGroup(Mesh.parse(one.mesh), one.ranks, one.hardware) for one in record.groups)
    _check_counts(record, order, groups, where)
    everywhere = hardware.for_ranks(sum(len(group.ranks) for group in groups))
    graph = _made_again(traced.graph, record.again)
    whole = _whole(record, graph, order, where)
    of_groups = group_hardware(groups, everywhere)
    kinds = tuple(of_groups[place] for place in order.ranks_of_stages)
    graphs = tuple(stage_graph(whole, i, traced.annotations, kind) for i, kind in enumerate(kinds))
    plans = tuple(
        _plan(record, number, one.graph, groups[order.ranks_of_stages[number]].mesh, kinds[number], where)
        for number, one in enumerate(graphs)
    )
    return PipelineData(traced, whole, order, groups, graphs, plans, kinds, everywhere, passes)


def _order(record: StagesRecord, where: str) -> Schedule:
    rows = "\n".join(",".join(cells) for cells in record.schedule.rows)
    return read_schedule(rows, f"the schedule of {where}", record.schedule.name)


def _check_counts(record: StagesRecord, order: Schedule, groups: tuple[RankGroup, ...], where: str) -> None:
    ranks = sorted(rank for group in groups for rank in group.ranks)
    pairs = (
        ("stages", len(record.stages), order.stages),
        ("groups", len(groups), order.ranks),
        ("micro batches", record.micro_batches, order.micro_batches),
        ("ranks", ranks, [*range(len(ranks))]),
    )
    for what, has, wants in pairs:
        if has != wants:
            raise PlanError(f"{where} cannot be used: it has {has} {what}, its schedule {wants}")


def _made_again(graph: Graph, names: tuple[str, ...]) -> Graph:
    own, wanted = {value.name for value in graph.values}, set(names)
    nodes = forward_nodes(graph)
    chosen = [
        node
        for node in graph.nodes
        if node in nodes and any(f"{one.name}{AGAIN}" in wanted - own for one in node.results)
    ]
    return recompute(graph, chosen) if chosen else graph


def _whole(record: StagesRecord, graph: Graph, order: Schedule, where: str) -> StagedStep:
    step = StepParts.of(graph, order.micro_batches, record.statistics, record.loss_pieces)
    forward = forward_nodes(step.graph)
    operators = {node.results[0].name: node for node in step.graph.nodes if node in forward and node.results}
    inputs = {value.name: value for value in step.graph.inputs}
    cut: dict[Node, int] = _named(record.operators, operators, order.stages, f"{where}: operators")
    owners: dict[Value, int] = _named(record.parameters, inputs, order.stages, f"{where}: parameters")
    return whole_step(cut_as_assigned(step, assign_nodes(step, cut, order.stages, owners)))


def _named(stages: Mapping[str, int], known: Mapping[str, Any], count: int, where: str) -> dict[Any, int]:
    """The stages of what has these names.

    Raises:
        PlanError: a name that the step does not have, or a stage that the schedule does not have.
    """
    for name, stage in stages.items():
        if name not in known:
            raise PlanError(f"{where}: {name} is not in this model; the plan is for another")
        if stage >= count:
            raise PlanError(f"{where}: {name} is in stage {stage}, but the schedule has {count} stages")
    return {known[name]: stage for name, stage in stages.items()}


def _plan(record: StagesRecord, number: int, graph: Graph, mesh: Mesh, hardware: Hardware, where: str) -> Plan:
    return with_rings(plan_of(record.stages[number], graph, mesh, f"stage {number} of {where}"), hardware)


def check_same(found: PipelineData, given: Mapping[str, Any], path: str | Path) -> None:
    """That what is given besides a file of a plan in stages says what the file says.

    Args:
        given: groups, devices, "micro batches", the name of a schedule, statistics and "loss pieces", which are
            compared; all else has no place there. None is not given.

    Raises:
        PlanError: something else is given.
    """
    own = {"groups": found.groups, "micro batches": found.schedule.micro_batches, "schedule": found.schedule.name}
    own |= {"devices": found.devices, "statistics": found.statistics, "loss pieces": found.loss_pieces}
    told = {name: value for name, value in given.items() if value is not None}
    if wrong := [name for name in told if name not in own]:
        raise PlanError(f"the plan in {path} says where stages lie: leave out {' and '.join(wrong)}")
    for name, value in told.items():
        if value != own[name]:
            raise PlanError(f"the plan in {path} has {name} {_shown(own[name])}, not {_shown(value)}, which is given")


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
