"""Data-flow edges as ops: put one on the owner of each edge, and take them away again when their work is done.

Equal to Shardy's passes sdy-add-data-flow-edges and sdy-sink-data-flow-edges, except that an owner that has its op
already gets no second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.layout.sharding import Sharding
from autoshard.ops.control import Edge, data_flow_edge, func_data_flow_edge
from autoshard.ops.registry import Operator
from autoshard.propagate.function_edges import function_sources
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, find
from autoshard.propagate.values import edge_of_target, edge_op, get_sharding, set_holder, store_outer
from autoshard.util.errors import GraphError


def add_edges(module: MutableModule) -> None:
    """Put a DataFlowEdge op behind each owner of an edge; all uses of the owner become uses of it.

    It takes over the owner's sharding. Tokens have none and get no op.
    """
    for op in find(module.op, _has_edges):
        for edges in (op.links.entering, op.links.leaving):
            _add(op.at(edge.targets[0]) for edge in reversed(edges))


def _has_edges(operator: Operator) -> bool:
    return operator.edges is not None


def _add(owners: Iterable[MutableValue]) -> None:
    for owner in owners:
        if owner.is_tensor and edge_op(owner) is None:
            sharding = get_sharding(owner)
            edge = insert_after(owner, Operation(data_flow_edge, [owner], [owner.type], {"sharding": sharding}))
            edge.results[0].sharding = sharding
            owner.replace_by(edge.results[0], keep=[edge])


def insert_after(value: MutableValue, op: Operation) -> Operation:
    """Put an op right behind where the value comes from."""
    defining = value.defining
    if defining is not None:
        assert defining.parent is not None, f"{defining} is in no block"
        return defining.parent.insert(op, defining.next)
    block = value.owner
    return block.insert(op, block.first)  # type: ignore[union-attr]


def sink_edges(module: MutableModule) -> None:
    """Give the shardings of the DataFlowEdge ops to the owners of the edges, and remove the ops.

    If one of the owners that are results (or arguments) of an op has a sharding, those without get an open one.
    """
    for op in find(module.op, _has_edges):
        for edges in (op.links.entering, op.links.leaving):
            _give([op.at(edge.targets[0]) for edge in edges])
        store_outer(op)
    for op in find(module.op, lambda operator: operator is data_flow_edge):
        op.results[0].replace_by(op.operands[0])
        op.erase()


def _give(owners: Sequence[MutableValue]) -> None:
    ops = [edge_op(owner) for owner in owners]
    known = [op.results[0].sharding for op in ops if op is not None and op.results[0].sharding is not None]
    if not known:
        return
    for owner, op in zip(owners, ops, strict=True):
        sharding = None if op is None else op.results[0].sharding
        rank = len(owner.type.shape)
        set_holder(owner, sharding or Sharding.open(known[0].mesh, rank, known[0].mesh_name))


def of_edge_op(op: Operation) -> tuple[Operation, Edge]:
    """The edge that a DataFlowEdge op stands for, and the op that has the edge.

    Raises:
        GraphError: the op is not on the owner of an edge.
    """
    value = op.operands[0]
    found = edge_of_target(value)
    if found is None or found[0].at(found[1].targets[0]) is not value:
        raise GraphError(
            f"{op} stands on {value.type}, which owns no data-flow edge; it belongs on the first target of an edge of "
            "a loop, branch, barrier or body"
        )
    return found


def is_edge(operator: Operator) -> bool:
    """Whether an op of that operator stands for a data-flow edge, within a function or between functions."""
    return operator is data_flow_edge or operator is func_data_flow_edge


def sources(op: Operation) -> list[MutableValue]:
    """The values that flow into the edge of a DataFlowEdge or FuncDataFlowEdge op."""
    if op.operator is func_data_flow_edge:
        return function_sources(op)
    parent, edge = of_edge_op(op)
    return [parent.at(location) for location in edge.sources]


def other_targets(op: Operation) -> list[MutableValue]:
    """The values beside the owner that the edge of a DataFlowEdge op leads to."""
    parent, edge = of_edge_op(op)
    return [parent.at(location) for location in edge.targets[1:]]
