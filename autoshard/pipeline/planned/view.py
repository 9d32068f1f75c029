"""The page of a plan in stages: the schedule, what each group of devices does and holds, and the plan of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.exporters.plan_json import to_json
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import PipelinePrice, Route, live_activations
from autoshard.pipeline.planned.report import to_json as stages_to_json
from autoshard.pipeline.schedules.action import Action
from autoshard.search.planned import PlannedData
from autoshard.view.packed import in_columns
from autoshard.view.page import MOST_EXPORTED, View
from costmodel import format_bytes, format_seconds

MOST_ACTIONS = 50_000
"""Actions that a page shows at most; of longer schedules it has the figures alone."""


def pipeline_view(planned: PipelineData, exports: Mapping[str, str]) -> View:
    """A page to look at it: who does what when, what each group holds, what crosses, and how each stage is split.

    Args:
        exports: what to take away, by the name of the form.
    """
    price = PipelinePrice(planned)
    stages = [to_json(_stage(planned, number), everything=True) for number in range(planned.stages)]
    shown = {form: text for form, text in exports.items() if 0 < len(text) <= MOST_EXPORTED}
    data = {"plans": stages, "difference": None, "exports": [shown], "pipeline": _record(planned, price)}
    most = max(one.nbytes for one in price.memory)
    told = (
        f"{planned.graph.name} on {planned.described_devices}: a step takes {format_seconds(price.seconds)}, "
        f"a device needs {format_bytes(most)}"
    )
    return View(data, f"{planned.graph.name} in {planned.stages} stages", told)


def _stage(planned: PipelineData, number: int) -> PlannedData:
    """What a stage does for one micro batch and once in a step, as one program."""
    return PlannedData(planned.traced, planned.plans[number], planned.stage_hardware[number], planned.passes)


def _record(planned: PipelineData, price: PipelinePrice) -> dict[str, Any]:
    """All that the page shows of the pipeline as a whole."""
    actions = sum(map(len, planned.schedule.orders))
    shown = actions <= MOST_ACTIONS
    return {
        **stages_to_json(planned),
        "name": planned.graph.name,
        "hardware": planned.hardware.name,
        "devices": planned.devices,
        "group_memory_bytes": [_room(planned, number) for number in range(planned.schedule.ranks)],
        "largest": [[list(pair) for pair in one.largest] for one in price.memory],
        "count": actions,
        "actions": in_columns(list(_actions(price)) if shown else []),
        "held": [list(_held(planned, price, number)) for number in range(planned.schedule.ranks)] if shown else [],
        "transfers": in_columns([_transfer(price, route) for route in price.crossing]),
    }


def _room(planned: PipelineData, number: int) -> int:
    """Bytes of a device of a group."""
    return min(planned.stage_hardware[stage].device.memory_bytes for stage in planned.schedule.chunks(number))


def _actions(price: PipelinePrice) -> Iterator[dict[str, Any]]:
    """What each group does when, in seconds from the begin of the step."""
    line, begin = price.timeline, max(price.before)
    for group, order in enumerate(line.orders):
        end = begin
        if price.before[group]:
            yield {"group": group, "kind": "once before", "start": 0.0, "seconds": price.before[group]}
        for action in order:
            if action.computes:
                start, end = begin + float(line.starts[action]), begin + float(line.ends[action])
                what = {"kind": str(action.kind), "stage": action.stage, "micro": action.micro}
                yield {"group": group, **what, "start": start, "seconds": end - start}
        if price.updates[group]:
            yield {"group": group, "kind": "update", "start": end, "seconds": price.updates[group]}


def _held(planned: PipelineData, price: PipelinePrice, number: int) -> Iterator[tuple[float, int]]:
    """What a device of a group needs from the begin of each action on: seconds, and bytes."""
    line, begin, memory = price.timeline, max(price.before), price.memory[number]
    always = memory.states + memory.accumulators + memory.transient
    most: dict[Action, int] = {}
    for action, size, _ in live_activations(planned, number):
        most[action] = max(size, most.get(action, 0))
    for action, size in most.items():
        yield begin + float(line.starts[action]), always + size


def _transfer(price: PipelinePrice, route: Route) -> dict[str, Any]:
    """What goes from one group to another, of one micro batch or once in a step."""
    return {
        "value": route.value.name,
        "type": str(route.value.type),
        "source": route.source[0],
        "target": route.stage,
        "from": str(route.before.layout),
        "to": str(route.after.layout),
        "bytes": route.value.type.nbytes,
        "seconds": price.moving(route),
        "repeated": route.is_repeated,
    }
