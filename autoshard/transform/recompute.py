"""Recomputation: values of the forward pass are made again where the backward pass wants them, instead of being kept.

`recompute(graph, nodes)` re-emits the nodes before their first user in the backward pass (Chen et al. 2016, "Training
Deep Nets with Sublinear Memory Cost"). `regather(graph)` does the same for parameters that lie in parts on the ranks:
what was gathered for the forward pass is let go and gathered again (Rajbhandari et al. 2020, "ZeRO", section 5.3); and
`regather_values(graph, values)` for activations (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from autoshard.ir.graph import PARAMETER, Graph, Node, Value, renamed
from autoshard.ops.registry import lookup
from autoshard.transform.sums import summed_as
from autoshard.util.errors import GraphError

AGAIN, GATHERED = ".again", ".gathered"
"""What the names of values end in that are made again, and that are only gathered again."""


def backward_begins(graph: Graph) -> int:
    """The place of the first node that makes a gradient; the number of nodes if none does."""
    gradients = set(graph.cotangents)
    for i, node in enumerate(graph.nodes):
        if any(value in gradients for value in node.results):
            return i
    return len(graph.nodes)


def saves_memory(graph: Graph) -> bool:
    """Whether anything is made or gathered again, which takes time and is done for memory alone."""
    return any(value.name.endswith((AGAIN, GATHERED)) for value in graph.values)


def kept(graph: Graph) -> tuple[Node, ...]:
    """The forward nodes with results that the backward pass uses, so that these are kept until then."""
    begin = backward_begins(graph)
    used = {value for node in graph.nodes[begin:] for value in node.uses}
    return tuple(node for node in graph.nodes[:begin] if any(value in used for value in node.results))


def cheap(graph: Graph) -> tuple[Node, ...]:
    """Those of `kept` that no product of tensors is needed for: making them again costs little beside their memory."""
    return tuple(node for node in kept(graph) if not node.regions and not node.is_product and node.operands)


def inside(graph: Graph, paths: Collection[str]) -> tuple[Node, ...]:
    """The forward nodes of cells with these paths, by their names, but for those whose results leave such a cell: as
    these are kept, each cell is made again from what enters it alone."""
    begin, prefixes = backward_begins(graph), [f"{path}." if path else "" for path in paths]
    of = {node: {prefix for prefix in prefixes if node.label.startswith(prefix)} for node in graph.nodes[:begin]}
    outputs = set(graph.outputs)

    def leaves(node: Node) -> bool:
        users = [user for value in node.results for user, _ in graph.users[value] if user in of]
        return not outputs.isdisjoint(node.results) or any(of[node] - of[user] for user in users)

    return tuple(node for node, cells in of.items() if cells and not leaves(node))


def recompute(graph: Graph, nodes: Collection[Node]) -> Graph:
    """The graph with these nodes made again for the backward pass, from what else is kept.

    Raises:
        GraphError: a node that is none of the forward pass, or that does something besides its results.
    """
    return recomputed(graph, nodes)[0]


def recomputed(graph: Graph, nodes: Collection[Node]) -> tuple[Graph, dict[Node, Node]]:
    """`recompute`, and for each node of the new graph the one of `graph` that it is, or does again.

    Raises:
        GraphError: as `recompute`.
    """
    begin = backward_begins(graph)
    _check(graph, nodes, set(graph.nodes[:begin]))
    names = {value.name for value in graph.values}
    made: dict[Value, Value] = {}
    chosen = {value: node for node in nodes for value in node.results}
    new = {node: node for node in graph.nodes[:begin]}

    def again(value: Value) -> None:
        """Make a value again, its operands first; nothing if it is kept or made already."""
        if value not in chosen or value in made:
            return
        node = chosen[value]
        for operand in node.operands:
            again(operand)
        results = tuple(Value(one.type, _unique(one.name + AGAIN, names)) for one in node.results)
        made.update(zip(node.results, results, strict=True))
        name = node.name + AGAIN if node.name else ""
        new[replace(node, operands=renamed(node.operands, made), results=results, name=name)] = node

    for node in graph.nodes[begin:]:
        for operand in node.operands:
            again(operand)
        operands = renamed(node.operands, made)
        new[node if operands == node.operands else replace(node, operands=operands)] = node
    return replace(graph, nodes=tuple(new)), new


def made_as(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with those nodes made again of which `names` have results that the graph lacks: values that a plan
    was made for."""
    graph = summed_as(graph, names)
    own = {value.name for value in graph.values}
    gathered = {name.removesuffix(GATHERED) for name in names if name.endswith(GATHERED) and name not in own}
    graph = regather_values(graph, [value for value in graph.values if value.name in gathered]) if gathered else graph
    wanted = {name.removesuffix(AGAIN) for name in names if name.endswith(AGAIN) and name not in own}
    if any(value.name in wanted for value in graph.inputs):
        graph = regather(graph)
        wanted -= {value.name for value in graph.inputs} | {name.removesuffix(AGAIN) for name in _names(graph) - own}
    nodes = [node for node in kept(graph) if any(value.name in wanted for value in node.results)]
    return recompute(graph, nodes) if nodes else graph


