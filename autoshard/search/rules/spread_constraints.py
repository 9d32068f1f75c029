"""Constraints and given shardings, propagated over the program by rules: mode "factor" before any strategy.

Propagation works on the program as it was given, with its calls and barriers, and a plan on a graph without them; here
what one says of its values finds those of the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.ir.flow import node_links, value_at
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.ops.control import INTO, OPERAND, RESULT, NodeEdges, ValueLocation
from autoshard.plan.plan import ASKED, PROPAGATED
from autoshard.propagate.edges import of_edge_op
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue, Operation
from autoshard.propagate.pipeline import IMPORT
from autoshard.propagate.run import Log, propagate
from autoshard.propagate.values import get_sharding, holder
from autoshard.search.problem import Path, Place, Problem
from autoshard.search.rules.strategy_from_shardings import ANY, TensorSharding
from autoshard.util.errors import PlanError
from autoshard.util.text import first_of

# -- what is settled already takes part in propagation


def _fix(work: MutableModule, problem: Problem) -> None:
    """Ask of the values around configured operators, and of given inputs, the layouts that they will have."""
    names = [name for name, mesh in work.meshes.items() if mesh is problem.mesh]
    name = names[0] if names else "mesh"
    for function in work.functions:
        for val in function.blocks[0].args:
            given = problem.given.get(val.origin) if val.origin is not None else None
            if given is not None:
                val.sharding = _closed(given, name)
    for op in work.op.walk():
        strategy = problem.annotated.get(op.origin) if op.origin is not None else None
        if strategy is not None:
            layouts = (*strategy.operand_layouts, *strategy.result_layouts)
            for val, layout in zip((*op.operands, *op.results), layouts, strict=True):
                val.sharding = val.sharding or _closed(layout, name)


def _closed(layout: Layout, mesh_name: str) -> Sharding:
    return Sharding(layout.mesh, [DimSharding(refs) for refs in layout.dims], mesh_name=mesh_name)


# -- where shardings end up


class PropagatedShardings:
    """The shardings after propagation, by place; several where a constant was copied for its uses."""

    def __init__(self, work: MutableModule, problem: Problem) -> None:
        self.problem = problem
        _fix(work, problem)
        for one in IMPORT:
            one(work)
        self.asked = {val for val in _vals(work) if val.sharding is not None and not val.sharding.is_replicated}
        log = propagate(work)
        self.origins = _origins(log)
        self.found: dict[Place, list[MutableValue]] = {}
        function = work.function(problem.graph.name)
        self._collect(function.blocks[0], ())
        self.outputs: list[Sharding | None] = function.attrs["outputs"]

    @property
    def told(self) -> str:
        """What it started from, in words."""
        names = [value.name for value in self.problem.graph.values if not self.asked.isdisjoint(self.vals(value))]
        return f"asked of {first_of(names, 8)}" if names else "nothing is asked"

    def _collect(self, block: Block, path: Path) -> None:
        self._add(block.args, path)
        for op in block:
            self._add(op.results, path)
            inside = (*path, op.origin) if op.name == "NamedComputation" and op.origin is not None else path
            for inner in op.blocks:
                self._collect(inner, inside)

    def _add(self, values: list[MutableValue], path: Path) -> None:
        for val in values:
            if val.origin is not None:
                self.found.setdefault((path, val.origin), []).append(val)

    def vals(self, value: Value) -> list[MutableValue]:
        """What stands for a value of the problem's graph; nothing if nobody needs it."""
        return self.found.get(self.problem.places.get(value, ((), value)), [])

    def sharding(self, value: Value) -> TensorSharding:
        """ANY if the copies of a constant differ; None for what says nothing."""
        found = dict.fromkeys(map(get_sharding, self.vals(value)))
        return ANY if len(found) > 1 else self._checked(next(iter(found), None), value)

    def _checked(self, sharding: Sharding | None, value: Value) -> Sharding | None:
        """What is known to be on the plan's mesh; None for what says nothing."""
        if sharding is not None and sharding.used and sharding.mesh is not self.problem.mesh:
            raise PlanError(
                f"{value.name} has the sharding {sharding} on mesh '{sharding.mesh}', but the plan is for "
                f"'{self.problem.mesh}'; use one mesh"
            )
        return sharding if sharding is not None and sharding.used else None

    def around(self, node: Node) -> tuple[list[tuple[Value, Sharding | None]], list[tuple[Value, Sharding | None]]]:
        """For each operand and result of a node with regions its sharding outside of them; ones that the node itself
        asks for are unreduced as it says."""
        found = node_links(node)
        entering = [
            (value, self._outside(node, found, ValueLocation(OPERAND, i))) for i, value in enumerate(node.operands)
        ]
        leaving = [
            (value, self._outside(node, found, ValueLocation(RESULT, i))) for i, value in enumerate(node.results)
        ]
        return entering, leaving

    def _outside(self, node: Node, found: NodeEdges, spot: ValueLocation) -> Sharding | None:
        """The sharding of the edge at an operand or result of a node with regions."""
        edge = found.sources.get(spot) or found.targets.get(spot)
        if edge is None:
            return None
        owner = edge.targets[0]
        value = value_at(node, owner)
        if not edge.crosses:
            wish = self.sharding(value)
            return wish if isinstance(wish, Sharding) else None
        op = self._holding(node)
        if edge.crosses == INTO:
            return (node.attrs if op is None else op.attrs)["in_shardings"][owner.index]
        # Where a call returns it, the value is the call's, whose sharding may be another.
        left = node.attrs["out_shardings"][owner.index] if op is None else get_sharding(op.results[owner.index])
        return self._checked(left, value)

    def _holding(self, node: Node) -> Operation | None:
        """The operation of the working copy that a node with regions came from, known by the arguments of these."""
        vals = (val for region in node.regions for value in region.args for val in self.vals(value))
        block = next((val.owner for val in vals), None)
        return block.owner if isinstance(block, Block) else None

    def cause(self, values: list[Value], besides: str = "") -> tuple[str, tuple[str, ...]]:
        """Whether it was asked of the values to be split, and the operators but `besides` that split them otherwise."""
        vals = [val for value in values for val in self.vals(value)]
        names = dict.fromkeys(name for val in vals for name in self.origins.get(holder(val) or val, ()))
        asked = any(val in self.asked for val in vals)
        names.pop(besides, None)
        return (ASKED if asked and not names else PROPAGATED), tuple(names)


def _vals(work: MutableModule) -> Iterator[MutableValue]:
    for op in work.op.walk():
        yield from op.results
        for block in op.blocks:
            yield from block.args


def _origins(log: Log) -> dict[MutableValue, dict[str, None]]:
    """Per value, the operators whose steps changed its sharding, in order."""
    found: dict[MutableValue, dict[str, None]] = {}
    for event in log.events:
        name = _label(event.op)
        for index, _ in event.step.changes:
            held = event.op.holders
            if name and held is not None and index < len(held):
                found.setdefault(held[index], {})[name] = None
    return found


def _label(op: Operation) -> str:
    if op.name == "DataFlowEdge" and op.parent is not None:
        op = of_edge_op(op)[0]
    return op.origin.label if op.origin is not None else ""
