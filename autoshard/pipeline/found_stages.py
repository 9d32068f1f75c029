"""Stages that a search finds: stage by stage, or by what one of many equal layers takes."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate

from autoshard.api import DEFAULT_SEARCH
from autoshard.api.arguments import known_mesh
from autoshard.ir.graph import Graph, Node
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT
from autoshard.pipeline.joint.layered import LayeredSearch, made_again
from autoshard.pipeline.joint.layered_step import FULL, LayeredPrice
from autoshard.pipeline.joint.search import StageRequest, fastest, none_keeps
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.pipeline.schedules import check, make_schedule
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stage_plans import QUICK, StageMemo, most_memory, planned_stages
from autoshard.pipeline.stages.cut import cut_by_nodes
from autoshard.pipeline.transfers.group import Limits, RankGroup, group_hardware, group_limits, read_groups, stacked
from autoshard.search import find_mode
from autoshard.trace.function import Traced
from autoshard.transform.layers import RepeatedLayers
from autoshard.transform.micro.accumulate import StepParts
from autoshard.util.errors import MemoryLimitError, PlanError, StageError
from costmodel import Hardware, preset

AUTO = "auto"
MANY_LAYERS = 8
"""Equal layers from which on a search for stages plans them once."""
MOST_PLACES = 64
"""Layers times devices up to which pipelines are searched stage by stage as well, which cuts within layers."""
MOST_OPERATORS = 0.75
"""Share of the forward operators that layers have of a model of which these say nearly all."""
MOST_WHOLE = 8
"""How many pipelines of equal layers are planned whole, until one keeps to the limit when it is planned whole."""


def found_stages(
    traced: Traced,
    pipeline: str,
    mesh: Mesh | str | None,
    mode: str,
    hardware: Hardware,
    passes: tuple[str, ...],
    chosen: tuple[tuple[int, ...] | None, tuple[str, ...] | None, int | None, str, int],
) -> PlannedPipeline:
    """The fastest pipeline on so many devices as a mesh has, or as `pipeline` says and of these kinds, of these micro
    batches, schedules, statistics and pieces of the loss, within a limit."""
    kinds = _kinds(pipeline, hardware)
    if mesh is None and not kinds:
        raise PlanError(f"pipeline {AUTO!r} needs to know how many devices there are: give the mesh, such as '8'")
    devices = sum(count for count, _ in kinds) if mesh is None else known_mesh(mesh).devices
    if kinds and devices != (said := sum(count for count, _ in kinds)):
        raise PlanError(f"pipeline {pipeline!r} names {said} devices, and {devices} are given: leave the mesh out")
    counts, names, limit, statistics, pieces = chosen
    everywhere = hardware.for_ranks(devices)
    wanted = StageRequest(traced.graph, devices, everywhere, counts, names, limit, statistics=statistics, kinds=kinds)
    wanted = replace(wanted, loss_pieces=pieces)
    find_mode(mode)
    finder = _StageFinder(traced, wanted, passes)
    rooms = tuple(preset(name).device.memory_bytes for _, name in kinds)
    if limit is not None:
        return finder.within(limit, rooms).find(mode)
    free = finder.find(mode)
    if free.price.fullness(group_limits(free.groups, everywhere, None)) <= 1:
        return free
    try:
        return finder.within(None if kinds else everywhere.device.memory_bytes, rooms).find(mode)
    except MemoryLimitError:  # what reads the cheapest of all can say what is missing
        return free


def is_auto(pipeline: object) -> bool:
    """Whether stages are to be found: "auto", or "auto:" and devices of several kinds."""
    return isinstance(pipeline, str) and pipeline.partition(":")[0] == AUTO


def _kinds(pipeline: str, hardware: Hardware) -> tuple[tuple[int, str], ...]:
    """How many devices there are of each kind: `auto:4@h100/8@a100`; () where the text does not say."""
    _, colon, text = pipeline.partition(":")
    if not colon:
        return ()
    groups = read_groups(text)
    if any(not group.hardware for group in groups):
        raise PlanError(
            f"cannot read pipeline {pipeline!r}: each number of devices needs what they are; write e.g. "
            f"'{AUTO}:4@h100/8@a100'"
        )
    group_hardware(groups, hardware)
    return tuple((len(group.ranks), group.hardware) for group in groups)


class _StageFinder:
    """Finds the stages of a traced step; plans of stages are remembered as long as it is."""

    def __init__(self, traced: Traced, wanted: StageRequest, passes: tuple[str, ...]) -> None:
        self.traced, self.wanted, self.passes = traced, wanted, passes
        self.memos: defaultdict[str, StageMemo] = defaultdict(StageMemo)

    def within(self, limit: int | None, rooms: tuple[int, ...]) -> _StageFinder:
        """The same under a limit, and what devices of each kind have; it knows the plans that this one has made."""
        found = _StageFinder(self.traced, replace(self.wanted, limit=limit, rooms=rooms), self.passes)
        found.memos = self.memos
        return found

    def find(self, mode: str) -> PlannedPipeline:
        """The fastest pipeline whose stages a mode plans; in the default mode many equal layers are searched by what
        one takes, too."""
        wanted, by_stages = self.wanted, partial(self._by_stages, mode)
        if wanted.kinds:  # equal layers are not equal there
            return by_stages(wanted.limit)
        layers = None if self.traced.annotations or mode != DEFAULT_SEARCH else RepeatedLayers.of(wanted.graph)
        if layers is None or not layers.are_equal or layers.count < MANY_LAYERS:
            return by_stages(wanted.limit)
        by_layers = partial(self._by_layers, layers)
        if layers.share < MOST_OPERATORS:  # such as an encoder, which would lie whole before its decoder's first layer
            return by_stages(None) if wanted.limit is None else _first_of(partial(by_stages, wanted.limit), by_layers)
        if layers.count * wanted.devices > MOST_PLACES:
            return by_layers()
        free = by_stages(None)
        if wanted.limit is not None and most_memory(free) > wanted.limit:
            # By stages no layer is made again, and it takes far longer.
            return _first_of(by_layers, partial(by_stages, wanted.limit))
        try:
            return min(free, by_layers(), key=lambda one: one.price.seconds)
        except (MemoryLimitError, StageError):
            return free

    def _by_stages(self, mode: str, limit: int | None) -> PlannedPipeline:
        quick = partial(self._planned, QUICK) if mode == DEFAULT_SEARCH else None
        best, told = fastest(replace(self.wanted, limit=limit), partial(self._planned, mode), quick)
        return replace(best, searched=told)

    def _planned(
        self,
        mode: str,
        step: StepParts,
        nodes: Mapping[Node, int],
        order: Schedule,
        groups: tuple[RankGroup, ...],
        limits: Limits | None,
    ) -> PlannedPipeline:
        is_split = any(group.mesh.devices > 1 for group in groups)
        own = mode if is_split else DEFAULT_SEARCH  # one device has nothing that a named plan could fail to split
        cut, memo = cut_by_nodes(step, nodes, order.stages), self.memos[own]
        hardware = self.wanted.hardware
        return planned_stages(self.traced, cut, order, groups, hardware, own, self.passes, memo=memo, limits=limits)

    def _by_layers(self, layers: RepeatedLayers) -> PlannedPipeline:
        """The fastest pipeline of a model of many equal layers: searched by what one layer takes, and planned whole.
        What is added up of layers may be less than what the whole needs; choices like it are then expected to need as
        much more.

        Raises:
            MemoryLimitError: none keeps to the limit.
            StageError: no named plan fits.
        """
        wanted = self.wanted
        search = layered_search(self.traced, layers, wanted, self.passes)
        for _ in range(MOST_WHOLE):
            try:
                best, told = search.run()
            except MemoryLimitError:
                break
            found = replace(self._whole(layers, best), searched=told)
            if wanted.limit is None or most_memory(found) <= wanted.limit:
                return found
            search.learn(best, most_memory(found))
        assert wanted.limit is not None
        found = self._whole(layers, search.leanest)
        if most_memory(found) <= wanted.limit:
            return found
        raise none_keeps(wanted, found)

    def _whole(self, layers: RepeatedLayers, priced: LayeredPrice) -> PlannedPipeline:
        """The pipeline of a choice, planned."""
        choice, graph = priced.choice, self.wanted.graph
        if choice.recompute == FULL:
            graph = made_again(layers)
            layers = RepeatedLayers(graph, layers.stem, layers.count)
        step = self.wanted.step(graph, choice.micro_batches)
        ends = [*accumulate(priced.layers)]
        nodes = {node: bisect_right(ends, layer) for node, layer in replace(layers, graph=step.graph).forward}
        order = check(make_schedule(choice.schedule, choice.groups, choice.micro_batches, choice.chunks))
        cut, groups = cut_by_nodes(step, nodes, order.stages), stacked([choice.mesh] * choice.groups)
        traced = replace(self.traced, graph=graph)
        return planned_stages(traced, cut, order, groups, self.wanted.hardware, choice.plan, self.passes)


def _first_of(*searches: Callable[[], PlannedPipeline]) -> PlannedPipeline:
    """What the first of searches finds that finds a pipeline within the limit.

    Raises:
        MemoryLimitError: none does; that of the least bytes.
        StageError: no stages can be planned.
    """
    refused: list[MemoryLimitError | StageError] = []
    for search in searches:
        try:
            return search()
        except (MemoryLimitError, StageError) as error:
            refused.append(error)
    over = [error for error in refused if isinstance(error, MemoryLimitError)]
    raise min(over, key=lambda error: error.needed) if over else refused[0]


def layered_search(
    traced: Traced, layers: RepeatedLayers, wanted: StageRequest, passes: tuple[str, ...] = DEFAULT
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
        cut = cut_by_nodes(step, nodes, order.stages)
        return planned_stages(replace(traced, graph=graph), cut, order, groups, wanted.hardware, plan, passes)

    return LayeredSearch(wanted, layers, planned)
