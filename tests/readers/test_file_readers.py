"""Every file that is read: a damaged, cut or forged one is read rightly or refused, in words, and that is all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.annotate import annotate, load_annotations
from autoshard.core.tensortype import type_of
from autoshard.exporters.mindspore import from_checkpoint
from autoshard.exporters.plan_file import load_plan
from autoshard.layout import Layout, Mesh
from autoshard.mindspore.checkpoint import load_checkpoint
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import LocalBlocks, Placed, find, import_files, load, save
from autoshard.runtime.checkpoint.index import _digest
from autoshard.runtime.checkpoint.safefile import read_header
from autoshard.runtime.launch import place_ranks
from autoshard.runtime.local import LocalComm
from autoshard.util.errors import AutoshardError
from costmodel import Hardware, preset
from costmodel import load as load_hardware
from costmodel import save as save_hardware
from tests.readers.guard import survive
from tests.readers.mutations import mutations

COUNT = 300
MESH, COMM = Mesh(dp=2, tp=2), LocalComm(4)
OLD_PLAN = Path(__file__).parents[1] / "exporters" / "plan_of_version_1.json"


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def from_file(folder: Path, name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A reader of samples, from a reader of files."""
    path = folder / name

    def reader(sample: bytes) -> Any:
        path.write_bytes(sample)
        return read(path)

    return reader


def check(folder: Path, name: str, good: bytes, read: Callable[[Path], Any], right: Callable[[Any], None], **more: Any):
    """The good file is read; of the changed ones many are refused."""
    reader = from_file(folder, name, read)
    right(reader(good))
    read_count, refused = survive(reader, mutations(good, COUNT, len(name)), folder, right, **more)
    assert read_count + refused == COUNT and refused > COUNT // 4


# -- plans


def looping(x, w, v):
    start = np.int32(0), x
    y = ops.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, ops.matmul(state[1], w)), start)[1]
    return ops.relu(ops.scalar_mul(ops.matmul(y, v), factor=2.0))


def product(x, w):
    return ops.relu(ops.scalar_mul(ops.matmul(x, w), factor=2.0))


def check_plans(folder: Path, good: bytes, model: Callable, inputs: tuple, mesh: Mesh) -> None:
    """A plan that is accepted gives the numbers of the unsplit model."""
    made = ash.plan(model, inputs, mesh, search="data_parallel")
    wanted = made.run(*inputs)

    def right(plan: Any) -> None:
        assert isinstance(plan.started_from, str)
        verify_program(lower(plan))
        planned = ash.plan(model, inputs, plan.mesh, search=str(folder / "plan.json"))
        if plan.mesh.devices <= 16:
            np.testing.assert_allclose(planned.run(*inputs), wanted, rtol=1e-4, atol=1e-5)

    check(folder, "plan.json", good, lambda path: load_plan(path, made.graph), right)


def test_plans(tmp_path):
    inputs = array(8, 16), array(16, 6)
    good = ash.plan(product, inputs, MESH, search="bfs").save(tmp_path / "good.json").read_bytes()
    check_plans(tmp_path, good, product, inputs, MESH)


def test_plans_of_version_1(tmp_path):
    inputs = array(8, 16), array(16, 16), array(16, 6)
    check_plans(tmp_path, OLD_PLAN.read_bytes(), looping, inputs, Mesh(dp=2, tp=4))


def test_strategy_checkpoints(tmp_path):
    planned = ash.plan(product, (array(8, 16), array(16, 6)), MESH, search="bfs")
    data = json.loads(planned.export("mindspore"))
    data["parallel_layout_item"]["w"] = {"dev_matrix": [2, 2], "tensor_map": [-1, [1, 0]], "tensor_shape": [16, 6]}

    def right(found: Any) -> None:
        assert all(layout.mesh is MESH for layout in found.layouts(MESH).values())

    check(tmp_path, "strategies.json", json.dumps(data).encode(), from_checkpoint, right)


def test_annotations(tmp_path):
    asks = {"w": ["dp", None], "x": {"given": "[{dp}, {tp, ?}]", "priority": 1}, "matmul": [[2, 1], [1, 2]]}
    good = json.dumps({"format": "autoshard annotations 1", "annotations": asks}).encode()
    traced = ash.trace(product, array(8, 16), array(16, 6))
    check(tmp_path, "asks.json", good, load_annotations, lambda asks: annotate(traced, asks, MESH) and None)


# -- hardware and hosts


def test_hardware(tmp_path):
    good = save_hardware(preset("h100"), tmp_path / "good.json").read_bytes()

    def right(found: Hardware) -> None:
        assert 0 < found.device.memory_bandwidth < float("inf") and found.device.peak("f32") > 0

    check(tmp_path, "hardware.json", good, load_hardware, right, errors=(ValueError,))


