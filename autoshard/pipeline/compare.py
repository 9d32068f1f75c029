"""Plans of one model side by side: `compare(target, inputs, meshes, modes)` plans in each way, and prices all alike.

A training step is planned in stages, too, beside those in one piece.

A way that does not fit (a named plan whose structure the model lacks, a file for another model) keeps its row, which
says why. Planning counts everything from the traced model to the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from autoshard.api import Planned, plan
from autoshard.api.arguments import known_hardware, known_mesh
from autoshard.frontends.planning import is_module, planning, read_module
from autoshard.frontends.targets import cuttable_target, traced_target
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.found_stages import AUTO, is_auto
from autoshard.pipeline.in_any_form import is_training_step, plan_auto
from autoshard.pipeline.planned.cost import step_cost
from autoshard.pipeline.planned_pipeline import PlannedPipeline
from autoshard.pipeline.planning import plan_pipeline
from autoshard.pipeline.transfers.group import meshes_label
from autoshard.plan.data_layouts import check_dataset_strategy
from autoshard.search import Cost, search_modes
from autoshard.search.memory_limit import read_limit
from autoshard.search.named import named_plans
from autoshard.search.registry import keeps_limit
from autoshard.transform.micro.statistics import BATCH, check_statistics
from autoshard.transform.train import accumulated, with_loss_in_pieces
from autoshard.util.doing import doing
from autoshard.util.errors import AutoshardError, PlanError
from autoshard.util.notebook import table
from costmodel import Hardware, format_bytes, format_seconds

DATASET, WHOLE = "dataset_strategy", "full_batch"
STAGED = "stages"
"""The begin of the names of plans in stages."""


@dataclass(frozen=True)
class Contender:
    """A way to plan on a mesh, what it costs, whether it keeps the memory limit, and the seconds of planning.

    `why` tells in words why there is no plan; then `cost` and `planned` are None.
    """

    mode: str
    mesh: str
    planning_seconds: float
    cost: Cost | None = None
    fits: bool = False
    why: str = ""
    planned: Planned | PlannedPipeline | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The contender as plain data."""
        found: dict[str, Any] = {"mode": self.mode, "mesh": self.mesh, "planning_seconds": self.planning_seconds}
        if self.cost is None:
            return {**found, "why": self.why}
        return {
            **found,
            "seconds": self.cost.seconds,
            "compute_seconds": self.cost.compute_seconds,
            "communication_seconds": self.cost.communication_seconds,
            "axes": {one.axes: one.seconds for one in self.cost.axes},
            "bytes_per_device": self.cost.bytes_per_device,
            "peak_memory_bytes": self.cost.peak_memory_bytes,
            "fits": self.fits,
            "waiting_seconds": self.cost.waiting_seconds,
            "ignored": list(self.ignored),
        }

    @property
    def ignored(self) -> tuple[str, ...]:
        """What people asked for and the mode did not follow."""
        return self.planned.ignored if isinstance(self.planned, Planned) else ()


class Comparison(tuple[Contender, ...]):
    """The contenders in the order in which they were asked for; notebooks show them as a table."""

    def plot(self, path: str | Path) -> Path:
        """Write a picture of the plans, seconds of a step against memory (needs the extra `viz`); the path.

        Args:
            path: ends in .svg, .png or .pdf.

        Raises:
            PlanError: nobody found a plan, matplotlib is missing, or the file cannot be written.
        """
        from autoshard.view.plots import plot_contenders

        found = [(one, one.cost) for one in self if one.cost is not None]
        meshes = len({one.mesh for one, _ in found}) > 1
        points = [
            (f"{one.mode} {one.mesh}" if meshes else one.mode, cost.seconds, cost.peak_memory_bytes, one.fits)
            for one, cost in found
        ]
        proven = (one.planned for one, _ in found if isinstance(one.planned, Planned) and one.mode == "optimal")
        stats = (one.plan.search_stats for one in proven)
        return plot_contenders(points, min((one.get("bound", 0.0) for one in stats), default=0.0), path)

    def _repr_html_(self) -> str:
        rows = []
        for one in self:
            cost = one.cost
            if cost is None:
                rows.append([one.mode, one.mesh, one.why])
                continue
            fits = "yes" if one.fits else "no"
            figures = format_seconds(cost.seconds), format_seconds(cost.communication_seconds)
            sizes = format_bytes(cost.bytes_per_device), format_bytes(cost.peak_memory_bytes)
            rows.append([one.mode, one.mesh, *figures, *sizes, fits])
        heads = ["plan", "mesh", "step", "communication", "bytes", "peak memory", "fits"]
        return table(f"{len(rows)} plans", heads, rows)


def default_modes() -> tuple[str, ...]:
    """Searches, then named plans; not `auto`, which is for no mesh in particular."""
    searches = [mode for mode in search_modes() if mode not in named_plans() and mode != "auto"]
    return (*searches, *named_plans())


