"""The collectives that a manual computation writes by hand, as instructions: which ranks, by which collective of ours.

Each rank runs the body on its own block. What StableHLO says in lists of devices becomes groups along mesh axes where
it can, so that it is priced and run as all other collectives are; other lists stay lists.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations

from autoshard.core.enumerate import divisors
from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, Grouping, GroupList, Groups, Mesh
from autoshard.ops.body import Body
from autoshard.ops.hlo_collective import crosses_partitions, device_groups
from autoshard.partition.manual_step import ManualStep
from autoshard.partition.program import ManualCollective, Register
from autoshard.util.errors import PlanError, at

KINDS = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "AllToAll": "all_to_all",
    "CollectivePermute": "permute",
    "CollectiveBroadcast": "all_gather",
    "CrossReplicaSum": "all_reduce",
    "PartitionId": "rank",
    "ReplicaId": "rank",
}
"""The operators that say what ranks do, and the collective that does it; a reduction that ranks have no collective for
is gathered and done by each rank."""

_BOOLS = {"add": "max", "or": "max", "and": "min", "mul": "min", "max": "max", "min": "min"}
Rows = tuple[tuple[int, ...], ...]


def is_manual_collective(node: Node) -> bool:
    """Whether the node says itself what ranks do."""
    return node.op.name in KINDS


def manual_collective(
    node: Node, operands: tuple[Register, ...], results: tuple[Register, ...], mesh: Mesh
) -> ManualCollective:
    """The instruction of a collective in a manual computation, on these registers.

    Raises:
        PlanError: groups of unequal sizes or that leave out a device, or that join devices which hold other blocks.
    """
    groups = grouping(node, mesh)
    for register in operands:
        _check_same_blocks(node, register.layout, groups)
    return ManualCollective(node, operands, results, kind_of(node), groups)


def kind_of(node: Node) -> str:
    """The collective of `Comm` by which it is done."""
    kind = KINDS[node.op.name]
    return "all_gather" if kind in ("all_reduce", "reduce_scatter") and reduction(node) is None else kind


def manual_steps(node: Node, strategy: Strategy) -> tuple[tuple[ManualStep, TensorType], ...]:
    """What it moves under a strategy, for each operand, with the operand's type."""
    groups, kind = grouping(node, strategy.mesh), kind_of(node)
    pairs = zip(node.operand_types, strategy.operand_layouts, strict=True)
    return tuple(
        (ManualStep(kind, layout, groups, math.prod(layout.local_shape(of.shape))), of) for of, layout in pairs
    )


def reduction(node: Node) -> str | None:
    """The reduction of `Comm` that the node's body does on its operands; None if there is none."""
    if node.op.name == "CrossReplicaSum":
        return "sum"
    body: Body = node.attrs["body"]
    dtype = node.operand_types[0].dtype
    return _BOOLS.get(body.name) if dtype.name == "bool" else body.reduction


def grouping(node: Node, mesh: Mesh) -> Grouping:
    """The groups of ranks of a collective.

    Raises:
        PlanError: groups of unequal sizes, or a device in none of them.
    """
    if "pairs" in node.attrs:
        return mesh.groups(_between(sources(node, mesh), mesh))
    if "groups" not in node.attrs:
        return mesh.groups(())
    ranks = mesh.listed("read the groups of a collective")
    rows = tuple(map(tuple, device_groups(node.attrs, len(ranks))))
    if sorted(device for row in rows for device in row) != list(ranks):
        raise PlanError(
            f"cannot plan {_description(node)}: its groups {list(map(list, rows))} do not have each of the "
            f"{mesh.devices} devices once; name all devices in groups"
        )
    if len(set(map(len, rows))) > 1:
        raise PlanError(f"cannot plan {_description(node)}: its groups {list(map(list, rows))} differ in size")
    return grouped(rows, mesh)


def sources(node: Node, mesh: Mesh) -> dict[int, int]:
    """Of a permute: for each rank that receives something, from whom."""
    pairs = {int(target): int(source) for source, target in node.attrs["pairs"]}
    if crosses_partitions(node.attrs):
        return pairs
    return {rank: rank for rank in mesh.listed("list the sources of a permute")} if pairs.get(0) == 0 else {}


def completed(pairs: dict[int, int], devices: int) -> list[int]:
    """Whose block each rank receives in a permutation of all ranks that does what the pairs say."""
    taken = set(pairs.values())
    spare = iter([rank for rank in range(devices) if rank not in taken])
    return [pairs[rank] if rank in pairs else next(spare) for rank in range(devices)]


# -- from lists of devices to axes


@lru_cache(maxsize=4096)
def grouped(rows: Rows, mesh: Mesh) -> Grouping:
    """The groups along axes or sub-axes that are these rows in the same order of members, else the rows as a list."""
    wanted = set(rows)
    for refs in _axes_of(rows[0], mesh):
        groups = Groups(mesh, refs)
        if {tuple(map(int, groups.members(row[0]))) for row in rows} == wanted:
            return groups
    return GroupList(rows)


def _axes_of(row: tuple[int, ...], mesh: Mesh) -> list[tuple[AxisRef, ...]]:
    """The axes along which the members of one group may lie, major to minor: found digit by digit, minor first."""
    places = [mesh.position(rank) for rank in row]
    if len(places) == 1:
        return [()]
    found: list[AxisRef] = []
    done = 1
    while done < len(places):
        ref = _axis_with(places[done] - places[0], len(places) // done, places, done, mesh)
        if ref is None:
            return []
        found.append(ref)
        done *= ref.size
    return [tuple(reversed(found))]


def _axis_with(stride: int, most: int, places: list[int], done: int, mesh: Mesh) -> AxisRef | None:
    """The longest piece of an axis whose neighbours are `stride` apart, as members `done` apart are."""
    for name, size in mesh.axes:
        for parts in divisors(size):
            for pre in divisors(size // parts):
                ref = AxisRef(name, pre, parts)
                fits = 1 < parts <= most and most % parts == 0 and mesh.stride(ref) == stride
                if fits and all(places[j * done] - places[0] == j * stride for j in range(parts)):
                    return ref
    return None


def _between(pairs: dict[int, int], mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes along which senders and receivers differ."""
    found = [
        ref
        for ref in mesh.all_axes
        if any(mesh.coordinate(one, ref) != mesh.coordinate(other, ref) for one, other in pairs.items())
    ]
    return tuple(found)


def _check_same_blocks(node: Node, layout: Layout, groups: Grouping) -> None:
    """That all members of a group hold the same block of what the manual computation sees as one tensor."""
    refs = [ref for dim in layout.dims for ref in dim]
    if not refs:
        return
    mesh = layout.mesh
    for rank in mesh.listed("check the groups of a collective"):
        members = [int(member) for member in groups.members(rank)]
        places = {mesh.index(member, refs) for member in members}
        if len(places) > 1:
            first, second = next(
                pair for pair in combinations(members, 2) if mesh.index(pair[0], refs) != mesh.index(pair[1], refs)
            )
            raise PlanError(
                f"cannot plan {_description(node)}: it joins devices {first} and {second}, which hold different "
                f"blocks of its operand [{layout}]; the axis between them is not manual there"
            )


def _description(node: Node) -> str:
    return f"{node.label} ({node.op.name}){at(node.source)}"
