"""The memory of plans and its limit: the model that searches go by, and whether a plan or its program keeps the limit.

What a plan needs says the model (`cost/memory.py`), or its program where that needs less. Where nobody gave a limit
what the hardware says of a device is kept to if it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from autoshard.cost.memory import MemoryModel, MemoryUse, ModelBuilder, Part, memory_of, peak_memory, result_part
from autoshard.cost.program_memory import program_memory, program_peak
from autoshard.ir.graph import Graph, Node
from autoshard.plan.plan import Plan
from autoshard.search.exact.over_mesh_cuts import SMALL_NODES
from autoshard.search.problem import Problem
from autoshard.search.program_price import limited_program, lowered
from autoshard.util.errors import MemoryLimitError, PlanError
from costmodel import format_bytes, parse_bytes

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


# -- what a plan needs


def memory_model(problem: Problem) -> MemoryModel:
    """The terms of a problem: a plan's peak is the largest row under the plan's choices."""

    def left(node: Node, i: int) -> Part:
        annotation = problem.annotations.get(node)
        if annotation is None or annotation.out_strategy is None:
            return result_part(node, i)
        return Part(node, lambda strategy: problem.left(node, strategy)[i], ("left", node, i))

    pinned = {node for node, one in problem.annotations.items() if one.out_strategy is not None}
    return ModelBuilder(problem.graph, left, None, pinned).build()


def memory_needed(problem: Problem, plan: Plan) -> int:
    """Bytes that a device needs for a plan: by the model that searches go by, or by its program where the model is over
    the limit and the program needs less. Passes, which take long to find out what fits, are asked where it does before
    them."""
    limit, most = problem.limit, peak_memory(plan)
    if limit is None or most <= limit:
        return most
    before = program_peak(lowered(plan))
    return min(most, before if before > limit else program_peak(limited_program(problem, plan)))


MOST_ABOVE, LARGE = 1.6, 4_000
"""How many times what its program needs the model says of a plan of so many operators at most. Of small ones, where
what an interpreter holds is much beside their tensors, it was up to twice; programs of these are made soon."""


def keeps_limit(problem: Problem, plan: Plan) -> bool:
    """Whether a device has the memory that a plan needs, as a search asks of many: of plans that are far above the
    limit no program is made."""
    limit = problem.limit
    if limit is None or (len(plan.graph.nodes) > LARGE and peak_memory(plan) > MOST_ABOVE * limit):
        return limit is None
    return memory_needed(problem, plan) <= limit


def check_limit(problem: Problem, plan: Plan) -> None:
    """Refuse a plan that needs more memory than there is.

    Raises:
        MemoryLimitError: names the step that needs most, and the largest tensors in memory then.
    """
    limit = problem.limit
    if limit is not None and memory_needed(problem, plan) > limit:
        uses = memory_of(plan), program_memory(limited_program(problem, plan), plan.graph)
        raise _over_limit(plan, min(uses, key=lambda use: use.peak), limit)


def _over_limit(plan: Plan, use: MemoryUse, limit: int) -> MemoryLimitError:
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


# -- what a device has


def fit_device_memory(mode: Callable[[Problem], Plan], problem: Problem) -> tuple[Plan, int | None]:
    """A mode's plan that needs no more memory than a device has, and the limit under which it was searched.

    Without a limit (None) where that is not known, where the cheapest plan needs less anyway, and where no plan keeps
    to it or none was found: then the cheapest of all is given, and what reads it can say what is missing.
    """
    room = problem.hardware.device.memory_bytes
    if room is None or _surely_fits(problem, room) or least_bytes(problem.graph, problem.mesh.devices) > room:
        return mode(problem), None
    # Large graphs are searched in one way, with a limit or without: most often once is enough.
    free = mode(problem) if len(problem.graph.nodes) <= SMALL_NODES else None
    if free is not None and peak_memory(free) <= room:
        return free, None
    limited = problem.within(room)
    with suppress(MemoryLimitError):
        found = mode(limited)
        if keeps_limit(limited, found):
            return found, room
    return (mode(problem) if free is None else free), None


def _surely_fits(problem: Problem, room: int) -> bool:
    """Whether a device had room for all values at once, whole, and as much again for what operators need beside."""
    values = (value for node in problem.graph.nodes for value in node.results)
    return 2 * sum(value.type.nbytes for value in (*problem.graph.inputs, *values)) <= room
