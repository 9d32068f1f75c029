"""Files for users are written whole or not at all: when the disk is full, when the process is killed at any call."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.mindspore.checkpoint import load_checkpoint, save_checkpoint
from autoshard.util.errors import AutoshardError, CheckpointError, PlanError
from autoshard.util.files import replacing, write_atomically
from costmodel import load, preset, save
from tests.runtime.test_checkpoint_kill import count_calls

W = np.ones((6, 4), np.float32)


def planned(search: str):
    return ash.plan(lambda x, w: ops.relu(ops.matmul(x, w)), (np.ones((8, 6), np.float32), W), "dp=2", search=search)


PLANS = [planned("data_parallel"), planned("bfs")]


def _write_plan(path, i):
    PLANS[i].save(path)


def _export_plan(path, i):
    PLANS[i].export("mindspore" if i else "shard", path)


def _write_parameters(path, i):
    save_checkpoint({"w": W + i}, path)
    assert (load_checkpoint(path)["w"] == W + i).all()


def _write_hardware(path, i):
    save(preset(("cpu", "h100")[i]), path)
    assert load(path).name


WRITERS = [_write_plan, _export_plan, _write_parameters, _write_hardware]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_each_call(tmp_path, write):
    written = []
    for i in range(2):
        write(tmp_path / f"{i}.json", i)
        written.append((tmp_path / f"{i}.json").read_bytes())
    assert written[0] != written[1]
    found = []
    for last in range(30):
        path = tmp_path / str(last) / "file.json"
        path.parent.mkdir()
        path.write_bytes(written[0])
        status = count_calls(last, lambda path=path: write(path, 1))
        found.append(written.index(path.read_bytes()))
        if status == 0:
            break
    # Opened to be written, synced, renamed; then the folder.
    assert status == 0 and last >= 3
    assert found == sorted(found) and found[0] == 0 and found[-1] == 1


@pytest.mark.parametrize("write", WRITERS)
def test_a_disk_that_is_full(tmp_path, monkeypatch, write):
    path = tmp_path / "file.json"
    path.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("costmodel.whole_file.os.fsync", full)
    with pytest.raises((AutoshardError, OSError), match="No space left on device"):
        write(path, 0)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_links_permissions_pipes_and_folders(tmp_path):
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomically(link, "new", PlanError)
    assert link.is_symlink() and target.read_text() == "new" and stat.S_IMODE(target.stat().st_mode) == 0o640
    write_atomically("/dev/null", "gone", PlanError)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(PlanError, match="cannot write"):
        write_atomically(tmp_path / "none" / "x", "text", PlanError)
    write_atomically(tmp_path / "some" / "x", "text", PlanError, folders=True)
    with pytest.raises(PlanError, match="cannot write .*: Is a directory"):
        write_atomically(tmp_path / "some", "text", PlanError)
    with pytest.raises(PlanError, match="cannot write"):
        write_atomically(tmp_path / "zero\0", "text", PlanError)
    with pytest.raises(KeyError), replacing(tmp_path / "y", CheckpointError) as draft:
        draft.write_text("half")
        raise KeyError
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "real", "some"]
    write_atomically(tmp_path / ("n" * 250), "long names leave room for the draft's", PlanError)
