"""A plan of a StableHLO module as that module: every value that the plan knows carries its layout as a closed sharding.

Shardy's propagation leaves such a module as it is: there is nothing open to spread to.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from autoshard.exporters.sdy import to_module
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Graph, Value, inner_values
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.plan.plan import Plan
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue, Operation, fill_open, from_graph
from autoshard.propagate.passes.calls_in import flatten_calls
from autoshard.propagate.passes.functions import Symbols, callees_first, calls, original_name
from autoshard.search.planned import PlannedData
from autoshard.transform.inline import Path, inline_placed

_MESH = "mesh"


def is_of_module(planned: PlannedData) -> bool:
    """Whether a plan is of a StableHLO module, not of a model that was traced."""
    return isinstance(planned.module, Imported)


def plan_module(planned: PlannedData) -> Any:
    """The MLIR module that was planned, with the plan's layouts.

    Terms of sums are not said: a value that is left as terms carries how its dims are split, and what completes it is
    the partitioner's affair.
    """
    return to_module(_work(planned.module, planned.plan), planned.module)


def _work(imported: Imported, plan: Plan) -> MutableModule:
    graph = imported.graph
    name = _mesh_name(imported.asked, plan.mesh)
    outputs = tuple(layout_sharding(layout, name) for layout in plan.outputs)
    asked = ShardingAnnotations({**imported.asked.meshes, name: plan.mesh}, {}, {graph.name: outputs})
    module = from_graph(graph, asked, imported.order)
    flatten_calls(module)
    symbols = Symbols(module)
    for function in module.functions:
        function.attrs["public"] = function.attrs["name"] in imported.public
    layouts = _layouts(graph, plan)
    for path, val in _values(symbols.functions[graph.name], (), symbols):
        if val.origin is not None and (path, val.origin) in layouts:
            val.sharding = layout_sharding(layouts[path, val.origin], name)
    loops = [op for function in module.functions for op in _inner(function) if op.name == "While"]
    for loop in loops:
        _settle_invariants(loop)
    _settle_calls(symbols.functions[graph.name], symbols)
    for function in module.functions:  # results that nobody reads, of which the plan knows nothing
        for op in _inner(function):
            fill_open(op.results)
    _share_copies(module, symbols)
    return module


def _layouts(graph: Graph, plan: Plan) -> dict[tuple[Path, Value], Layout]:
    """The layouts of the module's own values by call. The plan's are those of the graph with calls written out."""
    planned = {value.name: layout for value, layout in plan.layouts.items()}
    written, places = inline_placed(graph)
    found: dict[tuple[Path, Value], Layout] = {}
    for value in (*written.values, *inner_values(written)):
        path, own = places.get(value, ((), value))
        layout = planned.get(value.name)
        if layout is not None and layout.rank == own.type.rank:
            found[path, own] = layout
    return found


def _settle_invariants(loop: Operation) -> None:
    """Let what a loop gives on as it is lie as what it starts with."""
    body = loop.blocks[1]
    for start, arg, made, result in zip(loop.operands, body.args, body.terminator.operands, loop.results, strict=True):
        if made is arg:
            arg.sharding = result.sharding = start.sharding


def _settle_calls(function: Operation, symbols: Symbols) -> None:
    """Let the arguments and results of functions lie as in their calls, outer functions before those they call."""
    for call in (op for op in _inner(function) if op.name == "Call"):
        called = symbols.callee(call)
        for arg, operand in zip(called.blocks[0].args, call.operands, strict=True):
            _agree(arg, operand)
        for returned, result in zip(called.blocks[0].terminator.operands, call.results, strict=True):
            _agree(returned, result)
        told = called.attrs["outputs"]
        called.attrs["outputs"] = [old or _split(val.sharding) for old, val in zip(told, call.results, strict=True)]
        _settle_calls(called, symbols)


def _agree(inside: MutableValue, outside: MutableValue) -> None:
    """Let a value of a function lie as what it stands for in the call, and the other way round."""
    inside.sharding = inside.sharding or outside.sharding
    outside.sharding = outside.sharding or inside.sharding


def _share_copies(module: MutableModule, symbols: Symbols) -> None:
    """Let calls share one of the copies of a function in which all lies alike."""
    kept: dict[Hashable, str] = {}
    instead: dict[str, str] = {}
    for function in callees_first(module):
        for call in calls(function):
            call.attrs["callee"] = instead.get(call.attrs["callee"], call.attrs["callee"])
        callees = tuple(call.attrs["callee"] for call in calls(function))
        lie = tuple(val.sharding for val in (*function.blocks[0].args, *_results(function)))
        name = function.attrs["name"]
        instead[name] = kept.setdefault((original_name(function), callees, lie, *function.attrs["outputs"]), name)
        if instead[name] != name:
            symbols.remove(function)


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


def layout_sharding(layout: Layout, name: str) -> Sharding:
    """A layout as a closed sharding on the mesh that a module calls `name`."""
    return Sharding(layout.mesh, [DimSharding(refs) for refs in layout.dims], mesh_name=name)


def _values(function: Operation, path: Path, symbols: Symbols) -> Iterator[tuple[Path, MutableValue]]:
    """The arguments and results of a function and of those that it calls, with the calls that lead to each."""
    yield from ((path, arg) for arg in function.blocks[0].args)
    yield from _made_in(function.blocks[0], path, symbols)


def _made_in(block: Block, path: Path, symbols: Symbols) -> Iterator[tuple[Path, MutableValue]]:
    for op in block:
        yield from ((path, val) for val in op.results if val.is_tensor)
        inside = (*path, op.origin) if op.name in ("Call", "NamedComputation") and op.origin is not None else path
        if op.name == "Call":
            yield from _values(symbols.callee(op), inside, symbols)
        for inner in op.blocks:
            yield from ((inside, arg) for arg in inner.args)
            yield from _made_in(inner, inside, symbols)


def _results(function: Operation) -> Iterator[MutableValue]:
    return (val for op in _inner(function) for val in op.results)


def _inner(function: Operation) -> Iterator[Operation]:
    for op in function.blocks[0]:
        yield from op.walk()
