"""Plans as files: `save_plan(plan, path)` writes a plan as JSON, `load_plan(path, graph)` reads it for the same graph.

The file holds what the graph's inputs and operators are, so that a plan for another model is refused with what differs.
Its form is a PlanRecord; files of version 1 are read too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoshard.core.strategy import Strategy, is_runnable
from autoshard.exporters.json_text import json_text
from autoshard.exporters.plan_records import (
    FORMAT,
    FORMAT_1,
    STAGES_FORMAT,
    VERSION,
    Caused,
    InputRecord,
    OperatorRecord,
    Plan1,
    PlanRecord,
    ValueRecord,
)
from autoshard.ir.flow import Boundary, is_nest
from autoshard.ir.graph import Graph, Node, Value, walk
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.plan.diff import signature
from autoshard.plan.plan import Cause, Decision, Option, Plan
from autoshard.transform.recompute import made_as
from autoshard.util.errors import AutoshardError, PlanError
from autoshard.util.files import parse_json, read_bytes, write_atomically
from costmodel.json_door import Record, plain


def save_plan(plan: Plan, path: str | Path) -> Path:
    """Write a plan to a file, whole or not at all; the path.

    Raises:
        PlanError: the file cannot be written.
    """
    return write_atomically(path, json_text(plan_data(plan)), PlanError)


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as dicts and lists of plain values."""
    return plain(plan_record(plan))


def plan_record(plan: Plan) -> PlanRecord:
    """A plan as the Record of plan files, without figures."""
    graph = plan.graph
    return PlanRecord(
        format=FORMAT,
        version=VERSION,
        graph=graph.name,
        mesh=str(plan.mesh),
        devices=plan.mesh.devices,
        search=plan.search,
        started_from=plan.started_from,
        # JSON has no infinite numbers: a bound of -inf is none.
        search_stats={name: float(one) for name, one in plan.search_stats.items() if math.isfinite(one)},
        inputs=tuple(_input(plan, value) for value in graph.inputs),
        operators=tuple(_operator(node, plan.decisions[node]) for node in walk(graph.nodes)),
        layouts={value.name: str(plan.layouts[value]) for value in _values(graph)},
        outputs=tuple(_value(value, layout) for value, layout in zip(graph.outputs, plan.outputs, strict=True)),
    )


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.values
    for node in walk(graph.nodes):
        for region in node.regions:
            yield from region.values


def _value(value: Value, layout: Layout) -> ValueRecord:
    return ValueRecord(name=value.name, type=str(value.type), layout=str(layout))


def _input(plan: Plan, value: Value) -> InputRecord:
    cause = _cause(plan.input_causes.get(value, Cause("given")))
    return InputRecord(name=value.name, type=str(value.type), layout=str(plan.layouts[value]), **cause)


def _operator(node: Node, decision: Decision) -> OperatorRecord:
    strategy, chosen = decision.strategy, decision.chosen
    found: dict[str, Any] = {"name": node.label, "signature": signature(node), **_cause(decision.cause)}
    if isinstance(strategy, Boundary):
        found["entering"] = tuple(map(str, strategy.entering))
        found["leaving"] = tuple(map(str, strategy.leaving))
        return OperatorRecord(**found)
    found["axes"] = tuple(_refs(strategy.mesh, refs) for refs in strategy.axes)
    if strategy.carried:
        found["carried"], found["carriers"] = _refs(strategy.mesh, strategy.carried), tuple(strategy.carriers)
    seconds = float(chosen.edge_seconds), float(chosen.completion_seconds), float(chosen.work_seconds)
    return OperatorRecord(**found, decided=seconds)


def _refs(mesh: Mesh, refs: tuple[AxisRef, ...]) -> str:
    return ".".join(map(mesh.show_ref, refs))


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "cause": cause.kind,
        "cause_from": tuple(cause.neighbours),
        "left_out": tuple(cause.lost),
        "instead": cause.instead,
    }


# -- reading


class FileHead(Record, frozen=True, forbid_unknown_fields=False):
    """What tells the version of a file."""

    format: str = ""
    version: int = 1


def load_plan(path: str | Path, graph: Graph, mesh: Mesh | None = None) -> Plan:
    """The plan in a file, for a graph with the same names and types.

    Args:
        mesh: the mesh to run on, which must be the plan's; by default it is taken from the file.

    Raises:
        PlanError: no such file, not a plan, or a plan for another model or mesh, with the first things that differ.
    """
    return plan_of(read_plan(path), graph, mesh, f"the plan in {path}")


def plan_of(record: PlanRecord, graph: Graph, mesh: Mesh | None, where: str) -> Plan:
    """The plan that a record says, for a graph with the same names and types.

    Args:
        mesh: as for `load_plan`.
        where: what the record is from, for messages.

    Raises:
        PlanError: a plan for another model or mesh, with the first things that differ.
    """
    graph = made_as(graph, record.layouts)  # a plan may make activations again
    differing = _differences(record, graph)
    if differing:
        more = f"; and {len(differing) - 3} more differences" if len(differing) > 3 else ""
        raise PlanError(f"{where} is for another model than {graph.name!r}: {'; '.join(differing[:3])}{more}")
    try:
        own = Mesh.parse(record.mesh)
        if mesh is not None and mesh is not own:
            raise PlanError(f"it is for mesh '{own}', not '{mesh}'")
        return _plan(record, graph, own)
    except AutoshardError as error:
        raise PlanError(f"{where} cannot be used: {error}") from None


