"""MindSpore's words for pipelines: the stages that cells bear, micro batches, schedulers and groups of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.layout.mesh import Mesh
from autoshard.mindspore.context import ParallelMode, ParallelSettings, check_stages
from autoshard.mindspore.nn.micro_batches import MicroBatched
from autoshard.mindspore.setting_checks import SCHEDULERS
from autoshard.pipeline.schedules import SCHEDULES, schedule_kind
from autoshard.pipeline.transfers.group import RankGroup, groups_along, stacked
from autoshard.trace.cell import Cell
from autoshard.util.errors import StageError, at

STAGE, SEGMENT = "pipeline_stage", "pipeline_segment"


def in_stages(parallel: ParallelSettings) -> bool:
    """Whether training is in stages; in stand_alone it is not, as nothing is split there."""
    return parallel.pipeline_stages > 1 and parallel.parallel_mode != ParallelMode.STAND_ALONE


def groups_of(parallel: ParallelSettings, devices: int) -> tuple[RankGroup, ...]:
    """The groups of ranks that stages run on.

    Raises:
        ContextError: the devices cannot be divided into so many.
    """
    check_stages("set_auto_parallel_context", parallel, devices)
    if parallel.mesh is not None:
        return groups_along(parallel.mesh, parallel.mesh.names[0])
    return stacked([Mesh.flat(devices // parallel.pipeline_stages)] * parallel.pipeline_stages)


# -- micro batches


def micro_batched(network: Any) -> MicroBatched | None:
    """The PipelineCell or GradAccumulationCell that a network is or holds.

    Raises:
        StageError: there are several.
    """
    cells = (cell for _, cell in network.cells_and_names()) if isinstance(network, Cell) else ()
    found = [cell for cell in cells if isinstance(cell, MicroBatched)]
    if len(found) > 1:
        told = " and ".join(f"{type(one).__name__}{at(one.source)}" for one in found)
        raise StageError(f"{told}: a network is cut into micro batches once")
    return found[0] if found else None


def micro_batches(network: Any, parallel: ParallelSettings, trains: bool) -> int:
    """Into how many parts a step cuts its batch: of training, or one that is only applied.

    Raises:
        StageError: said twice and not alike; in stages not at all, or fewer than there are stages.
    """
    cell, steps = micro_batched(network), parallel.grad_accumulation_step
    if cell is not None and steps not in (1, cell.micro_size):
        raise StageError(
            f"{type(cell).__name__}{at(cell.source)}: micro_size is {cell.micro_size}, but grad_accumulation_step is "
            f"{steps}; say one of both"
        )
    found = cell.micro_size if cell is not None else steps
    if trains and in_stages(parallel) and found < parallel.pipeline_stages:
        where = f"{type(cell).__name__}{at(cell.source)}: micro_size is {found}" if cell is not None else (
            f"the network is in no nn.PipelineCell, so that its batch is {found} micro batch"
        )  # fmt: skip
        raise StageError(
            f"{where}; {parallel.pipeline_stages} stages need at least {parallel.pipeline_stages} micro batches: "
            f"nn.PipelineCell(network, {parallel.pipeline_stages})"
        )
    return found


def check_batch(network: Any, rows: Mapping[str, int], parts: int) -> None:
    """That micro batches divide the batch.

    Args:
        rows: of each column its name and number of rows.

    Raises:
        StageError: they do not.
    """
    wrong = [f"{name} has {count}" for name, count in rows.items() if count % parts]
    if wrong:
        cell = micro_batched(network)
        where = "grad_accumulation_step" if cell is None else f"{type(cell).__name__}{at(cell.source)}: micro_size"
        raise StageError(
            f"{where} is {parts}, which does not divide the rows of a batch on all ranks: {', '.join(wrong)}"
        )


# -- schedules


def schedule_of(parallel: ParallelSettings, chunks: int | None) -> tuple[str, int | None]:
    """The schedule that `pipeline_config` says, and how many stages of it a rank runs.

    Args:
        chunks: the segments that cells bear; None: cells bear no stages.

    Raises:
        StageError: other segments than the schedule has.
    """
    config = parallel.pipeline_config or {}
    word, interleaves = config.get("pipeline_scheduler", "1f1b"), config.get("pipeline_interleave", False)
    name = SCHEDULERS.get(word, word) if interleaves or word == "zero_bubble_v" else word
    kind = schedule_kind(name)
    if kind.chunks == 1 and chunks not in (None, 1) and kind.fixed:
        several = [one for one in SCHEDULES if SCHEDULES[one].chunks > 1]
        raise StageError(
            f"cells bear {chunks} segments for each rank, but the schedule {kind.name} has one: set pipeline_config="
            f"{{'pipeline_interleave': True}}, or a pipeline_scheduler of {', '.join(several)}"
        )
    if kind.fixed and chunks not in (None, kind.chunks):
        places = ", ".join(map(str, range(kind.chunks)))
        raise StageError(
            f"pipeline_config: pipeline_scheduler {word!r} runs {kind.chunks} segments on each rank, but cells bear "
            f"{chunks}; give each cell a pipeline_segment beside its pipeline_stage ({places}), or no cell a stage"
        )
    return kind.name, chunks


# -- stages of cells


def stages_of(network: Any, parallel: ParallelSettings) -> tuple[dict[str, int] | None, int | None]:
    """The stages that cells bear, by their paths, numbered through all segments; and how many segments there are.

    None and None of a network whose cells bear none.

    Raises:
        StageError: a stage that is none of the context's, or one that no cell bears.
    """
    stages = parallel.pipeline_stages
    borne = list(_borne(network, stages))
    if not borne:
        return None, None
    chunks = 1 + max(segment for _, _, segment in borne)
    v_shaped = schedule_kind(schedule_of(parallel, None)[0]).v_shaped
    numbers = {cell: _number(stage, segment, stages, v_shaped) for cell, stage, segment in borne}
    missing = sorted(set(range(stages * chunks)) - set(numbers.values()))
    if missing:
        words = [_words(number, stages, chunks, v_shaped) for number in missing]
        known = ", ".join(dict.fromkeys(f"{stage}{at(_source(cell, STAGE))}" for cell, stage, _ in borne))
        raise StageError(
            f"pipeline_stages is {stages}, but no cell is given to {' or '.join(words)}; cells are given to stage "
            f"{known}"
        )
    return {cell.path: number for cell, number in numbers.items() if cell.path}, chunks


def _borne(network: Any, stages: int) -> Iterator[tuple[Cell, int, int]]:
    """Cells with their stages and segments."""
    for name, cell in network.cells_and_names() if isinstance(network, Cell) else ():
        stage, segment = getattr(cell, STAGE, None), getattr(cell, SEGMENT, None)
        if stage is None and segment is None:
            continue
        what = f"{cell.path or name or type(cell).__name__}"
        if stage is None:
            raise StageError(f"{what}.{SEGMENT}{at(_source(cell, SEGMENT))} is set, but no {STAGE}; set both")
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage < stages:
            raise StageError(
                f"{what}.{STAGE} is {stage!r}{at(_source(cell, STAGE))}, but pipeline_stages is {stages}: stages are "
                f"0 to {stages - 1}"
            )
        if segment is not None and (isinstance(segment, bool) or not isinstance(segment, int) or segment < 0):
            raise StageError(
                f"{what}.{SEGMENT} is {segment!r}{at(_source(cell, SEGMENT))}; segments are whole numbers from 0 on"
            )
        yield cell, stage, segment or 0


def _source(cell: Cell, label: str) -> object:
    return cell.annotation_sources.get(label)


def _number(stage: int, segment: int, stages: int, v_shaped: bool) -> int:
    """The place of a group's segment in the order of the forward pass; in V form every other segment goes back."""
    back = v_shaped and segment % 2
    return segment * stages + (stages - 1 - stage if back else stage)


def _words(number: int, stages: int, chunks: int, v_shaped: bool) -> str:
    segment, place = divmod(number, stages)
    stage = stages - 1 - place if v_shaped and segment % 2 else place
    return f"stage {stage}" if chunks == 1 else f"stage {stage} of segment {segment}"
