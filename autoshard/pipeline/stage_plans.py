"""The plans of stages that are cut, each by a mode on its own devices, and whether they keep to a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from autoshard.api import DEFAULT_SEARCH
from autoshard.cost.evaluate import plan_seconds
from autoshard.cost.memory import peak_memory
from autoshard.ir.graph import DATA, Graph, Region, Value, inner_values, walk
from autoshard.ir.trips import runs
from autoshard.pipeline.planned.stage_plan import StageGraph, stage_graph
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.pipeline.schedules.action import FORWARD
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stages.cut import Pipeline
from autoshard.pipeline.stages.whole import StagedStep, whole_step
from autoshard.pipeline.transfers.group import Limits, RankGroup, group_hardware
from autoshard.plan.plan import Plan
from autoshard.propagate.traced import annotations_on
from autoshard.search import find_mode
from autoshard.search.greedy.bfs import propagations
from autoshard.search.named import is_named
from autoshard.search.named.plans import PART_OF_STEP, REDUCED_ONCE
from autoshard.search.problem import MEMORY, Problem
from autoshard.search.program_price import retold
from autoshard.search.registry import keeps_limit, plan_flat
from autoshard.search.ring_attention import with_rings
from autoshard.search.unmet_constraints import unmet_constraints
from autoshard.trace.function import Traced
from autoshard.util.errors import MemoryLimitError, PlanError, ScheduleError, StrategyError
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
    limits: Limits | None = None,
) -> PlannedPipeline:
    """The stages of a pipeline, each planned by a mode on the devices that the schedule gives it to.

    Args:
        hardware: of all devices, but of groups that name another.
        memo: plans by the same mode that are known already; stages of this pipeline join them.
        limits: bytes of a device of each group, for which stages are planned anew where a mode can do with less; they
            may be exceeded.
    """
    whole, memo = whole_step(pipeline), memo or StageMemo()
    check_states(whole, order)
    of_groups = group_hardware(groups, hardware)
    kinds = tuple(of_groups[place] for place in order.ranks_of_stages)
    graphs = tuple(stage_graph(whole, i, traced.annotations, kind) for i, kind in enumerate(kinds))

    def planned(rooms: Mapping[int, int]) -> PlannedPipeline:
        plans = []
        for number, (graph, place) in enumerate(zip(graphs, order.ranks_of_stages, strict=True)):
            own = {**options, MEMORY: rooms[number]} if number in rooms else options
            plans.append(_planned(traced, graph, groups[place], mode, kinds[number], passes, own, memo))
        return PlannedPipeline(traced, whole, order, groups, graphs, tuple(plans), kinds, hardware, passes)

    found = planned({})
    if limits is None or not (mode == QUICK or keeps_limit(mode)) or _surely_fits(traced.graph, limits):
        return found
    return _fitted(found, planned, limits)


def _surely_fits(graph: Graph, limits: Limits) -> bool:
    """Whether a device of each group had room for all values of the whole step at once, and as much again."""
    every = (*graph.inputs, *(value for node in graph.nodes for value in node.results))
    nbytes = 2 * sum(value.type.nbytes for value in every)
    return all(limit is None or nbytes <= limit for limit in limits)


def _fitted(
    found: PlannedPipeline, planned: Callable[[Mapping[int, int]], PlannedPipeline], limits: Limits
) -> PlannedPipeline:
    """The pipeline whose stages leave out what its groups are over their limits, each its share; or if these need no
    less, as it is."""
    rooms: dict[int, int] = {}
    for _ in range(MOST_FITTED):
        before = found.price.fullness(limits)
        if before <= 1:
            break
        rooms.update(_rooms(found, limits))
        again = planned(rooms)
        if again.price.fullness(limits) >= before:
            break
        found = again
    return found


def _rooms(planned: PlannedPipeline, limits: Limits) -> Iterator[tuple[int, int]]:
    """For stages of groups that are over their limit the bytes in which each is to be planned."""
    for group, (memory, limit) in enumerate(zip(planned.price.memory, limits, strict=True)):
        if limit is not None and memory.nbytes > limit:
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


def check_memory(planned: PlannedPipeline, limits: Limits) -> None:
    """Refuse a pipeline of which a group needs more memory than a device has.

    Raises:
        MemoryLimitError: it does.
    """
    for number, (one, limit) in enumerate(zip(planned.price.memory, limits, strict=True)):
        if limit is not None and one.nbytes > limit:
            stages, kind = planned.schedule.chunks(number), planned.groups[number].hardware
            raise MemoryLimitError(
                f"the pipeline of {planned.graph.name!r} is over the memory limit of {format_bytes(limit)}"
                f"{kind and f' of {kind}'}: "
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


# A stage's plan that is soon made: the best of few that are known by name, by the sum of seconds.
#
# A search over pipelines plans hundreds of stages. By these plans it finds out which pipelines are worth a search for
# the plans of their stages.


QUICK = "quick"
"""What stands for these plans where a mode is named."""
_ON_ONE = ("batch", "zero1", "zero3", "megatron", "megatron_sp", "expert_parallel", "context_parallel")
_ON_MORE = ("batch", "megatron_sp", "hsdp", "fsdp_ep", "context_parallel")
_ON_TWO = ("zero1({0}) + megatron_sp({1})", "zero1({1}) + megatron_sp({0})")
"""Names by the axes of the mesh, without those that are others there."""


def quick_plan(problem: Problem, named: Problem) -> Plan:
    """The plan of a stage, as one of the default mode, which has these among others: the cheapest that keeps to the
    memory limit, or that of the fewest bytes.

    Args:
        named: the problem as plans known by name have it.

    Raises:
        AutoshardError: as breadth-first propagation.
    """

    def rank(plan: Plan) -> tuple[float, float]:
        over = 0 if problem.limit is None else max(0, peak_memory(plan) - problem.limit)
        return over, plan_seconds(plan, problem.prices)

    best = min(_plans(problem, named), key=rank)
    started = f"as mode {best.search} has it, the best of few; {best.started_from}"
    return retold(best, graph=problem.graph, search=DEFAULT_SEARCH, started_from=started)


def _plans(problem: Problem, named: Problem) -> Iterator[Plan]:
    yield plan_flat(lambda flat: propagations(flat)[0], problem)
    if problem.mesh.devices == 1 or problem.annotations:
        return  # all plans are the same, or others need not keep to what people configured
    axes = [name for name, _ in problem.mesh.axes]
    names = _ON_ONE if len(axes) == 1 else _ON_MORE
    for name in (*names, *(one.format(*axes) for one in _ON_TWO if len(axes) == 2)):
        with suppress(PlanError, StrategyError):
            plan = find_mode(name)(named if is_named(name) else problem)
            if plan.graph.nodes == problem.graph.nodes and not unmet_constraints(problem, plan):
                yield plan


# Plans of stages, each searched for once: those of equal layers, and of many pipelines, are often the same problem.
#
# Two problems are the same if their graphs are but for names, and people asked the same. The plan of one is then the
# plan of the other, in its names.


class StageMemo:
    """The plans of problems that one mode has solved, to be asked for by what the problems are."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Plan] = {}

    def plan(self, problem: Problem, search: Callable[[Problem], Plan], more: Hashable = None) -> Plan:
        """The plan of a problem: that of an equal one in the names of this one, if there was one, else a search's.

        Args:
            more: what the search goes by besides.
        """
        key = problem_key(problem)
        key = None if key is None else (key, more)
        known = None if key is None else self._known.get(key)
        if known is not None:
            return renamed(known, problem.graph)
        found = search(problem)
        if key is not None and found.graph is problem.graph:  # one of another graph is not told in names of this one
            self._known[key] = found
        return found


