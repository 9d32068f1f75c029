"""The collectives that manual computations write themselves, run over any Comm."""

from __future__ import annotations

import numpy as np

from autoshard.ir.graph import Node
from autoshard.ops.body import Body
from autoshard.partition.manual import completed, reduction, sources
from autoshard.partition.program import ManualCollective
from autoshard.runtime.comm import Comm

Parts = list[np.ndarray]


def run_together(one: ManualCollective, operands: list[Parts], comm: Comm) -> list[Parts]:
    """The parts of each result on the hosted ranks."""
    if one.kind == "rank":
        counts = one.node.op.name == "PartitionId"
        return [[np.asarray(rank if counts else 0, np.uint32) for rank in comm.ranks]]
    return [_moved(one, parts, comm) for parts in operands]


def _moved(one: ManualCollective, parts: Parts, comm: Comm) -> Parts:
    attrs, groups, name = one.node.attrs, one.groups, one.node.op.name
    if one.kind == "all_reduce":
        return comm.all_reduce(parts, groups, _reduction(one.node))
    if one.kind == "reduce_scatter":
        return comm.reduce_scatter(parts, groups, attrs["dim"], _reduction(one.node))
    if one.kind == "all_to_all":
        return comm.all_to_all(parts, groups, attrs["split"], attrs["concat"])
    if one.kind == "permute":
        return _permuted(one, parts, comm)
    if name == "AllGather":
        return comm.all_gather(parts, groups, attrs["dim"])
    gathered = comm.all_gather([part[None] for part in parts], groups, 0)
    if name == "CollectiveBroadcast":
        return [np.ascontiguousarray(rows[0]) for rows in gathered]
    totals = [_combined(attrs["body"], rows) for rows in gathered]
    if name == "AllReduce":
        return totals
    pairs = zip(totals, comm.ranks, strict=True)
    return [np.split(total, groups.size, attrs["dim"])[groups.position(rank)] for total, rank in pairs]


def _reduction(node: Node) -> str:
    found = reduction(node)
    assert found is not None, f"no collective reduces as {node} does"
    return found


def _permuted(one: ManualCollective, parts: Parts, comm: Comm) -> Parts:
    """What each rank's sender has; zeros where nothing is sent."""
    pairs = sources(one.node, one.results[0].layout.mesh)
    whole = completed(pairs, comm.world)
    moves = any(source != rank for rank, source in enumerate(whole))
    received = comm.permute(parts, whole.__getitem__) if moves else parts
    return [part if rank in pairs else np.zeros_like(part) for part, rank in zip(received, comm.ranks, strict=True)]


def _combined(body: Body, rows: np.ndarray) -> np.ndarray:
    """The rows of a group combined in its order."""
    total = rows[0]
    for row in rows[1:]:
        (total,) = body(total, row)
    return np.asarray(total, dtype=rows.dtype)
