"""Plans that devices have room for, where nobody gave a memory limit: what the hardware says of them is kept to if it
can be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from autoshard.cost.memory import peak_memory
from autoshard.plan.plan import Plan
from autoshard.search.exact.over_mesh_cuts import SMALL_NODES
from autoshard.search.memory_limit import MEMORY, least_bytes
from autoshard.search.problem import Problem
from autoshard.search.program_price import keeps_limit
from autoshard.util.errors import MemoryLimitError


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
    limited = replace(problem, options={**problem.options, MEMORY: room})
    with suppress(MemoryLimitError):
        found = mode(limited)
        if keeps_limit(limited, found):
            return found, room
    return (mode(problem) if free is None else free), None


def _surely_fits(problem: Problem, room: int) -> bool:
    """Whether a device had room for all values at once, whole, and as much again for what operators need beside."""
    values = (value for node in problem.graph.nodes for value in node.results)
    return 2 * sum(value.type.nbytes for value in (*problem.graph.inputs, *values)) <= room