def test_rank_tables(tmp_path):
    servers = {"10.1.1.1": (0, 3), "host-b": (1, 2)}
    listed = [
        {"server_id": s, "device": [{"device_id": "0", "rank_id": str(r)} for r in ranks]}
        for s, ranks in servers.items()
    ]
    good = json.dumps({"version": "1.0", "server_list": listed, "status": "completed"}).encode()
    check(tmp_path, "table.json", good, lambda path: place_ranks(4, rank_table=path), _are_hosts)


def test_host_files(tmp_path):
    good = b"host-a slots=2 max_slots=4\nhost-b:1 # a comment\n\n10.1.1.1\n"
    check(tmp_path, "hosts", good, lambda path: place_ranks(4, hosts=path), _are_hosts)


def _are_hosts(places: list[str]) -> None:
    assert len(places) == 4 and all(place and not set(place) & set(" \n\t\0/") for place in places)


# -- checkpoints

ARRAYS = {"wide": array(5, 7), "rows": np.arange(24, dtype=np.int16).reshape(8, 3), "count": np.array(41, np.int32)}
PLACED = {
    name: Placed(type_of(array), Layout.parse(layout, MESH))
    for (name, array), layout in zip(ARRAYS.items(), ("dp, tp", "tp, -", "()"), strict=True)
}


def saved(directory: Path) -> Path:
    held = {name: LocalBlocks(cut(ARRAYS[name], one.layout, COMM.ranks), one) for name, one in PLACED.items()}
    return save(directory, held, COMM, 5, {"loss": 0.5, "names": ["a", "b"]})


def _is_as_saved(found: Any) -> None:
    for name, one in PLACED.items():
        for part, wanted in zip(found.arrays[name], cut(ARRAYS[name], one.layout, COMM.ranks), strict=True):
            np.testing.assert_array_equal(part, wanted)


def test_indexes(tmp_path):
    folder = saved(tmp_path)
    good = (folder / "index.json").read_bytes()
    check(folder, "index.json", good, lambda path: load(path.parent, PLACED, COMM), _is_as_saved)


def test_forged_indexes(tmp_path):
    """The checksum fits what was changed: all that is said is checked, and no bytes of other files are read."""
    folder = saved(tmp_path)
    (tmp_path / "secret").write_bytes(b"secret" * 100)
    body = json.loads((folder / "index.json").read_text())
    del body["checksum"]

    def read(path: Path) -> Any:
        try:
            changed = json.loads(path.read_text())
            path.write_text(json.dumps({**changed, "checksum": _digest(changed)}))
        except (ValueError, TypeError, RecursionError):
            pass
        return load(path.parent, PLACED, COMM)

    def right(found: Any) -> None:
        for name, one in PLACED.items():
            assert all(part.shape == one.local for part in found.arrays[name])

    check(folder, "index.json", json.dumps(body).encode(), read, right)


def test_lists_of_checkpoints(tmp_path):
    saved(tmp_path)
    good = (tmp_path / "latest").read_bytes()

    def right(path: Path) -> None:
        assert path.parent == tmp_path and path.name == "step-00000005"

    check(tmp_path, "latest", good, lambda path: find(path.parent), right)


def test_tensor_files(tmp_path):
    from safetensors.numpy import save as save_tensors

    good = save_tensors({name: array for name, array in ARRAYS.items()}, {"format": "np"})

    def read(path: Path) -> Any:
        header = read_header(path)
        assert header.length <= path.stat().st_size
        shutil.rmtree(tmp_path / "imported", ignore_errors=True)
        import_files([path], tmp_path / "imported")
        return load_checkpoint(path)

    def right(found: dict[str, np.ndarray]) -> None:
        assert sum(array.nbytes for array in found.values()) <= len(good) + 1000

    check(tmp_path, "net.safetensors", good, read, right)


def test_headers_of_tensor_files(tmp_path):
    """Headers that are JSON of the right length, and say something else."""
    from safetensors.numpy import save as save_tensors

    whole = save_tensors({name: array for name, array in ARRAYS.items()}, {"format": "np"})
    length = int.from_bytes(whole[:8], "little")

    def read(path: Path) -> Any:
        text = path.read_bytes()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        return read_header(path)

    def right(header: Any) -> None:
        assert all(one.stop <= len(whole) + 40_000 for one in header.entries.values())

    check(tmp_path, "net.safetensors", whole[8 : 8 + length], read, right)


@pytest.mark.parametrize("reader", [load_annotations, from_checkpoint, read_header, load_checkpoint, find])
def test_files_that_cannot_be_read(tmp_path, reader):
    for path in (tmp_path / "none", tmp_path, tmp_path / ("x" * 300), Path("zero\0")):
        with pytest.raises(AutoshardError):
            reader(path)
