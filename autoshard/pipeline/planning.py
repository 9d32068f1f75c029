"""plan_pipeline(): from a training step, groups of devices and a schedule to a plan per stage and programs to run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.api import DEFAULT_SEARCH, known_hardware
from autoshard.engines.executors import check_engine_device
from autoshard.engines.extras import need
from autoshard.frontends.targets import cuttable_target
from autoshard.ir.graph import DATA, Graph, Node
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT
from autoshard.pipeline.execute.session import PipelineSession
from autoshard.pipeline.exports.forms import STAGE_FORMS
from autoshard.pipeline.exports.stages_file import check_same, load_stages
from autoshard.pipeline.joint.layered import LayeredRequest, LayeredSearch, made_again
from autoshard.pipeline.joint.layered_step import FULL
from autoshard.pipeline.joint.search import StageRequest, StageSearch, fastest
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.page import pipeline_page
from autoshard.pipeline.planned.price import PipelinePrice
from autoshard.pipeline.planned.report import report
from autoshard.pipeline.planned.stage_plan import StageGraph, stage_graph
from autoshard.pipeline.schedules import SCHEDULES, check, load_schedule, make_schedule, schedule_kind
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stages.assign import Assigned, assign, assign_nodes
from autoshard.pipeline.stages.balance import balanced_stages
from autoshard.pipeline.stages.cut import Pipeline, cut_as_assigned
from autoshard.pipeline.stages.whole import whole_step
from autoshard.pipeline.transfers.group import RankGroup, groups_along, read_groups, stacked
from autoshard.plan.plan import Plan
from autoshard.propagate.traced import annotations_on
from autoshard.runtime.mpi import default_comm
from autoshard.search import find_mode
from autoshard.search.memory_limit import read_limit
from autoshard.search.named import is_named
from autoshard.search.named.plans import REDUCED_ONCE
from autoshard.search.problem import Problem
from autoshard.search.ring_attention import with_rings
from autoshard.trace.cell import Cell, stages_of_cells
from autoshard.trace.function import Traced, known_trace
from autoshard.transform.layers import RepeatedLayers
from autoshard.transform.micro.accumulate import StepParts
from autoshard.util.errors import MemoryLimitError, PlanError, ScheduleError, StageError
from costmodel import Hardware, format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.engines.standalone_jax_stages import Stages

DEFAULT_SCHEDULE, AUTO = "1f1b", "auto"
MANY_LAYERS = 8
"""Equal layers from which on a search for stages plans them once, not stage by stage."""


@dataclass(frozen=True, eq=False)
class PlannedPipeline(PipelineData):
    """A training step in stages, planned: what runs it, what it costs, and what tells of it.

    `searched` tells how far the search came that found the stages, if one did.
    """

    searched: StageSearch | None = None

    def run(self, *inputs: Any, engine: str = "numpy", device: str = "auto") -> Any:
        """Do a step: whole arrays in, what the model returns out, on every rank; parameters have their new values.

        Raises:
            PlanError: another engine than numpy.
            RuntimeSetupError: another device than CPUs.
        """
        self.check_engine(engine, device)
        outputs = self.session.run(self.traced.inputs(*inputs)).outputs
        self.traced.store(outputs)
        return self.traced.unpack(outputs)

    def check_engine(self, engine: str, device: str = "auto") -> None:
        """That an engine runs stages: numpy does, on CPUs; and that all programs are made.

        Raises:
            PlanError: another engine.
            RuntimeSetupError: another device than CPUs.
        """
        check_engine_device(engine, device)
        if engine != "numpy":
            raise PlanError(f"engine {engine!r} does not run stages yet; numpy does")
        _ = self.programs

    @cached_property
    def price(self) -> PipelinePrice:
        """Predicted seconds of a step, and memory."""
        return PipelinePrice(self)

    def report(self) -> str:
        """Tables of stages and groups: times, idle shares, memory; and the step."""
        told = report(self)
        return told if self.searched is None else f"{told}\nsearch  {self.searched}"

    def page(self) -> str:
        """The plan as a page of HTML: the schedule as a picture, times and memory, and how each stage is split."""
        return pipeline_page(self)

    def save(self, path: str | Path) -> Path:
        """Write the plan to a file, which `plan_pipeline(..., search="FILE.json")` takes up; the path.

        Raises:
            PlanError: it cannot be written.
        """
        return STAGE_FORMS.save(self, "json", path)[0]

    def export(self, to: str, path: str | Path | None = None) -> str:
        """The plan in a form for another framework; also written to a file or into a folder if there is a path.

        Args:
            to: "json" (the whole plan, see its schema), "shard" (MindSpore's lines), "schedule" (the CSV of
                torch.distributed.pipelining), "jax-stages" (a module of functions of JAX), "mpmd" (a module of Shardy's
                MPMD dialect); or what a folder takes: "mindspore" (a strategy checkpoint for each stage),
                "torch-stages" and "torch-pipelining" (a Python module for each stage).

        Returns:
            The text; of forms that are files or a folder the paths, a line each.

        Raises:
            PlanError: an unknown form, one that stages do not have, or one that cannot say this plan.
        """
        return STAGE_FORMS.export(self, to, path)

    def to_jax(self, devices: Sequence[Any] | None = None) -> Stages:
        """The stages as functions of JAX, and what plays them; see `autoshard.pipeline.exports.jax_stages`.

        Args:
            devices: a device for each rank, by default JAX's first ones.

        Raises:
            AutoshardError: the engine xla lacks an operator, JAX cannot say a layout, is not there, or lacks devices.
        """
        need("jax", "to_jax")
        from autoshard.pipeline.exports.jax_stages import jax_stages

        return jax_stages(self, devices)

    def run_label(self) -> str:
        """What the last step of this process has shown beside what was predicted: seconds, and idle shares of ranks."""
        ran = self.session.last
        if ran is None:
            return "no step has run"
        idle = ", ".join(f"{100 * (1 - busy / ran.seconds):.0f}" for busy in ran.busy)
        shares = {
            rank: share for group, share in zip(self.groups, self.price.idle, strict=True) for rank in group.ranks
        }
        known = ", ".join(f"{100 * shares[rank]:.0f}" for rank in range(self.devices))
        return (
            f"step {ran.seconds:.3g} s, ranks idle for {idle} % of it; predicted {format_seconds(self.price.seconds)} "
            f"on {self.hardware.name}, {known} %"
        )

    @cached_property
    def session(self) -> PipelineSession:
        """The programs bound to the ranks of this process: all of them, or under MPI one."""
        return PipelineSession(self, default_comm(self.devices))


def plan_pipeline(
    target: Any,
    inputs: Any = (),
    mesh: Mesh | str | None = None,
    *,
    pipeline: str | Sequence[RankGroup] = "pp",
    micro_batches: int = 1,
    schedule: str | Schedule = DEFAULT_SCHEDULE,
    chunks: int | None = None,
    stages: Mapping[str, int] | None = None,
    search: str | None = None,
    hardware: str | Hardware = "cpu",
    passes: Sequence[str] = DEFAULT,
    memory: str | int | None = None,
) -> PlannedPipeline:
    """Cut a training step into stages, and plan each on devices of its own.

    Args:
        target, inputs: as `autoshard.plan` takes them.
        mesh: all devices, of which the stages lie along one axis.
        pipeline: that axis; or without `mesh` the meshes of the groups, `tp=2/dp=2,tp=2/tp=2`, or the groups. "auto":
            what is fastest by prediction of all cuts, numbers of devices and shapes of their meshes, micro batches
            (unless more than 1 are given) and schedules (of the name given, or "auto"), as far as the search comes,
            which `searched` tells. Of a model of many equal layers, unless a mode is given: of equal groups, named
            plans for each, and layers made again or not.
        micro_batches: into how many parts the batch is cut.
        schedule: a name of `autoshard schedule`, the path of a file, or a schedule; "auto": the named one of the
            fewest predicted seconds, of those that keep to `memory`.
        chunks: stages of each group, for a schedule by name.
        stages: from patterns of names to stages, as `cut_stages` takes them; None: those that the model's cells bear
            (`cell.pipeline_stage = 1`) or that `annotate(model, stages=...)` gave it, else stages of equal cost.
        search: how each stage is planned: a mode; or the FILE.json of a saved plan in stages, which says all else, too:
            what is given besides has to be the same.
        hardware: as for `autoshard.plan`.
        memory: what a device has, as for `autoshard.plan`: a pipeline of which a group needs more is refused.

    Raises:
        MemoryLimitError: names the group with its stages, and the largest tensors in its memory.
        StageError: stages that the step cannot be cut into, or another number of them than the schedule has.
        ScheduleError: a schedule that cannot be run.
        PlanError, GraphError, MeshError: as for `autoshard.plan`, and micro batches that do not divide the batch.

    Example:
        >>> import numpy as np
        >>> from autoshard import nn, ops
        >>> from autoshard.pipeline import plan_pipeline
        >>> from autoshard.transform import train_step
        >>> net, x = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4)), np.ones((12, 6), np.float32)
        >>> step = train_step(lambda x: ops.reduce_mean(net(x)), nn.SGD(net.trainable_params(), 0.1), x)
        >>> planned = plan_pipeline(step, mesh="pp=2,dp=2", micro_batches=3)
        >>> planned.stages, [group.ranks for group in planned.groups]
        (2, [(0, 1), (2, 3)])
    """
    if search is not None and search.endswith(".json"):
        known = hardware if isinstance(hardware, Hardware) else known_hardware(hardware)
        given: dict[str, Any] = {"chunks": chunks, "stages": stages}
        given["groups"] = None if mesh is None and pipeline == "pp" else _groups(mesh, pipeline)
        given["micro batches"] = None if micro_batches == 1 else micro_batches
        given["schedule"] = None if schedule == DEFAULT_SCHEDULE else getattr(schedule, "name", schedule)
        found = _loaded(search, cuttable_target(target, inputs), known, tuple(passes), given)
        return _within(found, read_limit(memory))
    stages = stages or _stages_of(target)
    if pipeline == AUTO:
        fixed = {"chunks": chunks, "stages": stages}
        if wrong := [name for name, value in fixed.items() if value is not None]:
            raise PlanError(f"pipeline {AUTO!r} finds the stages itself: leave out {' and '.join(wrong)}")
        names = None if schedule == AUTO else (schedule_kind(str(schedule)).name,)
        counts = None if micro_batches == 1 else (micro_batches,)
        traced = cuttable_target(target, inputs)
        return _found(traced, mesh, search or DEFAULT_SEARCH, hardware, passes, (counts, names, read_limit(memory)))
    groups = _groups(mesh, pipeline)
    if schedule == AUTO:
        again = partial(plan_pipeline, cuttable_target(target, inputs), micro_batches=micro_batches, stages=stages)
        again = partial(again, pipeline=groups, search=search, hardware=hardware, passes=passes)
        return _best_schedule(again, len(groups), micro_batches, chunks, read_limit(memory))
    order = _schedule(schedule, len(groups), micro_batches, chunks)
    if order.ranks != len(groups):
        raise ScheduleError(f"schedule {order.name} is for {order.ranks} groups of devices; there are {len(groups)}")
    traced = cuttable_target(target, inputs)
    known = hardware if isinstance(hardware, Hardware) else known_hardware(hardware)
    everywhere = known.for_ranks(sum(len(group.ranks) for group in groups))
    step = StepParts.of(traced.graph, order.micro_batches)
    own = [groups[place] for place in order.ranks_of_stages]
    cut = cut_as_assigned(step, _assigned(step, stages, own, everywhere))
    found = planned_stages(traced, cut, order, groups, everywhere, search or DEFAULT_SEARCH, tuple(passes))
    return _within(found, read_limit(memory))


def _within(planned: PlannedPipeline, limit: int | None) -> PlannedPipeline:
    if limit is not None:
        check_memory(planned, limit)
    return planned


def _loaded(
    path: str,
    traced: Traced,
    hardware: Hardware,
    passes: tuple[str, ...],
    given: Mapping[str, Any],
) -> PlannedPipeline:
    """The pipeline in a file, if what else is given says the same."""
    found = load_stages(path, traced, hardware, passes)
    check_same(found, given, path)
    return PlannedPipeline(**{one.name: getattr(found, one.name) for one in fields(found)})


def _stages_of(target: Any) -> Mapping[str, int] | None:
    """The stages that a model says itself."""
    own = known_trace(target)
    if own is None:
        return stages_of_cells(target) or None if isinstance(target, Cell) else None
    return own.stages or None


def _found(
    traced: Traced,
    mesh: Mesh | str | None,
    mode: str,
    hardware: str | Hardware,
    passes: Sequence[str],
    chosen: tuple[tuple[int, ...] | None, tuple[str, ...] | None, int | None],
) -> PlannedPipeline:
    """The fastest pipeline on so many devices as a mesh has, of these micro batches and schedules, within a limit."""
    if mesh is None:
        raise PlanError(f"pipeline {AUTO!r} needs to know how many devices there are: give the mesh, such as '8'")
    devices = (Mesh.parse(mesh) if isinstance(mesh, str) else mesh).devices
    known = hardware if isinstance(hardware, Hardware) else known_hardware(hardware)
    everywhere = known.for_ranks(devices)

    def planned(
        step: StepParts, nodes: Mapping[Node, int], order: Schedule, groups: tuple[RankGroup, ...]
    ) -> PlannedPipeline:
        cut = cut_as_assigned(step, assign_nodes(step, nodes, order.stages))
        return planned_stages(traced, cut, order, groups, everywhere, mode, tuple(passes))

    counts, names, limit = chosen
    layers = None if traced.annotations else RepeatedLayers.of(traced.graph)
    if layers is not None and layers.count >= MANY_LAYERS and mode == DEFAULT_SEARCH:
        wanted = LayeredRequest(traced.graph, devices, everywhere, counts, names, limit)
        return _found_by_layers(traced, layers, wanted, tuple(passes))
    best, told = fastest(StageRequest(traced.graph, devices, everywhere, counts, names, limit), planned)
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
    step = StepParts.of(graph, choice.micro_batches)
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


def planned_stages(
    traced: Traced,
    pipeline: Pipeline,
    order: Schedule,
    groups: tuple[RankGroup, ...],
    hardware: Hardware,
    mode: str,
    passes: tuple[str, ...],
) -> PlannedPipeline:
    """The stages of a pipeline, each planned by a mode on the devices that the schedule gives it to."""
    whole = whole_step(pipeline)
    graphs = tuple(stage_graph(whole, i, traced.annotations, hardware) for i in range(order.stages))
    plans = tuple(
        _planned(traced, graph, groups[place], mode, hardware, passes)
        for graph, place in zip(graphs, order.ranks_of_stages, strict=True)
    )
    return PlannedPipeline(traced, whole, order, groups, graphs, plans, (hardware,) * order.stages, hardware, passes)


def _best_schedule(
    plan: Callable[..., PlannedPipeline], groups: int, micro_batches: int, chunks: int | None, limit: int | None
) -> PlannedPipeline:
    """The pipeline of the named schedule that takes the fewest seconds; of equal ones that which needs less memory.

    Raises:
        MemoryLimitError: none keeps to the limit.
    """
    found = dict(each_schedule(plan, groups, micro_batches, chunks))
    tried = [one for one in found.values() if isinstance(one, PlannedPipeline)]
    if not tried:
        raise next(one for one in found.values() if isinstance(one, StageError | ScheduleError))
    fitting = [one for one in tried if limit is None or _most(one) <= limit]
    if not fitting:
        assert limit is not None
        check_memory(min(tried, key=_most), limit)
    return min(fitting, key=lambda one: (one.price.seconds, _most(one)))


def each_schedule(
    plan: Callable[..., PlannedPipeline], groups: int, micro_batches: int, chunks: int | None = None
) -> Iterator[tuple[str, PlannedPipeline | StageError | ScheduleError]]:
    """A pipeline by each named schedule, or why there is none; schedules that place stages alike share their plans.

    Args:
        plan: makes one, of a `schedule`.
    """
    found: dict[tuple[int, ...], PlannedPipeline] = {}
    for kind in SCHEDULES.values():
        try:
            order = check(make_schedule(kind.name, groups, micro_batches, chunks))
            known = found.get(order.ranks_of_stages)
            one = plan(schedule=order) if known is None else known.with_schedule(order)
        except (StageError, ScheduleError) as error:
            yield kind.name, error
            continue
        found.setdefault(order.ranks_of_stages, one)
        yield kind.name, one


def _most(planned: PlannedPipeline) -> int:
    """Bytes of the device that holds most."""
    return max(one.nbytes for one in planned.price.memory)


def check_memory(planned: PlannedPipeline, limit: int) -> None:
    """Refuse a pipeline of which a group needs more memory than a device has.

    Raises:
        MemoryLimitError: it does.
    """
    for number, one in enumerate(planned.price.memory):
        if one.nbytes > limit:
            stages, most = ", ".join(map(str, planned.schedule.chunks(number))), format_bytes(limit)
            largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in one.largest)
            raise MemoryLimitError(
                f"the pipeline of {planned.graph.name!r} is over the memory limit of {most}: a device of group "
                f"{number}, which runs stage {stages}, holds {format_bytes(one.nbytes)} ({largest}); take more stages "
                "or micro batches, or larger groups",
                needed=one.nbytes,
                limit=limit,
            )


def _groups(mesh: Mesh | str | None, pipeline: str | Sequence[RankGroup]) -> tuple[RankGroup, ...]:
    if not isinstance(pipeline, str):
        if not isinstance(pipeline, Sequence) or not all(isinstance(one, RankGroup) for one in pipeline):
            raise PlanError(
                f"pipeline is {pipeline!r}; give an axis of the mesh, meshes 'tp=2/tp=2', 'auto', or groups"
            )
        return tuple(pipeline)
    if "=" in pipeline or "/" in pipeline:
        groups = read_groups(pipeline)
        total = sum(len(group.ranks) for group in groups)
        devices = None if mesh is None else (Mesh.parse(mesh) if isinstance(mesh, str) else mesh).devices
        if devices not in (None, total):
            raise PlanError(
                f"the meshes {pipeline!r} of the stages have {total} devices in all, but there are {devices}"
            )
        return groups
    if mesh is None:
        raise PlanError(f"stages lie along axis {pipeline!r} of a mesh: give the mesh, such as 'pp=2,dp=2'")
    return groups_along(Mesh.parse(mesh) if isinstance(mesh, str) else mesh, pipeline)


def _schedule(schedule: str | Schedule, groups: int, micro_batches: int, chunks: int | None) -> Schedule:
    if isinstance(schedule, Schedule):
        return check(schedule)
    if not isinstance(schedule, str):
        raise ScheduleError(f"schedule is {schedule!r}; give a name, the path of a file, 'auto', or a Schedule")
    if schedule.endswith(".csv"):
        found = load_schedule(schedule)
        if found.micro_batches != micro_batches:
            raise ScheduleError(
                f"schedule {schedule} is for {found.micro_batches} micro batches, and {micro_batches} are given"
            )
        return found
    kind = schedule_kind(schedule)
    return check(make_schedule(kind.name, groups, micro_batches, chunks))


def _assigned(
    step: StepParts, stages: Mapping[str, int] | None, groups: Sequence[RankGroup], hardware: Hardware
) -> Assigned:
    if stages is None:
        devices = [group.mesh.devices for group in groups]
        return assign_nodes(step, balanced_stages(step, devices, hardware), len(groups))
    found = assign(step, stages)
    if found.count != len(groups):
        raise StageError(f"{found.count} stages are given, but the schedule has {len(groups)}")
    return found


def _planned(
    traced: Traced, stage: StageGraph, group: RankGroup, mode: str, hardware: Hardware, passes: tuple[str, ...]
) -> Plan:
    graph, mesh = stage.graph, group.mesh
    if is_named(mode):
        # A plan known by name splits what comes of other stages as it splits data.
        own = traced.graph.role_of
        roles = (role if value in own else DATA for value, role in zip(graph.inputs, graph.roles, strict=True))
        graph = replace(graph, roles=tuple(roles))
    asked = {value: one for value, one in annotations_on(traced, mesh).values.items() if value in graph.role_of}
    options = {REDUCED_ONCE: True} if is_named(mode) else {}
    problem = Problem(graph, mesh, hardware, stage.annotations, asked=asked, options=options, passes=passes)
    return with_rings(find_mode(mode)(problem), hardware)