def _names(graph: Graph) -> set[str]:
    return {value.name for value in graph.values}


def regather(graph: Graph) -> Graph:
    """The graph in which the backward pass uses each parameter by another name, so that a copy in another layout is
    made for each pass on its own. Updates keep the parameter itself. Other forms of parameters (cast, transposed) are
    made again."""
    forms = _forms(graph)
    graph = recompute(graph, [node for node in kept(graph) if node in forms]) if forms else graph
    updates = {node for node in graph.nodes if any(value in graph.tied for value in node.results)}
    parameters = [value for value in graph.inputs if graph.role_of[value] == PARAMETER]
    return _renamed(graph, parameters, AGAIN, updates)


def regather_values(graph: Graph, values: Collection[Value]) -> Graph:
    """The graph in which the backward pass uses these values of the forward pass by another name, so that a copy in
    another layout is made for each pass on its own."""
    return _renamed(graph, values, GATHERED)


def _renamed(graph: Graph, values: Collection[Value], ending: str, but: Collection[Node] = ()) -> Graph:
    """The graph whose backward pass, but for some nodes, uses values that the forward pass uses by another name."""
    begin, wanted = backward_begins(graph), set(values)
    names = {value.name for value in graph.values}
    before = {value for node in graph.nodes[:begin] for value in node.operands}
    made: dict[Value, Value] = {}
    new = list(graph.nodes[:begin])
    for node in graph.nodes[begin:]:
        if node in but:
            new.append(node)
            continue
        for value in dict.fromkeys(node.operands):
            if value in wanted and value in before and value not in made:
                made[value] = Value(value.type, _unique(value.name + ending, names))
                new.append(Node(lookup("Identity"), (value,), {}, (made[value],), value.name + ending))
        operands = renamed(node.operands, made)
        new.append(node if operands == node.operands else replace(node, operands=operands))
    return replace(graph, nodes=tuple(new))


def _forms(graph: Graph) -> set[Node]:
    """The nodes that make another form of a parameter of it alone."""
    forms = {value for value in graph.inputs if graph.role_of[value] == PARAMETER}
    found = set()
    for node in graph.nodes[: backward_begins(graph)]:
        alone = len(node.operands) == 1 and not node.regions and not node.op.has_effects(node.attrs)
        if alone and node.operands[0] in forms:
            forms.update(node.results)
            found.add(node)
    return found


def _check(graph: Graph, nodes: Collection[Node], forward: set[Node]) -> None:
    for node in nodes:
        what = f"{node.label} ({node.op.name}) of {graph.name!r} cannot be made again"
        if node not in forward:
            raise GraphError(f"{what}: it is no node of the forward pass")
        if node.regions or node.op.has_effects(node.attrs):
            raise GraphError(f"{what}: it holds regions, or does something besides its results")


def _unique(stem: str, names: set[str]) -> str:
    name, count = stem, 1
    while name in names:
        name, count = f"{stem}_{count}", count + 1
    names.add(name)
    return name