def read_plan(path: str | Path) -> PlanRecord:
    """What a plan file says, whatever its version.

    Raises:
        PlanError: no such file, or not a plan; the message has the place.
    """
    data, where = read_bytes(path, "plan", PlanError), f"the plan {path}"
    head = parse_json(data, FileHead, where, PlanError)
    if head.format == FORMAT_1:
        return parse_json(data, Plan1, where, PlanError).now()
    if head.format == STAGES_FORMAT:
        raise PlanError(f"{path} is a plan in stages: it goes with --pipeline, or plan_pipeline")
    if head.format != FORMAT:
        raise PlanError(
            f"{path} is no plan: its format is {head.format!r}, not {FORMAT!r}; `autoshard plan --save` writes one"
        )
    if head.version != VERSION:
        raise PlanError(f"{path} is a plan of version {head.version}; versions 1 and {VERSION} can be read")
    return parse_json(data, PlanRecord, where, PlanError)


def _differences(record: PlanRecord, graph: Graph) -> list[str]:
    pairs = {
        "inputs": (
            [f"{one.name}: {one.type}" for one in record.inputs],
            [f"{value.name}: {value.type}" for value in graph.inputs],
        ),
        "operators": ([one.signature for one in record.operators], [signature(node) for node in walk(graph.nodes)]),
        "outputs": ([""] * len(record.outputs), [""] * len(graph.outputs)),
    }
    found = []
    for what, (theirs, ours) in pairs.items():
        if len(ours) != len(theirs):
            found.append(f"the file has {len(theirs)} {what}, the model {len(ours)}")
        both = enumerate(zip(theirs, ours, strict=False))
        found += [f"{what[:-1]} {i} is {old} in the file, {new} in the model" for i, (old, new) in both if old != new]
    names = {value.name for value in _values(graph)}
    missing = [name for name in names if name not in record.layouts]
    return found + ([f"the file has no layout for {', '.join(sorted(missing)[:3])}"] if missing else [])


def _plan(record: PlanRecord, graph: Graph, mesh: Mesh) -> Plan:
    layouts = {value: _layout(record.layouts[value.name], mesh, value) for value in _values(graph)}
    nodes = list(walk(graph.nodes))
    decisions = {node: _decision(one, node, mesh) for one, node in zip(record.operators, nodes, strict=True)}
    partial = next((value for value in graph.inputs if layouts[value].partial), None)
    if partial is not None:
        raise PlanError(f"{partial.name} is an input in the layout [{layouts[partial]}]; inputs are whole values")
    _check_agreement(record, graph, mesh, layouts)
    outputs = tuple(_layout(one.layout, mesh, value) for one, value in zip(record.outputs, graph.outputs, strict=True))
    causes = {value: _made_cause(one) for one, value in zip(record.inputs, graph.inputs, strict=True)}
    return Plan(
        graph,
        mesh,
        decisions,
        layouts,
        outputs,
        causes,
        started_from=record.started_from,
        search=record.search,
        search_stats=record.search_stats,
    )


def _check_agreement(record: PlanRecord, graph: Graph, mesh: Mesh, layouts: dict[Value, Layout]) -> None:
    """That what a file says twice is the same both times: who edits one of them by hand would else change nothing.

    Raises:
        PlanError: the first that differs.
    """
    if record.devices != mesh.devices:
        raise PlanError(f"its mesh '{mesh}' has {mesh.devices} devices, but devices is {record.devices}")
    for one, value in zip(record.inputs, graph.inputs, strict=True):
        if _layout(one.layout, mesh, value) != layouts[value]:
            raise PlanError(
                f"input {one.name} lies as [{one.layout}] among the inputs, and as [{layouts[value]}] in layouts; "
                "change both"
            )
    unknown = sorted(set(record.layouts) - {value.name for value in _values(graph)})
    if unknown:
        raise PlanError(f"layouts has {', '.join(unknown[:3])}, which the model has not")


def _layout(text: str, mesh: Mesh, value: Value) -> Layout:
    layout = Layout.parse(text, mesh)
    layout.check_fits(value.type.shape, value.name)
    return layout


def _decision(one: OperatorRecord, node: Node, mesh: Mesh) -> Decision:
    return Decision(Option(_strategy(one, node, mesh), *one.decided), _made_cause(one))


def _strategy(one: OperatorRecord, node: Node, mesh: Mesh) -> Strategy:
    if is_nest(node):
        sides = [[Layout.parse(text, mesh) for text in side or ()] for side in (one.entering, one.leaving)]
        return Boundary.of(node, mesh, *sides)
    axes = tuple(_made_refs(text, mesh) for text in one.axes or ())
    if len(axes) != len(node.rule.factors):
        raise PlanError(f"{node.label} has {len(node.rule.factors)} factors ({node.rule}), the file {len(axes)}")
    strategy = Strategy(node.rule, mesh, axes, _made_refs(one.carried, mesh), one.carriers)
    if not is_runnable(node.rule, strategy.parts):
        raise PlanError(f"{node.label} ({node.op.name}) cannot be split as {strategy}")
    linear = node.op.linear_in(len(node.operands))
    if strategy.carried and (node.rule.reduction != "sum" or strategy.carriers not in linear):
        raise PlanError(f"{node.label} ({node.op.name}) cannot run on terms of a sum in its operands {one.carriers}")
    assert strategy.operand_layouts or strategy.result_layouts, "an operator has either"  # raises for axes used twice
    return strategy


def _made_refs(text: str, mesh: Mesh) -> tuple[AxisRef, ...]:
    return tuple(mesh.ref(one) for one in text.split(".")) if text else ()


def _made_cause(one: Caused) -> Cause:
    return Cause(one.cause, one.cause_from, one.left_out, one.instead)
