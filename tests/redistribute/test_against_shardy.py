"""Bytes received never above those of Shardy's own passes, on changes of final layouts (all that they express)."""

from __future__ import annotations

import random

import jax  # noqa: F401  (Shardy's passes come with it)
import pytest

from autoshard.layout import AxisRef, Layout, Mesh
from autoshard.redistribute.planner import elements_moved, plan_steps
from benchmarks.redistribution import SMALL
from benchmarks.shardy_reshards import ITEMSIZE, PASSES, Change, expressible, received
from tests.propagate.shardy import shardy
from tests.redistribute import virtual_ranks as ranks

pytestmark = pytest.mark.jax


def _layout(draw: random.Random, mesh: Mesh, rank: int) -> Layout:
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    for name in draw.sample(mesh.names, len(mesh.names)):
        rest = mesh.axis(name)
        while rest.size > 1:
            sizes = [size for size in range(2, rest.size + 1) if rest.size % size == 0]
            piece, rest = rest.split(draw.choice(sizes))
            dim = draw.randrange(rank + 1)
            if dim < rank:
                dims[dim].append(piece)
    return Layout(mesh, dims)


def _changes(mesh: Mesh, count: int) -> list[Change]:
    draw = random.Random(str(mesh))
    found = []
    while len(found) < count:
        rank = draw.choice([1, 2, 3])
        before, after = _layout(draw, mesh, rank), _layout(draw, mesh, rank)
        shape = ranks.shape_for(before, after, extra=5)
        if expressible(before, after, shape):
            found.append((before, after, shape))
    return found


@pytest.mark.parametrize("mesh", SMALL, ids=str)
def test_never_above_shardy(mesh):
    changes = _changes(mesh, 300)
    less = 0
    for (before, after, shape), theirs in zip(
        changes, received(mesh, changes, lambda text: shardy(text, PASSES)), strict=True
    ):
        assert theirs is not None, f"Shardy's passes end at another layout than [{after}]"
        ours = elements_moved(plan_steps(before, after, shape), shape) * ITEMSIZE
        assert ours <= theirs * (1 + 1e-9), f"[{before}] -> [{after}] of {shape}: {ours} bytes, Shardy {theirs}"
        less += ours < theirs * (1 - 1e-9)
    assert less > 0, "these changes are too easy to tell the two apart"
