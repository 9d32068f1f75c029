"""Single elements of tensors that depend on nothing: `ConstantElements(graph).at(value, index)`.

Masks are made of counted numbers, comparisons and broadcasts, and may be larger than any memory; what they hold is
found element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from autoshard.ir.graph import Graph, Node, Value
from autoshard.ops.registry import Operator

Index = tuple[np.ndarray, ...]


class ConstantElements:
    """Elements of the values of a graph; what nodes in `keep` make counts as given."""

    def __init__(self, graph: Graph, keep: Collection[Node] = ()) -> None:
        made = graph.producers
        self.producers = {value: by for value, by in made.items() if by[0] not in keep} if keep else made
        self._constant: dict[Value, bool] = {}
        self._computed: dict[Value, bool] = {}

    def is_constant(self, value: Value) -> bool:
        """Whether a value depends on nothing, by operators that are known here."""
        if value not in self._constant:
            node, _ = self.producers.get(value, (None, 0))
            known = node is not None and _reader(node.op) is not None
            self._constant[value] = known and all(self.is_constant(one) for one in node.operands)  # type: ignore
        return self._constant[value]

    def is_computed(self, value: Value) -> bool:
        """Whether a constant is made of places and single numbers, without arrays that are written out."""
        if value not in self._computed:
            node, _ = self.producers[value]
            small = node.op.name != "Constant" or max(value.type.shape, default=1) == math.prod(value.type.shape)
            self._computed[value] = small and all(self.is_computed(one) for one in node.operands)
        return self._computed[value]

    def at(self, value: Value, index: Index) -> np.ndarray:
        """The elements of a constant at these places: an array of indices for each dim, which broadcast."""
        node, _ = self.producers[value]
        read = _reader(node.op)
        assert read is not None
        return read(self, node, index)

    def whole(self, value: Value, rank: int) -> np.ndarray:
        """All elements of a constant, with so many dims: those that broadcasting puts in front have size 1."""
        found = np.broadcast_to(self.at(value, tuple(np.ix_(*map(np.arange, value.type.shape)))), value.type.shape)
        return found.reshape((1,) * (rank - found.ndim) + found.shape)

    def number(self, value: Value) -> float | None:
        """What all elements of a constant are, as far as broadcasts of one element tell; None if they may differ."""
        while value.type.shape and any(size > 1 for size in value.type.shape):
            node, _ = self.producers.get(value, (None, 0))
            if node is not None and node.op.name == "Fill":
                break
            if node is None or node.op.name not in ("BroadcastInDim", "BroadcastTo", "Reshape", "Convert", "Cast"):
                return None
            value = node.operands[0]
        if not self.is_constant(value):
            return None
        found = self.at(value, tuple(np.zeros(1, np.int64) for _ in value.type.shape))
        return float(np.real(found.reshape(-1)[0]))


def _reader(op: Operator) -> Callable[[ConstantElements, Node, Index], np.ndarray] | None:
    """What finds elements of an operator's result."""
    if op.name in _READERS:
        return _READERS[op.name]
    return _elementwise if op.spread == "pointwise" or op.name in ("Select", "Clamp") else None


def _elementwise(elements: ConstantElements, node: Node, index: Index) -> np.ndarray:
    shape = node.results[0].type.shape
    parts = [elements.at(one, _aligned(index, one.type.shape, len(shape))) for one in node.operands]
    arrays = [np.asarray(part) for part in np.broadcast_arrays(*parts)] if parts else []
    return np.asarray(node.op.run(*arrays, **node.attrs))


def _aligned(index: Index, shape: tuple[int, ...], rank: int) -> Index:
    """The indices of an operand that broadcasts, at the right, to `rank` dims."""
    return tuple(_only(one, size) for one, size in zip(index[rank - len(shape) :], shape, strict=True))


def _only(index: np.ndarray, size: int) -> np.ndarray:
    return index if size > 1 else np.zeros_like(index)


def _broadcast(elements: ConstantElements, node: Node, index: Index) -> np.ndarray:
    (x,) = node.operands
    dims = node.attrs.get("dims", range(len(index) - x.type.rank, len(index)))
    own = tuple(_only(index[dim], size) for dim, size in zip(dims, x.type.shape, strict=True))
    return np.broadcast_to(elements.at(x, own), np.broadcast_shapes(*(one.shape for one in index)))


def _transposed(elements: ConstantElements, node: Node, index: Index) -> np.ndarray:
    own: list[Any] = [None] * len(index)
    for i, dim in enumerate(node.attrs["perm"]):
        own[dim] = index[i]
    return elements.at(node.operands[0], tuple(own))


def _reshaped(elements: ConstantElements, node: Node, index: Index) -> np.ndarray:
    shape, before = node.results[0].type.shape, node.operands[0].type.shape
    if not shape:
        return elements.at(node.operands[0], tuple(np.zeros(1, np.int64) for _ in before))
    flat = np.ravel_multi_index(np.broadcast_arrays(*index), shape)
    return elements.at(node.operands[0], tuple(np.unravel_index(flat, before)) if before else ())


def _counted(elements: ConstantElements, node: Node, index: Index) -> np.ndarray:
    of = node.results[0].type.dtype.numpy
    return (index[node.attrs["dim"]] + node.attrs["start"]).astype(of)


def _whole(elements: ConstantElements, node: Node, index: Index) -> np.ndarray:
    return np.asarray(node.op.run(**node.attrs))[index]


def _filled(elements: ConstantElements, node: Node, index: Index) -> np.ndarray:
    shape = np.broadcast_shapes(*(one.shape for one in index))
    return np.full(shape, node.attrs["value"], node.results[0].type.dtype.numpy)


_READERS: dict[str, Callable[[ConstantElements, Node, Index], np.ndarray]] = {
    "BroadcastInDim": _broadcast,
    "BroadcastTo": _broadcast,
    "Transpose": _transposed,
    "Reshape": _reshaped,
    "ExpandDims": _reshaped,
    "Squeeze": _reshaped,
    "Iota": _counted,
    "Range": _whole,
    "Constant": _whole,
    "Fill": _filled,
}
