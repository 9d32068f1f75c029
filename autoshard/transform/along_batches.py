"""Indices that only count samples, as dims that go along: `along_batches(graph)`, of a graph without gradients.

    x[arange(batch), index]: gather x, at pairs (sample, index)    ->    gather each sample of x, at its index

Which rows a gather takes is known at run time alone, so that samples in parts would have to be gathered before it, and
rows of one micro batch could be of another. Indices that are counted tell that each sample is looked up in itself. XLA
finds such dims in the same way (index parallel dims, xla/hlo/utils/hlo_sharding_util.cc).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

from autoshard.ir.graph import Graph, Node, Value
from autoshard.ops.registry import lookup
from autoshard.transform.elements import ConstantElements
from autoshard.transform.simplify import live_nodes, with_nodes

_MOST_ELEMENTS = 1 << 20
"""Indices of more samples are not looked at."""


class _DimNames(NamedTuple):
    """How an operator calls its dimension numbers: operand dims of which a slice has one element, those that go along
    with dims of the indices, and these; the operand dims of an index's components."""

    dropped: str
    batching: str
    places: str
    components: str


_SCATTER = _DimNames(
    "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims", "scatter_dims_to_operand_dims"
)
_INDEXED = {
    "GatherSlices": _DimNames(
        "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map"
    ),
    "ScatterSlices": _SCATTER,
    "ScatterAddSlices": _SCATTER,
}


def along_batches(graph: Graph, keep: Collection[Node] = ()) -> Graph:
    """The graph whose gathers and scatters look samples up in themselves where indices count them; itself if none does.

    Nodes in `keep` stay: annotated ones.
    """
    finder = _Counting(graph)
    nodes = tuple(one for node in graph.nodes for one in ((node,) if node in keep else finder.written(node)))
    return graph if nodes == graph.nodes else with_nodes(graph, live_nodes(nodes, graph.outputs))


class _Counting:
    def __init__(self, graph: Graph) -> None:
        self.producers, self.elements = graph.producers, ConstantElements(graph)
        self.names = {value.name for value in graph.values}

    def written(self, node: Node) -> Iterator[Node]:
        """The nodes that stand for a node."""
        names = _INDEXED.get(node.op.name)
        if names is None or node.given_rule is not None:
            yield node
            return
        position = len(node.operands) // 2
        operand, index, vector = node.operands[0], node.operands[position], node.attrs["index_vector_dim"]
        parts = self._components(index, vector)
        counted = self._counted(node, names, operand, parts, vector)
        if not counted or len(counted) == len(parts):
            yield node
            return
        rest = [part for i, part in enumerate(parts) if i not in counted]
        if len(rest) > 1:
            joined = lookup("Concatenate")
            attrs = joined.check_attributes({"dim": vector})
            (of,) = joined.result_types(tuple(part.type for part in rest), attrs)
            value = Value(of, self._name(index.name))
            yield Node(joined, tuple(rest), attrs, (value,), value.name, node.source)
            rest = [value]
        yield replace(
            node,
            operands=(*node.operands[:position], rest[0], *node.operands[position + 1 :]),
            attrs=node.op.check_attributes({**node.attrs, **_numbers(node, names, counted)}),
        )

    def _components(self, index: Value, vector: int) -> tuple[Value, ...]:
        """What an index is put together of, component by component; nothing if it is not."""
        node, _ = self.producers.get(index, (None, 0))
        if node is None or node.op.name not in ("Concatenate", "Concat"):
            return ()
        dim = node.attrs["dim"] if node.op.name == "Concatenate" else node.attrs["axis"] % index.type.rank
        plain = dim == vector and all(one.type.shape[dim] == 1 for one in node.operands)
        return node.operands if plain else ()

    def _counted(
        self, node: Node, names: _DimNames, operand: Value, parts: tuple[Value, ...], vector: int
    ) -> dict[int, int]:
        """By component of the index the dim of the indices along which it is 0, 1, 2, ... through a whole dim."""
        found: dict[int, int] = {}
        taken = {*node.attrs[names.places]}
        for i, part in enumerate(parts):
            dim = node.attrs[names.components][i]
            if dim in node.attrs[names.dropped]:
                along = self._counts(part, operand.type.shape[dim], vector)
                if along is not None and along not in taken:
                    found[i] = along
                    taken.add(along)
        return found

    def _counts(self, part: Value, size: int, vector: int) -> int | None:
        """The dim along which a part counts so far, and in no other."""
        shape = part.type.shape
        dims = [dim for dim, of in enumerate(shape) if dim != vector and of == size]
        if not dims or size < 2 or part.type.elements > _MOST_ELEMENTS or not self.elements.is_constant(part):
            return None
        numbers = self.elements.at(part, tuple(np.ogrid[tuple(map(slice, shape))]))
        for dim in dims:
            line = np.arange(size).reshape(tuple(-1 if at == dim else 1 for at in range(len(shape))))
            if np.array_equal(np.broadcast_to(numbers, shape), np.broadcast_to(line, shape)):
                return dim
        return None

    def _name(self, stem: str) -> str:
        name = next(name for i in count(1) if (name := f"{stem}.rest{i}") not in self.names)
        self.names.add(name)
        return name


def _numbers(node: Node, names: _DimNames, counted: dict[int, int]) -> dict[str, tuple[int, ...]]:
    """The dimension numbers where these components of an index are dims that go along."""
    before = dict(zip(node.attrs[names.batching], node.attrs[names.places], strict=True))
    components = node.attrs[names.components]
    along = dict(sorted({**before, **{components[i]: position for i, position in counted.items()}}.items()))
    return {
        names.dropped: tuple(dim for dim in node.attrs[names.dropped] if dim not in along),
        names.batching: tuple(along),
        names.places: tuple(along.values()),
        names.components: tuple(dim for i, dim in enumerate(components) if i not in counted),
    }
