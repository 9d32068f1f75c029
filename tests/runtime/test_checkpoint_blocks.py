"""Checkpoints on virtual ranks: any mesh and layout to any other, each block once, only the bytes that are needed."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from autoshard.core.tensortype import TensorType, type_of
from autoshard.layout import Layout, Mesh
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import (
    LocalBlocks,
    Placed,
    Reader,
    export_file,
    find,
    import_files,
    load,
    read_index,
    save,
)
from autoshard.runtime.checkpoint.index import StoredBlock, tiles
from autoshard.runtime.checkpoint.placed import first_owners, touched
from autoshard.runtime.local import LocalComm
from autoshard.util.errors import CheckpointError
from tests.redistribute.virtual_ranks import layouts, meshes

DTYPES = ("float32", "int8", "bool", "float64", "uint16", "complex64")


def held(array: np.ndarray, layout: Layout, padded: tuple[int, ...] | None = None) -> LocalBlocks:
    ranks = range(layout.mesh.devices)
    return LocalBlocks(cut(array, layout, ranks, padded), Placed(type_of(array), layout, padded))


def array_of(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    data = np.random.default_rng(seed).integers(0, 256, math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
    return (data % 2 if dtype == "bool" else data).view(dtype).reshape(shape)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


@settings(max_examples=60)
@given(st.data())
def test_any_layout_to_any_other(tmp_path_factory, data):
    """Bitwise: what ranks of one mesh save, ranks of another load, uneven blocks and padding included."""
    folder = tmp_path_factory.mktemp("saved")
    before, after = data.draw(meshes()), data.draw(meshes())
    arrays, saved, wanted = {}, {}, {}
    for i in range(data.draw(st.integers(1, 3))):
        shape = tuple(data.draw(st.lists(st.integers(0, 11), max_size=3)))
        name, array = f"t{i}", array_of(shape, data.draw(st.sampled_from(DTYPES)), i)
        padded = tuple(size + data.draw(st.integers(0, 5)) for size in shape) if data.draw(st.booleans()) else None
        layout = data.draw(layouts(before, len(shape), partial=False))
        arrays[name], saved[name] = array, held(array, layout, padded)
        wanted[name] = Placed(type_of(array), data.draw(layouts(after, len(shape), partial=False)), padded)
    save(folder, saved, LocalComm(before.devices), step=7, metadata={"note": "ü"})
    found = load(folder, wanted, LocalComm(after.devices))
    assert (found.step, found.metadata) == (7, {"note": "ü"})
    for name, array in arrays.items():
        one = wanted[name]
        expected = cut(array, one.layout, range(after.devices), one.padded)
        assert all(same(part, block) for part, block in zip(found.arrays[name], expected, strict=True))


@settings(max_examples=40)
@given(st.data())
def test_replicas_are_written_once(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("once")
    mesh = data.draw(meshes())
    array = array_of(tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))), "int8")
    layout = data.draw(layouts(mesh, array.ndim, partial=False))
    index = read_index(save(folder, {"w": held(array, layout)}, LocalComm(mesh.devices)))
    blocks = index.tensors["w"].blocks
    assert sum(block.stop - block.start for block in blocks) == array.nbytes
    for block in blocks:
        writer = int(block.file[5:10])
        holders = [r for r in range(mesh.devices) if layout.block(r, array.shape) == block.region]
        assert writer == min(holders)


@given(meshes(), st.data())
def test_first_owners_are_the_first_of_their_groups(mesh, data):
    layout = data.draw(layouts(mesh, 2, partial=False))
    assert first_owners(layout) == {int(layout.holders().members(r).min()) for r in range(mesh.devices)}


@given(st.data())
def test_touched_chunks_are_those_with_bytes_of_the_region(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    region = []
    for size in shape:
        start = data.draw(st.integers(0, size))
        region.append(slice(start, data.draw(st.integers(start, size))))
    itemsize, chunk = data.draw(st.sampled_from((1, 2, 4, 8))), data.draw(st.sampled_from((8, 16, 32, 64)))
    places = np.arange(math.prod(shape)).reshape(shape)[tuple(region)].reshape(-1)
    expected = sorted({int(place) * itemsize // chunk for place in places})
    assert touched(tuple(region), shape, itemsize, chunk).tolist() == expected


def test_rank_files_are_safetensors(tmp_path):
    mesh, w, b = Mesh(dp=2, tp=4), array_of((6, 12), "float32"), array_of((5,), "int8")
    folder = save(
        tmp_path,
        {"w": held(w, Layout.parse("dp, tp", mesh)), "b": held(b, Layout.parse("-", mesh))},
        LocalComm(8),
        step=12,
    )
    assert folder.name == "step-00000012" and (tmp_path / "latest").read_text().splitlines()[1:] == ["step-00000012"]
    first = load_file(folder / "rank-00000-of-00008.safetensors")
    assert same(first["w"], w[:3, :3]) and same(first["b"], b)
    last = load_file(folder / "rank-00007-of-00008.safetensors")
    assert list(last) == ["w"] and same(last["w"], w[3:, 9:])


def test_a_rank_that_owns_nothing_writes_no_file(tmp_path):
    folder = save(tmp_path, {"b": held(np.arange(3), Layout.parse("tp", Mesh(dp=2, tp=4)))}, LocalComm(8))
    assert sorted(one.name for one in folder.glob("rank*")) == [f"rank-0000{r}-of-00008.safetensors" for r in range(3)]


def test_only_overlapping_chunks_are_read(tmp_path):
    """Damage in a chunk that holds nothing of what a rank wants is no matter; there are two of 1 MiB per block."""
    w = array_of((1030, 1024), "float32")
    folder = save(tmp_path, {"w": held(w, Layout.parse("d, -", Mesh.flat(2)))}, LocalComm(2))
    first, second = read_index(folder).tensors["w"].blocks
    assert len(first.sums) == 8 * 3
    with open(folder / first.file, "r+b") as file:
        file.seek(first.start + (1 << 20) + 5)
        file.write(bytes([w.reshape(-1).view(np.uint8)[(1 << 20) + 5] ^ 4]))
    reader = Reader.open(folder)
    for rows in (slice(3, 255), slice(512, 600)):
        into = np.empty((rows.stop - rows.start, 1000), np.float32)
        reader.read("w", (rows, slice(7, 1007)), into)
        assert same(into, np.ascontiguousarray(w[rows, 7:1007]))
    with pytest.raises(CheckpointError, match="tensor 'w', bytes"):
        reader.read("w", (slice(300, 301), slice(0, 1)), np.empty((1, 1), np.float32))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_tiles(cuts, data):
    """A grid of blocks tiles; without one of them, or with one moved or counted twice, it does not."""
    sizes = [data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)) for n in cuts]
    starts = [list(itertools.accumulate(row, initial=0)) for row in sizes]
    grid = [
        StoredBlock(
            tuple(starts[d][i] for d, i in enumerate(at)), tuple(sizes[d][i] for d, i in enumerate(at)), "", 0, 0, ""
        )
        for at in itertools.product(*(range(n) for n in cuts))
    ]
    shape = tuple(row[-1] for row in starts)
    assert tiles(shape, grid) and not tiles(shape, grid[:-1]) and not tiles(shape, [*grid, grid[0]])
    assert not tiles((shape[0] + 1, *shape[1:]), grid)
    moved = StoredBlock((grid[-1].at[0] + 1, *grid[-1].at[1:]), grid[-1].shape, "", 0, 0, "")
    assert not tiles(shape, [*grid[:-1], moved])


@pytest.mark.parametrize(
    "parts, text, words",
    [
        (8, "dp, -", r"rank 0 holds float32\[1, 4\] of w, f32\[6@dp, 4\]; its block is f32\[3, 4\]"),
        (7, "dp, -", "w has 7 blocks for 8 ranks"),
        (8, "dp, - +tp", "is partial; a checkpoint holds whole values"),
    ],
)
def test_blocks_that_do_not_fit(tmp_path, parts, text, words):
    with pytest.raises(CheckpointError, match=words):
        layout = Layout.parse(text, Mesh(dp=2, tp=4))
        one = LocalBlocks([np.zeros((1, 4), np.float32)] * parts, Placed(TensorType.of((6, 4)), layout))
        save(tmp_path / "new", {"w": one}, LocalComm(8))
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_saved(tmp_path):
    fine = held(np.zeros(3), Layout.parse("-", Mesh.flat(2)))
    cases = [
        ({}, {}, "there are no tensors"),
        ({"w": fine}, {"step": -1}, "step is -1"),
        ({"w": fine}, {"keep": True}, "keep is True"),
        ({"w": fine}, {"metadata": {"a": object()}}, "cannot be written as JSON"),
        ({"w": held(np.zeros(3), Layout.parse("-", Mesh.flat(4)))}, {}, "lies on mesh 'd=4', but there are 2 ranks"),
        ({"w": fine, "b": held(np.zeros(3), Layout.parse("-", Mesh(a=2)))}, {}, "different meshes: a=2, d=2"),
        ({"w": held(np.zeros(3, np.complex128), Layout.parse("-", Mesh.flat(2)))}, {}, "no elements of type c128"),
    ]
    for arrays, options, words in cases:
        with pytest.raises(CheckpointError, match=words):
            save(tmp_path / "new", arrays, LocalComm(2), **options)
    assert not (tmp_path / "new").exists()


def test_index_is_readable_json(tmp_path):
    folder = save(tmp_path, {"w": held(np.arange(6.0), Layout.parse("d", Mesh.flat(2)))}, LocalComm(2))
    told = json.loads((folder / "index.json").read_text())
    assert told["format"] == "autoshard checkpoint" and told["mesh"] == "d=2"
    assert told["tensors"]["w"]["layout"] == "d" and [b["at"] for b in told["tensors"]["w"]["blocks"]] == [[0], [3]]


def peak_of(act) -> int:
    """The most bytes that `act` held at once."""
    tracemalloc.start()
    act()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_is_that_of_the_wanted_part(tmp_path):
    """Columns of a tensor that one rank saved whole; and a whole file, a tensor at a time."""
    names, mib = ("a", "b", "c"), 1 << 20
    w = array_of((4096, 1024), "uint8")
    save(tmp_path, {name: held(w, Layout.parse("-, -", Mesh.flat(1))) for name in names}, LocalComm(1))
    reader, into = Reader.open(find(tmp_path)), np.empty((4096, 10), np.uint8)
    assert peak_of(lambda: reader.read("b", (slice(0, 4096), slice(5, 15)), into)) < mib // 2
    assert same(into, np.ascontiguousarray(w[:, 5:15]))
    assert 4 * mib <= peak_of(lambda: export_file(tmp_path, tmp_path / "plain")) < 5 * mib
    assert peak_of(lambda: import_files([tmp_path / "plain"], tmp_path / "again")) < mib
    assert all(same(array, w) for array in load_file(tmp_path / "plain").values())


def test_tensors_on_some_of_the_ranks(tmp_path):
    """As stages have them: each on a mesh of its own, loaded onto one mesh of all."""
    arrays = {
        "first": array_of((7, 4), "float32"),
        "second": array_of((5, 6), "float64", 1),
        "count": array_of((), "int8"),
    }
    stages = {"first": ("dp, -", Mesh(dp=2), (0, 3)), "second": ("-, tp", Mesh(tp=3), (4, 1, 2)),
              "count": ("()", Mesh.flat(5), None)}  # fmt: skip
    blocks = {}
    for name, (text, mesh, ranks) in stages.items():
        layout = Layout.replicated(mesh, 0) if name == "count" else Layout.parse(text, mesh)
        parts = cut(arrays[name], layout, range(mesh.devices))
        order = sorted(range(mesh.devices), key=lambda place: ranks[place] if ranks else place)  # noqa: B023
        placed = Placed(type_of(arrays[name]), layout, None, ranks)
        blocks[name] = LocalBlocks([parts[place] for place in order], placed)
    save(tmp_path, blocks, LocalComm(5), step=2)
    index = read_index(find(tmp_path))
    assert index.mesh == "dp=2 on ranks 0, 3; tp=3 on ranks 4, 1, 2; d=5" and index.ranks == 5
    files = [block.file for block in index.tensors["second"].blocks]
    assert [int(file.split("-")[1]) for file in files] == [4, 1, 2]
    wanted = {
        name: Placed(type_of(array), Layout.replicated(Mesh.flat(2), array.ndim)) for name, array in arrays.items()
    }
    found = load(tmp_path, wanted, LocalComm(2))
    assert all(same(found.arrays[name][1], array) for name, array in arrays.items())


def test_ranks_that_do_not_fit(tmp_path):
    layout = Layout.replicated(Mesh(dp=2), 1)
    with pytest.raises(CheckpointError, match="mesh 'dp=2' has 2 devices, not \\(0, 0\\)"):
        Placed(TensorType.of((3,)), layout, None, (0, 0))
    one = LocalBlocks([np.zeros(3, np.float32)], Placed(TensorType.of((3,)), layout, None, (1, 4)))
    with pytest.raises(CheckpointError, match="lies on mesh 'dp=2 on ranks 1, 4', but there are 3 ranks"):
        save(tmp_path, {"w": one}, LocalComm(3))
    one = LocalBlocks([np.zeros(3, np.float32)], Placed(TensorType.of((3,)), layout, None, (1, 2)))
    with pytest.raises(CheckpointError, match="w has 1 blocks for 2 ranks"):
        save(tmp_path, {"w": one}, LocalComm(3))
