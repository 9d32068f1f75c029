"""LocalComm against plain numpy: what each rank gets is written out from the definition, rank by rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.layout.mesh import Groups, Mesh
from autoshard.runtime.comm import CommError, join_pieces, split_pieces
from autoshard.runtime.local import LocalComm

MESHES = [
    Mesh(dp=1),
    Mesh(dp=3),
    Mesh(dp=6),
    Mesh(dp=2, tp=3),
    Mesh(dp=2, tp=4),
    Mesh([("dp", 2), ("tp", 3)], order=[5, 1, 3, 0, 2, 4]),
    Mesh(dp=2, sp=2, tp=3),
]
FOLD = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


@st.composite
def groups_of_a_mesh(draw) -> Groups:
    mesh = draw(st.sampled_from(MESHES))
    names = draw(st.lists(st.sampled_from(mesh.names), unique=True))
    return mesh.groups([mesh.axis(name) for name in names])


def arrays(world: int, shape: tuple[int, ...], seed: int, dtype: str = "float64") -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(-9, 9, shape).astype(dtype) for _ in range(world)]


def same(results: list[np.ndarray], expected: list[np.ndarray], inputs: list[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for rank, (result, right) in enumerate(zip(results, expected, strict=True)):
        np.testing.assert_array_equal(result, right, err_msg=f"rank {rank}")
        assert result.dtype == inputs[rank].dtype
        assert result.flags.c_contiguous
        assert not any(np.shares_memory(result, other) for other in inputs)
        assert not any(np.shares_memory(result, other) for other in results[:rank])


def piece(array: np.ndarray, size: int, dim: int, index: int) -> np.ndarray:
    return np.split(array, size, axis=dim)[index]


seeds = st.integers(0, 2**16)
dims = st.integers(0, 2)


@settings(deadline=None)
@given(groups_of_a_mesh(), st.sampled_from(sorted(FOLD)), seeds)
def test_all_reduce(groups: Groups, op: str, seed: int) -> None:
    parts = arrays(groups.world, (4, 6), seed)
    expected = [FOLD[op]([parts[m] for m in groups.members(r)], axis=0) for r in range(groups.world)]
    same(LocalComm(groups.world).all_reduce(parts, groups, op), expected, parts)


@settings(deadline=None)
@given(groups_of_a_mesh(), dims, seeds)
def test_all_gather(groups: Groups, dim: int, seed: int) -> None:
    parts = arrays(groups.world, (4, 6, 10), seed)
    expected = [np.concatenate([parts[m] for m in groups.members(r)], dim) for r in range(groups.world)]
    same(LocalComm(groups.world).all_gather(parts, groups, dim), expected, parts)


@settings(deadline=None)
@given(groups_of_a_mesh(), st.sampled_from(sorted(FOLD)), dims, seeds)
def test_reduce_scatter(groups: Groups, op: str, dim: int, seed: int) -> None:
    size = groups.size
    parts = arrays(groups.world, (2 * size, 3 * size, 5 * size), seed)
    expected = [
        piece(FOLD[op]([parts[m] for m in groups.members(r)], axis=0), size, dim, groups.position(r))
        for r in range(groups.world)
    ]
    same(LocalComm(groups.world).reduce_scatter(parts, groups, dim, op), expected, parts)


@settings(deadline=None)
@given(groups_of_a_mesh(), dims, dims, seeds)
def test_all_to_all(groups: Groups, split: int, concat: int, seed: int) -> None:
    size = groups.size
    parts = arrays(groups.world, (2 * size, 3 * size, 5 * size), seed)
    expected = [
        np.concatenate([piece(parts[m], size, split, groups.position(r)) for m in groups.members(r)], concat)
        for r in range(groups.world)
    ]
    same(LocalComm(groups.world).all_to_all(parts, groups, split, concat), expected, parts)


@settings(deadline=None)
@given(st.permutations(range(6)), seeds)
def test_permute(sources: list[int], seed: int) -> None:
    parts = arrays(6, (4, 6), seed)
    same(LocalComm(6).permute(parts, sources.__getitem__), [parts[source] for source in sources], parts)


@settings(deadline=None)
@given(groups_of_a_mesh(), dims, seeds)
def test_a_gather_undoes_a_scatter(groups: Groups, dim: int, seed: int) -> None:
    """reduce_scatter then all_gather is all_reduce; two opposite all_to_alls are nothing."""
    comm, size = LocalComm(groups.world), groups.size
    parts = arrays(groups.world, (2 * size, 3 * size, 5 * size), seed)
    scattered = comm.reduce_scatter(parts, groups, dim)
    same(comm.all_gather(scattered, groups, dim), comm.all_reduce(parts, groups), parts)
    there = comm.all_to_all(parts, groups, dim, (dim + 1) % 3)
    same(comm.all_to_all(there, groups, (dim + 1) % 3, dim), parts, parts)


@settings(deadline=None)
@given(st.integers(1, 6), dims, st.booleans())
def test_pieces_join_again(size: int, dim: int, strided: bool) -> None:
    whole = np.arange(2 * 30 * size**3).reshape(2 * size, 3 * size, 10 * size)
    whole = whole.transpose(2, 0, 1) if strided else whole
    pieces = split_pieces(whole, size, dim)
    assert pieces.shape[0] == size
    np.testing.assert_array_equal(pieces[size - 1], piece(whole, size, dim, size - 1))
    np.testing.assert_array_equal(join_pieces(pieces, dim), whole)


def test_bool_max_is_or_and_min_is_and() -> None:
    mesh = Mesh(dp=2)
    parts = [np.array([True, True, False]), np.array([True, False, False])]
    groups = mesh.groups(mesh.all_axes)
    assert LocalComm(2).all_reduce(parts, groups, "max")[0].tolist() == [True, True, False]
    assert LocalComm(2).all_reduce(parts, groups, "min")[1].tolist() == [True, False, False]


def test_float16_is_summed_in_float32() -> None:
    mesh = Mesh(dp=6)
    parts = [np.array([1.0 if rank else 2048.0], np.float16) for rank in range(6)]
    total = LocalComm(6).all_reduce(parts, mesh.groups(mesh.all_axes))[0]
    assert total.dtype == np.float16
    assert total[0] == np.float16(2053)  # in float16 alone, 2048 + 1 is 2048 again


def test_scalars_reduce() -> None:
    mesh = Mesh(dp=3)
    parts = [np.array(float(rank + 1)) for rank in range(3)]
    assert [float(x) for x in LocalComm(3).all_reduce(parts, mesh.groups(mesh.all_axes), "prod")] == [6.0] * 3


def test_collect_and_broadcast() -> None:
    comm, parts = LocalComm(3), arrays(3, (4, 6), 1, "int32")
    collected = comm.collect(parts, root=2)
    assert collected is not None
    same(collected, parts, parts)
    same(comm.broadcast(parts[1], (4, 6), "int32", root=1), [parts[1]] * 3, parts)


MESH = Mesh(dp=2, tp=3)
TP = MESH.groups([MESH.axis("tp")])


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda c, x: c.all_gather(x, TP, 2), r"all_gather: dim 2 is not a dim .*\(4, 10\); .*from 0 to 1"),
        (lambda c, x: c.all_gather(x, TP, -1), r"dim -1 is not a dim"),
        (lambda c, x: c.all_gather([a.sum() for a in x], TP, 0), "moves numpy arrays, not float64"),
        (lambda c, x: c.all_gather([np.array(1.0)] * 6, TP, 0), "a scalar has none"),
        (lambda c, x: c.reduce_scatter(x, TP, 1), r"extent 10, which does not divide into 3 equal pieces"),
        (lambda c, x: c.all_to_all(x, TP, 0, 1), r"all_to_all: dim 0 of shape \(4, 10\) has extent 4"),
        (lambda c, x: c.all_reduce(x, TP, "mean"), "no reduction 'mean'; known are sum, max, min, prod"),
        (
            lambda c, x: c.all_reduce([a > 0 for a in x], TP, "sum"),
            "sum of bool is not defined; use max for or",
        ),
        (lambda c, x: c.all_reduce([a + 1j for a in x], TP, "max"), "max of complex128 is not defined"),
        (lambda c, x: c.all_reduce([a.astype("U3") for a in x], TP), "can not reduce dtype <U3"),
        (lambda c, x: c.all_reduce([a.astype(object) for a in x], TP), "holds Python objects"),
        (lambda c, x: c.all_reduce([a.astype(">f8") for a in x], TP), "foreign byte order"),
        (lambda c, x: c.all_reduce(x[:2], TP), "2 arrays were given, but this process hosts 6 ranks"),
        (lambda c, x: c.all_reduce(x, Mesh(dp=4).groups([])), "a mesh of 4 ranks, but 6 ranks are running"),
        (lambda c, x: c.all_reduce([*x[:-1], x[-1][:, 1:]], TP), r"float64\[4, 10\] and float64\[4, 9\]"),
        (lambda c, x: c.permute(x, lambda rank: rank // 2), r"\[0, 0, 1, 1, 2, 2\].*not one-to-one"),
        (lambda c, x: c.collect(x, 6), r"root 6 is not one of the ranks 0..5"),
        (lambda c, x: c.broadcast(None, (4,), "int32"), r"root 0 must pass int32\[4\], but passed nothing"),
        (lambda c, x: c.broadcast(x[0], (4, 9), "float64"), r"must pass float64\[4, 9\], but .*\[4, 10\]"),
        (lambda c, x: LocalComm(0), "at least one rank, not 0"),
    ],
)
def test_errors_say_what_is_wrong(call, text: str) -> None:
    with pytest.raises(CommError, match=text):
        call(LocalComm(6), arrays(6, (4, 10), 0))


def test_debug_level_4_prints_each_collective(monkeypatch, capsys) -> None:
    monkeypatch.setenv("AUTOSHARD_DEBUG", "4")
    LocalComm(6).all_reduce(arrays(6, (4, 10), 0, "float32"), TP)
    line = capsys.readouterr().err
    assert line.startswith("autoshard: ranks 0-5 all_reduce over 3 ranks, 960 bytes, ")
    monkeypatch.setenv("AUTOSHARD_DEBUG", "3")
    LocalComm(6).all_reduce(arrays(6, (4, 10), 0), TP)
    assert capsys.readouterr().err == ""
