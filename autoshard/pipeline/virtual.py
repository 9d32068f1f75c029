"""Running stages on virtual ranks, one device each, in this process: what they lead to, whatever the schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.api import DEFAULT_SEARCH, known_hardware
from autoshard.layout.mesh import Mesh
from autoshard.pipeline.execute.session import PipelineSession, Ran
from autoshard.pipeline.schedules import check
from autoshard.pipeline.schedules.schedule import Schedule
from autoshard.pipeline.stage_plans import planned_stages
from autoshard.pipeline.stages.cut import Pipeline
from autoshard.pipeline.transfers.group import stacked
from autoshard.runtime.local import LocalComm
from autoshard.trace.function import Traced
from autoshard.util.errors import ScheduleError


def run_stages(pipeline: Pipeline, schedule: Schedule, inputs: Sequence[np.ndarray], seed: int | None = None) -> Ran:
    """Run a step on virtual ranks, which do their actions as soon as what these read has arrived.

    The outputs are those of the step in one piece.

    Args:
        inputs: an array per input of the step's graph, the batch whole.
        seed: by which of the ranks that can go on the next one is drawn; None: the first. Results do not depend on it.

    Raises:
        ScheduleError: a schedule that cannot be run, or that is for other numbers of stages or micro batches.
        StageError: the update of a stage needs rows of the batch that another one makes.
    """
    check(schedule)
    for what, has, wants in (
        ("stages", len(pipeline.stages), schedule.stages),
        ("micro batches", pipeline.step.parts, schedule.micro_batches),
    ):
        if has != wants:
            raise ScheduleError(
                f"schedule {schedule.name} is for {wants} {what}; {pipeline.step.graph.name!r} has {has}"
            )
    groups = stacked([Mesh.flat(1)] * schedule.ranks)
    traced = Traced(pipeline.step.graph, {}, {}, None, None)
    planned = planned_stages(traced, pipeline, schedule, groups, known_hardware("cpu"), DEFAULT_SEARCH, ())
    return PipelineSession(planned, LocalComm(schedule.ranks)).run(inputs, seed)
