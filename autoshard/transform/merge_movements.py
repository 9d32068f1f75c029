"""Several operators that only move elements as the one that they come to: a roll, a shift, a slice, a join.

`jnp.roll` is written as two slices and a join, a shift as a pad and a slice, and the gradient of either as a sum of
pads. Run split, each of them is an exchange between ranks of its own, in which elements travel twice or thrice; as one
operator they travel once. What each operator does with its elements, its definition tells (`Operator.maps_indices`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Graph, Node, Region, Value
from autoshard.ops.index_map import Box, BoxMap, box, cut, elements, renamed
from autoshard.ops.registry import lookup
from autoshard.transform.simplify import live_nodes, with_nodes

Call = tuple[str, tuple[Value, ...], dict[str, Any]]
"""An operator's name, its operands and its attributes."""


def merge_movements(graph: Graph, keep: Iterable[Node] = (), asked: Iterable[Value] = ()) -> Graph:
    """The graph with one operator where several move elements one after the other; itself if there is nothing to do.

    Nodes in `keep` (annotated ones) and those that make values of `asked` stay; what others of their results use stays,
    too. The new node makes the same value, under the name and source line of the last one.
    """
    nodes = _MoveMerger(graph.nodes, graph.outputs, {*keep}, {*asked}).run()
    return graph if nodes == graph.nodes else with_nodes(graph, nodes)


class _MoveMerger:
    """The nodes of a graph or of a region."""

    def __init__(self, nodes: tuple[Node, ...], outputs: Iterable[Value], keep: set[Node], asked: set[Value]) -> None:
        self.nodes, self.outputs, self.keep, self.asked = nodes, tuple(outputs), keep, asked
        self.uses = Counter(value for node in nodes for value in node.uses)
        self.uses.update(self.outputs)
        self.makers = {value: node for node in nodes for value in node.results}
        self.laid: dict[Value, BoxMap] = {}

    def run(self) -> tuple[Node, ...]:
        """The nodes as they are now, without those that merging has left without a use."""
        made = tuple(node.with_regions(self.region) if node.regions else self.merged(node) for node in self.nodes)
        return self.nodes if made == self.nodes else live_nodes(made, self.outputs)

    def region(self, region: Region) -> Region:
        return region.with_nodes(_MoveMerger(region.nodes, region.outputs, self.keep, self.asked).run())

    def merged(self, node: Node) -> Node:
        """The node, or one that makes the same of what the operators before it began with."""
        if node in self.keep or node.given_rule is not None:
            return node
        own = node.op.index_map(node.operand_types, node.attrs)
        whole = self.sum(node) if own is None else self.composed(renamed(own, node.operands))
        if whole is None:
            return node
        (result,) = node.results
        self.laid[result] = whole
        if own is not None and whole == renamed(own, node.operands):
            return node
        call = _as_one(whole, result.type)
        if call is None:
            return node
        name, operands, attrs = call
        op = lookup(name)
        return Node(op, operands, op.check_attributes(attrs), node.results, node.name, node.source)

    def composed(self, own: BoxMap) -> BoxMap:
        """With boxes of the values that the operands are made of, where nothing else needs these operands."""
        boxes: list[Box] = []
        fill = own.fill
        for one in own.boxes:
            inner = self.inner(one.of)
            found = [one] if inner is None else list(cut(one, inner))
            if inner is not None and elements(found) < elements([one]):
                if fill is not None and not self.same(fill, inner.fill):
                    found = [one]
                else:
                    fill = inner.fill
            boxes += found
        return BoxMap(tuple(_joined(boxes)), fill)

    def inner(self, value: Value) -> BoxMap | None:
        """How a value is made up, if it is needed once and nobody asks how it lies."""
        return self.laid.get(value) if self.uses[value] == 1 and value not in self.asked else None

    def sum(self, node: Node) -> BoxMap | None:
        """A sum of tensors that are zero outside of boxes, none of which meet: they are joined."""
        if node.op.name != "Add" or len({of.shape for of in (*node.operand_types, *node.result_types)}) > 1:
            return None
        terms = [self.inner(value) for value in node.operands]
        boxes: list[Box] = []
        fill = None
        for term in terms:
            if term is None or term.fill is None or self.number(term.fill) != 0 or not term.boxes:
                return None
            boxes += term.boxes
            fill = term.fill
        if any(_meet(one, other) for i, one in enumerate(boxes) for other in boxes[:i]):
            return None
        full = elements(boxes) == node.result_types[0].elements
        return BoxMap(tuple(_joined(boxes)), None if full else fill)

    def same(self, one: Value, other: Value) -> bool:
        """Whether two scalars are one value, or the same number."""
        if one is other:
            return True
        number = self.number(one)
        return number is not None and number == self.number(other)

    def number(self, value: Value) -> Any:
        """What a scalar is, if no input is needed to know it; else None."""
        maker = self.makers.get(value)
        if maker is None or value.type.shape or not maker.op.constant or len(maker.results) > 1:
            return None
        operands = [self.number(one) for one in maker.operands]
        if any(one is None for one in operands):
            return None
        return maker.op.evaluate([np.asarray(one) for one in operands], maker.attrs)[0]


