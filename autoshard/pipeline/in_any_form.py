"""Mode "auto" with stages: the fastest plan of a training step of all that there are, in one piece or in stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoshard.api import Planned, plan
from autoshard.api.arguments import chosen_mesh, known_hardware
from autoshard.frontends.planning import is_module
from autoshard.frontends.targets import traced_target
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT
from autoshard.pipeline.found_stages import AUTO
from autoshard.pipeline.planned.searched import OtherPipeline, fastest_by_groups
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.pipeline.planning import plan_pipeline
from autoshard.pipeline.transfers.group import meshes_label
from autoshard.plan.data_layouts import FULL_BATCH
from autoshard.search.memory_limit import read_limit
from autoshard.search.program_price import retold
from autoshard.trace.function import Traced
from autoshard.util.errors import AutoshardError, MemoryLimitError
from costmodel import Hardware, format_seconds

DATASET, STAGES = "dataset_strategy", "in stages"
WORTH = 0.01
"""By how much, relatively, stages are faster at least to be taken instead of one piece, which is simpler."""


def plan_auto(
    target: Any, inputs: Any = (), mesh: Mesh | str | None = None, *, devices: int | None = None, **settings: Any
) -> Planned | PlannedPipeline:
    """The fastest plan by prediction on so many devices: in one piece on a mesh of any shape, or in stages.

    A training step on several devices is planned in one piece by mode "auto", and by `pipeline="auto"` in stages, with
    micro batches and schedules to choose from. What keeps to the memory of a device and takes fewer seconds is the
    plan, and it tells of the other. Any other target, and one whose data inputs are asked to lie in parts, is planned
    in one piece.

    Args:
        target, inputs, mesh, devices: as `autoshard.plan` takes them; the mesh has one axis, or is left out.
        settings: what else `autoshard.plan` takes; options of mode "auto" are for the plan in one piece.

    Raises:
        MemoryLimitError: no plan of either kind keeps to the limit.
        AutoshardError: as `autoshard.plan`.

    Example:
        >>> import numpy as np
        >>> from autoshard import nn, ops
        >>> from autoshard.pipeline import plan_auto
        >>> from autoshard.transform import train_step
        >>> net, x = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4)), np.ones((12, 6), np.float32)
        >>> step = train_step(lambda x: ops.reduce_mean(net(x)), nn.SGD(net.trainable_params(), 0.1), x)
        >>> planned = plan_auto(step, devices=2)
        >>> planned.stages, planned.searched.others[-1].label
        (2, 'in one piece on (d=2), by auto')
    """
    over, given = chosen_mesh(mesh, devices), settings.get("hardware", "cpu")
    settings["hardware"] = hardware = given if isinstance(given, Hardware) else known_hardware(given)
    room = read_limit(settings.get("memory")) or hardware.device.memory_bytes
    whole: Planned | MemoryLimitError
    try:
        whole = plan(target, inputs, over, search=AUTO, **settings)
    except MemoryLimitError as error:
        whole = error
    staged = None
    if _may_be_cut(target, inputs, over, settings):
        staged = _in_stages(target, inputs, over, {**settings, "memory": room})
    if isinstance(whole, Planned):
        return whole if staged is None else _faster(whole, staged, room)
    if isinstance(staged, PlannedPipeline):
        return staged
    raise whole


def is_training_step(target: Any) -> bool:
    """Whether this differentiates and updates parameters, so that a search looks for stages of it."""
    return isinstance(target, Traced) and bool(target.graph.cotangents and target.graph.updates)


def _may_be_cut(target: Any, inputs: Any, mesh: Mesh, settings: Mapping[str, Any]) -> bool:
    if mesh.devices == 1 or is_module(target) or settings.get(DATASET, FULL_BATCH) != FULL_BATCH:
        return False
    return is_training_step(traced_target(target, inputs))


def _in_stages(target: Any, inputs: Any, mesh: Mesh, settings: Mapping[str, Any]) -> PlannedPipeline | AutoshardError:
    """The plan in stages; or why a step cannot be cut, or no stages keep to the limit."""
    known = {name: value for name, value in settings.items() if name not in (DATASET, "options", "passes")}
    passes = settings.get("passes", True)
    known["passes"] = (DEFAULT if passes else ()) if isinstance(passes, bool) else passes
    try:
        return plan_pipeline(target, inputs, mesh, pipeline=AUTO, schedule=AUTO, **known)
    except AutoshardError as error:
        return error


def _faster(whole: Planned, staged: PlannedPipeline | AutoshardError, room: int | None) -> Planned | PlannedPipeline:
    """The one that keeps to the memory of a device and takes fewer seconds, which tells of the other."""
    if isinstance(staged, AutoshardError):
        return _told(whole, None, str(staged))
    seconds, told = whole.cost.seconds, staged.searched
    assert told is not None, "stages that are found say how they were searched"
    fits = room is None or whole.cost.peak_memory_bytes <= room
    others = [one for one in told.others if one.groups > 1]
    if not fits or (staged.schedule.ranks > 1 and staged.price.seconds < seconds * (1 - WORTH)):
        other = OtherPipeline(f"in one piece on ({whole.plan.mesh}), by {AUTO}", 1, seconds, fits)
        return replace(staged, searched=replace(told, others=fastest_by_groups([other, *others], "")))
    if staged.schedule.ranks > 1:
        label = f"{staged.stages} stages on {meshes_label(staged.groups)}, {staged.schedule.name}"
        others = [OtherPipeline(label, staged.schedule.ranks, staged.price.seconds)]
    best = next(iter(others), None)
    return _told(whole, None, str(told)) if best is None else _told(whole, best.seconds, best.label)


def _told(whole: Planned, seconds: float | None, words: str) -> Planned:
    """The plan in one piece, which says what stages would take, or why there are none."""
    said = words if seconds is None else f"{format_seconds(seconds)}, {words}"
    compared = whole.plan.compared if seconds is None else {**whole.plan.compared, STAGES: seconds}
    started = f"{whole.plan.started_from}; {STAGES}: {said}"
    return replace(whole, plan=retold(whole.plan, started_from=started, compared=compared))
