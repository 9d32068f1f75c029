"""MpiComm against LocalComm, for any number of ranks: `mpiexec -n N python -m pytest tests/mpi`.

Every rank makes the arrays of all ranks from one seed, so each can compute what it should receive. Values are
small whole numbers: sums are exact in every dtype, whatever order MPI adds them in.
"""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.layout.mesh import Groups, Mesh
from autoshard.runtime.comm import CommError
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import MpiComm, default_comm
from autoshard.util.errors import RuntimeSetupError

DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint16", "bool", "complex64"]
"""Each is moved and reduced on few ranks; on more than four, where every message waits for a core, a part of them."""
COMM = MpiComm()
if COMM.world > 4:
    DTYPES = ["float16", "float32", "int64", "bool"]
LOCAL = LocalComm(COMM.world)


def all_groups(world: int) -> list[Groups]:
    """The whole world, and rows, columns and swapped order of the most square grid; also against the rank order. What
    two of them alike are on few ranks is there once."""
    rows = max(size for size in range(1, int(world**0.5) + 1) if world % size == 0)
    grid = Mesh(dp=rows, tp=world // rows)
    turned = Mesh([("dp", rows), ("tp", world // rows)], order=list(reversed(range(world))))
    dp, tp = grid.axis("dp"), grid.axis("tp")
    found = [grid.groups(axes) for axes in ([dp, tp], [tp], [dp], [tp, dp], [])] + [turned.groups([tp])]
    first: dict[tuple, Groups] = {}
    for groups in found:
        first.setdefault(tuple(tuple(map(int, groups.members(rank))) for rank in range(world)), groups)
    return list(first.values())


GROUPS = all_groups(COMM.world)


def arrays(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[np.ndarray]:
    """One array per rank of the world."""
    random = np.random.default_rng([seed, len(shape)])
    return [random.integers(0, 2 if dtype == "bool" else 4, shape).astype(dtype) for _ in range(COMM.world)]


def agree(name: str, whole: list[np.ndarray], *args) -> None:
    """The collective gives this rank what LocalComm says, leaves its input alone, and returns a fresh
    array."""
    mine = whole[COMM.rank]
    before = mine.copy()
    (result,) = getattr(COMM, name)([mine], *args)
    expected = getattr(LOCAL, name)(whole, *args)[COMM.rank]
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(mine, before)
    assert result.flags.c_contiguous
    assert not np.shares_memory(result, mine)


@pytest.fixture(params=[2**30, 5], ids=["one message", "long messages"])
def limit(request, monkeypatch) -> None:
    """Also with so small a limit that every array counts as too long for one message."""
    monkeypatch.setattr(MpiComm, "max_count", request.param)


def operations(dtype: str) -> list[str]:
    return {"b": ["max", "min"], "c": ["sum", "prod"]}.get(np.dtype(dtype).kind, ["sum", "max", "min", "prod"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_reductions(groups: Groups, dtype: str, limit) -> None:
    size = groups.size
    for op in operations(dtype):
        for shape in [(), (0, 3), (7,), (4, 6)]:
            agree("all_reduce", arrays(shape, dtype), groups, op)
        for dim, shape in enumerate([(2 * size, 3, 5), (4, 3 * size, 5), (4, 6, size)]):
            agree("reduce_scatter", arrays(shape, dtype), groups, dim, op)


@pytest.mark.parametrize("dtype", DTYPES + ["complex128", "datetime64[s]"])
@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_movements(groups: Groups, dtype: str, limit) -> None:
    size = groups.size
    whole = arrays((2 * size, 3 * size, size), dtype)
    for dim in range(3):
        agree("all_gather", whole, groups, dim)
        for other in range(3):
            agree("all_to_all", whole, groups, dim, other)
    agree("all_gather", arrays((0, 3), dtype), groups, 1)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_permute(shift: int, limit) -> None:
    agree("permute", arrays((4, 6), "float32"), lambda rank: (rank + shift) % COMM.world)
    agree("permute", arrays((4, 6), "bool"), lambda rank: COMM.world - 1 - rank)


def test_strided_input(limit) -> None:
    whole = [array.T[::2] for array in arrays((6, 10), "float32")]
    agree("all_reduce", whole, GROUPS[0], "sum")
    agree("all_gather", whole, GROUPS[0], 1)
    agree("permute", whole, lambda rank: (rank + 1) % COMM.world)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_max_and_min_keep_nan(op: str, dtype: str) -> None:
    whole = arrays((6,), dtype)
    whole[-1][4] = np.nan
    agree("all_reduce", whole, GROUPS[0], op)
    assert np.isnan(COMM.all_reduce([whole[COMM.rank]], GROUPS[0], op)[0][4])


def test_float16_is_summed_in_float32() -> None:
    term = np.full(4, 0.1, np.float16)
    result = COMM.all_reduce([term], GROUPS[0], "sum")[0]
    exact = np.float16(np.float32(term[0]) * COMM.world)
    assert result.dtype == np.float16
    np.testing.assert_allclose(result.astype(np.float32), np.float32(exact), rtol=1e-3)


@pytest.mark.parametrize("root", sorted({0, COMM.world - 1}))
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_collect_and_broadcast(root: int, dtype: str, limit) -> None:
    whole = arrays((4, 6), dtype, seed=root)
    collected = COMM.collect([whole[COMM.rank]], root)
    if COMM.rank == root:
        assert collected is not None
        np.testing.assert_array_equal(np.stack(collected), np.stack(whole))
    else:
        assert collected is None
    given = whole[root] if COMM.rank == root else None
    (received,) = COMM.broadcast(given, (4, 6), np.dtype(dtype), root)
    np.testing.assert_array_equal(received, whole[root])
    assert received.flags.writeable
    assert given is None or not np.shares_memory(received, given)


def test_communicators_are_made_once() -> None:
    comm = MpiComm()
    for _ in range(3):
        for groups in GROUPS:
            comm.all_reduce([np.ones(3)], groups)
    rows = {tuple(map(int, groups.members(comm.rank))) for groups in GROUPS if groups.size > 1}
    assert set(comm._of_members) == rows | {tuple(range(comm.world))}


def test_bad_arguments_are_found_before_anything_is_sent() -> None:
    with pytest.raises(CommError, match="dim 2 is not a dim"):
        COMM.all_gather([np.ones((4, 6))], GROUPS[0], 2)
    with pytest.raises(CommError, match="no reduction 'mean'"):
        COMM.all_reduce([np.ones(4)], GROUPS[0], "mean")
    with pytest.raises(CommError, match="ranks are running"):
        COMM.all_reduce([np.ones(4)], Mesh(dp=COMM.world + 1).groups([]))
    COMM.barrier()


@pytest.mark.skipif(COMM.world < 2, reason="one rank without a launcher is a local world")
def test_default_comm() -> None:
    assert isinstance(default_comm(COMM.world), MpiComm)
    message = f"for {COMM.world + 1} ranks, but {COMM.world} were started.*-n {COMM.world + 1}"
    with pytest.raises(RuntimeSetupError, match=message):
        default_comm(COMM.world + 1)
