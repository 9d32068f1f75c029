"""A plan of a traced model as a StableHLO module: what it computes of whole values, each with its layout as a closed
sharding.

The graph is traced by JAX as the engine `xla` runs it on one device, with a constraint behind each operator. Inputs
and outputs bear theirs as attributes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.engines.check import check_runs
from autoshard.engines.grid import Grid
from autoshard.engines.kernels import Kernels, kernels_of
from autoshard.engines.text import Writer
from autoshard.engines.xla_collectives import XlaCollectives
from autoshard.engines.xla_kernels import XlaKernels
from autoshard.exporters.plan_sdy import layout_sharding
from autoshard.ir.graph import Graph, Node, Value
from autoshard.layout.layout import Layout
from autoshard.layout.sdy_show import show_mesh
from autoshard.layout.sdy_text import show_sharding
from autoshard.ops.registry import lookup
from autoshard.plan.plan import Plan
from autoshard.runtime.array import array_dtype
from autoshard.search.one_device import one_device_program
from autoshard.search.planned import PlannedData

_MESH = "mesh"
_CONSTRAINT = "PropagationBarrier"


def traced_module(planned: PlannedData) -> Any:
    """The MLIR module of the graph that was planned, with the plan's layouts.

    Raises:
        PlanError: an operator that the engine xla lacks.
    """
    plan = planned.plan
    program = one_device_program(_Constraining(plan).graph())
    kernels = kernels_of("xla")
    check_runs(program, kernels)
    writer = Writer(program)
    text = writer.text()

    mesh = f"#sdy.mesh{show_mesh(plan.mesh)}"

    def run(inputs: OrderedDict[str, Any]) -> tuple:
        given = inputs.values()
        return text.step(_Constrained(text.grid, kernels, mesh), XlaCollectives(text.grid), text.constants, *given)

    run.__name__ = planned.graph.name
    with jax.enable_x64(True):
        examples = OrderedDict(
            (one.name, jax.ShapeDtypeStruct(one.whole.shape, array_dtype(one.whole.dtype))) for one in program.inputs
        )
        module: Any = jax.jit(run, keep_unused=True).trace(examples).lower().compiler_ir()
    with module.context, ir.Location.unknown():
        _have_mesh(module, mesh)
        _bear_layouts(module, plan)
    return module


def _text(layout: Layout) -> str:
    return f"#sdy.sharding{show_sharding(layout_sharding(layout, _MESH))}"


def _have_mesh(module: Any, mesh: str) -> None:
    """Let a module name the mesh."""
    if not any(one.operation.name == "sdy.mesh" for one in module.body.operations):
        with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
            sdy.MeshOp(_MESH, ir.Attribute.parse(mesh))


def _bear_layouts(module: Any, plan: Plan) -> None:
    """Give what goes in and out its layouts."""
    main = next(one for one in module.body.operations if ir.StringAttr(one.attributes["sym_name"]).value == "main")
    sides = {
        "arg_attrs": [("jax.arg_info", value.name, plan.layouts[value]) for value in plan.graph.inputs],
        "res_attrs": [
            ("jax.result_info", one.name, layout) for one, layout in zip(plan.graph.outputs, plan.outputs, strict=True)
        ],
    }
    for name, rows in sides.items():
        attributes = (
            {info: ir.StringAttr.get(called), "sdy.sharding": ir.Attribute.parse(_text(layout))}
            for info, called, layout in rows
        )
        main.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])


class _Constraining:
    """A plan's graph with a constraint behind each operator, in regions too."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.layouts = plan, {value.name: layout for value, layout in plan.layouts.items()}

    def graph(self) -> Graph:
        graph = self.plan.graph
        return replace(graph, nodes=tuple(self.nodes(graph.nodes)))

    def nodes(self, nodes: Iterable[Node]) -> Iterator[Node]:
        for node in nodes:
            regions = tuple(replace(one, nodes=tuple(self.nodes(one.nodes))) for one in node.regions)
            texts = {value: self.text(value) for value in node.results}
            made = tuple(Value(one.type, f"{one.name}.made") if texts[one] else one for one in node.results)
            yield replace(node, regions=regions, results=made)
            for value, inner in zip(node.results, made, strict=True):
                if inner is not value:
                    yield Node(lookup(_CONSTRAINT), (inner,), {"sharding": texts[value]}, (value,), value.name)

    def text(self, value: Value) -> str | None:
        layout = self.layouts.get(value.name)
        return None if layout is None or layout.rank != value.type.rank else _text(layout)


class _Constrained(XlaKernels):
    """Operators on whole arrays, with constraints on a mesh, given as sdy's text."""

    def __init__(self, grid: Grid, kernels: Kernels, mesh: str) -> None:
        super().__init__(grid, kernels)
        self.sdy_mesh = mesh

    def __getattr__(self, name: str) -> Callable:
        if name != _CONSTRAINT:
            return super().__getattr__(name)

        def constrained(x: Any, *, sharding: str | None = None, **_: Any) -> Any:
            return x if sharding is None else _constraint.bind(x, sharding=sharding, mesh=self.sdy_mesh)

        return constrained


_constraint = Primitive("autoshard_constraint")
_constraint.def_abstract_eval(lambda x, *, sharding, mesh: x)


def _lowered(context: Any, x: Any, *, sharding: str, mesh: str) -> list[Any]:
    _have_mesh(context.module_context.module, mesh)
    return [sdy.ShardingConstraintOp(x, ir.Attribute.parse(sharding)).result]


mlir.register_lowering(_constraint, _lowered)
