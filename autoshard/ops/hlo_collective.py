"""StableHLO's collectives: what ranks do together, written by hand inside a manual computation.

Their rules are Shardy's, so that shardings of the axes that are not manual spread through them. They have no meaning
for one array: whoever evaluates a manual computation for all ranks at once gives them theirs. `groups` lists which
processes work together, `channel` and `global_ids` tell what numbers them (the specification's replica_groups).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from autoshard.core.rule import REPLICATE, Rule, source_rule
from autoshard.core.tensortype import TensorType
from autoshard.ops.control import typed
from autoshard.ops.factors import FactorBuilder
from autoshard.ops.registry import operator
from autoshard.util.errors import ShapeError

Types = tuple[TensorType, ...]


def crosses_partitions(attrs: Mapping[str, Any]) -> bool:
    """Whether a collective is among the devices that run one program, not among replicas of all of it.

    Without a channel its groups are of replicas of the whole program, of which there is one; with it they are of the
    devices that share it (StableHLO's cross_partition and flattened_ids).
    """
    return bool(attrs.get("channel") or attrs.get("global_ids"))


def device_groups(attrs: Mapping[str, Any], devices: int) -> list[list[int]]:
    """The groups of devices that a collective's attributes say work together; () lists them all as one."""
    if not crosses_partitions(attrs):
        return [[device] for device in range(devices)]
    groups = [[int(device) for device in group] for group in attrs["groups"]]
    return groups or [list(range(devices))]


def is_of_one_each(attrs: Mapping[str, Any], devices: int) -> bool:
    """Whether each device works with itself alone, as along an axis of size 1: what it gets is what it has."""
    if "pairs" in attrs:
        return sorted(tuple(map(int, pair)) for pair in attrs["pairs"]) == [(i, i) for i in range(devices)]
    return sorted(map(list, attrs.get("groups") or ())) == [[i] for i in range(devices)]


def _alone(name: str) -> NoReturn:
    raise ShapeError(
        f"cannot run {name} on the arrays of one process: it is what all ranks of a manual computation do together"
    )


def _builder(shapes: Sequence[Sequence[int]], types: Types) -> FactorBuilder:
    return FactorBuilder([len(shape) for shape in shapes], [of.rank for of in types])


def _same_rule(*shapes: Sequence[int], types: Types, **_: object) -> Rule:
    """Every dim of the first result, over all tensors."""
    made = _builder(shapes, types)
    for dim, size in enumerate(types[0].shape):
        made.along(dim, size)
    return made.build()


def _resized_rule(shapes: Sequence[Sequence[int]], types: Types, resized: Sequence[int]) -> Rule:
    """As `_same_rule`, but operands and results have factors of their own in the dims that change."""
    made = _builder(shapes, types)
    first, count = tuple(shapes[0]), len(shapes)
    for dim, size in enumerate(first):
        if dim not in resized:
            made.along(dim, size)
    for dim in resized:
        made.factor(dict.fromkeys(range(count), dim), first[dim], REPLICATE)
        made.factor(dict.fromkeys(range(count, count + len(types)), dim), types[0].shape[dim], REPLICATE)
    return made.build()


def _gather_rule(*shapes: Sequence[int], types: Types, dim: int, **_: object) -> Rule:
    return _resized_rule(shapes, types, (dim,))


def _exchange_rule(*shapes: Sequence[int], types: Types, split: int, concat: int, **_: object) -> Rule:
    return _resized_rule(shapes, types, tuple(dict.fromkeys((split, concat))))


@operator("AllReduce", **typed(_same_rule), effects=True)
def all_reduce(*xs, types, body, groups, channel=0, global_ids=False):
    """Each element combined by `body` over the processes of a group."""
    _alone("AllReduce")


@operator("AllGather", **typed(_gather_rule), effects=True)
def all_gather(*xs, types, dim, groups, channel=0, global_ids=False):
    """The blocks of the processes of a group, joined along `dim`."""
    _alone("AllGather")


@operator("ReduceScatter", **typed(_gather_rule), effects=True)
def reduce_scatter(*xs, types, dim, body, groups, channel=0, global_ids=False):
    """Each element combined over a group; every process keeps its block along `dim`."""
    _alone("ReduceScatter")


@operator("AllToAll", **typed(_exchange_rule), effects=True)
def all_to_all(*xs, types, split, concat, count, groups, channel=0):
    """Cut along `split` into `count` blocks, one for each process of a group; what arrives is joined along `concat`."""
    _alone("AllToAll")


@operator("CollectivePermute", **typed(_same_rule), effects=True)
def collective_permute(*xs, types, pairs, channel=0):
    """What process a of a pair (a, b) has goes to b; processes to which nothing goes get zeros."""
    _alone("CollectivePermute")


@operator("CollectiveBroadcast", **typed(_same_rule), effects=True)
def collective_broadcast(*xs, types, groups, channel=0):
    """What the first process of each group has."""
    _alone("CollectiveBroadcast")


@operator("CrossReplicaSum", **typed(_same_rule))
def cross_replica_sum(*xs, types, groups):
    """The sum over the processes of a group."""
    _alone("CrossReplicaSum")


@operator("ReplicaId", rule=lambda: source_rule(()), dtype="u32")
def replica_id():
    """The number of the replica that runs this."""
    _alone("ReplicaId")


@operator("PartitionId", rule=lambda: source_rule(()), dtype="u32")
def partition_id():
    """The number of the partition that runs this."""
    _alone("PartitionId")


COLLECTIVES = (
    all_reduce, all_gather, reduce_scatter, all_to_all, collective_permute, collective_broadcast, cross_replica_sum,
    replica_id, partition_id,
)  # fmt: skip
