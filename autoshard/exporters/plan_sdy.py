"""A plan of a StableHLO module as that module: every value that the plan knows carries its layout as a closed sharding.

Shardy's propagation leaves such a module as it is: there is nothing open to spread to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoshard.exporters.sdy import to_module
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Graph, Value, inner_values
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.plan.plan import Plan
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, from_graph
from autoshard.search.planned import PlannedData
from autoshard.transform.inline import inline_placed
from autoshard.util.errors import PlanError

_MESH = "mesh"


def plan_module(planned: PlannedData) -> Any:
    """The MLIR module that was planned, with the plan's layouts.

    Terms of sums are not said: a value that is left as terms carries how its dims are split, and what completes it is
    the partitioner's affair.

    Raises:
        PlanError: the plan is not of a module; or the values of a function lie differently in its several calls.
    """
    imported = planned.module
    if not isinstance(imported, Imported):
        raise PlanError(
            f"cannot export the plan of {planned.graph.name!r} as a StableHLO module: it was not planned from one "
            "(from_stablehlo, from_jax, or a .mlir file)"
        )
    return to_module(_work(imported, planned.plan), imported)


def _work(imported: Imported, plan: Plan) -> MutableModule:
    graph = imported.graph
    name = _mesh_name(imported.asked, plan.mesh)
    outputs = tuple(_sharding(layout, name) for layout in plan.outputs)
    asked = ShardingAnnotations({**imported.asked.meshes, name: plan.mesh}, {}, {graph.name: outputs})
    module = from_graph(graph, asked, imported.order)
    for function in module.functions:
        function.attrs["public"] = function.attrs["name"] in imported.public
    layouts = _layouts(graph, plan)
    for val in _values(module):
        if val.origin in layouts:
            val.sharding = _sharding(layouts[val.origin], name)
    _settle_calls(module)
    return module


def _layouts(graph: Graph, plan: Plan) -> dict[Value, Layout]:
    """The layouts of the module's own values; the plan's are those of the graph with calls written out.

    Raises:
        PlanError: those of one value differ from call to call.
    """
    planned = {value.name: layout for value, layout in plan.layouts.items()}
    written, places = inline_placed(graph)
    found: dict[Value, Layout] = {}
    for value in (*written.values, *inner_values(written)):
        own, layout = places[value][1] if value in places else value, planned.get(value.name)
        if layout is None or layout.rank != own.type.rank:
            continue
        if found.setdefault(own, layout).dims != layout.dims:
            raise PlanError(
                f"cannot export the plan: {own.name} of a function that is called several times lies as [{found[own]}] "
                f"in one call and as [{layout}] in another; inline the function (MLIR's pass inline)"
            )
    return found


def _settle_calls(module: MutableModule) -> None:
    """Let the arguments and results of functions lie as in their calls, outer functions before those they call."""
    by_name = {function.attrs["name"]: function for function in module.functions}
    ahead = [module.main] if module.main is not None else []
    for function in ahead:
        for op in _inner(function):
            if op.name != "Call":
                continue
            called = by_name[op.attrs["callee"]]
            for arg, operand in zip(called.blocks[0].args, op.operands, strict=True):
                _agree(arg, operand, called)
            for returned, result in zip(called.blocks[0].terminator.operands, op.results, strict=True):
                _agree(returned, result, called)
            told = called.attrs["outputs"]
            called.attrs["outputs"] = [old or _split(val.sharding) for old, val in zip(told, op.results, strict=True)]
            if called not in ahead:
                ahead.append(called)


def _agree(inside: MutableValue, outside: MutableValue, called: Operation) -> None:
    """Let a value of a function lie as what it stands for in a call."""
    inside.sharding = inside.sharding or outside.sharding
    if outside.sharding is not None and inside.sharding is not outside.sharding:
        raise PlanError(
            f"cannot export the plan: a value of function {called.attrs['name']!r} lies as {inside.sharding} inside or "
            f"in one call and as {outside.sharding} in another; inline the function (MLIR's pass inline)"
        )


def _split(sharding: Sharding | None) -> Sharding | None:
    """Shardy says nothing of results of private functions that are whole, and drops what is said."""
    return None if sharding is None or sharding.is_replicated else sharding


def _mesh_name(asked: ShardingAnnotations, mesh: Mesh) -> str:
    """The symbol of the mesh in the module, or one that is free."""
    for name, own in asked.meshes.items():
        if own is mesh:
            return name
    name = _MESH
    while name in asked.meshes:
        name += "_"
    return name


def _sharding(layout: Layout, name: str) -> Sharding:
    return Sharding(layout.mesh, [DimSharding(refs) for refs in layout.dims], mesh_name=name)


def _values(module: MutableModule) -> Iterator[MutableValue]:
    for function in module.functions:
        yield from function.blocks[0].args
        yield from (val for op in _inner(function) for val in op.results if val.is_tensor)


def _inner(function: Operation) -> Iterator[Operation]:
    for op in function.blocks[0]:
        yield from op.walk()
