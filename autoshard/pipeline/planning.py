"""plan_pipeline(): from a training step, groups of devices and a schedule to a plan per stage and programs to run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any

from autoshard.api import DEFAULT_SEARCH, known_hardware
from autoshard.api.arguments import check_request, known_mesh
from autoshard.frontends.targets import cuttable_target
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT
from autoshard.pipeline.exports.stages_file import check_same, load_stages
from autoshard.pipeline.found_stages import AUTO, found_stages, is_auto
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.pipeline.schedules import SCHEDULES, check, load_schedule, make_schedule, schedule_kind
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stage_plans import NO_OPTIONS, check_memory, most_memory, planned_stages
from autoshard.pipeline.stages.assign import Assigned, assign, assign_nodes, check_no_own_loops
from autoshard.pipeline.stages.balance import balanced_stages
from autoshard.pipeline.stages.cut import cut_as_assigned
from autoshard.pipeline.transfers.group import (
    RankGroup,
    group_hardware,
    group_limits,
    groups_along,
    meshes_label,
    read_groups,
)
from autoshard.search.memory_limit import read_limit
from autoshard.search.registry import check_options
from autoshard.trace.cell import Cell, stages_of_cells
from autoshard.trace.function import Traced, known_trace
from autoshard.transform.micro.accumulate import StepParts
from autoshard.transform.micro.statistics import BATCH
from autoshard.util.errors import MemoryLimitError, PlanError, ScheduleError, StageError
from costmodel import Hardware

DEFAULT_SCHEDULE, ALONG = "1f1b", "pp"


def plan_pipeline(
    target: Any,
    inputs: Any = (),
    mesh: Mesh | str | None = None,
    *,
    pipeline: str | Sequence[RankGroup] = ALONG,
    micro_batches: int = 1,
    schedule: str | Schedule = DEFAULT_SCHEDULE,
    chunks: int | None = None,
    stages: Mapping[str, int] | None = None,
    search: str | None = None,
    hardware: str | Hardware = "cpu",
    passes: Sequence[str] = DEFAULT,
    memory: str | int | None = None,
    options: Mapping[str, Any] | None = None,
    statistics: str = BATCH,
    loss_pieces: int = 1,
) -> PlannedPipeline:
    """Cut a training step, or a model that is only applied, into stages, and plan each on devices of its own.

    Args:
        target, inputs: as `autoshard.plan` takes them.
        mesh: all devices, of which the stages lie along one axis.
        pipeline: that axis; or without `mesh` the meshes of the groups, `tp=2/dp=2,tp=2/tp=2`, with what their devices
            are, where these are unlike, `tp=2@h100/tp=4@a100`; or the groups. "auto":
            what is fastest by prediction of all cuts, numbers of devices and shapes of their meshes, micro batches
            (unless more than 1 are given) and schedules (of the name given, or "auto"), as far as the search comes,
            which `searched` tells. Of a model of many equal layers, unless a mode is given: of equal groups, named
            plans for each, and layers made again or not. "auto:4@h100/8@a100": the same of unlike devices, in the
            order of ranks; a group has those of one kind.
        micro_batches: into how many parts the batch is cut.
        schedule: a name of `autoshard schedule`, the path of a file, or a schedule, of which the last two say how many
            micro batches there are; "auto": the named one of the
            fewest predicted seconds, of those that keep to `memory`.
        chunks: stages of each group, for a schedule by name.
        stages: from patterns of names to stages, as `cut_stages` takes them; None: those that the model's cells bear
            (`cell.pipeline_stage = 1`) or that `annotate(model, stages=...)` gave it, else stages of equal cost.
        search: how each stage is planned: a mode; or the FILE.json of a saved plan in stages, which says all else, too:
            what is given besides has to be the same.
        hardware: as for `autoshard.plan`, of groups that name no other; its links join the groups.
        memory: what a device has, as for `autoshard.plan`: a pipeline of which a group needs more is refused. Devices
            of groups that name their hardware have no more than that has. Without it what the hardware has is kept to
            if it can be.
        options: of the mode, as for `autoshard.plan`.
        statistics: whose a batch normalization takes in training, as for `autoshard.plan`; with "micro_batch" micro
            batches go forward in order.
        loss_pieces: as for `autoshard.plan`: each micro batch has its loss so, in the stage of its logits.

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
    check_request(search, {} if options is None else options)
    if (own := known_trace(target)) is not None:
        check_no_own_loops(own.graph)
    hardware = hardware if isinstance(hardware, Hardware) else known_hardware(hardware)
    limit, passes = read_limit(memory), tuple(passes)
    if search is not None and search.endswith(".json"):
        if options:
            raise PlanError(f"options are of a mode, not of the file {search}: leave them out")
        given: dict[str, Any] = {"chunks": chunks, "stages": stages}
        given |= _given_groups(mesh, pipeline)
        given["micro batches"] = None if micro_batches == 1 else micro_batches
        given["schedule"] = None if schedule == DEFAULT_SCHEDULE else getattr(schedule, "name", schedule)
        given["statistics"] = None if statistics == BATCH else statistics
        given["loss pieces"] = None if loss_pieces == 1 else loss_pieces
        found = _loaded(search, cuttable_target(target, inputs), hardware, passes, given)
        return _within(found, limit)
    stages = stages or _stages_of(target)
    if is_auto(pipeline):
        fixed = {"chunks": chunks, "stages": stages, "options": options or None}
        if wrong := [name for name, value in fixed.items() if value is not None]:
            raise PlanError(f"pipeline {AUTO!r} finds the stages itself: leave out {' and '.join(wrong)}")
        names = None if schedule == AUTO else (schedule_kind(str(schedule)).name,)
        counts = None if micro_batches == 1 else (micro_batches,)
        traced = cuttable_target(target, inputs)
        chosen = counts, names, limit, statistics, loss_pieces
        inner = DEFAULT_SEARCH if search in (None, AUTO) else search
        return found_stages(traced, str(pipeline), mesh, inner, hardware, passes, chosen)
    groups = _groups(mesh, pipeline)
    if search == AUTO:
        raise PlanError(
            f"search mode {AUTO!r} chooses meshes, but those of the stages are given ({meshes_label(groups)}): give "
            f"pipeline={AUTO!r} to have both searched, or name the mode that plans each stage"
        )
    if schedule == AUTO:
        again = partial(plan_pipeline, cuttable_target(target, inputs), micro_batches=micro_batches, stages=stages)
        again = partial(again, pipeline=groups, search=search, hardware=hardware, passes=passes, options=options)
        again = partial(again, statistics=statistics, loss_pieces=loss_pieces)
        return _best_schedule(again, len(groups), micro_batches, chunks, limit)
    order = _schedule(schedule, len(groups), micro_batches, chunks)
    if order.ranks != len(groups):
        raise ScheduleError(f"schedule {order.name} is for {order.ranks} groups of devices; there are {len(groups)}")
    traced = cuttable_target(target, inputs)
    everywhere = hardware.for_ranks(sum(len(group.ranks) for group in groups))
    step = StepParts.of(traced.graph, order.micro_batches, statistics, loss_pieces)
    own = [groups[place] for place in order.ranks_of_stages]
    cut = cut_as_assigned(step, _assigned(step, stages, own, everywhere))
    mode, own_options = search or DEFAULT_SEARCH, options or NO_OPTIONS
    if own_options:
        check_options(mode, own_options)
    limits = group_limits(groups, everywhere, limit)
    found = planned_stages(traced, cut, order, groups, everywhere, mode, passes, own_options, limits=limits)
    return _within(found, limit)


