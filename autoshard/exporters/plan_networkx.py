"""A plan as a graph of networkx: for its algorithms, and as GraphML and DOT for the tools that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.engines.extras import need
from autoshard.ir.graph import Node, Value
from autoshard.plan.plan import Plan
from autoshard.report.modules import module_path
from autoshard.report.summary import Move, summarize
from autoshard.search.planned import PlannedData

if TYPE_CHECKING:
    import networkx as nx


def plan_networkx(planned: PlannedData) -> nx.MultiDiGraph:
    """`planned.graph.to_networkx()` with what the plan says; all attributes are texts and numbers.

    - nodes: `layout` of inputs, of the results of operators (joined by '; ') and of outputs; `cause` and `seconds`; of
      operators also `strategy`, `module` (its path, joined by '/') and `times` (how often a step runs it);
    - edges: `layout` that the user wants the value in; where that is another than it is left in also `by` (the kinds of
      the collectives, joined by ' + '), `moved_bytes` that a device sends and `seconds`, for one time.

    >>> import networkx, numpy as np
    >>> from autoshard import ops, plan
    >>> planned = plan(lambda x, w: ops.relu(ops.matmul(x, w)), (np.ones((4, 6)), np.ones((6, 10))), mesh="dp=2 tp=2")
    >>> found = plan_networkx(planned)
    >>> found.nodes["matmul"]["op"], networkx.dag_longest_path_length(found, weight="moved_bytes", default_weight=0)
    ('MatMul', 0)
    """
    plan, summary = planned.plan, summarize(planned)
    view = plan.graph.to_networkx()
    view.graph.update(mesh=str(plan.mesh), search=plan.search, hardware=planned.hardware.name)
    for one in summary.inputs:
        view.nodes[one.value.name].update(layout=str(one.layout), cause=str(one.cause), seconds=0.0)
    rows = {row.node: row for row in summary.operators}
    keys = {node: key for key, node in zip(_operators(view), plan.graph.nodes, strict=True)}
    for node, key in keys.items():
        row = rows[node]
        view.nodes[key].update(
            strategy=str(row.decision.strategy),
            layout="; ".join(map(str, row.layouts)),
            cause=str(row.decision.cause),
            seconds=row.seconds,
            module="/".join(module_path(node.label)[:-1]),
            times=row.times,
        )
    for i, layout in enumerate(plan.outputs):
        view.nodes[f"output:{i}"].update(layout=str(layout), seconds=0.0)
    _add_moves(view, plan, keys, {(move.value, str(move.after)): move for move in summary.moves})
    return view


def _operators(view: nx.MultiDiGraph) -> list[str]:
    return [key for key, data in view.nodes(data=True) if data["kind"] == "operator"]


def _add_moves(view: nx.MultiDiGraph, plan: Plan, keys: dict[Node, str], moves: dict[tuple[Value, str], Move]) -> None:
    values = {value.name: value for value in plan.graph.values}
    nodes = {key: node for node, key in keys.items()}
    for _, user, data in view.edges(data=True):
        value, node = values[data["value"]], nodes.get(user)
        if node is None:
            wanted = plan.outputs[int(user.partition(":")[2])]
        else:
            layouts = plan.strategy(node).operand_layouts
            # What regions capture stands behind the operands and is taken as it is.
            wanted = layouts[data["operand"]] if data["operand"] < len(layouts) else plan.layouts[value]
        data["layout"] = str(wanted)
        move = None if wanted == plan.layouts[value] else moves.get((value, str(wanted)))
        if move is not None:
            by = " + ".join(one.step.kind for one in move.collectives)
            data.update(by=by, moved_bytes=float(move.nbytes), seconds=float(move.seconds))


def graphml(planned: PlannedData) -> str:
    """The plan as GraphML, which yEd, Gephi, Cytoscape and networkx read."""
    import networkx as nx

    return "\n".join(nx.generate_graphml(plan_networkx(planned), named_key_ids=True)) + "\n"


def dot(planned: PlannedData) -> str:
    """The plan in the DOT language of Graphviz; operators of a module are drawn in one colour.

    Raises:
        RuntimeSetupError: pydot, which writes it, is not installed.
    """
    need("viz", "exporting a plan as DOT")
    import networkx as nx

    return nx.nx_pydot.to_pydot(_quoted(plan_networkx(planned))).to_string()


def _quoted(view: nx.MultiDiGraph) -> nx.MultiDiGraph:
    """The same with all names and texts between quotes, as DOT wants whatever is no plain word."""
    import networkx as nx

    found = nx.MultiDiGraph()
    found.graph.update((key, _text(value)) for key, value in view.graph.items() if key != "name")
    for key, data in view.nodes(data=True):
        found.add_node(_text(key), **{name: _text(value) for name, value in data.items()})
    for one, other, data in view.edges(data=True):
        found.add_edge(_text(one), _text(other), **{name: _text(value) for name, value in data.items()})
    return found


def _text(value: object) -> str:
    inside = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{inside}"'
