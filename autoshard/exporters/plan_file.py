"""Plans as files: `save_plan(plan, path)` writes a plan as JSON, `load_plan(path, graph)` reads it for the same graph.

The file holds what the graph's inputs and operators are, so that a plan for another model is refused with what differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoshard.core.strategy import Strategy, is_runnable
from autoshard.exporters.json_text import json_text
from autoshard.ir.flow import Boundary, is_nest
from autoshard.ir.graph import Graph, Node, Value, walk
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.plan.diff import signature
from autoshard.plan.plan import Cause, Decision, Option, Plan
from autoshard.transform.recompute import made_as
from autoshard.util.errors import AutoshardError, PlanError

FORMAT = "autoshard plan 1"


def save_plan(plan: Plan, path: str | Path) -> Path:
    """Write a plan to a file; the path."""
    path = Path(path)
    path.write_text(json_text(plan_data(plan)), encoding="utf-8")
    return path


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as dicts and lists of plain values."""
    values = list(_values(plan.graph))
    return {
        "format": FORMAT,
        "graph": plan.graph.name,
        "mesh": str(plan.mesh),
        "search": plan.search,
        "started_from": plan.started_from,
        "search_stats": dict(plan.search_stats),
        "inputs": [f"{value.name}: {value.type}" for value in plan.graph.inputs],
        "operators": [_operator(node, plan.decisions[node]) for node in walk(plan.graph.nodes)],
        "layouts": {value.name: str(plan.layouts[value]) for value in values},
        "input_causes": {value.name: _cause(cause) for value, cause in plan.input_causes.items()},
        "outputs": [str(layout) for layout in plan.outputs],
    }


def _values(graph: Graph) -> Any:
    yield from graph.values
    for node in walk(graph.nodes):
        for region in node.regions:
            yield from region.values


def _operator(node: Node, decision: Decision) -> dict[str, Any]:
    strategy = decision.strategy
    found: dict[str, Any] = {"name": node.label, "is": signature(node), "cause": _cause(decision.cause)}
    if isinstance(strategy, Boundary):
        return {
            **found,
            "entering": [str(layout) for layout in strategy.entering],
            "leaving": [str(layout) for layout in strategy.leaving],
        }
    found["axes"] = [_refs(strategy.mesh, refs) for refs in strategy.axes]
    if strategy.carried:
        found["carried"], found["carriers"] = _refs(strategy.mesh, strategy.carried), list(strategy.carriers)
    found["seconds"] = [decision.chosen.edge_seconds, decision.chosen.completion_seconds, decision.chosen.work_seconds]
    return found


def _refs(mesh: Mesh, refs: tuple) -> str:
    return ".".join(map(mesh.show_ref, refs))


def _cause(cause: Cause) -> list[Any]:
    return [cause.kind, list(cause.neighbours), list(cause.lost), cause.instead]


def load_plan(path: str | Path, graph: Graph, mesh: Mesh | None = None) -> Plan:
    """The plan in a file, for a graph with the same names and types.

    Args:
        mesh: the mesh to run on, which must be the plan's; by default it is taken from the file.

    Raises:
        PlanError: no such file, not a plan, or a plan for another model or mesh, with the first things that differ.
    """
    data = _read(Path(path))
    where = f"the plan in {path}"
    graph = made_as(graph, data.get("layouts", {}))  # a plan may make activations again
    differing = list(_differences(data, graph))
    if differing:
        more = f"; and {len(differing) - 3} more differences" if len(differing) > 3 else ""
        raise PlanError(f"{where} is for another model than {graph.name!r}: {'; '.join(differing[:3])}{more}")
    try:
        own = Mesh.parse(data["mesh"])
        if mesh is not None and mesh is not own:
            raise PlanError(f"it is for mesh '{own}', not '{mesh}'")
        return _plan(data, graph, own)
    except (AutoshardError, KeyError, TypeError, ValueError) as error:
        raise PlanError(f"{where} cannot be used: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read a plan from {path}: {error.strerror}") from None
    except ValueError as error:
        raise PlanError(f"{path} is no plan: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        shown = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise PlanError(
            f"{path} is no plan: its format is {shown!r}, not {FORMAT!r}; `autoshard plan --save` writes one"
        )
    return data


def _differences(data: Mapping[str, Any], graph: Graph) -> list[str]:
    theirs = {"inputs": data.get("inputs", []), "operators": [one.get("is") for one in data.get("operators", [])]}
    ours = {
        "inputs": [f"{value.name}: {value.type}" for value in graph.inputs],
        "operators": [signature(node) for node in walk(graph.nodes)],
    }
    found = []
    for what, own in ours.items():
        if len(own) != len(theirs[what]):
            found.append(f"the file has {len(theirs[what])} {what}, the model {len(own)}")
        pairs = enumerate(zip(theirs[what], own, strict=False))
        found += [f"{what[:-1]} {i} is {old} in the file, {new} in the model" for i, (old, new) in pairs if old != new]
    return found


def _plan(data: Mapping[str, Any], graph: Graph, mesh: Mesh) -> Plan:
    layouts = {value: _layout(data["layouts"][value.name], mesh, value) for value in _values(graph)}
    nodes = list(walk(graph.nodes))
    decisions = {node: _decision(one, node, mesh) for one, node in zip(data["operators"], nodes, strict=True)}
    outputs = tuple(_layout(text, mesh, value) for text, value in zip(data["outputs"], graph.outputs, strict=True))
    causes = {value: _made_cause(data["input_causes"].get(value.name, ["given", [], [], ""])) for value in graph.inputs}
    made = graph, mesh, decisions, layouts, outputs, causes
    stats = data["search_stats"]
    return Plan(*made, started_from=data["started_from"], search=data["search"], search_stats=stats)


def _layout(text: str, mesh: Mesh, value: Value) -> Layout:
    layout = Layout.parse(text, mesh)
    layout.check_fits(value.type.shape, value.name)
    return layout


def _decision(data: Mapping[str, Any], node: Node, mesh: Mesh) -> Decision:
    seconds = data.get("seconds", [0.0, 0.0, 0.0])
    return Decision(Option(_strategy(data, node, mesh), *seconds), _made_cause(data["cause"]))


def _strategy(data: Mapping[str, Any], node: Node, mesh: Mesh) -> Strategy:
    if is_nest(node):
        sides = [[Layout.parse(text, mesh) for text in data[side]] for side in ("entering", "leaving")]
        return Boundary.of(node, mesh, *sides)
    axes = tuple(_made_refs(text, mesh) for text in data["axes"])
    if len(axes) != len(node.rule.factors):
        raise PlanError(f"{node.label} has {len(node.rule.factors)} factors ({node.rule}), the file {len(axes)}")
    strategy = Strategy(
        node.rule, mesh, axes, _made_refs(data.get("carried", ""), mesh), tuple(data.get("carriers", ()))
    )
    if not is_runnable(node.rule, strategy.parts):
        raise PlanError(f"{node.label} ({node.op.name}) cannot be split as {strategy}")
    return strategy


def _made_refs(text: str, mesh: Mesh) -> tuple:
    return tuple(mesh.ref(one) for one in text.split(".")) if text else ()


def _made_cause(data: Any) -> Cause:
    kind, neighbours, lost, instead = data
    return Cause(kind, tuple(neighbours), tuple(lost), instead)
