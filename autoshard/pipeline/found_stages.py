"""Stages that a search finds: stage by stage, or by what one of many equal layers takes."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from autoshard.api import DEFAULT_SEARCH, known_hardware
from autoshard.api.arguments import known_mesh
from autoshard.ir.graph import Graph, Node
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT
from autoshard.pipeline.joint.layered import LayeredRequest, LayeredSearch, made_again
from autoshard.pipeline.joint.layered_step import FULL
from autoshard.pipeline.joint.search import StageRequest, fastest
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.pipeline.quick_plans import QUICK
from autoshard.pipeline.schedules import check, make_schedule
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stage_memo import StageMemo
from autoshard.pipeline.stage_plans import planned_stages
from autoshard.pipeline.stages.assign import assign_nodes
from autoshard.pipeline.stages.cut import cut_as_assigned
from autoshard.pipeline.transfers.group import RankGroup, stacked
from autoshard.search import find_mode
from autoshard.trace.function import Traced
from autoshard.transform.layers import RepeatedLayers
from autoshard.transform.micro.accumulate import StepParts
from autoshard.util.errors import PlanError
from costmodel import Hardware

if TYPE_CHECKING:
    pass


AUTO = "auto"
MANY_LAYERS = 8
"""Equal layers from which on a search for stages plans them once, not stage by stage."""


def found_stages(
    traced: Traced,
    mesh: Mesh | str | None,
    mode: str,
    hardware: str | Hardware,
    passes: Sequence[str],
    chosen: tuple[tuple[int, ...] | None, tuple[str, ...] | None, int | None, str],
) -> PlannedPipeline:
    """The fastest pipeline on so many devices as a mesh has, of these micro batches, schedules and statistics, within a
    limit."""
    if mesh is None:
        raise PlanError(f"pipeline {AUTO!r} needs to know how many devices there are: give the mesh, such as '8'")
    devices = known_mesh(mesh).devices
    known = hardware if isinstance(hardware, Hardware) else known_hardware(hardware)
    everywhere = known.for_ranks(devices)
    memos: defaultdict[str, StageMemo] = defaultdict(StageMemo)

    def planned_by(
        mode: str,
        step: StepParts,
        nodes: Mapping[Node, int],
        order: Schedule,
        groups: tuple[RankGroup, ...],
        limit: int | None,
    ) -> PlannedPipeline:
        cut = cut_as_assigned(step, assign_nodes(step, nodes, order.stages))
        is_split = any(group.mesh.devices > 1 for group in groups)
        own = mode if is_split else DEFAULT_SEARCH  # one device has nothing that a named plan could fail to split
        return planned_stages(traced, cut, order, groups, everywhere, own, tuple(passes), memo=memos[own], limit=limit)

    find_mode(mode)
    counts, names, limit, statistics = chosen
    layers = None if traced.annotations else RepeatedLayers.of(traced.graph)
    if layers is not None and layers.are_equal and layers.count >= MANY_LAYERS and mode == DEFAULT_SEARCH:
        wanted = LayeredRequest(traced.graph, devices, everywhere, counts, names, limit, statistics=statistics)
        return _found_by_layers(traced, layers, wanted, tuple(passes))
    wanted = StageRequest(traced.graph, devices, everywhere, counts, names, limit, statistics=statistics)
    quick = partial(planned_by, QUICK) if mode == DEFAULT_SEARCH else None
    best, told = fastest(wanted, partial(planned_by, mode), quick)
    return replace(best, searched=told)


def _found_by_layers(
    traced: Traced, layers: RepeatedLayers, wanted: LayeredRequest, passes: tuple[str, ...]
) -> PlannedPipeline:
    """The fastest pipeline of a model of many equal layers: searched by what one layer takes, and planned whole."""
    best, told = layered_search(traced, layers, wanted, passes).run()
    choice, graph = best.choice, traced.graph
    if choice.recompute == FULL:
        graph = made_again(layers)
        layers = RepeatedLayers(graph, layers.stem, layers.count)
    step = StepParts.of(graph, choice.micro_batches, wanted.statistics)
    ends = [*accumulate(best.layers)]
    nodes = {node: bisect_right(ends, layer) for node, layer in replace(layers, graph=step.graph).forward}
    order = check(make_schedule(choice.schedule, choice.groups, choice.micro_batches, choice.chunks))
    cut = cut_as_assigned(step, assign_nodes(step, nodes, order.stages))
    groups = stacked([choice.mesh] * choice.groups)
    own = replace(traced, graph=graph)
    found = planned_stages(own, cut, order, groups, wanted.hardware, choice.plan, passes)
    return replace(found, searched=told)


def layered_search(
    traced: Traced, layers: RepeatedLayers, wanted: LayeredRequest, passes: tuple[str, ...] = DEFAULT
) -> LayeredSearch:
    """The search over pipelines of a model of many equal layers, each stage planned by a named plan."""

    def planned(
        graph: Graph,
        step: StepParts,
        nodes: Mapping[Node, int],
        order: Schedule,
        groups: tuple[RankGroup, ...],
        plan: str,
    ) -> PlannedPipeline:
        cut = cut_as_assigned(step, assign_nodes(step, nodes, order.stages))
        return planned_stages(replace(traced, graph=graph), cut, order, groups, wanted.hardware, plan, passes)

    return LayeredSearch(wanted, layers, planned)
