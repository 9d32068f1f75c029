"""`torch-pipelining`: the folder of `torch-stages` whose stages are modules that `torch.distributed.pipelining` runs.

torch hands activations from each rank of a stage to the same rank of the next one, and gradients back; what skips
stages goes through those in between. A plan that asks for more is refused, with what it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autoshard.engines.extras import need
from autoshard.engines.standalone_stages import SentBox, Wire
from autoshard.ir.graph import DATA, PARAMETER, Value
from autoshard.pipeline.exports.module_text import RUNTIME
from autoshard.pipeline.exports.one_device import WholePart
from autoshard.pipeline.exports.stage_spec import StagesSpec, sent_boxes
from autoshard.pipeline.exports.torch_stages import StageFolder
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Ready, Route
from autoshard.pipeline.schedules.action import FORWARD, INPUT_GRADIENT
from autoshard.pipeline.stages.cut import KINDS
from autoshard.pipeline.stages.whole import ONCE
from autoshard.pipeline.transfers.deal import GroupLayout, deal
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.transform.micro.forms import MicroPartial
from autoshard.transform.simplify import reading
from autoshard.util.errors import PlanError

PIPELINING = (*RUNTIME, "standalone_stages_modules", "standalone_stages_pipeline")


def save_torch_pipelining(planned: PipelineData, folder: str | Path) -> list[Path]:
    """Write the modules of a plan in stages, and what has torch run them, into a folder; the files.

    Raises:
        RuntimeSetupError: torch is not installed.
        PlanError: stages that torch.distributed.pipelining does not run, with the first reason; an operator that torch
            lacks; or a file that cannot be written.
    """
    need("torch", "code of torch")
    reason = next(_reasons(planned), None)
    if reason is not None:
        raise PlanError(f"torch.distributed.pipelining does not run this plan: {reason}; take --to torch-stages")
    terms, loss = _loss(planned)
    spec = StagesSpec(planned, True, _gradients(planned), _wires(planned), terms, loss)
    return StageFolder(spec, "main_pipelining", PIPELINING).write(folder)


def _gradients(planned: PipelineData) -> dict[Value, str]:
    """The values of micro batches that add up to gradients of parameters, with the names of these."""
    step, graph = planned.whole.pipeline.step, planned.graph
    found = {}
    for value, (one, form) in step.body.outputs.items():
        of = graph.cotangents.get(value)
        if isinstance(form, MicroPartial) and of is not None and graph.role_of.get(of) == PARAMETER:
            found[one] = of.name
    return found


def _loss(planned: PipelineData) -> tuple[tuple[int, ...], WholePart | None]:
    """Which outputs of the last stage's forward pass add up to what the loss is made of, and what makes it of these.

    The loss is the first result that is one number. Of no outputs there is none.
    """
    graph, step = planned.graph, planned.whole.pipeline.step
    ready = planned.programs.pieces[planned.stages - 1, FORWARD]
    results = (value for i, value in enumerate(graph.outputs) if i not in graph.updates and not value.type.shape)
    loss = next(results, None)
    if loss is None:
        return (), None
    sums = {value: one for value, (one, form) in step.body.outputs.items() if isinstance(form, MicroPartial)}
    if sums.get(loss) in ready.outputs:
        return (ready.outputs.index(sums[loss]),), None
    data = planned.whole.from_data
    needed, nodes = {loss}, []
    for node in reversed((*(one for one in step.before if one not in data), *step.after)):
        if needed.intersection(node.results):
            nodes.append(reading(node, sums))
            needed.update(node.uses)
    part = WholePart.of("loss", nodes[::-1], (loss,))
    there = {value for node in data for value in node.results} | {v for v in graph.inputs if graph.role_of[v] == DATA}
    terms = [value for value in part.graph.inputs if value not in there] if part is not None else []
    if part is None or any(value.type.shape or value not in ready.outputs for value in terms):
        return (), None
    return tuple(map(ready.outputs.index, terms)), part


def _reasons(planned: PipelineData) -> Iterator[str]:
    """Why torch does not run the stages."""
    sizes = {len(group.ranks) for group in planned.groups}
    if len(sizes) > 1:
        yield f"its groups have {', '.join(map(str, sorted(sizes)))} ranks, not the same number"
    if not _loss(planned)[0]:
        yield "its last stage returns no number that is a loss"
    yield from _routes_that_do_not_go(planned)
    yield from _gradients_that_come_back_otherwise(planned)
    yield from _parameters_that_are_not_learned(planned)
    yield from _rows_of_parameters(planned)


def _routes_that_do_not_go(planned: PipelineData) -> Iterator[str]:
    for route in _crossing(planned):
        (source, kind), target = route.source, route.stage
        if kind != (FORWARD if source < target else INPUT_GRADIENT):
            yield f"{route.value.name} goes from stage {source} to stage {target}, but is no activation or its gradient"


def _crossing(planned: PipelineData) -> Iterator[Route]:
    """The routes of micro batches from stage to stage."""
    for route in planned.programs.routes:
        if route.source[0] != route.stage and route.is_repeated:
            yield route


def _gradients_that_come_back_otherwise(planned: PipelineData) -> Iterator[str]:
    for one, place in _places(planned).items():
        if place is None:
            reader = f"stage {one.source[0]}"
            yield f"{one.value.name} goes back to stage {one.stage}, which gives {reader} nothing of its shape and type"


def _places(planned: PipelineData) -> dict[Route, Route | None]:
    """For each gradient that goes back the value in whose place it does: torch gives each value one gradient. It is one
    that the stage makes to which the gradient goes, else one that goes through that stage."""
    crossing = list(_crossing(planned))
    found: dict[Route, Route | None] = {one: None for one in crossing if one.source[1] == INPUT_GRADIENT}
    for is_through in (False, True):
        for one in (one for one, place in found.items() if place is None):
            same = (
                other
                for other in crossing
                if other.source[1] == FORWARD and other.stage == one.source[0]
                if (other.source[0] < one.stage if is_through else other.source[0] == one.stage)
                if other.value.type == one.value.type and other not in found.values()
            )
            found[one] = next(same, None)
    return found


def _wires(planned: PipelineData) -> dict[int, Wire]:
    """How values go from each rank to the rank of the same place: as they are made; gradients as what they go back for
    came, so that torch finds a block of the same shape."""
    places, found = _places(planned), {}
    for route in _crossing(planned):
        place = places.get(route)
        wire = route.before if place is None else place.before
        before, after = (
            _exchange(_on(route.before.group, route.before), _on(route.before.group, wire)),
            _exchange(_on(route.after.group, wire), route.after),
        )
        found[route.number] = Wire(wire.local, before, after, None if place is None else place.number)
    return found


def _on(group: RankGroup, lies: GroupLayout) -> GroupLayout:
    """The same on the ranks of another group."""
    return replace(lies, group=RankGroup(lies.layout.mesh, group.ranks))


def _exchange(before: GroupLayout, after: GroupLayout) -> tuple[SentBox, ...] | None:
    """What the ranks of one group send each other; None if each has the very block that it wants."""
    places = range(len(after.group.ranks))
    if before.local == after.local and all(before.start(place) == after.start(place) for place in places):
        return None
    return sent_boxes(deal(before, after), before.group.ranks, after.group.ranks)


def _parameters_that_are_not_learned(planned: PipelineData) -> Iterator[str]:
    """Parameters that an update replaces, of which no stage alone makes the gradient in the layout that they have."""
    known, graph = _gradients(planned), planned.graph
    updated = {value.name for i, value in enumerate(graph.inputs) if i in graph.updates.values()}
    made: dict[str, list[int]] = {}
    for (stage, kind), ready in planned.programs.pieces.items():
        for value, register in zip(ready.outputs, ready.program.outputs, strict=True):
            if value in known and kind in KINDS:
                made.setdefault(known[value], []).append(stage)
                layout = next(planned.plans[stage].layouts[one] for one in graph.inputs if one.name == known[value])
                if layout.dims != register.layout.dims:
                    yield f"the gradient of {known[value]} lies as [{register.layout}], the parameter as [{layout}]"
    for value in graph.inputs:
        read = sorted({place[0] for place, ready in planned.programs.pieces.items() if _reads(place[1], ready, value)})
        if graph.role_of[value] == PARAMETER and value.name in updated and read and made.get(value.name) != read:
            stages = ", ".join(map(str, read))
            yield f"parameter {value.name} is read by stage {stages}, and no stage makes all of its gradient alone"


def _reads(kind: str, ready: Ready, value: Value) -> bool:
    return (kind in KINDS or kind == ONCE) and value in ready.inputs


def _rows_of_parameters(planned: PipelineData) -> Iterator[str]:
    step, graph = planned.whole.pipeline.step, planned.graph
    there = {value for node in planned.whole.from_data for value in node.results}
    for whole, _ in step.body.slices.values():
        if whole not in there and graph.role_of.get(whole, PARAMETER) == PARAMETER:
            yield f"micro batches read rows of {whole.name}, which follow from parameters"
