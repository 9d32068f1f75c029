"""Collectives that are prepared give what those give that are told all each time, by messages and shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import communication
from autoshard.layout import Mesh
from autoshard.runtime import shared
from autoshard.runtime.comm import CommError
from autoshard.runtime.mpi import MpiComm

communication.init()
WORLD = communication.get_group_size()
MESHES = [Mesh.flat(WORLD)] + ([Mesh.parse(f"a=2 b={WORLD // 2}")] if WORLD % 2 == 0 and WORLD > 2 else [])
CASES = [
    ("all_reduce", 0, 0, "sum"),
    ("all_reduce", 0, 0, "max"),
    *(("all_gather", dim, 0, "sum") for dim in range(3)),
    *(("reduce_scatter", dim, 0, "sum") for dim in range(3)),
    *(("all_to_all", dim, other, "sum") for dim in range(3) for other in range(3) if dim != other),
]


@pytest.fixture(params=["messages", "a shared buffer", "a shared buffer, each a share"])
def over(request, monkeypatch):
    """By what small arrays go in this test."""
    if request.param != "messages":
        monkeypatch.setattr(shared, "LEAST", 0)
    if request.param.endswith("share"):
        monkeypatch.setattr(shared, "_SHARED_WORK", 0)


@pytest.mark.usefixtures("over")
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16", "bfloat16", "bool"])
@pytest.mark.parametrize("kind, dim, to_dim, op", CASES)
def test_prepared_collectives_are_equal_to_the_others(mesh, dtype, kind, dim, to_dim, op):
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype) if dtype == "bfloat16" else dtype)
    if dtype.kind == "b" and op == "sum" and kind in ("all_reduce", "reduce_scatter"):
        return  # not defined
    comm, shape = MpiComm(), (2 * WORLD, 3 * WORLD, WORLD)
    for axes in [mesh.all_axes, *([ref] for ref in mesh.all_axes)]:
        groups = mesh.groups(axes)
        call = {
            "all_reduce": lambda one, groups=groups: comm.all_reduce([one], groups, op),
            "all_gather": lambda one, groups=groups: comm.all_gather([one], groups, dim),
            "reduce_scatter": lambda one, groups=groups: comm.reduce_scatter([one], groups, dim, op),
            "all_to_all": lambda one, groups=groups: comm.all_to_all([one], groups, dim, to_dim),
        }[kind]
        prepared = comm.prepared(kind, shape, dtype, groups, dim, to_dim, op)
        for turn in range(2):
            random = np.random.default_rng([comm.rank, turn])
            part = random.integers(0, 5, shape[::-1]).astype(dtype).transpose()
            given = part.copy()
            (expected,), (got,) = call(part), prepared([part])
            assert got.flags.c_contiguous and not np.shares_memory(got, part)
            np.testing.assert_array_equal(got, expected, strict=True)
            np.testing.assert_array_equal(part, given)


def test_what_cannot_be_done_is_said_before_anything_is_sent():
    comm, groups = MpiComm(), Mesh.flat(WORLD).groups(Mesh.flat(WORLD).all_axes)
    with pytest.raises(CommError, match="dim 2 is not a dim"):
        comm.prepared("all_gather", (4, 3), np.dtype(np.float32), groups, 2)
    with pytest.raises(CommError, match="there is no reduction"):
        comm.prepared("all_reduce", (4, 3), np.dtype(np.float32), groups, op="mean")