def problem_key(problem: Problem) -> Hashable | None:
    """What a problem has in common with equal ones; None of one with calls, or of which people configured operators:
    these bear names in what is told of them."""
    graph = problem.graph
    if problem.annotations or problem.fixed or graph.functions:
        return None
    number = {value: i for i, value in enumerate(_values(graph))}
    inputs = tuple((one.type, graph.role_of[one], problem.asked.get(one)) for one in graph.inputs)
    times = runs(graph)
    nodes = tuple(
        (
            node.key,
            node.is_custom,
            tuple(number[one] for one in node.operands),
            tuple(_region_key(one, number) for one in node.regions),
            times.get(node),  # which the numbers in its loops say, that are not in the key
        )
        for node in walk(graph.nodes)
    )
    outputs = tuple(number[one] for one in graph.outputs)
    gradients = frozenset((number[one], number[of]) for one, of in graph.cotangents.items())
    updates, options = frozenset(graph.updates.items()), frozenset(problem.options.items())
    return problem.mesh, problem.hardware, problem.passes, options, inputs, nodes, outputs, updates, gradients


def _region_key(region: Region, number: Mapping[Value, int]) -> Hashable:
    args, outputs = (tuple(number[one] for one in some) for some in (region.args, region.outputs))
    return args, outputs, len(region.nodes)


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.values
    yield from inner_values(graph)


def renamed(plan: Plan, graph: Graph) -> Plan:
    """The plan of a graph that is equal but for names."""
    if plan.graph is graph:
        return plan
    values = dict(zip(_values(plan.graph), _values(graph), strict=True))
    nodes = dict(zip(walk(plan.graph.nodes), walk(graph.nodes), strict=True))
    names = {of.name: one.name for of, one in values.items()} | {of.label: one.label for of, one in nodes.items()}

    def called(name: str) -> str:
        return names.get(name, name)

    return replace(
        plan,
        graph=graph,
        decisions={one: plan.decisions[of].renamed(called) for of, one in nodes.items()},
        layouts={one: plan.layouts[of] for of, one in values.items()},
        input_causes={values[of]: cause.renamed(called) for of, cause in plan.input_causes.items()},
    )
