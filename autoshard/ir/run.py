"""Running nodes with numpy: regions, calls, and letting go of values after their last use.

`Runner` runs blocks of nodes on whole tensors. `Elementwise` makes the scalar function inside an operator (a reducer,
a comparator) run on whole arrays at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from autoshard.core.tensortype import TOKEN, TensorType
from autoshard.ir.graph import Graph, Node, Region, Value
from autoshard.ops.registry import Operator

# Stands for a token: it orders effects and has no contents.
TOKEN_VALUE = None
Held = dict[Value, Any]
# Operators that stand for a function of the graph, named by the attribute `callee`.
CALLS = ("Call", "Composite")
# Elementwise on arrays of any shape, although Shardy does not count them among the elementwise operators.
_ALSO_ELEMENTWISE = {"Select", "Clamp", "SelectN", "Where"}


class Runner:
    """Runs nodes; `functions` are those that nodes of CALLS name."""

    def __init__(self, functions: Mapping[str, Graph]) -> None:
        self.functions = functions
        self._dying: dict[tuple[Node, ...], list[list[Value]]] = {}

    def block(self, nodes: tuple[Node, ...], outputs: tuple[Value, ...], held: Held) -> tuple:
        """The outputs of a block; `held` has what it starts from, and is used up."""
        dying = self._dying.get(nodes)
        if dying is None:
            dying = self._dying[nodes] = last_uses(nodes, outputs)
        for node, gone in zip(nodes, dying, strict=True):
            held.update(zip(node.results, self.node(node, held), strict=True))
            for value in gone:
                held.pop(value, None)
        return tuple(held[value] for value in outputs)

    def graph(self, graph: Graph, arguments: Sequence[Any]) -> tuple:
        return self.block(graph.nodes, graph.outputs, dict(zip(graph.inputs, arguments, strict=True)))

    def region(self, region: Region, held: Held, arguments: Sequence[Any]) -> tuple:
        """The region on `arguments`; `held` has the values around it."""
        inner = {value: held[value] for value in region.captured}
        inner.update(zip(region.args, arguments, strict=True))
        return self.block(region.nodes, region.outputs, inner)

    def node(self, node: Node, held: Held) -> tuple:
        """The results of a node."""
        operands = [held[value] for value in node.operands]
        if node.op.takes_regions:
            results = node.op.run(*operands, **node.attrs, regions=self.bodies(node, held))
            return cast(results, node.result_types)
        if has_tokens(node):
            return self.with_tokens(node, operands)
        return node.op.evaluate(operands, node.attrs)

    def with_tokens(self, node: Node, operands: list) -> tuple:
        if all(of.dtype is TOKEN for of in node.result_types):
            return (TOKEN_VALUE,) * len(node.results)
        return cast(node.op.run(*operands, **node.attrs), node.result_types)

    def bodies(self, node: Node, held: Held) -> tuple[Callable, ...]:
        """The regions of a node (for a call: the function) as Python functions."""
        if node.op.name in CALLS:
            callee = self.functions[node.attrs["callee"]]
            return (lambda *arguments: self.graph(callee, arguments),)
        return tuple(lambda *arguments, region=region: self.region(region, held, arguments) for region in node.regions)


def has_tokens(node: Node) -> bool:
    return any(of.dtype is TOKEN for of in (*node.operand_types, *node.result_types))


def cast(results: Any, types: tuple[TensorType, ...]) -> tuple:
    """The results as arrays of exactly these types; tokens stay as they are."""
    results = results if isinstance(results, tuple) else (results,)
    return tuple(
        TOKEN_VALUE if of.dtype is TOKEN else np.asarray(result, dtype=of.dtype.numpy)
        for result, of in zip(results, types, strict=True)
    )


def last_uses(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[list[Value]]:
    """For each node, the values that nobody needs after it; outputs are needed to the end."""
    needed = set(outputs)
    dying: list[list[Value]] = []
    for node in reversed(nodes):
        gone = [value for value in dict.fromkeys((*node.uses, *node.results)) if value not in needed]
        needed.update(gone)
        dying.append(gone)
    return dying[::-1]


# -- scalar functions on whole arrays


class Elementwise:
    """A graph of scalars as a function of arrays, which it is applied to elementwise, all at once where it can be.

    What runs it is made on the first call, and not written down with it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __reduce__(self) -> tuple:
        return Elementwise, (self.graph,)

    def __call__(self, *arrays: Any) -> tuple:
        return self._function(*arrays)

    @cached_property
    def _function(self) -> Callable[..., tuple]:
        graph = self.graph
        every = [*graph.nodes, *(node for function in graph.functions.values() for node in function.nodes)]
        if all(is_elementwise(node.op) or node.op.name in CALLS for node in every):
            return partial(_at_once, _WholeArrays(graph.functions), graph)
        return partial(_one_by_one, Runner(graph.functions), graph)


def _at_once(runner: Runner, graph: Graph, *arrays: Any) -> tuple:
    return runner.graph(graph, arrays)


def is_elementwise(op: Operator) -> bool:
    """Whether a scalar function can run it on whole arrays."""
    return op.spread == "pointwise" or op.constant == "source" or op.name in _ALSO_ELEMENTWISE


class _WholeArrays(Runner):
    """Gives whole arrays to operators whose operands have rank 0 in the graph."""

    def node(self, node: Node, held: Held) -> tuple:
        operands = [held[value] for value in node.operands]
        extra = {"regions": self.bodies(node, held)} if node.op.takes_regions else {}
        return cast(node.op.run(*operands, **node.attrs, **extra), node.result_types)


def _one_by_one(runner: Runner, graph: Graph, *operands: Any) -> tuple:
    """The graph for each element in turn: what holds for any graph, loops and branches included."""
    arrays = np.broadcast_arrays(*operands)
    shape = arrays[0].shape
    results = [np.empty(shape, value.type.dtype.numpy) for value in graph.outputs]
    for position in np.ndindex(shape):
        found = runner.graph(graph, [array[position] for array in arrays])
        for result, one in zip(results, found, strict=True):
            result[position] = one
    return tuple(results)
