"""How one value lies in a plan, in words: its layout, what makes and what reads it, and what decided that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autoshard.ir.graph import Value
from autoshard.layout.layout import Layout
from autoshard.propagate.record import Output, Place
from autoshard.propagate.work import Val

if TYPE_CHECKING:
    from autoshard.api import Planned

_STEP = "  "


def explain_planned(planned: Planned, place: Place) -> Iterator[str]:
    """The lines that tell how a place of the program lies in a plan.

    Args:
        place: a value of the working copy from which rules spread, or an output.
    """
    plan = planned.plan
    yield f"in the plan by {plan.search} on mesh {plan.mesh}:"
    if isinstance(place, Output):
        yield f"{_STEP}{_lies(plan.graph.outputs[place.index], plan.outputs[place.index])}"
        return
    value = _planned_value(planned, place)
    if value is None:
        yield f"{_STEP}it is no value of its own: it was folded into what uses it, or nothing needs it"
        return
    yield f"{_STEP}{_lies(value, plan.layouts[value])}"
    yield from _made(planned, value)
    yield from _read(planned, value)


def _planned_value(planned: Planned, place: Val) -> Value | None:
    origin = place.origin
    if origin in planned.plan.layouts:
        return origin
    name = getattr(origin, "name", None)
    return next((value for value in planned.plan.layouts if value.name == name), None)


def _lies(value: Value, layout: Layout) -> str:
    if not layout.used:
        return f"{value.name} lies whole on each device, {value.type}"
    local = value.type.with_shape(layout.local_shape(value.type.shape))
    return f"{value.name} lies as [{layout}]: a device holds {local}"


def _made(planned: Planned, value: Value) -> Iterator[str]:
    plan = planned.plan
    made = plan.graph.producers.get(value)
    if made is not None and made[0] in plan.decisions:
        decision = plan.decisions[made[0]]
        yield f"{_STEP}made by {made[0].op.name} {made[0].label} as {decision.strategy}: {decision.cause}"
    elif value in plan.input_causes:
        yield f"{_STEP}an input of the program: {plan.input_causes[value]}"


def _read(planned: Planned, value: Value) -> Iterator[str]:
    plan = planned.plan
    for node, operand in plan.graph.users.get(value, ()):
        if node not in plan.decisions:
            continue
        need = plan.strategy(node).operand_layouts[operand]
        moved = "" if need == plan.layouts[value] else f", after a redistribution to [{need}]"
        yield f"{_STEP}read by {node.op.name} {node.label} as {plan.strategy(node)}{moved}"
