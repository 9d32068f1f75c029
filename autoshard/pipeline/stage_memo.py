"""Plans of stages, each searched for once: those of equal layers, and of many pipelines, are often the same problem.

Two problems are the same if their graphs are but for names, and people asked the same. The plan of one is then the
plan of the other, in its names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace

from autoshard.ir.graph import Graph, Value
from autoshard.plan.plan import Cause, Decision, Plan
from autoshard.search.problem import Problem


class StageMemo:
    """The plans of problems that one mode has solved, to be asked for by what the problems are."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Plan] = {}

    def plan(self, problem: Problem, search: Callable[[Problem], Plan], more: Hashable = None) -> Plan:
        """The plan of a problem: that of an equal one in the names of this one, if there was one, else a search's.

        Args:
            more: what the search goes by besides.
        """
        key = problem_key(problem)
        key = None if key is None else (key, more)
        known = None if key is None else self._known.get(key)
        if known is not None:
            return renamed(known, problem.graph)
        found = search(problem)
        if key is not None and found.graph is problem.graph:  # one of another graph is not told in names of this one
            self._known[key] = found
        return found


def problem_key(problem: Problem) -> Hashable | None:
    """What a problem has in common with equal ones; None of one with loops or branches, or of which people configured
    operators: these bear names in what is told of them."""
    graph = problem.graph
    if problem.annotations or problem.fixed or graph.functions or any(node.regions for node in graph.nodes):
        return None
    number = {value: i for i, value in enumerate(_values(graph))}
    inputs = tuple((one.type, graph.role_of[one], problem.asked.get(one)) for one in graph.inputs)
    nodes = tuple((node.key, node.is_custom, tuple(number[one] for one in node.operands)) for node in graph.nodes)
    outputs = tuple(number[one] for one in graph.outputs)
    gradients = frozenset((number[one], number[of]) for one, of in graph.cotangents.items())
    updates, options = frozenset(graph.updates.items()), frozenset(problem.options.items())
    return problem.mesh, problem.hardware, problem.passes, options, inputs, nodes, outputs, updates, gradients


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.results


def renamed(plan: Plan, graph: Graph) -> Plan:
    """The plan of a graph that is equal but for names."""
    if plan.graph is graph:
        return plan
    values = dict(zip(_values(plan.graph), _values(graph), strict=True))
    nodes = dict(zip(plan.graph.nodes, graph.nodes, strict=True))
    names = {of.name: one.name for of, one in values.items()} | {of.label: one.label for of, one in nodes.items()}
    return replace(
        plan,
        graph=graph,
        decisions={one: _told(plan.decisions[of], names) for of, one in nodes.items()},
        layouts={one: plan.layouts[of] for of, one in values.items()},
        input_causes={values[of]: _cause(cause, names) for of, cause in plan.input_causes.items()},
    )


def _told(decision: Decision, names: Mapping[str, str]) -> Decision:
    cause = _cause(decision.cause, names)
    return decision if cause is decision.cause else replace(decision, cause=cause)


def _cause(cause: Cause, names: Mapping[str, str]) -> Cause:
    neighbours = tuple(names.get(one, one) for one in cause.neighbours)
    return cause if neighbours == cause.neighbours else replace(cause, neighbours=neighbours)
