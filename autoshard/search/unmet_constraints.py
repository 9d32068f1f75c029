"""Constraints that a plan does not meet: named plans, saved plans and some modes go their own way."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.layout.layout import Layout
from autoshard.layout.sharding import Sharding
from autoshard.plan.plan import Plan
from autoshard.search.constraints import dividing_layout, permits, satisfies
from autoshard.search.problem import Problem


def unmet_constraints(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Names of configured operators, inputs and outputs that the plan does not split as asked, in graph order."""
    if plan.mesh is not problem.mesh and problem.elsewhere is not None:
        problem = problem.elsewhere(plan.mesh)  # the mode chose the mesh
    return tuple(dict.fromkeys((*_operators(problem, plan), *_inputs(problem, plan), *_outputs(problem, plan))))


def _operators(problem: Problem, plan: Plan) -> Iterator[str]:
    for node in problem.graph.nodes:
        found, asked = plan.decisions.get(node), problem.annotated.get(node)
        if found is None or (asked is None or found.strategy.axes == asked.axes) and permits(node, found.strategy):
            continue
        yield node.label


def _inputs(problem: Problem, plan: Plan) -> Iterator[str]:
    for value in problem.graph.inputs:
        given, asked, found = problem.given.get(value), problem.asked.get(value), plan.layouts.get(value)
        if found is None:
            continue
        if given is not None and found is not given or not _as_asked(found, asked, value.type.shape):
            yield f"input {value.name}"


def _outputs(problem: Problem, plan: Plan) -> Iterator[str]:
    for i, (layout, asked) in enumerate(zip(plan.outputs, problem.asked_outputs, strict=False)):
        if not _as_asked(layout, asked, problem.graph.outputs[i].type.shape):
            yield f"output {i}"


def _as_asked(found: Layout, asked: Sharding | None, shape: tuple[int, ...]) -> bool:
    if asked is None or asked.mesh is not found.mesh or not satisfies(dividing_layout(asked, shape), asked):
        return True
    return satisfies(found, asked)
