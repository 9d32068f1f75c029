"""Random pairs of layouts on two groups of ranks, and what a transfer between them has to lead to."""

from __future__ import annotations

import random

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.pipeline.transfers.deal import GroupLayout, deal, passed_on
from autoshard.pipeline.transfers.group import RankGroup
from autoshard.pipeline.transfers.price import TransferPath, ValueMessages, cheapest_way, node_spans
from autoshard.redistribute.planner import plan_steps
from autoshard.runtime.array import cut, join
from autoshard.runtime.local import LocalComm
from autoshard.runtime.steps import run_step
from costmodel import Hardware

_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12)
_AXES = ((1,), (2,), (3,), (4,), (6,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (2, 2, 2))
NODE = 4
"""Ranks of a node."""


def slow_bound(before: GroupLayout, after: GroupLayout, itemsize: int, span: int) -> int:
    """Bytes that have to go from node to node: what the ranks of each node need together and none of it has."""
    total = 0
    nodes: dict[int, list[int]] = {}
    for place, rank in enumerate(after.group.ranks):
        nodes.setdefault(rank // span, []).append(place)
    for node, places in nodes.items():
        needed = np.zeros(after.shape, bool)
        for place in places:
            needed[tuple(slice(*pair) for pair in after.box(place))] = True
        for place, rank in enumerate(before.group.ranks):
            if rank // span == node:
                needed[tuple(slice(*pair) for pair in before.box(place))] = False
        total += int(needed.sum()) * itemsize
    return total


def random_pair(draw: random.Random) -> tuple[GroupLayout, GroupLayout]:
    """A value of up to three dims on two groups that lie one behind the other, are interleaved, or share ranks."""
    shape = tuple(draw.choice(_SIZES) for _ in range(draw.randrange(4)))
    meshes = [_mesh(draw), _mesh(draw)]
    total = sum(mesh.devices for mesh in meshes)
    ranks = list(range(total))
    if draw.random() < 0.5:
        draw.shuffle(ranks)
    first, second = ranks[: meshes[0].devices], ranks[meshes[0].devices :]
    if draw.random() < 0.1 and meshes[0].devices == meshes[1].devices:
        second = first
    groups = RankGroup(meshes[0], tuple(first)), RankGroup(meshes[1], tuple(second))
    before, after = (GroupLayout.of(group, random_layout(draw, group.mesh, len(shape)), shape) for group in groups)
    return before, after


def _mesh(draw: random.Random) -> Mesh:
    return Mesh([(f"x{i}", size) for i, size in enumerate(draw.choice(_AXES))])


def random_layout(draw: random.Random, mesh: Mesh, rank: int, partial: bool = False) -> Layout:
    """A layout that uses some axes of a mesh, or pieces of them, in any order."""
    refs: list[AxisRef] = []
    for name, size in mesh.axes:
        half = size // 2 if size in (4, 8) else 0
        refs += mesh.axis(name).split(half) if half and draw.random() < 0.5 else [mesh.axis(name)]
    draw.shuffle(refs)
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    terms: list[AxisRef] = []
    for ref in refs:
        place = draw.randrange(rank + 1)
        if place < rank:
            dims[place].append(ref)
        elif partial and draw.random() < 0.5:
            terms.append(ref)
    return Layout(mesh, dims, terms)


def check_pair(before: GroupLayout, after: GroupLayout) -> None:
    """Bring a value over, each rank for itself and each node at once, and see that each rank has its block, from as few
    bytes as it lacks; and that nodes are sent no more than they need.

    Raises:
        AssertionError: it has not.
    """
    array = np.arange(1, 1 + int(np.prod(before.shape)), dtype=np.float64).reshape(before.shape)
    wanted = cut(array, after.layout, range(after.group.mesh.devices), after.padded)
    bound = slow_bound(before, after, 8, NODE)
    for relayed in (0, NODE):
        blocks = cut(array, before.layout, range(before.group.mesh.devices), before.padded)
        made = brought(blocks, before, after, (NODE,), relayed)
        for rank, (one, other) in enumerate(zip(made, wanted, strict=True)):
            assert np.array_equal(one, other), f"rank {rank} of [{before.layout}] to [{after.layout}] of {before.shape}"
        moved = ValueMessages(before, after, 8, (NODE,), relayed).slow_bytes(NODE)
        assert moved == bound if relayed else moved >= bound


def brought(
    blocks: list[np.ndarray], before: GroupLayout, after: GroupLayout, spans: tuple[int, ...], relayed: int
) -> list[np.ndarray]:
    """The blocks of the receiving group, of those of the sending one.

    Raises:
        AssertionError: an element comes twice.
    """
    made = [np.zeros(after.local) for _ in range(after.group.mesh.devices)]
    for one in deal(before, after, spans, relayed):
        box = made[one.target][one.placed]
        assert not np.any(box), "no element comes twice"
        made[one.target][one.placed] = blocks[one.source][one.taken]
    fetched = [block.copy() for block in made]
    for one in passed_on(after, relayed):
        box = made[one.target][one.placed]
        assert not np.any(box), "no element comes twice"
        made[one.target][one.placed] = fetched[one.source][one.taken]
    return made


def check_way(before: GroupLayout, after: GroupLayout, hardware: Hardware) -> tuple[int, int]:
    """Bring a value over the way that costs least, terms and gathers included; its bytes from node to node, and those
    that have to go at least.

    Raises:
        AssertionError: a rank does not have its block in the end.
    """
    of = TensorType.of(before.shape, "f64")
    groups = before.group, after.group
    way = cheapest_way(of, before.layout, after.layout, groups, hardware)
    array = np.arange(1.0, 1 + int(np.prod(before.shape))).reshape(before.shape)
    count = groups[0].mesh.devices
    blocks = cut(array, before.layout.final(), range(count))
    if before.layout.partial:
        blocks = [np.asarray(block * _is_first(before.layout, rank)) for rank, block in enumerate(blocks)]
    for step in plan_steps(before.layout, way.sent.layout, before.shape):
        blocks = run_step(step, blocks, LocalComm(count))
    made = brought(blocks, way.sent, way.received, node_spans(hardware), way.relayed)
    comm = LocalComm(groups[1].mesh.devices)
    found = join(made, way.received.layout, before.shape, comm, way.received.padded)
    assert np.array_equal(found, array), f"[{before.layout}] to [{after.layout}] of {before.shape}"
    return sent_between_nodes(way, after, hardware), slow_bound(before, after, 8, NODE)


def sent_between_nodes(way: TransferPath, after: GroupLayout, hardware: Hardware) -> int:
    """Bytes that go from node to node on a way of elements of 8 bytes, with what a gather in the receiving group takes
    there at least."""
    messages = ValueMessages(way.sent, way.received, 8, node_spans(hardware), way.relayed)
    return messages.slow_bytes(NODE) + slow_bound(way.received, after, 8, NODE)


def _is_first(layout: Layout, rank: int) -> bool:
    """Whether of the ranks that hold terms of one sum this is the first: it holds all, the others zeros."""
    return layout.mesh.index(rank, layout.partial) == 0
