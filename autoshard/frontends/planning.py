"""A StableHLO module as something that can be planned: its graph with calls written out, its mesh, what it asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.frontends.stablehlo.load import from_stablehlo
from autoshard.ir.graph import Graph, Node, Value, walk
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding, divisible, without_size_one_axes
from autoshard.ops.control import unsplit_rule
from autoshard.ops.hlo_collective import is_of_one_each
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import MutableModule, from_graph
from autoshard.trace.collectives import COLLECTIVES
from autoshard.trace.evaluate import check_known
from autoshard.trace.function import Traced
from autoshard.trace.manual import RANK_NUMBERS
from autoshard.trace.structure import Leaf
from autoshard.transform.along_batches import along_batches
from autoshard.transform.inline import Places, inline_placed
from autoshard.transform.invariant import capture_invariants
from autoshard.transform.merge_movements import merge_movements
from autoshard.transform.plannable import plannable, rewritten
from autoshard.transform.simplify import prune
from autoshard.util.errors import MeshError, PlanError, at

if TYPE_CHECKING:
    from autoshard.frontends.stablehlo.imported import Imported

# Operations that leave a tensor as it is, and say only how it is to lie.
_MOVES = ("Reshard", "SdyAllReduce", "SdyAllGather", "ReplicatedToUnreduced", "ShardedToUnreduced")


def is_module(target: Any) -> bool:
    """Whether something is a StableHLO module: imported, a path that ends in .mlir, or lowered by JAX."""
    from autoshard.frontends.stablehlo.imported import Imported as Read

    if isinstance(target, str | os.PathLike):
        return os.fspath(target).endswith((".mlir", ".mlirbc"))
    return isinstance(target, Read) or hasattr(target, "compiler_ir")


def read_module(target: Any) -> Imported:
    """The module behind what `is_module` knows, imported.

    Raises:
        AutoshardError: what reading it finds wrong.
    """
    from autoshard.frontends.stablehlo.imported import Imported as Read

    if isinstance(target, Read):
        return target
    return from_stablehlo(Path(target) if isinstance(target, str) else target)


@dataclass(frozen=True, eq=False)
class Planning:
    """A module ready for a search.

    Attributes:
        imported: the module.
        traced: the entry as a graph of operators that have rules, without what nobody needs.
        places: where its values come from, see `inline_placed`.
        mesh: what it is planned for.
    """

    imported: Imported
    traced: Traced
    places: Places
    mesh: Mesh

    def work(self) -> MutableModule:
        """The working copy of the module for propagation."""
        work = from_graph(self.imported.graph, self.imported.asked, self.imported.order)
        for function in work.functions:
            function.attrs["public"] = function.attrs["name"] in self.imported.public
        return work

    def inputs(self) -> dict[Value, Layout]:
        """The layouts that are asked of inputs, as far as they divide."""
        asked = self.imported.asked.values
        return {
            value: divisible(without_size_one_axes(asked[value]), value.type.shape).replace(unreduced=()).layout()
            for value in self.traced.graph.inputs
            if value in asked and asked[value].mesh is self.mesh
        }


def planning(target: Any, mesh: Mesh | None = None, devices: int | None = None) -> Planning:
    """Read a module, check that it can be planned, and find its mesh.

    Args:
        target: what `is_module` knows.
        mesh: the devices, for a module that names none.
        devices: the same as a number.

    Raises:
        PlanError: several meshes, another mesh than the one asked for, a node that has neither a rule nor known
            regions, has side effects, or speaks of ranks outside of a manual computation.
        AutoshardError: what reading it finds wrong.
    """
    imported = read_module(target)
    check_known(imported.graph, custom_calls=False)
    written, places = inline_placed(imported.graph)
    graph = prune(_with_rules(_without_idle_collectives(written, imported)))
    _check_nodes(graph.nodes)
    graph = prune(capture_invariants(plannable(graph)))  # what only groups needed is not needed any more
    graph = along_batches(graph)
    asked = imported.asked.values
    copies = (copy for copy, (_, value) in places.items() if value in asked)
    graph = merge_movements(graph, asked=[*asked, *copies])
    chosen = _mesh(imported, mesh, devices)
    arguments = tuple(Leaf(i) for i in range(len(graph.inputs)))
    results = tuple(Leaf(i) for i in range(len(graph.outputs)))
    return Planning(imported, Traced(graph, {}, {}, arguments, results), places, chosen)


def _without_idle_collectives(graph: Graph, imported: Imported) -> Graph:
    """The graph without collectives in which each device is alone: JAX writes them outside of manual computations where
    `shard_map` is over axes of size 1."""
    sizes = {mesh.devices for mesh in imported.asked.meshes.values()}

    def rewrite(node: Node) -> tuple[Node, ...]:
        if node.op.name not in COLLECTIVES or not any(is_of_one_each(node.attrs, size) for size in sizes):
            return (node,)
        identity = lookup("Identity")
        pairs = zip(node.operands, node.results, strict=True)
        return tuple(Node(identity, (value,), {}, (result,), result.name, node.source) for value, result in pairs)

    return rewritten(graph, rewrite)


def _with_rules(graph: Graph) -> Graph:
    """The graph with a constraint in the place of what only moves a tensor. An operator without a rule gets one, by
    which every rank runs all of it, if it can run by itself."""
    return rewritten(graph, _with_rule)


def _with_rule(node: Node) -> tuple[Node]:
    op, attrs, rule = node.op, node.attrs, node.given_rule
    if op.name in _MOVES:
        op, attrs = lookup("ShardingConstraint"), {"sharding": attrs["sharding"]}
    if op.name == "ShardingConstraint" and not node.operand_types[0].rank:
        op, attrs = lookup("Identity"), {}  # a scalar lies in one way only
    elif op.name == "OptimizationBarrier":
        rule = None
    elif not op.has_rule and rule is None and _runs_alone(node):
        rule = unsplit_rule(node.operand_types, node.result_types)
    if (op, rule) == (node.op, node.given_rule):
        return (node,)
    return (replace(node, op=op, attrs=attrs, given_rule=rule),)


def _runs_alone(node: Node) -> bool:
    return bool(node.results) and not node.op.takes_regions and not node.op.has_effects(node.attrs)


def _check_nodes(nodes: Iterable[Node], manual: bool = False) -> None:
    """That no node has effects outside of the program, and that only manual computations speak of the ranks that they
    run on; `manual` says that the nodes are inside of one."""
    for node in nodes:
        target = f" {node.attrs['target']!r}" if "target" in node.attrs else ""
        what = f"{node.label} ({node.op.name}{target}){at(node.source)}"
        if target and not node.op.has_rule and node.op.has_effects(node.attrs):
            raise PlanError(f"cannot plan {what}: it has side effects, which would happen on each rank; {_HELP}")
        if not manual and (node.op.name in COLLECTIVES or node.op.name in RANK_NUMBERS):
            raise PlanError(
                f"cannot plan {what}: it says itself what ranks do, and outside of a manual computation a plan decides "
                "that; leave it out"
            )
        for region in node.regions:
            _check_nodes(region.nodes, manual or node.op.name == "ManualComputation")


_HELP = "leave what has side effects out of what is planned"


# -- the mesh


def _mesh(imported: Imported, mesh: Mesh | None, devices: int | None) -> Mesh:
    named = _named_mesh(imported)
    name = imported.graph.name
    if named is None:
        if mesh is None and devices is None:
            raise MeshError(f"the module with {name!r} names no mesh; give one, mesh='dp=2,tp=4' or devices=8")
        return mesh or Mesh.flat(devices or 1)
    if mesh is not None and mesh is not named:
        raise PlanError(f"the module with {name!r} is written for the mesh '{named}', not for '{mesh}'; leave mesh out")
    if devices not in (None, named.devices):
        raise PlanError(
            f"the module with {name!r} is written for the mesh '{named}' of {named.devices} devices, not for {devices}"
        )
    return named


def _named_mesh(imported: Imported) -> Mesh | None:
    """The one mesh that the module's shardings are on; with no shardings, the one that it names.

    Raises:
        PlanError: shardings on several meshes; the first on each is named.
    """
    first: dict[Mesh, str] = {}
    for what, sharding in _shardings(imported):
        if not sharding.mesh.is_empty:
            first.setdefault(sharding.mesh, what)
    if len(first) > 1:
        (mesh, one), (other, two) = list(first.items())[:2]
        raise PlanError(
            f"cannot plan for several meshes yet: {one} is on '{mesh}', {two} is on '{other}'; use one mesh"
        )
    found = next(iter(first), None)
    if found is not None and found.is_maximal:
        raise PlanError(f"cannot plan for single devices yet: {first[found]} is on device {found}; use a mesh of axes")
    named = {mesh: None for mesh in imported.asked.meshes.values() if not mesh.is_empty and not mesh.is_maximal}
    return found or (next(iter(named)) if len(named) == 1 else None)


def _shardings(imported: Imported) -> Iterator[tuple[str, Sharding]]:
    """All shardings of a module, each with what asks for it, in words."""
    graph, asked = imported.graph, imported.asked
    for one in (graph, *graph.functions.values()):
        for value in one.inputs:
            if value in asked.values:
                yield f"input {value.name} of {one.name!r}", asked.values[value]
        for node in walk(one.nodes):
            for sharding in _of_node(node, imported):
                yield f"{node.label} ({node.op.name}){at(node.source)}", sharding
        for i, sharding in enumerate(asked.outputs.get(one.name, ())):
            if sharding is not None:
                yield f"output {i} of {one.name!r}", sharding


def _of_node(node: Node, imported: Imported) -> Iterator[Sharding]:
    for value in node.results:
        if value in imported.asked.values:
            yield imported.asked.values[value]
    for name in ("sharding", "in_shardings", "out_shardings"):
        given = node.attrs.get(name)
        for sharding in given if isinstance(given, tuple) else (given,):
            if isinstance(sharding, Sharding):
                yield sharding
