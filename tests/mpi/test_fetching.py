"""Steps that fetch boxes, on MPI ranks: against the same over LocalComm."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.layout import Layout, Mesh
from autoshard.mindspore.communication import get_group_size
from autoshard.redistribute.fetch import fetch
from autoshard.redistribute.step import Step
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import default_comm
from autoshard.runtime.steps import run_step

WORLD = get_group_size()
CHANGES = [("d, -", "-, d"), ("-, - +d", "-, d"), ("-, d", "-, - +d"), ("-, - max d", "d, -"), ("d, -", "-, -")]


@pytest.fixture(scope="module")
def comm():
    return default_comm(WORLD)


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("padding", [0, 1])
def test_boxes_over_mpi(before, after, dtype, padding, comm):
    mesh, shape = Mesh.flat(WORLD), (3 * WORLD, 2 * WORLD)
    found = fetch(Layout.parse(before, mesh), Layout.parse(after, mesh), tuple(size - padding for size in shape))
    assert found is not None
    step = Step.fetch(found)
    local = step.before.local_shape(shape)
    held = [(np.random.default_rng(rank).random(local) * 50).astype(dtype) for rank in range(WORLD)]
    expected = run_step(step, held, LocalComm(WORLD))
    got = run_step(step, [held[rank] for rank in comm.ranks], comm)
    for rank, part in zip(comm.ranks, got, strict=True):
        assert part.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(part, expected[rank])
