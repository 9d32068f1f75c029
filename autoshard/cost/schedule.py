"""When values are needed: the moments of a graph's run, and for each value who wants it from when to when.

A node has a moment for each operand, in which that is brought into the layout that the node's strategy wants, then one
in which it runs; where a result is pinned to another layout, one more. Last come the outputs, each with a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoshard.ir.graph import Graph, Node, Value


@dataclass(frozen=True)
class Use:
    """A node wants operand `place` at moment `begin` (None: it is a graph output), and needs it until `end`.

    `end` is when the node runs, or, if its result lies in the operand's memory, when that is used last.
    """

    node: Node | None
    place: int
    begin: int
    end: int


class GraphMoments:
    """The moments of a graph. `pinned` tells for which nodes a result may be left otherwise than it is made."""

    def __init__(self, graph: Graph, pinned: Callable[[Node], bool] = lambda node: False) -> None:
        self.graph = graph
        self.begin: dict[Node, int] = {}
        self.runs: dict[Node, int] = {}
        self.settles: dict[Node, int] = {}
        moment = 0
        for node in graph.nodes:
            self.begin[node] = moment
            moment += len(node.operands)
            self.runs[node] = moment
            moment += 1
            if pinned(node):
                self.settles[node] = moment
                moment += 1
        self.outputs_begin = moment
        self.moments = max(moment + len(graph.outputs), 1)

    @property
    def end(self) -> int:
        """The last moment."""
        return self.moments - 1

    @cached_property
    def uses(self) -> Mapping[Value, tuple[Use, ...]]:
        """Value -> who wants it, in the order of the moments."""
        ends: dict[Value, int] = {}
        found: dict[Value, list[Use]] = {value: [] for value in self.graph.values}
        for i, value in enumerate(self.graph.outputs):
            ends[value] = self.end
            found[value].append(Use(None, i, self.outputs_begin + i, self.end))
        for node in reversed(self.graph.nodes):
            end = self.runs[node]
            if self.is_view(node):
                end = max((end, *(ends.get(value, end) for value in node.results)))
            for place in reversed(range(len(node.operands))):
                value = node.operands[place]
                until = end if place == 0 else self.runs[node]
                found[value].append(Use(node, place, self.begin[node] + place, until))
                ends[value] = max(ends.get(value, until), until)
        return {value: tuple(sorted(uses, key=lambda use: use.begin)) for value, uses in found.items()}

    @cached_property
    def over(self) -> frozenset[Value]:
        """Values that are made in the memory of an operand, or of its copy, whatever is chosen: of one that ends there,
        has memory of its own, and is split just as the result is (`Operator.over`)."""
        made: set[Value] = set()
        replaced = set(self.graph.tied.values())
        for node in self.graph.nodes:
            if node in self.settles or node.op.runs_decomposed or node.regions:
                continue
            taken: set[Value] = set()
            for result, places in zip(node.results, node.op.over, strict=False):
                givers = (node.operands[i] for i in places if node.operands[i] not in taken)
                giver = next((one for one in givers if self._gives(one, node, result, replaced)), None)
                if giver is not None:
                    taken.add(giver)
                    made.add(result)
        return frozenset(made)

    def _gives(self, value: Value, node: Node, result: Value, replaced: Collection[Value]) -> bool:
        """Whether `value`, an operand of the node, surely leaves its memory to the result."""
        source = self.graph.producers.get(value)
        own = value in replaced if source is None else not self.is_view(source[0])
        if not own or value.type != result.type or node.operands.count(value) > 1 or not self.uses[result]:
            return False
        return all(use.end <= self.runs[node] for use in self.uses[value])

    def is_view(self, node: Node) -> bool:
        """Whether the node's results lie in the memory of its first operand."""
        view = node.op.view
        if not view or not node.operands or node in self.settles:
            return False
        return view != "reshape" or node.operands[0] not in self.strided

    @cached_property
    def strided(self) -> frozenset[Value]:
        """Values whose elements do not lie one behind the other."""
        turned: set[Value] = set()
        repeated: set[Value] = set()
        for node in self.graph.nodes:
            first = node.operands[0] if node.operands else None
            if node.op.view == "strided" and first is not None:
                repeats = node.results[0].type.elements > first.type.elements
                (repeated if repeats else turned).update(node.results)
            elif node.op.view == "same" and first in repeated:
                repeated.update(node.results)
            elif node.op.view == "same" and first in turned or _keeps_order(node, turned):
                turned.update(node.results)
        return frozenset(turned | repeated)

    def describe(self, moment: int) -> str:
        """A moment in words."""
        for node in reversed(self.graph.nodes):
            if self.begin[node] <= moment:
                break
        else:
            return "the outputs"
        if moment >= self.outputs_begin:
            return f"output {self.graph.outputs[moment - self.outputs_begin].name}"
        label = f"{node.label} ({node.op.name})"
        if moment < self.runs[node]:
            return f"bringing {node.operands[moment - self.begin[node]].name} to {label}"
        return label if moment == self.runs[node] else f"leaving {node.results[0].name} of {label} as asked"


def _keeps_order(node: Node, turned: set[Value]) -> bool:
    """Whether numpy gives the results the order of a turned operand (repeated ones have no say in it)."""
    return node.op.spread == "pointwise" and any(value in turned for value in node.operands)
