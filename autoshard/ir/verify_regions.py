"""The laws of regions: how many a node has, and the types of what goes into and comes out of them."""

from __future__ import annotations

from autoshard.core.tensortype import TensorType, dtype
from autoshard.ir.flow import value_at
from autoshard.ir.graph import Node
from autoshard.ir.run import CALLS
from autoshard.ops.control import Sizes
from autoshard.util.errors import GraphError

_COUNTS = {"While": 2, "If": 2, "ManualComputation": 1, "NamedComputation": 1, **dict.fromkeys(CALLS, 0)}
# Regions of these see only a part of each tensor, or take and yield whatever they like.
_OWN_TYPES = ("ManualComputation", "Opaque")


def check_regions(node: Node, where: str) -> None:
    """Check the regions of one node; `where` names it.

    Raises:
        GraphError: it has another number of regions than its operator takes, or types differ along an edge.
    """
    wanted = _COUNTS.get(node.op.name)
    if not node.op.takes_regions:
        wanted = 0
    if wanted is not None and len(node.regions) != wanted:
        raise GraphError(f"{where} has {len(node.regions)} regions; the operator takes {wanted}")
    if node.op.name == "Case" and not node.regions:
        raise GraphError(f"{where} has no region to choose")
    if node.regions and node.op.name not in _OWN_TYPES:
        _check_counts(node, where)
        _check_edges(node, where)
    if node.op.name == "ManualComputation":
        _check_manual(node, where)


def _check_counts(node: Node, where: str) -> None:
    for i, region in enumerate(node.regions):
        takes = 0 if node.op.name in ("Case", "If") else len(node.operands)
        is_condition = node.op.name == "While" and i == 0
        gives = (TensorType((), dtype("bool")),) if is_condition else node.result_types
        if len(region.args) != takes:
            raise GraphError(f"{where}: region {i} has {len(region.args)} arguments instead of {takes}")
        found = tuple(value.type for value in region.outputs)
        if found != gives:
            raise GraphError(f"{where}: region {i} yields ({_words(found)}) instead of ({_words(gives)})")


def _check_edges(node: Node, where: str) -> None:
    """That all places of one data-flow edge have one type."""
    if node.op.edges is None:
        return
    sizes = Sizes(len(node.operands), len(node.results), len(node.regions))
    for edge in node.op.edges(sizes):
        places = (*edge.sources, *edge.targets)
        types = {value_at(node, location).type: location for location in places}
        if len(types) > 1:
            shown = ", ".join(f"{location.kind} {location.index} is {of}" for of, location in types.items())
            raise GraphError(f"{where}: what flows along an edge has several types: {shown}")


def _check_manual(node: Node, where: str) -> None:
    """One sharding per operand and result, one argument and one yielded value for each."""
    region = node.regions[0]
    pairs = {
        "operands": (node.operands, node.attrs["in_shardings"], region.args),
        "results": (node.results, node.attrs["out_shardings"], region.outputs),
    }
    for what, (values, shardings, inside) in pairs.items():
        if not len(values) == len(shardings) == len(inside):
            raise GraphError(
                f"{where} has {len(values)} {what}, {len(shardings)} shardings for them and {len(inside)} values inside"
            )
        for value, sharding, local in zip(values, shardings, inside, strict=True):
            if value.type.rank != sharding.rank and not sharding.mesh.is_maximal:
                raise GraphError(f"{where}: {value!r} has a sharding of rank {sharding.rank}")
            if (value.type.rank, value.type.dtype) != (local.type.rank, local.type.dtype):
                raise GraphError(f"{where}: {value!r} is {local!r} inside; only sizes may differ")


def _words(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))
