"""Columns that are cut behind a reshape, cut before it: `split_columns(graph)`, of a graph without gradients.

    x: [b, t, (3 h d)] -> [b, t, 3, h, d] -> three of [b, t, h, d]    ->    x cut in three of [b, t, (h d)], reshaped
    slices of x that are all of it, one behind the other              ->    x cut once

Queries, keys and values are often columns of one product, which people take apart behind a reshape. Blocks of the
columns are no blocks of `h`, so that all columns would have to be gathered before the reshape; cut first, each part is
split by heads. One operator that cuts sends what a block lacks of all parts at once, several slices one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any

from autoshard.ir.graph import Graph, Node, Value
from autoshard.ops.registry import lookup
from autoshard.transform.dim_atoms import DimAtom, leaves_of, reshaped
from autoshard.transform.simplify import live_nodes, with_nodes

Shape = tuple[int, ...]
Part = tuple[int, int]
"""Where in a dim a part begins, and how many places it has."""


def split_columns(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph whose columns are cut before reshapes behind which they are taken apart, and by one operator.

    Nodes in `keep` (annotated ones) stay. The graph itself if there is nothing to do.
    """
    return _Slices(_Reshapes(graph, keep).cut_before(), keep).joined()


@dataclass(frozen=True)
class _Take:
    """A node that takes parts of a dim behind a reshape, and then transposes (`perm`: all of them as one); the dim
    `major` of the reshape's result is the major part of its operand's `dim`. Where the node `drops` the dim, each part
    is one place of it."""

    node: Node
    reshape: Node
    dim: int
    major: int
    perm: Shape
    parts: tuple[Part, ...]

    @property
    def drops(self) -> bool:
        return self.node.op.name == "Unstack"


class _Rewriting:
    """A graph and what is to stay in it; makes nodes with new names."""

    def __init__(self, graph: Graph, keep: Collection[Node]) -> None:
        self.graph, self.keep = graph, keep
        captured = (value for node in graph.nodes for region in node.regions for value in region.captured)
        self.needed = {*graph.outputs, *captured}
        self.names = {value.name for value in graph.values}

    def users(self, value: Value) -> list[Node]:
        """The nodes that take a value; none if something else needs it, or one of them stays as it is."""
        found = [node for node, _ in self.graph.users[value]]
        stays = value in self.needed or any(node in self.keep or node.given_rule is not None for node in found)
        return [] if stays else found

    def made(self, name: str, of: Value, attrs: dict[str, Any], like: Node, results: Sequence[Value] = ()) -> Node:
        """A node of one operand, for what `like` was for; with these results, or new ones. Its name is that of `like`
        where it takes its place alone: others are found by what they make, so that no two have one name."""
        op = lookup(name)
        attrs = op.check_attributes(attrs)
        made = results or [Value(one, self._named(of.name)) for one in op.result_types((of.type,), attrs)]
        name = like.name if tuple(made) == like.results else ""
        return Node(op, (of,), attrs, tuple(made), name, like.source)

    def _named(self, stem: str) -> str:
        name = next(name for i in count() if (name := f"{stem}.part{i}") not in self.names)
        self.names.add(name)
        return name


class _Reshapes(_Rewriting):
    """Reshapes that take a dim apart, the major part of which is taken apart behind them."""

    def cut_before(self) -> Graph:
        """The graph with these dims cut before the reshapes."""
        found = [self._takes(node, *dims) for node in self.graph.nodes for dims in self._taken_dims(node)]
        takes = {one.node: one for several in found for one in several}
        if not takes:
            return self.graph
        nodes = [one for node in self.graph.nodes for one in (self._cut(takes[node]) if node in takes else (node,))]
        return with_nodes(self.graph, live_nodes(tuple(nodes), self.graph.outputs))

    def _taken_dims(self, node: Node) -> Iterator[tuple[int, int]]:
        """The dims that a node takes apart, if it is a reshape, and where in its result their major parts are."""
        if node.op.name != "Reshape" or node in self.keep or node.given_rule is not None:
            return
        before = tuple((DimAtom(size),) for size in node.operand_types[0].shape)
        after = reshaped(before, node.result_types[0].shape)
        for dim, whole in enumerate(map(leaves_of, before)):
            for major, part in enumerate(after or ()):
                if part and len(part) < len(whole) and whole[: len(part)] == part:
                    yield dim, major

    def _takes(self, reshape: Node, dim: int, major: int) -> list[_Take]:
        """All that uses the result, if it takes parts of the dim `major`."""
        found: list[_Take] = []
        ahead = [(reshape.results[0], tuple(range(reshape.result_types[0].rank)))]
        for value, perm in ahead:
            users = self.users(value)
            for node in users:
                if node.op.name == "Transpose":
                    ahead.append((node.results[0], tuple(perm[i] for i in node.attrs["perm"])))
                elif parts := _parts_of(node, perm.index(major)):
                    found.append(_Take(node, reshape, dim, major, perm, parts))
                else:
                    return []
            if not users:
                return []
        return found

    def _cut(self, take: _Take) -> Iterator[Node]:
        """What makes the same parts of what is reshaped."""
        (x,), shape = take.reshape.operands, take.reshape.result_types[0].shape
        inner = x.type.shape[take.dim] // shape[take.major]
        parts = [(begin * inner, size * inner) for begin, size in take.parts]
        cut = self.made(*_cutting(x, take.dim, parts), take.node)
        yield cut
        for of, (_, size), result in zip(cut.results, take.parts, take.node.results, strict=True):
            yield from self._moved(of, take, () if take.drops else (size,), result)

    def _moved(self, of: Value, take: _Take, size: Shape, result: Value) -> Iterator[Node]:
        """A part reshaped and transposed, as it was behind the reshape."""
        shape, major = take.reshape.result_types[0].shape, take.major
        kept = [i for i in take.perm if size or i != major]
        perm = tuple(sorted(kept).index(i) for i in kept)
        plain, shape = perm == tuple(range(len(perm))), (*shape[:major], *size, *shape[major + 1 :])
        reshape = self.made("Reshape", of, {"shape": shape}, take.node, (result,) if plain else ())
        yield reshape
        if not plain:
            yield self.made("Transpose", reshape.results[0], {"perm": perm}, take.node, (result,))


