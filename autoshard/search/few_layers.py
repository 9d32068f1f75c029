"""Deep models by few of their layers: the same problem with these alone, and its plans as plans of all layers.

Where all layers between the first and the last two are equal, or of few kinds that take turns, and people said the same
of each, a search over few of them weighs what a search over all would. Its plan, and others that are near, are then
compared as programs of all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Decision, Option, Plan
from autoshard.search.problem import Problem
from autoshard.transform.layers import Alike, RepeatedLayers
from autoshard.util.errors import GraphError

DEEP = 2
"""Models have to have this many times the layers that are searched over: four, more where several kinds take turns."""
MOST_CHAINS = 4
"""Chains of a model that are looked at for one to shorten, those of most operators."""


@dataclass(frozen=True, eq=False)
class FewLayers:
    """A problem, and the same one with few of its layers: `short`.

    A model may have several chains of layers, as an encoder and a decoder do: `chains` shortens one after the other.
    """

    chains: tuple[_ShorterChain, ...]
    short: Problem

    @classmethod
    def of(cls, problem: Problem) -> FewLayers | None:
        """The few layers of a problem; None where it is not deep, or its layers are not the same to plan."""
        if problem.inside or any(node.regions or not node.results for node in problem.graph.nodes):
            return None
        chains: list[_ShorterChain] = []
        short = problem
        while (chain := _ShorterChain.of(short)) is not None:
            chains.append(chain)
            short = chain.short
        return cls(tuple(chains), short) if chains else None

    @property
    def problem(self) -> Problem:
        """The problem of all layers."""
        return self.chains[0].problem

    def within(self, limit: int) -> FewLayers:
        """The same, where the few layers may need at most so many bytes on a device."""
        short = self.short.within(limit)
        short.remembered.update(self.short.remembered)
        return replace(self, short=short)

    def restricted(self, plan: Plan) -> Plan:
        """What a plan of all layers says of the few."""
        own = {node.results: decision for node, decision in plan.decisions.items()}
        graph = self.short.graph
        decisions = {node: _with_operands(own[node.results], node) for node in graph.nodes}
        layouts = {value: plan.layouts[value] for value in graph.values}
        causes = {value: plan.input_causes[value] for value in graph.inputs if value in plan.input_causes}
        return replace(
            plan,
            graph=graph,
            decisions=decisions,
            layouts=layouts,
            outputs=self.short.outputs(layouts),
            input_causes=causes,
        )

    def lifted(self, plan: Plan) -> Plan:
        """A plan of the few layers as one of all."""
        for chain in reversed(self.chains):
            plan = chain.lifted(plan)
        return plan


@dataclass(frozen=True, eq=False)
class _ShorterChain:
    """A problem, and the same one with few layers of one chain."""

    problem: Problem
    short: Problem
    alike: Alike

    @classmethod
    def of(cls, problem: Problem) -> _ShorterChain | None:
        """The chain of most operators that has layers to spare; None if none has."""
        for layers in islice(RepeatedLayers.each(problem.graph), MOST_CHAINS):
            if layers.count < DEEP * layers.fewest or layers.graph is not problem.graph:
                continue
            with suppress(GraphError):
                short = layers.only(layers.fewest)
                alike = layers.alike(short)
                if _are_same(problem, alike):
                    return cls(problem, _shortened(problem, short), alike)
        return None

    def lifted(self, plan: Plan) -> Plan:
        """A plan of the few layers of the chain as one of all."""
        graph, alike = self.problem.graph, self.alike
        layouts = {value: self._layout(plan, value) for value in graph.values}
        users = {value: graph.users[value][0][0] for value in graph.inputs if graph.users[value]}
        causes = {
            value: plan.input_causes[alike.values[value]].renamed(self._names(users[value]))
            for value in graph.inputs
            if alike.values.get(value) in plan.input_causes and value in users
        }
        return replace(
            plan,
            graph=graph,
            decisions={
                node: _with_operands(plan.decisions[alike.nodes[node]], node).renamed(self._names(node))
                for node in graph.nodes
            },
            layouts=layouts,
            outputs=self.problem.outputs(layouts),
            input_causes=causes,
            started_from=f"{alike.described}; {plan.started_from}",
        )

    def _layout(self, plan: Plan, value: Value) -> Layout:
        like = self.alike.values.get(value)
        if like is not None:
            return plan.layouts[like]
        return self.problem.input_layouts.get(value) or Layout.replicated(plan.mesh, value.type.rank)

    def _names(self, node: Node) -> Callable[[str], str]:
        """From names in the layer that a node is like to those in its own."""
        return lambda name: self.alike.told(name, node)


def _with_operands(decision: Decision, node: Node) -> Decision:
    """A decision on a node that is like this one; a sum over layers is one over as many as there are."""
    if len(node.operands) == len(decision.strategy.rule.operands):
        return decision

    def over_all(option: Option) -> Option:
        carriers = tuple(range(len(node.operands))) if option.strategy.carriers else ()
        return replace(option, strategy=replace(option.strategy, rule=node.rule, carriers=carriers))

    alternatives = tuple(map(over_all, decision.alternatives))
    return replace(decision, chosen=over_all(decision.chosen), alternatives=alternatives)


def _shortened(problem: Problem, graph: Graph) -> Problem:
    """The problem of the few layers; rules have been spread over all of them, and are not again."""
    made = {node.results: node for node in graph.nodes}

    def kept(known: Mapping[Node, Any]) -> dict[Node, Any]:
        return {made[node.results]: one for node, one in known.items() if node.results in made}

    inputs = {*graph.inputs}
    place = {value: i for i, value in enumerate(problem.graph.outputs)}
    asked = tuple(problem.asked_outputs[place[value]] for value in graph.outputs) if problem.asked_outputs else ()
    return replace(
        problem.within(None),
        graph=graph,
        annotations=kept(problem.annotations),
        fixed=kept(problem.fixed),
        given={value: one for value, one in problem.given.items() if value in inputs},
        asked={value: one for value, one in problem.asked.items() if value in inputs},
        asked_outputs=asked,
        work=None,
        elsewhere=None,
    )


def _are_same(problem: Problem, alike: Alike) -> bool:
    """Whether people said the same of everything as of what it is like."""
    of_node = {alike.nodes[node].results: _said(problem, node) for node in problem.graph.nodes}
    if any(_said(problem, node) != of_node[alike.nodes[node].results] for node in problem.graph.nodes):
        return False
    fed: dict[Value, tuple] = {}
    for value in problem.graph.inputs:
        said = problem.given.get(value), problem.asked.get(value)
        if value in alike.values and fed.setdefault(alike.values[value], said) != said:
            return False
    left: dict[Value, Any] = {}
    pairs = zip(problem.graph.outputs, problem.asked_outputs or (), strict=False)
    return all(left.setdefault(alike.values.get(value, value), asked) == asked for value, asked in pairs)


def _said(problem: Problem, node: Node) -> tuple:
    annotation = problem.annotations.get(node)
    said = (None, None) if annotation is None else (annotation.in_strategy, annotation.out_strategy)
    return (*said, problem.fixed.get(node))
