"""A process that is killed while it saves, at every step of a save and at random moments: the checkpoint before, or the
new one, is there whole; never a mixture, never none.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from autoshard.core.tensortype import TensorType
from autoshard.layout import Layout, Mesh
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import LocalBlocks, Placed, checkpoints, damage, find, load, save
from autoshard.runtime.local import LocalComm

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

MESH, COMM = Mesh(dp=2, tp=2), LocalComm(4)
PLACED = {
    "w": Placed(TensorType.of((130, 90)), Layout.parse("dp, tp", MESH)),
    "moments.w": Placed(TensorType.of((130, 90)), Layout.parse("dp.tp, -", MESH)),
    "step": Placed(TensorType.of((), "i32"), Layout.parse("()", MESH)),
}


def contents(step: int) -> dict[str, np.ndarray]:
    """What a checkpoint of this step holds: nothing of another step's."""
    rng = np.random.default_rng(step)
    wide = {name: rng.normal(size=PLACED[name].type.shape).astype(np.float32) for name in ("w", "moments.w")}
    return {**wide, "step": np.array(step, np.int32)}


def blocks(step: int) -> dict[str, list[np.ndarray]]:
    return {name: cut(array, PLACED[name].layout, COMM.ranks) for name, array in contents(step).items()}


def save_step(directory: Path, step: int) -> None:
    save(
        directory, {name: LocalBlocks(parts, PLACED[name]) for name, parts in blocks(step).items()}, COMM, step, keep=2
    )


def loaded_step(directory: Path) -> int:
    """The step of the newest checkpoint, once all of it is what was saved."""
    found = load(directory, PLACED, COMM)
    for name, parts in blocks(found.step).items():
        assert all((a == b).all() for a, b in zip(found.arrays[name], parts, strict=True))
    assert list(damage(find(directory))) == []
    return found.step


def child(act) -> int:
    """Run `act` in a process of its own that ends without cleaning up; its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        act()
    finally:
        os._exit(0)


CALLS = ["fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "open"]


def count_calls(last: int, act) -> int:
    """Do `act` in a child that kills itself before its call number `last` of those that change a disk; the signal."""

    def doomed() -> None:
        left = [last]

        def counted(real):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        act()

    return os.waitpid(child(doomed), 0)[1]


def test_killed_before_each_of_its_calls(tmp_path):
    """Step 1 and 2 are there; saving 3 (which removes 1) dies at each call in turn, until it gets through."""
    seen = []
    for last in range(200):
        directory = tmp_path / str(last)
        for step in (1, 2):
            save_step(directory, step)
        status = count_calls(last, lambda directory=directory: save_step(directory, 3))
        seen.append(loaded_step(directory))
        save_step(directory, 4)
        assert loaded_step(directory) == 4
        assert not [one for one in directory.iterdir() if one.name.startswith((".saving", ".removing", ".latest"))]
        if status == 0:
            break
    assert status == 0 and last > 12
    assert set(seen) == {2, 3} and seen == sorted(seen), "the new one shows once, and stays"


def test_killed_at_random_moments(tmp_path):
    """50 times: what was said to be saved is there, or what came after it."""
    rng, said = np.random.default_rng(50), 0
    begun = time.monotonic()
    save_step(tmp_path, 0)
    longest = time.monotonic() - begun
    for _ in range(50):
        out, into = os.pipe()

        def act(first=said + 1, into=into) -> None:
            for step in range(first, first + 1000):
                save_step(tmp_path, step)
                os.write(into, step.to_bytes(4, "little"))

        pid = child(act)
        os.close(into)
        with open(out, "rb") as pipe:
            # After so many saves as chance will have it, and somewhere within the next.
            told = np.frombuffer(pipe.read(4 * int(rng.integers(0, 3))), "<u4").tolist()
            time.sleep(rng.uniform(0, longest))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            told += np.frombuffer(pipe.read(), "<u4").tolist()
        found = loaded_step(tmp_path)
        last = max([said, *told])
        assert found in (last, last + 1)
        said = found
    assert said > 5 and len(checkpoints(tmp_path)) <= 3