class _Slices(_Rewriting):
    """Slices of a product's columns that are all of them, one behind the other."""

    def joined(self) -> Graph:
        """The graph with one operator that cuts, where the first of such slices stood."""
        instead: dict[Node, tuple[Node, ...]] = {}
        for value in self.graph.values:
            slices = self.users(value)
            if len(slices) > 1 and self._is_of_product(value) and (cut := self._as_one(value, slices)) is not None:
                instead |= {node: (cut,) if node is slices[0] else () for node in slices}
        if not instead:
            return self.graph
        return with_nodes(self.graph, tuple(one for node in self.graph.nodes for one in instead.get(node, (node,))))

    def _is_of_product(self, value: Value) -> bool:
        """Whether a value is a product, or one with something added."""
        node, _ = self.graph.producers.get(value, (None, 0))
        if node is not None and node.op.name == "Add":
            return any(map(self._is_product, node.operands))
        return self._is_product(value)

    def _is_product(self, value: Value) -> bool:
        node, _ = self.graph.producers.get(value, (None, 0))
        return node is not None and node.op.has_rule and bool(node.rule.contracted)

    def _as_one(self, value: Value, slices: list[Node]) -> Node | None:
        """The operator that cuts a value as slices do, if they are one behind the other all of it."""
        found = [(where, node.results[0]) for node in slices if (where := _slice_of(node)) is not None]
        taken = sorted(found, key=lambda one: one[0])
        if not taken or len(taken) < len(slices) or len({dim for (dim, _, _), _ in taken}) > 1:
            return None
        ((dim, _, _), _), *_ = taken
        ends = [0, *accumulate(size for (_, _, size), _ in taken)]
        if [begin for (_, begin, _), _ in taken] != ends[:-1] or ends[-1] != value.type.shape[dim]:
            return None
        attrs = {"axis": dim, "sizes": tuple(size for (_, _, size), _ in taken)}
        return self.made("Split", value, attrs, slices[0], [result for _, result in taken])


def _parts_of(node: Node, dim: int) -> tuple[Part, ...]:
    """The parts of its operand's dim that a node takes, if that is all it does."""
    if node.op.name == "Unstack" and node.attrs["axis"] % node.operand_types[0].rank == dim:
        return tuple((i, 1) for i in range(node.operand_types[0].shape[dim]))
    if node.op.name == "Split" and node.attrs["axis"] % node.operand_types[0].rank == dim:
        sizes = [one.shape[dim] for one in node.result_types]
        return tuple((end - size, size) for end, size in zip(accumulate(sizes), sizes, strict=True))
    taken = _slice_of(node)
    return (taken[1:],) if taken is not None and taken[0] == dim else ()


def _slice_of(node: Node) -> tuple[int, int, int] | None:
    """The one dim of which a slice takes a part, where that begins and how many places it has."""
    boxes = node.op.index_map(node.operand_types, node.attrs) if len(node.operands) == 1 else None
    if boxes is None or len(boxes.boxes) != 1 or boxes.fill is not None:
        return None
    (box,), shape = boxes.boxes, node.operand_types[0].shape
    cut = [dim for dim, size in enumerate(shape) if box.count[dim] < size]
    if len(cut) != 1 or box.count != node.result_types[0].shape:
        return None
    return cut[0], box.source[cut[0]], box.count[cut[0]]


def _cutting(x: Value, dim: int, parts: Sequence[Part]) -> tuple[str, Value, dict[str, Any]]:
    """The operator, its operand and its attributes that cut a dim in parts: a slice, if there is one alone."""
    if len(parts) > 1:
        return "Split", x, {"axis": dim, "sizes": tuple(size for _, size in parts)}
    ((begin, size),) = parts
    ends = [(0, of) if i != dim else (begin, begin + size) for i, of in enumerate(x.type.shape)]
    begins, stops = zip(*ends, strict=True)
    return "StridedSlice", x, {"begin": begins, "end": stops, "strides": (1,) * x.type.rank}