def _within(planned: PlannedPipeline, limit: int | None) -> PlannedPipeline:
    if limit is not None:
        check_memory(planned, group_limits(planned.groups, planned.hardware, limit))
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
    limits = group_limits(tried[0].groups, tried[0].hardware, limit)

    def fullness(planned: PlannedPipeline) -> float:
        return planned.price.fullness(limits)

    fitting = [one for one in tried if fullness(one) <= 1]
    if limit is not None:
        # Stages that are planned to need less do so by whatever schedule places them alike.
        for one in (each for each in _emptiest(tried, fullness) if fullness(each) > 1):
            with suppress(MemoryLimitError):
                leaner = plan(schedule=one.schedule, memory=limit)
                alike = (each for each in tried if each.schedule.ranks_of_stages == one.schedule.ranks_of_stages)
                every = (leaner.with_schedule(each.schedule) for each in alike)
                fitting += [each for each in every if fullness(each) <= 1]
        if not fitting:
            check_memory(min(tried, key=fullness), limits)
    return min(fitting or tried, key=lambda one: (one.price.seconds, most_memory(one)))


def _emptiest(
    tried: Sequence[PlannedPipeline], fullness: Callable[[PlannedPipeline], float]
) -> Collection[PlannedPipeline]:
    """Of pipelines that place stages alike that which comes closest to the limit."""
    found: dict[tuple[int, ...], PlannedPipeline] = {}
    for one in sorted(tried, key=fullness):
        found.setdefault(one.schedule.ranks_of_stages, one)
    return found.values()


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


