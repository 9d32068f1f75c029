"""A plan as placements of PyTorch's DTensor: as text in plain data; where modules of a torch model begin and end.

A placement says for each mesh axis what it does to a tensor: `R` nothing, `S(0)` split dim 0, `P(sum)` hold terms.
Where a dim is split by a later axis before an earlier one, the earlier one's is `S(0, 4)`: split, inside of 4 parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from autoshard.exporters.pieces import Pieces, pieces_of
from autoshard.ir.flow import is_nest
from autoshard.ir.graph import DATA, Graph, Node, Value
from autoshard.layout.layout import Layout
from autoshard.plan.plan import Plan

REPLICATE, SHARD, PARTIAL = "R", "S", "P"


class AxisPlacement(NamedTuple):
    """What one mesh axis does. `inside` is into how many parts later axes have split the dim before."""

    kind: str
    dim: int = 0
    inside: int = 1
    reduction: str = "sum"

    def __str__(self) -> str:
        if self.kind == SHARD:
            return f"S({self.dim})" if self.inside == 1 else f"S({self.dim}, {self.inside})"
        return f"P({self.reduction})" if self.kind == PARTIAL else "R"


Placements = tuple[AxisPlacement, ...]


@dataclass(frozen=True)
class Border:
    """What a module takes from outside, or leaves for outside, in order: the shape, and how it is to lie.

    Attributes:
        entries: (value name, shape, placements).
    """

    entries: tuple[tuple[str, tuple[int, ...], Placements], ...]

    def wanted(self, shape: tuple[int, ...]) -> Placements | None:
        """How a tensor of that shape is to lie; None if nothing or several things are said of that shape."""
        found = {placements for _, own, placements in self.entries if own == shape}
        return next(iter(found)) if len(found) == 1 else None


@dataclass(frozen=True)
class ModulePlan:
    """A plan as a torch module needs it: everything by qualified names.

    Attributes:
        pieces: the mesh, without sub-axes.
        tensors: the parameters and buffers.
        inputs: the tensors among the module's arguments, in order: name, shape, placements.
        outputs: the tensors among what it returns, in order.
        entering: by the path of a module inside, how its inputs lie; `leaving` its outputs.
    """

    pieces: Pieces
    tensors: Mapping[str, Placements]
    inputs: tuple[tuple[str, tuple[int, ...], Placements], ...]
    outputs: tuple[Placements, ...]
    entering: Mapping[str, Border]
    leaving: Mapping[str, Border]


def placements(layout: Layout, pieces: Pieces) -> Placements:
    """A layout as one placement per axis of the pieces."""
    names, sizes = pieces.names, pieces.sizes
    found = dict.fromkeys(names, AxisPlacement(REPLICATE))
    for dim, axes in enumerate(pieces.dims(layout)):
        for position, name in enumerate(axes):
            before = [one for one in axes[:position] if names.index(one) > names.index(name)]
            found[name] = AxisPlacement(SHARD, dim, math.prod(sizes[one] for one in before))
    for name in pieces.split(layout.partial):
        found[name] = AxisPlacement(PARTIAL, reduction=layout.reduction)
    return tuple(found.values())


def module_plan(plan: Plan, paths: tuple[str, ...]) -> ModulePlan:
    """What a plan says of a torch module.

    Args:
        plan: of what `from_torch` made of the module; of a step of training its forward pass counts, and `tensors` has
            the optimizer's states, too.
        paths: the qualified names of the modules inside.

    Raises:
        PlanError: the mesh cannot be cut as the layouts ask.
    """
    graph, pieces = plan.graph, pieces_of(plan)

    @cache
    def lying(layout: Layout) -> Placements:
        return placements(layout, pieces)

    def said(value: Value, layout: Layout) -> tuple[str, tuple[int, ...], Placements]:
        return value.name, value.type.shape, lying(layout)

    stored = {value for value in graph.inputs if graph.role_of[value] != DATA}
    entering, leaving = {}, {}
    returned = range(len(graph.outputs) - len(graph.updates))
    forward = _forward(graph, len(returned))
    inside, ends = _inside(forward, paths), set(graph.outputs[: len(returned)])
    wanted, known = {node: _wanted(plan, node) for node in forward}, set(forward)
    for path, nodes in inside.items():
        made, own = dict.fromkeys(value for node in nodes for value in node.results), set(nodes)
        outside = [pair for node in nodes for pair in wanted[node] if pair[0] not in made]
        taken = [pair for pair in outside if pair[0] not in stored and not pair[1].partial]
        entering[path] = Border(tuple(said(*pair) for pair in taken))
        left = [
            value
            for value in made
            if value in ends or any(user in known and user not in own for user, _ in graph.users[value])
        ]
        leaving[path] = Border(tuple(said(value, plan.layouts[value]) for value in left))
    return ModulePlan(
        pieces,
        {value.name: lying(plan.layouts[value]) for value in graph.inputs if value in stored},
        tuple(said(value, plan.layouts[value]) for value in graph.inputs if value not in stored),
        tuple(lying(plan.outputs[i]) for i in returned),
        entering,
        leaving,
    )


def _forward(graph: Graph, returned: int) -> tuple[Node, ...]:
    """The nodes that lead to what a model returns; all of them, if nothing is updated."""
    if not graph.updates:
        return graph.nodes
    needed = set(graph.outputs[:returned])
    for node in reversed(graph.nodes):
        if needed.intersection(node.results):
            needed.update(node.uses)
    return tuple(node for node in graph.nodes if needed.intersection(node.results))


def _inside(nodes: tuple[Node, ...], paths: tuple[str, ...]) -> dict[str, list[Node]]:
    """The nodes of each module, those of the modules in it included; modules without any are left out."""
    found: dict[str, list[Node]] = {}
    known = set(paths)
    for node in nodes:
        for path in modules_around(node):
            if path in known:
                found.setdefault(path, []).append(node)
    return found


def modules_around(node: Node) -> tuple[str, ...]:
    """The paths of the modules that a node is in, outermost first, as its label says."""
    return _up_to(node.label.rpartition(".")[0])


@lru_cache(maxsize=1 << 14)
def _up_to(path: str) -> tuple[str, ...]:
    return (*_up_to(path.rpartition(".")[0]), path) if path else ()


def _wanted(plan: Plan, node: Node) -> list[tuple[Value, Layout]]:
    return [] if is_nest(node) else [*zip(node.operands, plan.strategy(node).operand_layouts, strict=True)]


def to_data(plan: ModulePlan) -> dict[str, Any]:
    """The same as plain data for JSON."""

    @cache
    def words(one: Placements) -> tuple[str, ...]:
        return tuple(map(str, one))

    def shown(one: Placements) -> list[str]:
        return [*words(one)]

    def border(one: Border) -> list[dict[str, Any]]:
        return [{"value": name, "shape": list(shape), "placements": shown(of)} for name, shape, of in one.entries]

    return {
        "format": "autoshard placements 1",
        "mesh": dict(plan.pieces.axes),
        "ranks": plan.pieces.ranks.tolist(),
        "tensors": {name: shown(of) for name, of in plan.tensors.items()},
        "inputs": border(Border(plan.inputs)),
        "outputs": [shown(of) for of in plan.outputs],
        "modules": {
            path: {"inputs": border(plan.entering[path]), "outputs": border(plan.leaving[path])}
            for path in plan.entering
        },
    }
