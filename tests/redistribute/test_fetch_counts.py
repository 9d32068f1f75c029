"""What a fetch counts without dealing boxes out (messages, elements) is what is dealt out."""

from __future__ import annotations

import math
import random

import pytest

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.redistribute.fetch import Fetch, fetch

MESHES = ("2x2x2", "2x3x2", "4x2x3", "3x2", "6x2", "2x2x2x2", "2x4x3")


def _layout(mesh: Mesh, rank: int, draw: random.Random) -> Layout:
    refs = list(mesh.all_axes)
    draw.shuffle(refs)
    places: list[list[AxisRef]] = [[] for _ in range(rank + 3)]  # dims, terms, and twice nowhere
    for ref in refs:
        places[draw.randrange(rank + 3)].append(ref)
    return Layout(mesh, tuple(map(tuple, places[:rank])), tuple(places[rank]))


def _drawn(seed: int) -> list[Fetch]:
    """Fetches of which some pieces of the mesh get terms that they share."""
    draw, found = random.Random(seed), []
    while len(found) < 40:
        mesh, rank = Mesh.parse(draw.choice(MESHES)), draw.choice((0, 1, 2, 2, 3))
        size = None if draw.random() < 0.6 else tuple(draw.randrange(1, 20) for _ in range(rank))
        one = fetch(_layout(mesh, rank, draw), _layout(mesh, rank, draw), size)
        if one is not None and one.added_partial:
            found.append(one)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_messages_and_elements(seed: int) -> None:
    for one in _drawn(seed):
        shape, devices = one._shape, one.before.mesh.devices
        rows = [[piece for piece in one.pieces(rank, shape) if piece.source != rank] for rank in range(devices)]
        assert one.messages == max(len({piece.source for piece in row}) for row in rows), one
        got = [sum(math.prod(box.stop - box.start for box in piece.source_box) for piece in row) for row in rows]
        groups = one.before.mesh.groups(one.added_partial)
        shares = [sum(got[member] for member in groups.members(rank).tolist()) / groups.size for rank in range(devices)]
        assert one.elements_moved(shape) == pytest.approx(max(shares)), one