def _groups(mesh: Mesh | str | None, pipeline: str | Sequence[RankGroup]) -> tuple[RankGroup, ...]:
    if not isinstance(pipeline, str):
        are_groups = isinstance(pipeline, Sequence) and all(isinstance(one, RankGroup) for one in pipeline)
        if not are_groups or not pipeline:
            raise PlanError(
                f"pipeline is {pipeline!r}; give an axis of the mesh, meshes 'tp=2/tp=2', 'auto', or groups"
            )
        return tuple(pipeline)
    if "=" in pipeline or "/" in pipeline:
        groups = read_groups(pipeline)
        total = sum(len(group.ranks) for group in groups)
        devices = None if mesh is None else known_mesh(mesh).devices
        if devices not in (None, total):
            raise PlanError(
                f"the meshes {pipeline!r} of the stages have {total} devices in all, but there are {devices}"
            )
        return groups
    if mesh is None:
        raise PlanError(f"stages lie along axis {pipeline!r} of a mesh: give the mesh, such as 'pp=2,dp=2'")
    return groups_along(known_mesh(mesh), pipeline)


def _given_groups(mesh: Mesh | str | None, pipeline: str | Sequence[RankGroup]) -> dict[str, Any]:
    """What is given of the groups besides a file that says them: these, or how many devices there are, or nothing."""
    if pipeline != ALONG:
        return {"groups": _groups(mesh, pipeline)}
    if mesh is None:
        return {}
    known = known_mesh(mesh)
    is_number = len(known.axes) == 1 and ALONG not in known.names
    return {"devices": known.devices} if is_number else {"groups": _groups(known, pipeline)}


def _schedule(schedule: str | Schedule, groups: int, micro_batches: int, chunks: int | None) -> Schedule:
    if isinstance(schedule, Schedule):
        return check(schedule)
    if not isinstance(schedule, str):
        raise ScheduleError(f"schedule is {schedule!r}; give a name, the path of a file, 'auto', or a Schedule")
    if schedule.endswith(".csv"):
        found = load_schedule(schedule)
        if micro_batches not in (1, found.micro_batches):  # 1 is given where nobody says
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
        balanced = balanced_stages(step, devices, hardware, group_hardware(groups, hardware))
        return assign_nodes(step, balanced, len(groups))
    found = assign(step, stages)
    if found.count != len(groups):
        said = f"{found.count} stages are" if found.count != 1 else "1 stage is"
        raise StageError(f"{said} given, but the schedule has {len(groups)}")
    return found
