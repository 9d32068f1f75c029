"""Checkpoints of MPI ranks: saved on 8 (2x4), loaded on 4 (4x1) and 6 (3x2), bitwise equal; a rank killed in a save."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from autoshard.core.tensortype import TensorType
from autoshard.layout import Layout, Mesh
from autoshard.runtime.checkpoint import LocalBlocks, Placed, checkpoints, damage, find, load, save
from autoshard.runtime.launch import launch
from autoshard.runtime.local import LocalComm

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec"),
]
LONGEST = 120

START = """
import os, signal, sys
import numpy as np
from autoshard.layout import Layout, Mesh
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import LocalBlocks, Placed, load, save
from autoshard.runtime.mpi import default_comm
from autoshard.core.tensortype import type_of

rng = np.random.default_rng(11)
ARRAYS = {
    "wide": rng.normal(size=(48, 36)).astype(np.float32),
    "uneven": rng.integers(0, 255, (7, 5, 3)).astype(np.uint8),
    "moments.wide": rng.normal(size=(48, 36)).astype(np.float16),
    "whole": rng.normal(size=13),
    "count": np.array(77, np.int32),
}
directory, mesh = sys.argv[1], Mesh.parse(sys.argv[2])
comm = default_comm(mesh.devices)
(rank,) = comm.ranks
a, b = mesh.names

def placed(texts):
    pairs = zip(ARRAYS.items(), texts, strict=True)
    return {name: Placed(type_of(array), Layout.parse(text, mesh)) for (name, array), text in pairs}

def store(texts, step, plus=0):
    lies = placed(texts)
    held = {name: LocalBlocks(cut((array + plus).astype(array.dtype), lies[name].layout, comm.ranks), lies[name])
            for name, array in ARRAYS.items()}
    save(directory, held, comm, step, {"seed": 11})

def check(texts):
    lies = placed(texts)
    found = load(directory, lies, comm)
    for name, array in ARRAYS.items():
        (block,) = cut(array, lies[name].layout, comm.ranks)
        assert found.arrays[name][0].dtype == block.dtype
        assert found.arrays[name][0].tobytes() == block.tobytes(), name
    assert found.metadata == {"seed": 11}

FIRST = [f"{a}, {b}", f"{b}, -, {a}", f"{a}.{b}, -", f"{b}", "()"]
OTHER = [f"{b}, {a}", f"-, {a}.{b}, -", f"-, {a}", "-", "()"]
"""


def run(tmp_path: Path, body: str, mesh: str) -> int:
    script = tmp_path / "script.py"
    script.write_text(START + body)
    world = Mesh.parse(mesh).devices
    return launch([str(script), str(tmp_path / "saved"), mesh], world, timeout=LONGEST)


def test_saved_on_8_loaded_on_4_and_6(tmp_path):
    assert run(tmp_path, "store(FIRST, 3)\ncheck(OTHER)\n", "dp=2 tp=4") == 0
    assert list(damage(find(tmp_path / "saved"))) == []
    for mesh in ("a=4 b=1", "x=3 y=2"):
        assert run(tmp_path, "check(FIRST)\ncheck(OTHER)\n", mesh) == 0


KILLED = """
store(FIRST, 1)
from autoshard.runtime.checkpoint import safefile
write_file = safefile.write_file

def dying(path, *rest):
    if rank == 2:
        path.write_bytes(b"begun")
        os.kill(os.getpid(), signal.SIGKILL)
    return write_file(path, *rest)

sys.modules["autoshard.runtime.checkpoint.save"].write_file = dying
store(FIRST, 2, plus=1)
"""


def test_a_rank_that_is_killed_leaves_the_checkpoint_before(tmp_path):
    assert run(tmp_path, KILLED, "dp=2 tp=2") == 128 + 9
    saved = tmp_path / "saved"
    assert checkpoints(saved) == ["step-00000001"] and list(damage(find(saved))) == []
    assert len(list(saved.glob(".saving-*"))) == 1, "what the killed save left"
    count = Placed(TensorType.of((), "i32"), Layout.parse("()", Mesh.flat(1)))
    parts = load(saved, {"count": count}, LocalComm(1), optional=None).arrays["count"]
    assert parts[0] == 77
    save(saved, {"count": LocalBlocks(parts, count)}, LocalComm(1), 2)
    assert not list(saved.glob(".saving-*")) and checkpoints(saved) == ["step-00000001", "step-00000002"]
