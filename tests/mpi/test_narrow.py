"""Element types that MPI has not (bfloat16, 8 and 4 bits) or that reduce in their own way, against plain numpy.

For any number of ranks: `mpiexec -n N python -m pytest tests/mpi`; ranks in one process take the same tests. What
is expected is written out from the definition: terms widened, combined, narrowed once. Values are such that every
partial result is exact in float32, so the order in which ranks are combined makes no difference.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from autoshard.layout.mesh import Groups, Mesh
from autoshard.runtime.comm import Comm, CommError
from autoshard.runtime.local import LocalComm
from autoshard.runtime.mpi import MpiComm

MPI = MpiComm()
WORLD = MPI.world
FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float16"]
INTS = ["int4", "uint4", "int2", "int8"]
OTHERS = ["bool", "complex64", "complex128"]
FOLD = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def element(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def wide(name: str) -> np.dtype:
    """In which the expected value is computed."""
    if name in FLOATS:
        return np.dtype(np.float32)
    return np.dtype(np.int64) if name in INTS else element(name)


def arrays(shape: tuple[int, ...], name: str, seed: int = 0) -> list[np.ndarray]:
    """One array per rank."""
    random = np.random.default_rng([seed, *shape])
    if name == "bool":
        return [np.asarray(random.random(shape) < 0.6) for _ in range(WORLD)]
    low, high = (0, 4) if name.startswith("uint") else (-2, 2)
    made = [random.integers(low, high, shape) for _ in range(WORLD)]
    if name in OTHERS:
        made = [one + 1j * random.integers(low, high, shape) for one in made]
    # Halves and quarters: sums of them are exact in float32, and are rounded when narrowed.
    return [np.asarray(one * 1.25 if name in FLOATS else one).astype(element(name)) for one in made]


def narrow(total: np.ndarray, name: str) -> np.ndarray:
    """The wide result in the element type; of integers the low bits count."""
    if name in ("int4", "uint4", "int2", "uint2"):
        bits = int(name[-1])
        total = total & (2**bits - 1)
        if name.startswith("int"):
            total = np.where(total >= 2 ** (bits - 1), total - 2**bits, total)
    return total.astype(element(name))


def reduced(parts: list[np.ndarray], members: np.ndarray, op: str, name: str) -> np.ndarray:
    terms = [parts[member].astype(wide(name)) for member in members]
    total = terms[0]
    for term in terms[1:]:
        total = FOLD[op](total, term)
    return narrow(np.asarray(total), name)


def same(results: list[np.ndarray], expected: list[np.ndarray], comm: Comm) -> None:
    """Bit for bit, NaN included, on the ranks that `comm` hosts."""
    assert len(results) == len(comm.ranks)
    for result, rank in zip(results, comm.ranks, strict=True):
        right = np.asarray(expected[rank], order="C")
        assert (result.dtype, result.shape) == (right.dtype, right.shape)
        assert result.flags.c_contiguous
        if result.tobytes() != right.tobytes():
            np.testing.assert_array_equal(result.astype(np.complex128), right.astype(np.complex128))


def mine(parts: list[np.ndarray], comm: Comm) -> list[np.ndarray]:
    return [parts[rank] for rank in comm.ranks]


def groupings() -> list[Groups]:
    rows = max(size for size in range(1, int(WORLD**0.5) + 1) if WORLD % size == 0)
    grid = Mesh([("dp", rows), ("tp", WORLD // rows)], order=list(reversed(range(WORLD))))
    return [Mesh.flat(WORLD).groups(Mesh.flat(WORLD).all_axes), grid.groups([grid.axis("tp")])]


@pytest.fixture(params=["one message", "long messages", "one process"])
def comm(request, monkeypatch) -> Comm:
    """Also with so small a limit that every array counts as too long for one message; and without MPI."""
    monkeypatch.setattr(MpiComm, "max_count", 5 if request.param == "long messages" else 2**30)
    return LocalComm(WORLD) if request.param == "one process" else MPI


def operations(name: str) -> list[str]:
    return {"bool": ["max", "min"], "complex64": ["sum", "prod"], "complex128": ["sum", "prod"]}.get(name, list(FOLD))


@pytest.mark.parametrize("name", FLOATS + INTS + OTHERS)
def test_reductions(name: str, comm: Comm) -> None:
    for groups in groupings():
        size = groups.size
        for op in operations(name):
            for shape in [(), (0, 3), (3, 7)]:
                parts = arrays(shape, name)
                expected = [reduced(parts, groups.members(rank), op, name) for rank in range(WORLD)]
                same(comm.all_reduce(mine(parts, comm), groups, op), expected, comm)
            for dim, shape in enumerate([(2 * size, 3), (5, 3 * size)]):
                parts = arrays(shape, name, seed=1)
                expected = [
                    np.split(reduced(parts, groups.members(rank), op, name), size, dim)[groups.position(rank)]
                    for rank in range(WORLD)
                ]
                same(comm.reduce_scatter(mine(parts, comm), groups, dim, op), expected, comm)


@pytest.mark.parametrize("name", FLOATS + INTS + OTHERS)
def test_movements(name: str, comm: Comm) -> None:
    for groups in groupings():
        size = groups.size
        parts = arrays((2 * size, 3 * size), name)
        members = [groups.members(rank) for rank in range(WORLD)]
        for dim in range(2):
            gathered = [np.concatenate([parts[one] for one in ranks], dim) for ranks in members]
            same(comm.all_gather(mine(parts, comm), groups, dim), gathered, comm)
            exchanged = [
                np.concatenate([np.split(parts[one], size, dim)[groups.position(rank)] for one in ranks], 1 - dim)
                for rank, ranks in enumerate(members)
            ]
            same(comm.all_to_all(mine(parts, comm), groups, dim, 1 - dim), exchanged, comm)
    parts = arrays((3, 5), name)
    moved = comm.permute(mine(parts, comm), lambda rank: (rank + 1) % WORLD)
    same(moved, [parts[(rank + 1) % WORLD] for rank in range(WORLD)], comm)
    root = WORLD - 1
    given = parts[root] if root in comm.ranks else None
    same(comm.broadcast(given, (3, 5), element(name), root), [parts[root]] * WORLD, comm)
    collected = comm.collect(mine(parts, comm), root)
    assert (collected is None) == (root not in comm.ranks)
    for one, right in zip(collected or [], parts, strict=False):
        assert (one.dtype, one.tobytes()) == (right.dtype, right.tobytes())


@pytest.mark.skipif(WORLD == 1, reason="one rank adds nothing up")
def test_bfloat16_is_added_up_in_float32(comm: Comm) -> None:
    """256 + 1 is 256 again in bfloat16, but 256 + 1 + 1 + ... rounded once is not where there are enough ranks."""
    parts = [np.array([256.0 if rank == 0 else 1.0], ml_dtypes.bfloat16) for rank in range(WORLD)]
    (groups, _) = groupings()
    total = comm.all_reduce(mine(parts, comm), groups)[0]
    assert float(total[0]) == float(ml_dtypes.bfloat16(256.0 + WORLD - 1))


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_max_and_min_keep_nan_and_signs(op: str, name: str, comm: Comm) -> None:
    parts = arrays((6,), name)
    parts[-1][4] = np.nan
    (groups, _) = groupings()
    for result in comm.all_reduce(mine(parts, comm), groups, op):
        assert np.isnan(result.astype(np.float32))[4]
        assert np.isnan(result.astype(np.float32)).sum() == 1


def test_numbers_without_an_order_or_a_sum_are_refused(comm: Comm) -> None:
    (groups, _) = groupings()
    with pytest.raises(CommError, match="max of complex64 is not defined"):
        comm.all_reduce(mine(arrays((3,), "complex64"), comm), groups, "max")
    with pytest.raises(CommError, match="sum of bool is not defined"):
        comm.all_reduce(mine(arrays((3,), "bool"), comm), groups, "sum")
