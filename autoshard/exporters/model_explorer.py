"""A plan for Model Explorer: the graph by modules, collectives as edge overlays, and two plans beside each other.

Field names are those of its `graph_builder`; times are in microseconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autoshard.exporters.plan_networkx import plan_networkx
from autoshard.report.modules import module_path
from autoshard.search.planned import PlannedData

if TYPE_CHECKING:
    import networkx as nx

COLORS = {
    "all_gather": "#0072b2",
    "all_reduce": "#d55e00",
    "reduce_scatter": "#e69f00",
    "all_to_all": "#cc79a7",
    "permute": "#009e73",
    "halo": "#56b4e9",
}
"""Okabe-Ito, as in the page of a plan."""
_OTHER = "#000000"
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#d55e00"}]
Data = dict[str, Any]


def model_explorer(planned: PlannedData, against: PlannedData | None = None) -> Data:
    """A graph collection: what the app opens as a JSON file.

    Args:
        against: a second plan, as a second graph, whose overlays are for the pane on the right.
    """
    names = graph_names(planned, against)
    plans = [planned] if against is None else [planned, against]
    graphs = [_graph(name, one, right=i == 1) for i, (name, one) in enumerate(zip(names, plans, strict=True))]
    return {"label": planned.program.name, "graphs": graphs, "graphSorting": "name_asc"}


def node_data(planned: PlannedData) -> Data:
    """What to color the graph by: microseconds of each operator, and of the redistributions that happen for it."""
    view = plan_networkx(planned)
    moves: dict[str, float] = {}
    for _, user, data in view.edges(data=True):
        moves[user] = moves.get(user, 0.0) + 1e6 * data.get("seconds", 0.0)
    computing = {key: 1e6 * data["seconds"] for key, data in view.nodes(data=True) if data["kind"] == "operator"}
    columns = {"computing (us)": computing, "redistributing (us)": moves}
    (name,) = graph_names(planned)
    results = {title: {key: {"value": value} for key, value in of.items()} for title, of in columns.items()}
    return {name: [{"name": title, "results": one, "gradient": _GRADIENT} for title, one in results.items()]}


def graph_names(planned: PlannedData, against: PlannedData | None = None) -> list[str]:
    """The ids of the graphs: the plans' modes and meshes, numbered where they are alike."""
    plans = [planned.plan] if against is None else [planned.plan, against.plan]
    names = [f"{one.graph.name} by {one.search} on {one.mesh}" for one in plans]
    return names if len(set(names)) == len(names) else [f"{i}: {name}" for i, name in enumerate(names, 1)]


def _graph(name: str, planned: PlannedData, right: bool) -> Data:
    view = plan_networkx(planned)
    overlays = list(_overlays(view))
    side = "edgeOverlaysDataListRightPane" if right else "edgeOverlaysDataListLeftPane"
    drawn = [{"type": "edge_overlays", "name": f"redistributions of {name}", "overlays": overlays}] if overlays else []
    return {
        "id": name,
        "nodes": [_node(view, key, data) for key, data in view.nodes(data=True)],
        "groupNodeAttributes": _groups(planned, view),
        "tasksData": {side: drawn},
    }


def _node(view: nx.MultiDiGraph, key: str, data: Mapping[str, Any]) -> Data:
    shown = [(name, value) for name, value in data.items() if name not in ("kind", "label", "seconds", "module")]
    time = [("us", f"{1e6 * data['seconds']:.4g}")] if data.get("seconds") else []
    edges = [
        {"sourceNodeId": one, "sourceNodeOutputId": str(of["result"]), "targetNodeInputId": str(of["operand"])}
        for one, _, of in view.in_edges(key, data=True)
    ]
    leaving = {str(of["result"]): of for _, _, of in view.out_edges(key, data=True)}
    return {
        "id": key,
        "label": data.get("op", data["label"]),
        "namespace": _namespace(data),
        "attrs": [{"key": name, "value": str(value)} for name, value in (*shown, *time)],
        "incomingEdges": edges,
        "outputsMetadata": [
            {"id": i, "attrs": [{"key": one, "value": str(of[one])} for one in ("value", "type", "bytes")]}
            for i, of in sorted(leaving.items())
        ],
    }


def _namespace(data: Mapping[str, Any]) -> str:
    if data["kind"] == "operator":
        return data["module"]
    return "/".join(module_path(data["label"])[:-1]) if data["kind"] == "input" else ""


def _overlays(view: nx.MultiDiGraph) -> Iterator[Data]:
    """One for each kind of redistribution, so that each can be switched off; wider for more bytes."""
    kinds: dict[str, list[Data]] = {}
    for one, other, data in view.edges(data=True):
        if data.get("moved_bytes"):
            label = f"{data['value']}: {data['moved_bytes']:.0f} B"
            kinds.setdefault(data["by"], []).append({"sourceNodeId": one, "targetNodeId": other, "label": label})
    for kind, edges in kinds.items():
        last = kind.rpartition(" ")[2]
        yield {"name": kind, "edgeColor": COLORS.get(last, _OTHER), "edgeWidth": 3, "edges": edges}


def _groups(planned: PlannedData, view: nx.MultiDiGraph) -> Data:
    """Microseconds of each module, those in it included; of the whole graph under the empty name."""
    found: dict[str, float] = {}
    for _, data in view.nodes(data=True):
        if data["kind"] == "operator":
            parts = data["module"].split("/") if data["module"] else []
            for i in range(1, len(parts) + 1):
                name = "/".join(parts[:i])
                found[name] = found.get(name, 0.0) + 1e6 * data["seconds"] * data["times"]
    whole = {"step (us)": 1e6 * planned.cost.seconds, "peak memory (B)": planned.cost.peak_memory_bytes}
    groups = {name: {"computing (us)": f"{value:.4g}"} for name, value in found.items()}
    return {"": {name: f"{value:.6g}" for name, value in whole.items()}, **groups}
