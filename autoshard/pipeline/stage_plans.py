"""The plans of stages that are cut, each by a mode on its own devices, and whether they keep to a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from autoshard.cost.memory import peak_memory
from autoshard.ir.graph import DATA
from autoshard.pipeline.planned.stage_plan import StageGraph, stage_graph
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.pipeline.quick_plans import QUICK, quick_plan
from autoshard.pipeline.schedules.action import FORWARD
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stage_memo import StageMemo
from autoshard.pipeline.stages.cut import Pipeline
from autoshard.pipeline.stages.whole import StagedStep, whole_step
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.plan.plan import Plan
from autoshard.propagate.traced import annotations_on
from autoshard.search import find_mode
from autoshard.search.named import is_named
from autoshard.search.named.plans import PART_OF_STEP, REDUCED_ONCE
from autoshard.search.problem import MEMORY, Problem
from autoshard.search.registry import keeps_limit
from autoshard.search.ring_attention import with_rings
from autoshard.trace.function import Traced
from autoshard.util.errors import MemoryLimitError, ScheduleError
from costmodel import Hardware, format_bytes

MOST_FITTED = 3
"""How often the stages of a pipeline above a limit are planned anew."""
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def planned_stages(
    traced: Traced,
    pipeline: Pipeline,
    order: Schedule,
    groups: tuple[RankGroup, ...],
    hardware: Hardware,
    mode: str,
    passes: tuple[str, ...],
    options: Mapping[str, Any] = NO_OPTIONS,
    memo: StageMemo | None = None,
    limit: int | None = None,
) -> PlannedPipeline:
    """The stages of a pipeline, each planned by a mode on the devices that the schedule gives it to.

    Args:
        memo: plans by the same mode on the same hardware that are known already; stages of this pipeline join them.
        limit: bytes of a device, for which stages are planned anew where a mode can do with less; it may be exceeded.
    """
    whole, memo = whole_step(pipeline), memo or StageMemo()
    check_states(whole, order)
    graphs = tuple(stage_graph(whole, i, traced.annotations, hardware) for i in range(order.stages))

    def planned(rooms: Mapping[int, int]) -> PlannedPipeline:
        plans = []
        for number, (graph, place) in enumerate(zip(graphs, order.ranks_of_stages, strict=True)):
            own = {**options, MEMORY: rooms[number]} if number in rooms else options
            plans.append(_planned(traced, graph, groups[place], mode, hardware, passes, own, memo))
        everywhere = (hardware,) * order.stages
        return PlannedPipeline(traced, whole, order, groups, graphs, tuple(plans), everywhere, hardware, passes)

    found = planned({})
    keeps = limit is not None and (mode == QUICK or keeps_limit(mode))
    return _fitted(found, planned, limit) if keeps and limit is not None else found


def _fitted(
    found: PlannedPipeline, planned: Callable[[Mapping[int, int]], PlannedPipeline], limit: int
) -> PlannedPipeline:
    """The pipeline whose stages leave out what its groups are over the limit, each its share; or if these need no less,
    as it is."""
    rooms: dict[int, int] = {}
    for _ in range(MOST_FITTED):
        before = most_memory(found)
        if before <= limit:
            break
        rooms.update(_rooms(found, limit))
        again = planned(rooms)
        if most_memory(again) >= before:
            break
        found = again
    return found


def _rooms(planned: PlannedPipeline, limit: int) -> Iterator[tuple[int, int]]:
    """For stages of groups that are over the limit the bytes in which each is to be planned."""
    for group, memory in enumerate(planned.price.memory):
        if memory.nbytes > limit:
            peaks = {stage: peak_memory(planned.plans[stage]) for stage in planned.schedule.chunks(group)}
            share = 1 - (memory.nbytes - limit) / max(1, sum(peaks.values()))
            yield from ((stage, max(1, int(peak * share))) for stage, peak in peaks.items())


def check_states(whole: StagedStep, order: Schedule) -> None:
    """That micro batches hand on states in their order.

    Raises:
        ScheduleError: a stage that has states does them in another.
    """
    body, made_by = whole.pipeline.step.body, whole.pipeline.made_by
    for state, new in body.carried.items():
        stage = made_by[body.outputs[new][0]].stage
        actions = order.orders[order.ranks_of_stages[stage]]
        micro = [one.micro for one in actions if one.stage == stage and one.kind == FORWARD]
        if micro != sorted(micro):
            raise ScheduleError(
                f"schedule {order.name} goes forward with micro batches {', '.join(map(str, micro))} of stage {stage}, "
                f"but {state.name} goes from each to the next; take a schedule that does them in order"
            )


def most_memory(planned: PlannedPipeline) -> int:
    """Bytes of the device that holds most."""
    return max(one.nbytes for one in planned.price.memory)


def check_memory(planned: PlannedPipeline, limit: int) -> None:
    """Refuse a pipeline of which a group needs more memory than a device has.

    Raises:
        MemoryLimitError: it does.
    """
    for number, one in enumerate(planned.price.memory):
        if one.nbytes > limit:
            stages = planned.schedule.chunks(number)
            raise MemoryLimitError(
                f"the pipeline of {planned.graph.name!r} is over the memory limit of {format_bytes(limit)}: "
                f"{one.told(number, stages)}; take more stages or micro batches, or larger groups",
                needed=one.nbytes,
                limit=limit,
            )


def _planned(
    traced: Traced,
    stage: StageGraph,
    group: RankGroup,
    mode: str,
    hardware: Hardware,
    passes: tuple[str, ...],
    options: Mapping[str, Any],
    memo: StageMemo,
) -> Plan:
    graph, own, mesh = stage.graph, traced.graph.role_of, group.mesh
    asked = {value: one for value, one in annotations_on(traced, mesh).values.items() if value in graph.role_of}
    problem = Problem(graph, mesh, hardware, stage.annotations, asked=asked, options=options, passes=passes)
    # A plan known by name splits what comes of other stages as it splits data.
    roles = tuple(role if value in own else DATA for value, role in zip(graph.inputs, graph.roles, strict=True))
    known = {**options, REDUCED_ONCE: True, PART_OF_STEP: bool(traced.graph.updates)}
    named = replace(problem, graph=replace(graph, roles=roles), options=known)
    if mode == QUICK:
        found = memo.plan(problem, partial(quick_plan, named=named), roles)
    else:
        found = memo.plan(named if is_named(mode) else problem, find_mode(mode))
    return with_rings(found, hardware)
