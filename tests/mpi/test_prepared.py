"""Collectives that are prepared give what those give that are told all each time, by messages and shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn, plan
from autoshard.core.tensortype import TensorType
from autoshard.engines.numpy_engine import NumpyRun
from autoshard.layout import Mesh
from autoshard.mindspore import communication
from autoshard.partition.program import Bundle
from autoshard.runtime import shared
from autoshard.runtime.comm import CommError
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.runtime.moving import sums_to_begin
from autoshard.runtime.mpi import MpiComm
from autoshard.runtime.shared_buffer import _KEEPS_ORDER
from autoshard.transform.train import train_step

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


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(
    "shape, dtype, op", [((), "float32", "sum"), ((3, 5), "float64", "max"), ((7,), "int32", "sum")]
)
def test_sums_in_halves_are_those_of_the_whole_whatever_is_done_in_between(mesh, shape, dtype, op):
    comm, dtype = MpiComm(), np.dtype(dtype)
    for axes in [mesh.all_axes, *([ref] for ref in mesh.all_axes)]:
        groups = mesh.groups(axes)
        halves = comm.sum_in_halves(shape, dtype, groups, op)
        if halves is None:
            assert groups.size == 1 or not _KEEPS_ORDER
            continue
        begin, finish = halves
        gather = comm.prepared("all_gather", (64, 32), np.dtype(np.float32), groups)
        for turn in range(4):
            part = np.random.default_rng([comm.rank, turn]).integers(0, 9, shape).astype(dtype)
            (expected,) = comm.all_reduce([part], groups, op)
            begin([part])
            if turn % 2:
                assert gather([np.full((64, 32), comm.rank, np.float32)])[0].shape == (64 * groups.size, 32)
            (got,) = finish()
            np.testing.assert_array_equal(got, expected, strict=True)


def test_what_is_large_or_has_no_type_of_mpi_is_not_done_in_halves():
    comm, groups = MpiComm(), Mesh.flat(WORLD).groups(Mesh.flat(WORLD).all_axes)
    assert comm.sum_in_halves((shared.LEAST,), np.dtype(np.float32), groups) is None
    assert comm.sum_in_halves((3,), np.dtype(np.float16), groups) is None


def test_a_loss_begins_with_the_collective_behind_its_terms():
    """The engine gives what all ranks in one process give, and the sum's half goes before the sums of gradients."""
    net = nn.SequentialCell(nn.Dense(8, 5), nn.ReLU(), nn.Dense(5, 6))
    step = train_step(
        nn.WithLossCell(net, nn.MSELoss()),
        nn.Momentum(net.trainable_params(), 0.1, 0.9),
        TensorType.of((3 * WORLD, 8), "f32"),
        TensorType.of((3 * WORLD, 6), "f32"),
    )
    program = plan(step, devices=WORLD, search="data_parallel").program
    begun = sums_to_begin(program.instructions)
    if WORLD > 1:
        ((at, before),) = begun.items()
        assert at > before and isinstance(program.instructions[before], Bundle)
    random = np.random.default_rng(0)
    whole = [random.normal(size=one.true.shape).astype(np.float32) for one in program.inputs]
    alone, ranks = Executor(program, LocalComm(WORLD)), NumpyRun(program, MpiComm(), noted=2)
    expected = alone(*whole)
    for _ in range(4):  # by the interpreter, noted, and by what was noted
        for got, wanted in zip(ranks(*whole), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
