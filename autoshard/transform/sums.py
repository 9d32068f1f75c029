"""Sums of several terms, some of which are added up first.

The gradient of a value that several products and something else use is one sum of all their terms. Where weights are
split by columns, what the products give are terms of a sum over ranks, and the rest is not: it may even be split over
these very ranks (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autoshard.ir.graph import Graph, Node, Value
from autoshard.ops.registry import Operator, lookup

_FIRST = re.compile(r"(.*)\.sum((?:_\d+)+)")
"""What the sum of some terms of a value is called: the value, and the places of the terms."""


def summed_first(graph: Graph, places: Mapping[Value, Sequence[int]]) -> Graph:
    """The graph in which some sums are one of the sum of a few of their terms and the others.

    Args:
        places: the places of these terms among the operands of an AddN, by its result; others than one and all.
    """
    if not places:
        return graph
    nodes = [one for node in graph.nodes for one in _summed_first(node, places.get(node.results[0], ()))]
    return replace(graph, nodes=tuple(nodes))


def summed_as(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with those terms added up first of which `names` have the sums."""
    found = {match[1]: match[2] for match in map(_FIRST.fullmatch, names) if match}
    made = {node.results[0].name: node.results[0] for node in graph.nodes if node.op.name == "AddN"}
    known = {made[name]: places for name, places in found.items() if name in made}
    return summed_first(graph, {value: [int(one) for one in text.split("_")[1:]] for value, text in known.items()})


def _summed_first(node: Node, places: Sequence[int]) -> tuple[Node, ...]:
    if not places:
        return (node,)
    (result,) = node.results
    ending = f".sum{''.join(f'_{i}' for i in places)}"
    first = [node.operands[i] for i in places]
    others = [value for i, value in enumerate(node.operands) if i not in places]
    value = Value(result.type, result.name + ending)
    made = Node(_sum_of(first), tuple(first), {}, (value,), node.name and node.name + ending, node.source)
    return made, replace(node, op=_sum_of([value, *others]), operands=(value, *others))


def _sum_of(terms: Sequence[Value]) -> Operator:
    return lookup("Add" if len(terms) == 2 else "AddN")
