"""Exchanges of what blocks lack, on MPI ranks: against LocalComm, and operators split along dims that need them."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.layout.mesh import Mesh
from autoshard.mindspore.communication import get_group_size
from autoshard.ops.body import Body
from autoshard.runtime.comm import CommError
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import default_comm
from tests.partition.exchanging import drawn, exchanging

WORLD = get_group_size()
MESH = Mesh.flat(WORLD)
CONVOLUTION = {"lhs_dims": (0, 2, 1), "rhs_dims": (1, 0, 2), "out_dims": (2, 0, 1), "padding": ((1, 2),)}
POOLING = {"dimensions": (1, 3), "strides": (1, 2), "padding": ((0, 0), (1, 0)), "body": Body("max")}
OPERATORS = [
    ("Convolution", [(2, 12 * WORLD, 6), (5, 6, 4)], CONVOLUTION),
    ("Convolution", [(2, 4 * WORLD, 6), (5, 6, 4 * WORLD)], {**CONVOLUTION, "padding": ((1, 1),)}),
    ("ReduceWindow", [(3, 4 * WORLD), ()], POOLING),
    ("Slice", [(3, 4 * WORLD)], {"start": (0, 1), "limit": (3, 2 * WORLD + 1), "strides": (1, 1)}),
    ("HloPad", [(3, 2 * WORLD), ()], {"low": (0, 3), "high": (0, 2 * WORLD - 2), "interior": (0, 1)}),
    ("Concat", [(3, WORLD), (3, 4 * WORLD), (3, 2 * WORLD)], {"axis": 1}),
    ("Split", [(3, 7 * WORLD)], {"axis": 1, "sizes": (2 * WORLD, 4 * WORLD, WORLD)}),
    ("ReverseV2", [(3 * WORLD, 2)], {"axis": 0}),
    ("Roll", [(3 * WORLD, 2)], {"axis": 0, "shift": 5}),
    ("CumSum", [(2, 3 * WORLD)], {"axis": 1, "exclusive": True, "reverse": True}),
]


@pytest.fixture(scope="module")
def comm():
    return default_comm(WORLD)


@pytest.mark.parametrize(("op", "shapes", "attrs"), OPERATORS)
def test_split_equals_whole(op, shapes, attrs, comm):
    arrays = [drawn(i, *shape) if shape else np.array(-9.0, np.float32) for i, shape in enumerate(shapes)]
    assert WORLD == 1 or exchanging(op, arrays, attrs, str(WORLD), comm) > 0


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "complex64"])
def test_messages_of_any_sizes(comm, dtype):
    """Rank r sends r + t + 1 rows to each rank t behind it, at most three ranks away."""
    groups = MESH.groups(MESH.all_axes)

    def sent(rank: int) -> dict[int, np.ndarray]:
        targets = range(rank + 1, min(rank + 4, WORLD))
        return {to: (drawn(rank, rank + to + 1, 3) * 5).astype(dtype) for to in targets}

    def awaited(rank: int) -> dict[int, tuple[int, ...]]:
        return {source: (source + rank + 1, 3) for source in range(max(0, rank - 3), rank)}

    ranks = range(WORLD)
    expected = LocalComm(WORLD).exchange([sent(r) for r in ranks], [awaited(r) for r in ranks], dtype, groups)
    got = comm.exchange([sent(r) for r in comm.ranks], [awaited(r) for r in comm.ranks], dtype, groups)
    for rank, arrays in zip(comm.ranks, got, strict=True):
        assert list(arrays) == list(expected[rank])
        for source, array in arrays.items():
            assert array.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(array, expected[rank][source])


def test_only_others_of_the_group(comm):
    groups = MESH.groups(MESH.all_axes)
    with pytest.raises(CommError, match="is not another of its group"):
        comm.exchange([{rank: np.zeros(2)} for rank in comm.ranks], [{}] * len(comm.ranks), np.float64, groups)
