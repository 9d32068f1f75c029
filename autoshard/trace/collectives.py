"""What StableHLO's collectives do across the positions of a manual computation.

Each function takes the team (its `ranks`: the device of every position; `position(device)`), the node, and for each
operand a list over positions; it returns such a list for each result. Groups of devices become groups of positions:
devices that differ along axes that are not manual run the same program on their own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.ir.graph import Node
from autoshard.ops.hlo_collective import crosses_partitions, device_groups
from autoshard.util.errors import ShapeError, at

COLLECTIVES: dict[str, Callable[[Any, Node, list[list]], Sequence[list]]] = {}


def _collective(name: str) -> Callable:
    def register(function: Callable) -> Callable:
        COLLECTIVES[name] = function
        return function

    return register


def groups_of(team: Any, node: Node) -> list[list[int]]:
    """For each position the positions of its group, in order; none if it is in no group.

    Raises:
        ShapeError: a group has two devices of one position.
    """
    given = device_groups(node.attrs, team.mesh.devices if team.mesh is not None else 1)
    group_of = {device: group for group in given for device in group}
    found = []
    for rank in team.ranks:
        group = [team.position(device) for device in group_of.get(rank, ())]
        if len(set(group)) < len(group):
            raise ShapeError(
                f"running {node.op.name}{at(node.source)}: its group {list(group_of[rank])} joins devices along an "
                "axis that is not manual there"
            )
        found.append(group)
    return found


def _reduced(team: Any, node: Node, parts: list) -> list:
    """For each position the parts of its group, combined in the order of the group."""
    done: dict[tuple[int, ...], np.ndarray] = {}
    for group in map(tuple, _full_groups(team, node)):
        if group in done:
            continue
        total = parts[group[0]]
        for place in group[1:]:
            (total,) = node.attrs["body"](total, parts[place])
        done[group] = total
    return [done[tuple(group)] for group in _full_groups(team, node)]


def _full_groups(team: Any, node: Node) -> list[list[int]]:
    """The groups, of which every position must be in one."""
    groups = groups_of(team, node)
    lonely = [rank for rank, group in zip(team.ranks, groups, strict=True) if not group]
    if lonely:
        raise ShapeError(f"running {node.op.name}{at(node.source)}: device {lonely[0]} is in none of its groups")
    return groups


@_collective("AllReduce")
def _all_reduce(team: Any, node: Node, operands: list[list]) -> list[list]:
    return [_reduced(team, node, parts) for parts in operands]


@_collective("CrossReplicaSum")
def _cross_replica_sum(team: Any, node: Node, operands: list[list]) -> list[list]:
    return operands  # of one replica


@_collective("ReduceScatter")
def _reduce_scatter(team: Any, node: Node, operands: list[list]) -> list[list]:
    dim = node.attrs["dim"]
    groups = _full_groups(team, node)
    totals = _reduced(team, node, operands[0])
    return [
        [
            np.split(total, len(group), dim)[group.index(place)]
            for place, (group, total) in enumerate(zip(groups, totals, strict=True))
        ]
    ]


@_collective("AllGather")
def _all_gather(team: Any, node: Node, operands: list[list]) -> list[list]:
    dim, groups = node.attrs["dim"], _full_groups(team, node)
    return [[np.concatenate([parts[place] for place in group], dim) for group in groups] for parts in operands]


@_collective("AllToAll")
def _all_to_all(team: Any, node: Node, operands: list[list]) -> list[list]:
    attrs, groups = node.attrs, _full_groups(team, node)
    return [_exchanged(parts, groups, attrs["split"], attrs["concat"]) for parts in operands]


def _exchanged(parts: list, groups: list[list[int]], split: int, join: int) -> list:
    pieces = [np.split(part, len(group), split) for part, group in zip(parts, groups, strict=True)]
    return [
        np.concatenate([pieces[sender][group.index(place)] for sender in group], join)
        for place, group in enumerate(groups)
    ]


@_collective("CollectivePermute")
def _collective_permute(team: Any, node: Node, operands: list[list]) -> list[list]:
    source_of = {int(target): int(source) for source, target in node.attrs["pairs"]}
    if not crosses_partitions(node.attrs):  # among the replicas, of which there is one
        source_of = {rank: rank for rank in team.ranks if source_of.get(0) == 0}
    return [
        [
            parts[team.position(source_of[rank])] if rank in source_of else np.zeros_like(part)
            for rank, part in zip(team.ranks, parts, strict=True)
        ]
        for parts in operands
    ]


@_collective("CollectiveBroadcast")
def _collective_broadcast(team: Any, node: Node, operands: list[list]) -> list[list]:
    groups = groups_of(team, node)
    return [
        [parts[group[0]] if group else np.zeros_like(part) for group, part in zip(groups, parts, strict=True)]
        for parts in operands
    ]
