"""Mode "auto": also chooses the shape of the mesh, over all factorizations of the device count.

Each shape, up to so many axes, sizes in every order (the last axis joins the nearest devices), is planned with another
mode, and the cheapest plan under the evaluator is taken; of equal ones that with fewest axes. `plan.compared` has the
seconds of every shape. Of devices in so many shapes that they take longer than ENOUGH, those with few axes of like
sizes come first, and the plan tells how many were looked at.

Options: `mode`, what plans each shape (default "sharding_propagation"); `axes`, how many at most (default 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from autoshard.core.enumerate import divisors
from autoshard.cost.evaluate import plan_seconds
from autoshard.ir.graph import walk
from autoshard.layout.mesh import Mesh
from autoshard.plan.plan import Plan
from autoshard.search.constraints import is_constraint
from autoshard.search.exact.over_mesh_cuts import affords_all_cuts
from autoshard.search.flat import Search
from autoshard.search.memory_limit import keeps_limit
from autoshard.search.mesh_cuts import MeshCuts
from autoshard.search.problem import Problem
from autoshard.search.program_price import cheapest, retold
from autoshard.search.registry import find_mode, search_mode
from autoshard.util.clock import now
from autoshard.util.errors import PlanError
from costmodel import format_seconds

NAME, MODE, AXES = "auto", "mode", "axes"
MOST_AXES = 3
ENOUGH = 20.0
"""Seconds for all shapes together: one that would take longer than is left, as the slowest so far, is not planned."""
_NAMES = "abcdefghijklmnop"


@search_mode(NAME, regions=True, options=(MODE, AXES), keeps_limit=True)
def auto(problem: Problem) -> Plan:
    """The cheapest plan over the shapes of the mesh.

    Raises:
        PlanError: a mesh that people fixed, as by shardings on its axes; or an option that it does not have.
        AutoshardError: as the mode that plans each shape.
    """
    inner, axes = _options(problem)
    again = _elsewhere(problem)
    search = find_mode(inner)
    found: dict[str, Plan] = {}
    seconds: dict[str, float] = {}
    fitting: list[str] = []
    every, end, slowest = list(shapes(problem.mesh.devices, axes)), now() + ENOUGH, 0.0
    for mesh in sorted(every, key=lambda mesh: (len(mesh.axes), max(mesh.sizes.values(), default=1))):
        began = now()
        if began + slowest > end:
            break
        one = again(mesh)
        plan = search(replace(one, thrifty=len(every) > 1))
        found[str(mesh)], seconds[str(mesh)] = plan, plan_seconds(plan, problem.prices)
        fitting += [str(mesh)] if keeps_limit(one, plan) else []  # if none does, what is missing can be told
        slowest = max(slowest, now() - began)
    best = min(fitting or found, key=lambda shape: seconds[shape])
    told = ", ".join(f"{shape} {format_seconds(cost)}" for shape, cost in seconds.items())
    plan = _thorough(again, search, found[best])
    these = "these" if len(found) == len(every) else f"these {len(found)} of {len(every)}, for which there was time"
    started = f"{inner} on the mesh {best}, of {these}: {told}; {plan.started_from}"
    return retold(plan, search=NAME, started_from=started, compared=seconds)


def _thorough(again: Callable[[Mesh], Problem], search: Search, plan: Plan) -> Plan:
    """The plan of the best shape, looked for once more with what there was no time for, if it is worth while."""
    problem = again(plan.mesh)
    if not affords_all_cuts(problem) or MeshCuts(problem).is_whole:
        return plan
    return cheapest(problem, (plan, search(problem)))


def shapes(devices: int, axes: int = MOST_AXES) -> Iterator[Mesh]:
    """The flat mesh, then all meshes of as many devices whose axes, two or more, have sizes above 1."""
    yield Mesh.flat(devices)
    for count in range(2, axes + 1):
        for sizes in _factorizations(devices, count):
            yield Mesh(zip(_NAMES, sizes, strict=False))


def _factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered ways to write a number as a product of that many factors above 1."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for first in reversed(divisors(number)):
        if 1 < first < number:
            yield from ((first, *rest) for rest in _factorizations(number // first, count - 1))


def _options(problem: Problem) -> tuple[str, int]:
    inner, axes = problem.options.get(MODE, "sharding_propagation"), problem.options.get(AXES, MOST_AXES)
    if inner == NAME:
        raise PlanError(
            f"search mode {NAME}: its option {MODE} is {inner!r} itself; name the mode that plans each shape"
        )
    try:
        count = int(axes)
    except (TypeError, ValueError):
        count = 0
    if isinstance(axes, bool) or not 1 <= count <= len(_NAMES):
        raise PlanError(
            f"search mode {NAME}: its option {AXES} is {axes!r}; give how many axes a mesh may have, 1 or more"
        )
    return inner, count


def _passed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that go on to the mode that plans a shape."""
    return {name: value for name, value in options.items() if name not in (MODE, AXES)}


def _elsewhere(problem: Problem) -> Callable[[Mesh], Problem]:
    """What makes the same problem on another mesh, with what the mode that plans a shape is asked besides."""
    devices, elsewhere, options = problem.mesh.devices, problem.elsewhere, _passed(problem.options)
    if elsewhere is None or problem.mesh is not Mesh.flat(devices):
        raise PlanError(
            f"search mode {NAME} chooses the mesh, but '{problem.mesh}' is given for {problem.graph.name!r}; leave "
            f"mesh out and give devices={devices}, or name another mode"
        )
    constrained = [node.label for node in walk(problem.graph.nodes) if is_constraint(node)]
    asked = [value.name for value in problem.asked] + constrained
    if asked or any(problem.asked_outputs):
        what = ", ".join(asked[:3]) or "an output"
        raise PlanError(
            f"search mode {NAME} chooses the mesh, but shardings name its axes ({what} of {problem.graph.name!r}); "
            "leave the shardings out, or give the mesh and name another mode"
        )
    return lambda mesh: replace(elsewhere(mesh), options=options)
