"""The memory limit of a device: read from text, and held against a plan's memory by the model (`memory.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autoshard.cost.memory import MemoryUse
from autoshard.ir.graph import Graph
from autoshard.plan.plan import Plan
from autoshard.util.errors import MemoryLimitError, PlanError
from costmodel import format_bytes, parse_bytes

MEMORY = "memory"
"""The name of the limit among a problem's options."""

_BIGGEST = 5


def read_limit(given: Any, what: str = "memory") -> int | None:
    """Bytes from "80 GiB", "80GB" or a whole number; None stands for no limit.

    Raises:
        PlanError: anything else.
    """
    if given is None:
        return None
    try:
        return parse_bytes(given)
    except ValueError as error:
        raise PlanError(f"{what}: {error}") from None


def least_bytes(graph: Graph, devices: int) -> int:
    """What each device needs at least under any plan: its part of all inputs, split as evenly as can be."""
    return math.ceil(sum(value.type.nbytes for value in graph.inputs) / devices)


def check_room(graph: Graph, devices: int, limit: int) -> None:
    """Refuse, before any search, a limit that no plan can keep.

    Raises:
        MemoryLimitError: names what inputs take at least on each device, the largest of them, and how many devices have
            room for them.
    """
    least = least_bytes(graph, devices)
    if least <= limit:
        return
    inputs = sorted(graph.inputs, key=lambda one: -one.type.nbytes)
    held = _listed([f"{graph.role_of[one]} {one.name} {format_bytes(one.type.nbytes)}" for one in inputs])
    room = f"{math.ceil(least * devices / limit)} devices have room for them" if limit > 0 else "no device has room"
    raise MemoryLimitError(
        f"any plan of {graph.name!r} is over the memory limit of {_exact(limit)} by {_exact(least - limit)} or more: "
        f"its inputs, split evenly over {devices} devices, need {_exact(least)} of each (whole: {held}); {room}",
        needed=least,
        limit=limit,
    )


def over_limit(plan: Plan, use: MemoryUse, limit: int) -> MemoryLimitError:
    """The error of a plan that needs more memory than there is: where that is, and the largest tensors there."""
    held = _listed([f"{one.kind} {one.what} {format_bytes(one.nbytes)}" for one in use.at(use.peak_moment)])
    advice = "" if plan.search == "optimal" else "; search='optimal' looks for the fastest plan that keeps the limit"
    return MemoryLimitError(
        f"the plan of {plan.search!r} for {plan.graph.name!r} is over the memory limit of {_exact(limit)} by "
        f"{_exact(use.peak - limit)}: at {use.peak_at} a device holds {_exact(use.peak)} ({held}){advice}",
        needed=use.peak,
        limit=limit,
    )


def _listed(held: Sequence[str]) -> str:
    shown = ", ".join(held[:_BIGGEST])
    return f"{shown} and {len(held) - _BIGGEST} more" if len(held) > _BIGGEST else shown


def _exact(nbytes: int) -> str:
    """Rounded, and to the byte: limits are kept exactly."""
    return f"{format_bytes(nbytes)} ({nbytes} B)"
