"""Loops over layers written out: `unrolled(graph)` has the body of a loop that counts once for each turn.

    x = scan(layer, x, {w: [24, ...]})   ->   x = layer(x, w[0]); x = layer(x, w[1]); ...

So what a turn does can be cut into micro batches, be differentiated, and lie in a stage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from autoshard.ir.graph import Builder, Graph, Node, Region, Value, renamed, walk
from autoshard.ir.trips import known_trips
from autoshard.ops.registry import lookup
from autoshard.transform.inline import inline
from autoshard.transform.simplify import live_nodes, with_nodes

MOST_NODES = 2**16
"""Nodes that a loop may become; a longer one stays a loop."""
Known = dict[Value, Value]


def unrolled(graph: Graph, stays: Callable[[Node], bool] = lambda loop: False) -> Graph:
    """The same computation without loops whose number of turns is known, but for those that stay; graphs without any
    stay the same object.

    Nodes of turn 3 of a loop over `layers` are called `layers.3.` and as in the loop. Slices that begin at the number
    of the turn begin at that number.
    """
    if not any(node.op.name == "While" for node in walk(graph.nodes)):
        return graph
    return _Unroller(inline(graph), stays).run()


class _Unroller:
    def __init__(self, graph: Graph, stays: Callable[[Node], bool]) -> None:
        self.graph, self.builder, self.stays = graph, Builder.after(graph, graph.name), stays
        self.makers = {value: node for node in walk(graph.nodes) for value in node.results}
        self.numbers: dict[Value, np.ndarray] = {}
        self.nodes: list[Node] = []

    def run(self) -> Graph:
        known: Known = {}
        self.write(self.graph.nodes, known, None)
        made = self.graph.renamed((), known)
        return with_nodes(made, live_nodes(tuple(self.nodes), made.outputs))

    def write(self, nodes: Iterable[Node], known: Known, turn: tuple[str, str] | None) -> None:
        """Add nodes, of a turn as copies; `known` says what stands for a value of theirs.

        Args:
            turn: what the names of the loop's nodes begin with, and what those of this turn do.
        """
        for node in nodes:
            count = self._turns(node, known)
            if count is not None:
                self._loop(node, known, turn, count)
                continue
            written = self._copied(node, known, turn)
            number = self._number(written)
            if number is not None and turn is not None:
                written = self._constant(written, number)
            self.nodes.append(written)
            self.makers.update(dict.fromkeys(written.results, written))

    def _turns(self, node: Node, known: Known) -> int | None:
        if node.op.name != "While" or self.stays(node):
            return None
        count = known_trips(replace(node, operands=renamed(node.operands, known)), self.makers)
        size = sum(1 for _ in walk(node.regions[1].nodes))
        return count if count is not None and count * size <= MOST_NODES else None

    def _loop(self, node: Node, known: Known, turn: tuple[str, str] | None, count: int) -> None:
        body = node.regions[1]
        stem = node.label.rpartition(".")[0] or node.label
        begin = stem if turn is None else _called(stem, turn)
        carried = renamed(node.operands, known)
        for number in range(count):
            inner = {**known, **dict(zip(body.args, carried, strict=True))}
            self.write(body.nodes, inner, (f"{stem}.", f"{begin}.{number}."))
            carried = renamed(body.outputs, inner)
        known.update(zip(node.results, carried, strict=True))

    def _copied(self, node: Node, known: Known, turn: tuple[str, str] | None) -> Node:
        operands = renamed(node.operands, known)
        if turn is None:
            if not any(value in known for value in node.uses):
                return node
            regions = tuple(self._region(region, known, None) for region in node.regions)
            return replace(node, operands=operands, regions=regions)
        regions = tuple(self._region(region, known, turn) for region in node.regions)
        for value in node.results:
            known[value] = self._copy(value, turn)
        results = tuple(known[value] for value in node.results)
        name = _called(node.name, turn) if node.name else ""
        return self._sliced(replace(node, operands=operands, results=results, name=name, regions=regions))

    def _copy(self, value: Value, turn: tuple[str, str]) -> Value:
        return Value(value.type, self.builder.unique(_called(value.name, turn)))

    def _region(self, region: Region, known: Known, turn: tuple[str, str] | None) -> Region:
        """A region that stays one, with what stands for the values that it takes from outside."""
        inner = dict(known)
        if turn is not None:
            inner.update({value: self._copy(value, turn) for value in region.args})
        outside, self.nodes = self.nodes, []
        for node in region.nodes:
            self.nodes.append(self._copied(node, inner, turn))
        nodes, self.nodes = tuple(self.nodes), outside
        return Region(renamed(region.args, inner), nodes, renamed(region.outputs, inner))

    # -- numbers

    def _number(self, node: Node) -> np.ndarray | None:
        """The whole number, or truth, that a node always makes."""
        if len(node.results) != 1 or node.regions or not node.op.constant or node.op.has_effects(node.attrs):
            return None
        (result,) = node.results
        if result.type.shape or result.type.dtype.numpy.kind not in "iub":
            return None
        if any(value not in self.numbers for value in node.operands):
            return None
        made = node.op.evaluate([self.numbers[value] for value in node.operands], node.attrs)
        self.numbers[result] = np.asarray(made[0])
        return self.numbers[result]

    def _constant(self, node: Node, number: np.ndarray) -> Node:
        (result,) = node.results
        op = lookup("Fill")
        attrs = op.check_attributes({"shape": (), "value": number.item(), "dtype": result.type.dtype.name})
        return Node(op, (), attrs, (result,), node.name, node.source)

    def _sliced(self, node: Node) -> Node:
        """The node; where a slice begins at known places, one that says so."""
        if node.op.name == "DynamicSlice" and all(value in self.numbers for value in node.operands[1:]):
            shape, sizes = node.operands[0].type.shape, node.attrs["sizes"]
            rows = zip(node.operands[1:], shape, sizes, strict=True)
            starts = tuple(min(max(int(self.numbers[value]), 0), whole - size) for value, whole, size in rows)
            limits = tuple(start + size for start, size in zip(starts, sizes, strict=True))
            op = lookup("Slice")
            attrs = op.check_attributes({"start": starts, "limit": limits, "strides": (1,) * len(starts)})
            return Node(op, node.operands[:1], attrs, node.results, node.name, node.source)
        if node.op.name == "DynamicUpdateSlice" and all(value in self.numbers for value in node.operands[2:]):
            return replace(node, attrs={**node.attrs, "fixed": True})
        return node


def _called(name: str, turn: tuple[str, str]) -> str:
    """What something in a loop is called in one turn."""
    stem, begin = turn
    return begin + name.removeprefix(stem)