def _meet(one: Box, other: Box) -> bool:
    dims = zip(one.target, one.count, other.target, other.count, strict=True)
    return all(max(a, b) < min(a + size, b + count) for a, size, b, count in dims)


def _joined(boxes: Iterable[Box]) -> Iterator[Box]:
    """Neighbours that come from neighbours of one value, as one box."""
    last: Box | None = None
    for one in boxes:
        joint = None if last is None else _joint(last, one)
        if last is not None and joint is None:
            yield last
        last = joint or one
    if last is not None:
        yield last


def _joint(a: Box, b: Box) -> Box | None:
    if a.of is not b.of:
        return None
    columns = list(zip(a.source, a.target, a.count, b.source, b.target, b.count, strict=True))
    along = [dim for dim, one in enumerate(columns) if one[:3] != one[3:]]
    if len(along) != 1:
        return None
    (dim,) = along
    source, target, count, *then = columns[dim]
    if then[:2] != [source + count, target + count]:
        return None
    return replace(a, count=(*a.count[:dim], count + then[2], *a.count[dim + 1 :]))


# -- as one operator


def _as_one(laid: BoxMap, of: TensorType) -> Call | None:
    """The operator that lays boxes so, if there is one."""
    if any(one.of.type.dtype != of.dtype for one in laid.boxes):
        return None
    return next(filter(None, (form(laid, of) for form in _FORMS)), None)


def _same(laid: BoxMap, of: TensorType) -> Call | None:
    if laid.fill is not None or len(laid.boxes) != 1 or laid.boxes[0].of.type.shape != of.shape:
        return None
    return "Identity", (laid.boxes[0].of,), {}


def _slice(laid: BoxMap, of: TensorType) -> Call | None:
    if laid.fill is not None or len(laid.boxes) != 1:
        return None
    (one,) = laid.boxes
    ends = tuple(source + count for source, count in zip(one.source, one.count, strict=True))
    return "StridedSlice", (one.of,), {"begin": one.source, "end": ends, "strides": (1,) * of.rank}


def _pad(laid: BoxMap, of: TensorType) -> Call | None:
    """One box with something around it; an end of the operand that is cut off has nothing beside it."""
    if laid.fill is None or len(laid.boxes) != 1:
        return None
    (one,) = laid.boxes
    low, high = [], []
    for source, target, count, size, room in zip(
        one.source, one.target, one.count, one.of.type.shape, of.shape, strict=True
    ):
        after, left = room - target - count, size - source - count
        if (source and target) or (after and left):
            return None
        low.append(target - source)
        high.append(after - left)
    return "HloPad", (one.of, laid.fill), {"low": tuple(low), "high": tuple(high), "interior": (0,) * of.rank}


def _roll(laid: BoxMap, of: TensorType) -> Call | None:
    """Two boxes of one value that change places along a dim."""
    if laid.fill is not None or len(laid.boxes) != 2:
        return None
    a, b = sorted(laid.boxes, key=lambda one: one.target)
    if a.of is not b.of or a.of.type.shape != of.shape:
        return None
    moved = [dim for dim in range(of.rank) if a.count[dim] != of.shape[dim]]
    if len(moved) != 1:
        return None
    (dim,) = moved
    shift = a.count[dim]
    there = a == box(a.of, _at(of, dim, of.shape[dim] - shift), _at(of, dim, 0), a.count)
    back = b == box(a.of, _at(of, dim, 0), _at(of, dim, shift), _long(of, dim, of.shape[dim] - shift))
    return ("Roll", (a.of,), {"shift": shift, "axis": dim}) if there and back else None


def _at(of: TensorType, dim: int, number: int) -> tuple[int, ...]:
    return tuple(number if i == dim else 0 for i in range(of.rank))


def _long(of: TensorType, dim: int, count: int) -> tuple[int, ...]:
    return tuple(count if i == dim else size for i, size in enumerate(of.shape))


def _join(laid: BoxMap, of: TensorType) -> Call | None:
    """Whole values one behind the other."""
    whole = all(one.is_all_of(one.of.type.shape) for one in laid.boxes)
    if laid.fill is not None or len(laid.boxes) < 2 or not whole:
        return None
    boxes = sorted(laid.boxes, key=lambda one: one.target)
    joined = [dim for dim in range(of.rank) if boxes[0].count[dim] != of.shape[dim]]
    if len(joined) != 1 or any(_wide(one, of, joined[0]) for one in boxes):
        return None
    return "Concat", tuple(one.of for one in boxes), {"axis": joined[0]}


def _wide(one: Box, of: TensorType, dim: int) -> bool:
    """Whether a box is not all of the result but along `dim`."""
    return any(count != size for i, (count, size) in enumerate(zip(one.count, of.shape, strict=True)) if i != dim)


_FORMS: tuple[Callable[[BoxMap, TensorType], Call | None], ...] = (_same, _slice, _pad, _roll, _join)
