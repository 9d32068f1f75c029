"""From a traced model and a mesh to what propagation works on: `annotations_on`, `mutable_module`.

Model code asks by Specs, which know no mesh; here each becomes a Sharding on the mesh, in every place where one is
asked: inputs, outputs, constraints. Manual computations name their mesh themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from autoshard.ir.annotations import ShardingAnnotations
from autoshard.ir.graph import Graph, Value
from autoshard.ir.verify import describe
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import Sharding
from autoshard.layout.spec import Spec
from autoshard.propagate.mutable_ir import Block, MutableModule, Operation, from_graph
from autoshard.util.errors import ShardingError, at
from autoshard.util.source import Source

_MESH = "mesh"


class ShardingSpecs(Protocol):
    """What is asked of inputs and outputs; `sources` has lines by input, and for outputs by position."""

    @property
    def values(self) -> Mapping[Value, Spec]: ...

    @property
    def outputs(self) -> Sequence[Spec | None]: ...

    @property
    def sources(self) -> Mapping[Value | int, Source]: ...


class TracedGraph(Protocol):
    """A graph and what its model asks."""

    @property
    def graph(self) -> Graph: ...

    @property
    def asked(self) -> ShardingSpecs: ...


def annotations_on(traced: TracedGraph, mesh: Mesh) -> ShardingAnnotations:
    """What a traced model asks of its inputs and outputs, on that mesh.

    Raises:
        ShardingError: an axis that the mesh has not, or another broken invariant; names the value and the line.
    """
    graph, asked = traced.graph, traced.asked
    values = {
        value: _on(spec, value, value.name, asked.sources.get(value), mesh) for value, spec in asked.values.items()
    }
    outputs: list[Sharding | None] = [None] * len(graph.outputs)
    for i, spec in enumerate(asked.outputs):
        if spec is not None:
            value = graph.outputs[i]
            outputs[i] = _on(spec, value, f"output {i} ({value.name})", asked.sources.get(i), mesh)
    return ShardingAnnotations({_MESH: mesh}, values, {graph.name: tuple(outputs)})


def _on(spec: Spec, value: Value, name: str, source: Source | None, mesh: Mesh) -> Sharding:
    return spec.on(mesh, value.type.rank, _MESH, what=f"{name}{at(source)}")


def mutable_module(traced: TracedGraph, mesh: Mesh) -> MutableModule:
    """The mutable module of a traced model, with all that it asks, ready for `propagate` or `run_pipeline`.

    Raises:
        ShardingError: as `annotations_on`; also for constraints, and for manual computations on another mesh.
    """
    module = from_graph(traced.graph, annotations_on(traced, mesh))
    for function in module.functions:
        _resolve(function.blocks[0], mesh, ())
    return module


def _resolve(block: Block, mesh: Mesh, manual: tuple[str, ...]) -> None:
    """Put Shardings in place of what attributes ask; `manual` are the axes that bodies around have taken."""
    for op in block:
        if op.attrs.get("sharding") is not None:
            _resolve_sharding(op, mesh, manual)
        if "in_shardings" in op.attrs:
            _check_mesh(op, mesh)
        for inner in op.blocks:
            _resolve(inner, mesh, (*manual, *op.attrs.get("manual_axes", ())))


def _resolve_sharding(op: Operation, mesh: Mesh, manual: tuple[str, ...]) -> None:
    what = _described(op)
    spec = Spec.of(op.attrs["sharding"], what)
    (result,) = op.results
    op.attrs["sharding"] = result.sharding = spec.on(mesh, result.type.rank, _MESH, what=what, manual=manual)


def _check_mesh(op: Operation, mesh: Mesh) -> None:
    for sharding in (*op.attrs["in_shardings"], *op.attrs["out_shardings"]):
        if sharding.mesh is not mesh:
            raise ShardingError(
                f"{_described(op)} is on the mesh '{sharding.mesh}', but the model is on '{mesh}'; use one mesh"
            )


def _described(op: Operation) -> str:
    return describe(op.origin) if op.origin is not None else op.name


def shardings(module: MutableModule) -> dict[Value, Sharding | None]:
    """The sharding that each value of the graph has in a mutable module; those of values that are gone are left out.

    Where passes made copies of a value, one of them stands for it.
    """
    found: dict[Value, Sharding | None] = {}
    for op in module.op.walk():
        for value in (*op.results, *(arg for block in op.blocks for arg in block.args)):
            if value.origin is not None:
                found.setdefault(value.origin, value.sharding)
    return found