def compare(
    target: Any,
    inputs: Any = (),
    meshes: Sequence[Mesh | str | None] = (None,),
    modes: Sequence[str] = (),
    *,
    hardware: str | Hardware = "cpu",
    memory: str | int | None = None,
    pipelines: Sequence[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Plan a model in several ways.

    Args:
        target: as `plan` takes it, with its `inputs`; traced once.
        meshes: the meshes; None is that which a module names itself.
        modes: search modes, named plans, or files of saved plans; by default, unless `pipelines` are named, all modes
            and named plans.
        memory: the limit that is held against each plan; the search "optimal" is told of it beforehand.
        pipelines: how a training step is planned in stages, each as the `pipeline` of `plan_pipeline`: an axis of the
            mesh, meshes of groups, or "auto", searched over all that the devices allow. By default, unless `modes` are
            named, "auto" of a training step on several devices; () for none.
        settings: what else `plan` takes.

    Raises:
        AutoshardError: what is wrong with the model, the hardware or the settings, whatever the mode; what a mode finds
            wrong stands in its row.

    >>> import numpy as np
    >>> from autoshard import compare, nn
    >>> found = compare(nn.Dense(12, 64), (np.ones((16, 12), np.float32),), ["dp=2 tp=4"], ["factor", "optimal"])
    >>> [(one.mode, one.mesh, one.fits) for one in found]
    [('factor', 'dp=2 tp=4', True), ('optimal', 'dp=2 tp=4', True)]
    """
    limit, known = read_limit(memory), hardware if isinstance(hardware, Hardware) else known_hardware(hardware)
    check_statistics(settings.get("statistics", BATCH))
    if isinstance(settings.get("dataset_strategy"), str):
        check_dataset_strategy("dataset_strategy", settings["dataset_strategy"])
    untraced = target, inputs
    if is_module(target):
        if pipelines:
            raise PlanError(f"compare: {', '.join(pipelines)} cuts a training step into stages; a module has none")
        target = read_module(target)
        for mesh in meshes:
            planning(target, Mesh.parse(mesh) if isinstance(mesh, str) else mesh)
    else:
        target, inputs = traced_target(target, inputs, "compare"), ()
        cut = target
        if settings.get("micro_batches", 1) != 1:
            cut = accumulated(cuttable_target(target), settings["micro_batches"], settings.get("statistics", BATCH))
        if settings.get("loss_pieces", 1) != 1:
            with_loss_in_pieces(cut, settings["loss_pieces"])
    settings["hardware"] = known
    named = modes or (() if pipelines else default_modes())
    ways = [(mode, mesh) for mesh in meshes for mode in named]
    if pipelines is None:
        pipelines = () if modes else default_pipelines(target, meshes)
    staged = [(one, mesh) for one in dict.fromkeys(pipelines) for mesh in _meshes_of(one, meshes)]
    found = []
    for i, (mode, mesh) in enumerate(ways, 1):
        with doing(f"planning {i} of {len(ways) + len(staged)}: {mode}"):
            in_any_form = mode == AUTO and not is_module(target)
            way = partial(plan_auto, *untraced) if in_any_form else partial(plan, target, inputs, search=mode)
            within = limit if keeps_limit(mode) else None
            found.append(_contender(way, mode, mesh, limit, {**settings, "memory": within}))
    for i, (pipeline, mesh) in enumerate(staged, len(ways) + 1):
        with doing(f"planning {i} of {len(ways) + len(staged)}: stages, {pipeline}"):
            found.append(_in_stages(*untraced, pipeline, mesh, limit, settings))
    return Comparison(found)


def default_pipelines(target: Any, meshes: Sequence[Mesh | str | None]) -> tuple[str, ...]:
    """How a target is planned in stages unless people say how: searched, a training step on several devices."""
    if not is_training_step(target):
        return ()
    return (AUTO,) if any(known_mesh(mesh).devices > 1 for mesh in meshes if mesh is not None) else ()


def _meshes_of(pipeline: str, meshes: Sequence[Mesh | str | None]) -> list[Mesh | None]:
    """The meshes on which a pipeline is planned: where a search chooses them one for each number of devices."""
    known = [known_mesh(mesh) for mesh in meshes if mesh is not None]
    if pipeline == AUTO:
        return [Mesh.flat(count) for count in dict.fromkeys(mesh.devices for mesh in known)]
    return list(known) if "=" not in pipeline and not is_auto(pipeline) else [None]


def _in_stages(
    target: Any, inputs: Any, pipeline: str, mesh: Mesh | None, limit: int | None, settings: Mapping[str, Any]
) -> Contender:
    """A plan in stages, by the schedule that takes least."""
    known = {name: value for name, value in settings.items() if name != DATASET}

    def way(mesh: Mesh | None, **settings: Any) -> PlannedPipeline:
        if data != WHOLE:
            raise PlanError(f"data inputs of stages lie whole on every rank; {DATASET} is {data!r}")
        return plan_pipeline(target, inputs, mesh, pipeline=pipeline, schedule=AUTO, memory=limit, **settings)

    data = settings.get(DATASET, WHOLE)
    return _contender(way, f"{STAGED} {pipeline}", mesh, limit, known)


def _contender(
    way: Callable[..., Planned | PlannedPipeline],
    name: str,
    mesh: Mesh | str | None,
    limit: int | None,
    settings: Mapping[str, Any],
) -> Contender:
    """What one way to plan leads to, on a mesh."""
    begun = time.perf_counter()
    try:
        planned = way(mesh=mesh, **settings)
    except AutoshardError as error:
        return Contender(name, str(mesh or ""), time.perf_counter() - begun, why=str(error))
    took = time.perf_counter() - begun
    if isinstance(planned, Planned):
        over, cost = str(planned.plan.mesh), planned.cost
    else:
        over, cost = meshes_label(planned.groups), step_cost(planned)
    return Contender(name, over, took, cost, limit is None or cost.peak_memory_bytes <= limit, planned=planned)


def ranked(contenders: Sequence[Contender]) -> Iterator[Contender]:
    """Those that fit first, the fastest first; those without a plan last."""
    order = sorted(
        range(len(contenders)),
        key=lambda i: (contenders[i].cost is None, not contenders[i].fits, _seconds(contenders[i]), i),
    )
    return (contenders[i] for i in order)


def _seconds(one: Contender) -> float:
    return one.cost.seconds if one.cost is not None else 0.0
