"""Bundles and collectives that run beside computing, on MPI ranks: equal to all ranks in one process."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.layout.mesh import Mesh
from autoshard.mindspore.communication import get_group_size
from autoshard.optimize import PASSES, optimize
from autoshard.partition.program import Bundle, Start, walk
from autoshard.runtime.comm import CommError
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import default_comm
from autoshard.transform.train import train_step
from tests.mpi.first_rank import planned_by_first
from tests.transformer import batches, build

WORLD = get_group_size()
MESH = Mesh.flat(WORLD)
GROUPS = MESH.groups(MESH.all_axes)
CALLS = [
    ("all_reduce", 0, 0, "sum"),
    ("all_reduce", 0, 0, "max"),
    ("all_gather", 1, 0, "sum"),
    ("reduce_scatter", 1, 0, "sum"),
    ("reduce_scatter", 0, 0, "min"),
    ("all_to_all", 0, 1, "sum"),
    ("all_to_all", 1, 2, "sum"),
]


@pytest.fixture(scope="module")
def comm():
    return default_comm(WORLD)


def block(rank: int, of: type = np.float32) -> np.ndarray:
    return np.random.default_rng(rank).integers(-9, 9, (2 * WORLD, 3 * WORLD, 5)).astype(of)


@pytest.mark.parametrize("of", [np.float32, np.float16, np.int64])
def test_several_run_at_once(comm, of):
    """All are begun before the first is waited for, and they end in any order."""
    local = LocalComm(WORLD)
    begun = [
        comm.start(kind, [block(rank, of) for rank in comm.ranks], GROUPS, dim, to_dim, op)
        for kind, dim, to_dim, op in CALLS
    ]
    comm.advance()
    for (kind, dim, to_dim, op), finish in reversed(list(zip(CALLS, begun, strict=True))):
        whole = local.start(kind, [block(rank, of) for rank in range(WORLD)], GROUPS, dim, to_dim, op)()
        for rank, found in zip(comm.ranks, finish(), strict=True):
            assert found.dtype == of and found.flags.c_contiguous
            np.testing.assert_array_equal(found, whole[rank], err_msg=kind)


def test_other_collectives_go_on_meanwhile(comm):
    finish = comm.start("all_reduce", [block(rank) for rank in comm.ranks], GROUPS)
    between = comm.all_gather([block(rank) for rank in comm.ranks], GROUPS, 0)[0]
    total = np.sum([block(rank) for rank in range(WORLD)], axis=0)
    np.testing.assert_array_equal(finish()[0], total)
    np.testing.assert_array_equal(between, np.concatenate([block(rank) for rank in range(WORLD)]))


def test_large_ones_are_done_at_once(comm, monkeypatch):
    monkeypatch.setattr(type(comm), "max_count", 7, raising=False)
    found = comm.start("all_reduce", [block(rank) for rank in comm.ranks], GROUPS)()[0]
    np.testing.assert_array_equal(found, np.sum([block(rank) for rank in range(WORLD)], axis=0))


def test_what_cannot_run_is_refused(comm):
    blocks = [block(rank) for rank in comm.ranks]
    with pytest.raises(CommError, match="permute cannot run beside"):
        comm.start("permute", blocks, GROUPS)
    with pytest.raises(CommError, match="not a dim"):
        comm.start("all_gather", blocks, GROUPS, 3)


@pytest.mark.skipif(WORLD not in (2, 4, 8), reason="the heads and the batch divide by 2, 4 and 8")
def test_a_training_step_with_all_passes(comm):
    data_parts, tensor_parts = (2, WORLD // 2) if WORLD > 2 else (1, 2)
    network, optimizer = build(data_parts, tensor_parts)
    (row,) = batches(1)
    planned = planned_by_first(train_step(network, optimizer, *row), devices=WORLD, passes=False)
    feeds = planned.traced.inputs(*row)
    plain = Executor(planned.program, comm)(*feeds)
    for names in (tuple(PASSES), ("overlap",), ("combine", "overlap")):
        made, _ = optimize(planned.program, planned.hardware, names, more_memory=2.0)
        kinds = {type(one) for one in walk(made.instructions)}
        assert Start in kinds or names != ("overlap",)
        # Without a data axis no gradients are summed, and there is little to combine.
        assert Bundle in kinds or "combine" not in names or data_parts == 1
        for ours, theirs in zip(Executor(made, comm)(*feeds), plain, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
