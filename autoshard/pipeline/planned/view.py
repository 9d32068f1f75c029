"""The page of a plan in stages: the schedule, what each group of devices does and holds, and the plan of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.exporters.plan_json import to_json
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import Busy, PipelinePrice
from autoshard.pipeline.planned.programs import Route
from autoshard.pipeline.planned.report import to_json as stages_to_json
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
    stages = [to_json(planned.stage_planned(number), everything=True) for number in range(planned.stages)]
    shown = {form: text for form, text in exports.items() if 0 < len(text) <= MOST_EXPORTED}
    data = {"plans": stages, "difference": None, "exports": [shown], "pipeline": _record(planned, price)}
    most = max(one.nbytes for one in price.memory)
    told = (
        f"{planned.graph.name} on {planned.described_devices}: a step takes {format_seconds(price.seconds)}, "
        f"a device needs {format_bytes(most)}"
    )
    return View(data, f"{planned.graph.name} in {planned.stages} stages", told)


def _record(planned: PipelineData, price: PipelinePrice) -> dict[str, Any]:
    """All that the page shows of the pipeline as a whole."""
    actions = sum(map(len, planned.schedule.orders))
    shown = actions <= MOST_ACTIONS
    return {
        **stages_to_json(planned),
        "name": planned.graph.name,
        "hardware": planned.hardware_label,
        "devices": planned.devices,
        "group_memory_bytes": [planned.room(number) for number in range(planned.schedule.ranks)],
        "largest": [[list(pair) for pair in one.largest] for one in price.memory],
        "count": actions,
        "actions": in_columns(list(map(_busy, price.busy)) if shown else []),
        "held": [_held(price, group) for group in range(planned.schedule.ranks)] if shown else [],
        "transfers": in_columns([_transfer(price, route) for route in price.crossing]),
    }


def _busy(one: Busy) -> dict[str, Any]:
    """What a group does, for the page."""
    found: dict[str, Any] = {"group": one.group, "start": one.start, "seconds": one.end - one.start}
    if one.action is None:
        return {**found, "kind": one.kind}
    return {**found, "kind": one.kind, "stage": one.action.stage, "micro": one.action.micro}


def _held(price: PipelinePrice, group: int) -> list[tuple[float, int]]:
    """What a device of a group needs in all, and from when on."""
    memory = price.memory[group]
    always = memory.states + memory.accumulators + memory.transient
    return [(start, always + size) for start, size in price.held[group]]


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
