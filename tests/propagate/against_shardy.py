"""Run Shardy's released passes on a module text and compare their shardings with ours, value by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.frontends.stablehlo.reader import parse_module, read_module
from autoshard.propagate import run
from autoshard.propagate.edges import add_edges, sink_edges
from autoshard.propagate.mutable_ir import MutableModule, from_graph
from autoshard.propagate.values import outer_shardings

PASSES: dict[str, Callable[..., run.Log]] = {
    "sdy-basic-propagate": run.run_basic,
    "sdy-aggressive-propagate": run.run_aggressive,
    "sdy-op-priority-propagate": run.run_op_priority,
    "sdy-user-priority-propagate": run.run_user_priority,
}


def released(text: str, *passes: str) -> str:
    """The module after these passes of jaxlib."""
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        for name in passes:
            try:
                manager = PassManager.parse(f"builtin.module({name})")
            except ValueError:
                manager = PassManager.parse(f"builtin.module(func.func({name}))")
            manager.run(module.operation)
        return str(module)


def work_of(text: str) -> MutableModule:
    imported = read_module(parse_module(text), dynamic=True)
    return from_graph(imported.graph, imported.asked, imported.order)


def facts(mutable: MutableModule) -> list[tuple[Any, ...]]:
    """All that a propagation decides, op by op: which ops are left, and the shardings of values and outputs."""
    rows = []
    for op in mutable.op.walk():
        results = [value.sharding for value in op.results]
        outputs = list(op.attrs.get("outputs", ()))
        # Arguments of loops have no sharding of their own in a module's text.
        keeps = op.name in ("Function", "ManualComputation")
        args = [value.sharding for block in op.blocks for value in block.args] if keeps else []
        rows.append((op.name, results, args, outputs, outer_shardings(op) if op.name == "ManualComputation" else ()))
    return rows


def propagated(text: str, name: str, edges: bool = True, **options: Any) -> tuple[MutableModule, run.Log]:
    """Ours, with data-flow edges added before and sunk after."""
    mutable = work_of(text)
    if edges:
        add_edges(mutable)
    log = PASSES[name](mutable, **options)
    if edges:
        sink_edges(mutable)
    return mutable, log


def check(text: str, *names: str, edges: bool = True) -> None:
    """Assert that we and the passes (all of them if none is named) agree on a module."""
    around = (["sdy-add-data-flow-edges"], ["sdy-sink-data-flow-edges"]) if edges else ([], [])
    for name in names or PASSES:
        want = facts(work_of(released(text, *around[0], name, *around[1])))
        assert facts(propagated(text, name, edges)[0]) == want, f"{name} (edges: {edges}) disagrees on\n{text}"
