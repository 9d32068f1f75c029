"""Operators that hand values on: loops, branches, barriers, manual and named computations, calls; what holds them.

They have no rule. Where values pass through them unchanged, or into and out of regions, data-flow edges say which
places share one sharding (Shardy's ShardableDataFlowOpInterface): an edge leads from its sources to its targets, and
the first target, the owner, is where the sharding is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from autoshard.core.rule import REPLICATE, Dim, Factor, Rule
from autoshard.core.tensortype import TensorType
from autoshard.ops.options import Spreading, Storage
from autoshard.ops.registry import Operator, operator
from autoshard.util.errors import ShapeError

OPERAND, RESULT, ARG, YIELD = "operand", "result", "arg", "yield"


class ValueLocation(NamedTuple):
    """A place at a node: operand or result `index`, or argument or yielded value `index` of region `region`."""

    kind: str
    index: int
    region: int = 0


INTO, OUT_OF = "into", "out of"


@dataclass(frozen=True)
class Edge:
    """Places that share one sharding: values flow from the sources to the targets; the first target is the owner.

    `crosses` says that the edge leads INTO or OUT_OF a body that is local along the axes in the node's attribute
    `manual_axes`: one end of it knows these axes, the other does not.
    """

    sources: tuple[ValueLocation, ...]
    targets: tuple[ValueLocation, ...]
    crosses: str = ""


class Sizes(NamedTuple):
    """How many operands, results and regions a node has: all that its edges depend on."""

    operands: int
    results: int
    regions: int


def through(sizes: Sizes) -> tuple[Edge, ...]:
    """Operand i is result i."""
    return tuple(Edge((ValueLocation(OPERAND, i),), (ValueLocation(RESULT, i),)) for i in range(sizes.operands))


def looped(sizes: Sizes) -> tuple[Edge, ...]:
    """A loop: operand i and what the body yields become result i and the argument of both regions (cond, body)."""
    return tuple(
        Edge(
            (ValueLocation(OPERAND, i), ValueLocation(YIELD, i, 1)),
            (ValueLocation(RESULT, i), ValueLocation(ARG, i, 0), ValueLocation(ARG, i, 1)),
        )
        for i in range(sizes.operands)
    )


def branched(sizes: Sizes) -> tuple[Edge, ...]:
    """A choice: what any of the regions yields becomes the result."""
    return tuple(
        Edge(tuple(ValueLocation(YIELD, i, region) for region in range(sizes.regions)), (ValueLocation(RESULT, i),))
        for i in range(sizes.results)
    )


def enclosed(sizes: Sizes) -> tuple[Edge, ...]:
    """A body: operand i becomes argument i; what it yields becomes the results.

    What is asked of its arguments and results may stand in attributes `in_shardings` and `out_shardings`.
    """
    entering = (Edge((ValueLocation(OPERAND, i),), (ValueLocation(ARG, i),)) for i in range(sizes.operands))
    leaving = (Edge((ValueLocation(YIELD, i),), (ValueLocation(RESULT, i),)) for i in range(sizes.results))
    return (*entering, *leaving)


def enclosed_locally(sizes: Sizes) -> tuple[Edge, ...]:
    """A body that is local along manual axes, which its in- and out-shardings mention and its inside does not."""
    sides = {ARG: INTO, RESULT: OUT_OF}
    return tuple(Edge(edge.sources, edge.targets, sides[edge.targets[0].kind]) for edge in enclosed(sizes))


class NodeEdges(NamedTuple):
    """The edges of a node by place: `sources` and `targets` tell which edge a place belongs to.

    `entering` and `leaving` are the edges whose owner is an argument of a region and a result, in order.
    """

    sources: Mapping[ValueLocation, Edge]
    targets: Mapping[ValueLocation, Edge]
    entering: tuple[Edge, ...]
    leaving: tuple[Edge, ...]


_NO_LINKS = NodeEdges({}, {}, (), ())


def links(of: Operator, sizes: Sizes) -> NodeEdges:
    """The edges of a node of that operator, which are none for most."""
    return _NO_LINKS if of.edges is None else _links(of.edges, sizes)


@lru_cache(maxsize=4096)
def _links(edges: Callable[[Sizes], tuple[Edge, ...]], sizes: Sizes) -> NodeEdges:
    made = edges(sizes)
    owners = [(edge, edge.targets[0].kind) for edge in made]
    return NodeEdges(
        {location: edge for edge in made for location in edge.sources},
        {location: edge for edge in made for location in edge.targets},
        tuple(edge for edge, kind in owners if kind == ARG),
        tuple(edge for edge, kind in owners if kind == RESULT),
    )


def unsplit_rule(operands: Sequence[TensorType], results: Sequence[TensorType]) -> Rule:
    """The rule of an operator of which nothing is known: each dim is a factor of its own that is never split."""
    factors: list[Factor] = []

    def dims(of: TensorType) -> tuple[Dim, ...]:
        start = len(factors)
        factors.extend(Factor(f"_{start + i}", size, REPLICATE) for i, size in enumerate(of.shape))
        return tuple((start + i,) for i in range(of.rank))

    before, after = tuple(map(dims, operands)), tuple(map(dims, results))
    return Rule(tuple(factors), before, after)


def _shapes(*_: Any, types: tuple[TensorType, ...], **__: Any) -> tuple:
    return tuple(of.shape for of in types)


def _dtypes(*_: Any, types: tuple[TensorType, ...], **__: Any) -> tuple:
    return tuple(of.dtype for of in types)


def _same_shapes(*shapes: Any, **_: Any) -> tuple:
    return shapes


def _same_dtypes(*dtypes: Any, **_: Any) -> tuple:
    return dtypes


def _none(*_: Any, **__: Any) -> tuple:
    return ()


def typed(rule: Any = None) -> dict[str, Any]:
    """Options of an operator whose result types are its attribute `types`."""
    return {"rule": rule, "shape": _shapes, "dtype": _dtypes}


_TYPED = typed()
_SAME: dict[str, Any] = {"rule": None, "shape": _same_shapes, "dtype": _same_dtypes}
_NOTHING: dict[str, Any] = {"rule": None, "shape": _none, "dtype": ()}
Arrays = tuple[np.ndarray, ...]


# -- loops, branches and barriers


@operator("While", **_SAME, spread=Spreading(edges=looped))
def while_(*xs, regions):
    """Repeat regions[1] on the operands as long as regions[0] holds."""
    cond, body = regions
    while bool(cond(*xs)[0]):
        xs = body(*xs)
    return tuple(xs)


@operator("Case", **_TYPED, spread=Spreading(edges=branched))
def case(index, *, types, regions):
    """Run the region chosen by `index`; out of range, the last one."""
    chosen = int(index) if 0 <= int(index) < len(regions) else len(regions) - 1
    return tuple(regions[chosen]())


@operator("If", **_TYPED)
def if_(pred, *, types, regions):
    """Run regions[0] if `pred` holds, else regions[1]."""
    return tuple(regions[0 if bool(pred) else 1]())


@operator("OptimizationBarrier", **_SAME, spread=Spreading(edges=through))
def optimization_barrier(*xs):
    """The operands, which the compiler may not move computation across."""
    return xs


@optimization_barrier.gradient
def _(g, y, *xs):
    return g


# -- computations inside a node


@operator("ManualComputation", **_TYPED, spread=Spreading(edges=enclosed_locally))
def manual_computation(*xs, in_shardings, out_shardings, manual_axes, types, regions):
    """A body written for the local blocks along `manual_axes`; `in_shardings` and `out_shardings` cut and join."""
    raise ShapeError("a manual computation runs on all ranks at once; it cannot be evaluated as a function of arrays")


@operator("NamedComputation", **_TYPED, spread=Spreading(edges=enclosed))
def named_computation(*xs, name, in_shardings=(), out_shardings=(), types, regions):
    """A call written out in place."""
    return tuple(regions[0](*xs))


@operator("Call", **_TYPED, effects=True)
def call(*xs, callee, types, regions):
    """Call the function `callee` of the graph; whoever evaluates supplies it as the only region."""
    return tuple(regions[0](*xs))


# -- what people ask for, as nodes


@operator(
    "ShardingConstraint", rule="... -> ...", spread="pointwise", linear=[()], effects=True, storage=Storage(view="same")
)
def sharding_constraint(x, *, sharding):
    """x, which has to lie as `sharding` says."""
    return x


@sharding_constraint.gradient
def _(g, y, x, *, sharding):
    return sharding_constraint(g, sharding=sharding)


@operator("Reshard", rule=None, shape=_same_shapes, dtype=_same_dtypes, spread="pointwise")
def reshard(x, *, sharding):
    """x, moved to `sharding`."""
    return x


@operator("ShardingGroup", **_NOTHING, effects=True)
def sharding_group(x, *, group):
    """All values of one group lie alike."""
    return ()


@operator("PropagationBarrier", rule="... -> ...", spread="pointwise", storage=Storage(view="same"))
def propagation_barrier(x, *, direction="none", sharding=None):
    """x; shardings pass only in `direction`: 'forward', 'backward', 'both' or 'none'."""
    return x


@propagation_barrier.gradient
def _(g, y, x, *, direction, sharding):
    return g


@operator("DataFlowEdge", rule="... -> ...", spread="move", effects=True, storage=Storage(view="same"))
def data_flow_edge(x, *, sharding=None):
    """Stands for the owner of a data-flow edge while shardings are propagated."""
    return x


@operator("FuncDataFlowEdge", rule="... -> ...", spread="move", effects=True, storage=Storage(view="same"))
def func_data_flow_edge(x):
    """Stands for an argument of a function, or a result of a call, while shardings pass between calls and function."""
    return x


# -- what holds all of it, while a graph is worked on


def _structure(name: str) -> Callable:
    def run(*xs):
        raise ShapeError(f"{name} is no operation of a graph")

    return operator(name, **_NOTHING, effects=True)(run)


module = _structure("Module")
function = _structure("Function")
return_ = _structure("Return")
yield_ = _structure("Yield")
