"""A plan in stages in MindSpore's forms: the lines that its user writes, and a strategy checkpoint for each stage.

MindSpore's stages lie along a common mesh: each has as many devices as the others, and cells bear the stage that they
run on, and where a stage has several pieces of the model (interleaved), their number as `pipeline_segment`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autoshard.exporters.json_text import json_text
from autoshard.exporters.mindspore import shard_line, to_checkpoint
from autoshard.ir.graph import DATA, Node
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.schedules.action import FORWARD
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically

_SCHEDULERS = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved_1f1b": "1f1b", "zbv": "zero_bubble_v"}
"""MindSpore's names of schedules."""


def stage_lines(planned: PipelineData) -> str:
    """The lines: the context, the micro batches, for each stage its cells, and `shard(...)` of its operators.

    Operators are those of the forward pass; MindSpore makes the others. A cell that the plan cuts bears no stage, which
    a comment says: cut by cells (`--stage`) for MindSpore.

    Raises:
        PlanError: groups of unlike meshes, or a schedule that MindSpore has not.
    """
    return "\n".join(_lines(planned)) + "\n"


def save_strategies(planned: PipelineData, folder: str | Path) -> list[Path]:
    """Write a strategy checkpoint for each stage, `strategy_0.json` and so on, into a folder; the files.

    Raises:
        PlanError: groups of unlike meshes, a layout that MindSpore cannot say, or a file that cannot be written.
    """
    _check_groups(planned)
    texts = [json_text(_checkpoint(planned, rank)) for rank in range(len(planned.groups))]
    return [
        write_atomically(Path(folder) / f"strategy_{rank}.json", text, PlanError, folders=True)
        for rank, text in enumerate(texts)
    ]


def _checkpoint(planned: PipelineData, rank: int) -> dict:
    """What all pieces of the model say that one of MindSpore's stages runs."""
    graph, found = planned.graph, {}
    for stage in planned.schedule.chunks(rank):
        held = [value for value in planned.plans[stage].graph.inputs if graph.role_of.get(value, DATA) != DATA]
        one = to_checkpoint(planned.plans[stage], rank, _forward(planned, stage), held)
        for key, items in one.items():
            found[key] = {**found.get(key, {}), **items} if isinstance(items, dict) else items
    return found


def _lines(planned: PipelineData) -> Iterator[str]:
    _check_groups(planned)
    order = planned.schedule
    if order.name not in _SCHEDULERS:
        raise PlanError(f"MindSpore has no schedule like {order.name or 'this one'}; it has {', '.join(_SCHEDULERS)}")
    config = {"pipeline_interleave": order.stages > order.ranks, "pipeline_scheduler": _SCHEDULERS[order.name]}
    yield (
        f"set_auto_parallel_context(device_num={planned.devices}, pipeline_stages={order.ranks}, "
        f"pipeline_config={config!r})"
    )
    yield f"net = PipelineCell(net, {order.micro_batches})"
    cells = _cells({node.label: stage for stage in range(planned.stages) for node in _forward(planned, stage)})
    for stage in range(planned.stages):
        rank = order.ranks_of_stages[stage]
        yield f"# stage {rank}" + (f", segment {order.chunks(rank).index(stage)}" if order.stages > order.ranks else "")
        for cell in (cell for cell, its in cells.items() if its == stage):
            yield f"{cell}.pipeline_stage = {rank}"
            if order.stages > order.ranks:
                yield f"{cell}.pipeline_segment = {order.chunks(rank).index(stage)}"
        for node in _forward(planned, stage):
            if "." in node.label and not any(node.label.startswith(f"{cell}.") for cell in cells):
                yield f"# the cell of {node.label} is cut in two by this plan, and bears no stage"
            yield shard_line(planned.plans[stage], node)


def _check_groups(planned: PipelineData) -> None:
    meshes = list(dict.fromkeys(str(group.mesh) for group in planned.groups))
    if len(meshes) > 1:
        raise PlanError(f"MindSpore's stages lie on equal meshes, but this plan has {'; '.join(meshes)}")


def _forward(planned: PipelineData, stage: int) -> Sequence[Node]:
    piece = planned.graphs[stage].pieces.get(FORWARD)
    return piece.graph.nodes if piece is not None else ()


def _cells(stages: Mapping[str, int]) -> dict[str, int]:
    """The outermost cells all of whose operators are of one stage, by the operators' names.

    >>> _cells({"layers.0.matmul": 0, "layers.0.add": 0, "layers.1.up.matmul": 0, "layers.1.down.matmul": 1, "relu": 0})
    {'layers.0': 0, 'layers.1.up': 0, 'layers.1.down': 1}
    """
    inside: dict[str, set[int]] = {}
    for name, stage in stages.items():
        words = name.split(".")
        for count in range(1, len(words)):
            inside.setdefault(".".join(words[:count]), set()).add(stage)
    found: dict[str, int] = {}
    for cell, its in inside.items():
        outer = any(cell.startswith(f"{one}.") for one in found)
        if len(its) == 1 and not outer and not _is_list(cell, inside):
            found[cell] = next(iter(its))
    return found


def _is_list(cell: str, inside: Mapping[str, set[int]]) -> bool:
    """Whether it is a list of cells, which bears no stage itself."""
    return any(one.rpartition(".")[0] == cell and one.rpartition(".")[2].isdecimal() for one in inside)
