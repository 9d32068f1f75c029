"""Checkpoints that are damaged, cut, forged or of another model: each is refused with what is wrong and where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from autoshard.core.tensortype import TensorType, type_of
from autoshard.layout import Layout, Mesh
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import (
    LocalBlocks,
    Placed,
    checkpoints,
    damage,
    find,
    import_files,
    load,
    read_index,
    save,
)
from autoshard.runtime.checkpoint.index import _digest
from autoshard.runtime.local import LocalComm
from autoshard.util.errors import CheckpointError

MESH = Mesh(dp=2, tp=2)
LAYOUTS = {"wide": "dp, tp", "rows": "tp, -", "count": "()"}
ARRAYS = {
    "wide": np.arange(35, dtype=np.float32).reshape(5, 7),
    "rows": np.arange(24, dtype=np.int16).reshape(8, 3),
    "count": np.array(41, np.int32),
}
PLACED = {name: Placed(type_of(array), Layout.parse(LAYOUTS[name], MESH)) for name, array in ARRAYS.items()}
COMM = LocalComm(4)


def saved(directory: Path, step: int = 5, keep: int = 0, plus: int = 0) -> Path:
    parts = {name: cut(ARRAYS[name] + plus, one.layout, COMM.ranks) for name, one in PLACED.items()}
    held = {name: LocalBlocks([p.astype(ARRAYS[name].dtype) for p in parts[name]], PLACED[name]) for name in PLACED}
    return save(directory, held, COMM, step, keep=keep)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("good"))


def copied(good: Path, to: Path) -> Path:
    shutil.rmtree(to / "copy", ignore_errors=True)
    return Path(shutil.copytree(good, to / "copy"))


def forged(folder: Path, change) -> None:
    """Change the index, and give it the checksum that it then has."""
    body = json.loads((folder / "index.json").read_text())
    del body["checksum"]
    change(body)
    (folder / "index.json").write_text(json.dumps({**body, "checksum": _digest(body)}))


@settings(max_examples=150)
@given(st.data())
def test_any_flipped_bit_is_reported(good, tmp_path_factory, data):
    """Wherever it is: with the file, and in the contents with the tensor; by `load` and by `damage`."""
    folder = copied(good, tmp_path_factory.getbasetemp())
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    blocks = {name: block for name, one in read_index(good).tensors.items() for block in one.blocks
              if block.file == path.name and block.start <= place < block.stop}  # fmt: skip
    with pytest.raises(CheckpointError) as told:
        load(folder, PLACED, COMM)
    assert path.name in str(told.value) and all(repr(name) in str(told.value) for name in blocks)
    if path.name != "index.json":
        (line,) = damage(folder)
        assert path.name in line and all(repr(name) in line for name in blocks)


def test_nothing_is_wrong_with_a_good_one(good):
    assert list(damage(good)) == []


FILE = "rank-00001-of-00004.safetensors"


def _first_block(body, **changes):
    body["tensors"]["wide"]["blocks"][0].update(changes)


def _renamed_file(body, new):
    body["files"][new] = body["files"].pop(FILE)
    for one in body["tensors"].values():
        for block in one["blocks"]:
            block["file"] = new if block["file"] == FILE else block["file"]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda body: _renamed_file(body, "../elsewhere"), "names the file '../elsewhere', which is not in the check"),
        (lambda body: _renamed_file(body, "/etc/passwd"), "names the file '/etc/passwd'"),
        (lambda body: _renamed_file(body, ".."), "names the file '..'"),
        (lambda body: _first_block(body, file="other"), "a block of 'wide' is in 'other', which is not among its"),
        (lambda body: _first_block(body, at=[1, 0]), r"blocks of 'wide' do not make up f32\[5, 7\]"),
        (lambda body: _first_block(body, bytes=[0, 48]), "cannot lie in bytes 0 to 48"),
        (lambda body: _first_block(body, shape=[3, 5]), "cannot lie in bytes"),
        (lambda body: _first_block(body, checksums=""), "has 0 checksums"),
        (lambda body: body["tensors"]["wide"]["blocks"].pop(), "blocks of 'wide' do not make up"),
        (lambda body: body.update(version=9), "it has version 9; this release reads version 1"),
        (lambda body: body.update(format="x"), "it is no autoshard checkpoint"),
        (lambda body: body.pop("mesh"), "it is incomplete .Object missing required field `mesh`"),
        (lambda body: body["files"][FILE].__setitem__(0, 10**6), f"{FILE} is .* bytes long, the index says 1000000"),
    ],
)
def test_forged_indices(good, tmp_path, change, words):
    folder = copied(good, tmp_path)
    forged(folder, change)
    with pytest.raises(CheckpointError, match=words):
        load(folder, PLACED, COMM)


@pytest.mark.parametrize(
    "act, words",
    [
        (lambda folder: (folder / FILE).unlink(), f"{FILE}: No such file"),
        (lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-1]), "bytes long, the index says"),
        (lambda folder: (folder / "index.json").write_text("{"), "index.json: it is not JSON"),
    ],
)
def test_missing_and_cut_files(good, tmp_path, act, words):
    folder = copied(good, tmp_path)
    act(folder)
    with pytest.raises(CheckpointError, match=words):
        load(folder, PLACED, COMM)
    if (folder / "index.json").read_text() != "{":
        (line,) = damage(folder)
        assert FILE in line


def test_other_names_types_and_ranks(good):
    other = {**PLACED, "extra": PLACED["rows"]}
    with pytest.raises(CheckpointError, match="of another model: it has not extra"):
        load(good, other, COMM)
    fewer = {"rows": PLACED["rows"]}
    with pytest.raises(CheckpointError, match="another model: nobody wants its wide, count"):
        load(good, fewer, COMM)
    assert load(good, fewer, COMM, optional=None).arrays["rows"][3].tolist() == ARRAYS["rows"][4:].tolist()
    with pytest.raises(CheckpointError, match="nobody wants its count"):
        load(good, fewer, COMM, optional=["wide"])
    long = {**PLACED, "rows": Placed(TensorType.of((9, 3), "i16"), Layout.parse("tp, -", MESH))}
    with pytest.raises(CheckpointError, match=r"rows is i16\[8, 3\] in the checkpoint, and should be i16\[9, 3\]"):
        load(good, long, COMM)
    with pytest.raises(CheckpointError, match="wide is to lie on mesh 'dp=2 tp=2', but there are 2 ranks"):
        load(good, PLACED, LocalComm(2))


def test_newest_step_and_kept_ones(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        load(tmp_path, PLACED, COMM)
    with pytest.raises(CheckpointError, match="none: No such file"):
        load(tmp_path / "none", PLACED, COMM)
    for step in (3, 8, 5, 12):
        saved(tmp_path, step, keep=3, plus=step)
    assert checkpoints(tmp_path) == ["step-00000008", "step-00000005", "step-00000012"]
    assert load(tmp_path, PLACED, COMM).step == 12 and load(tmp_path, PLACED, COMM, step=5).step == 5
    with pytest.raises(CheckpointError, match="no checkpoint of step 3 in .*; there are step-00000008, step-00000005"):
        load(tmp_path, PLACED, COMM, step=3)
    again = saved(tmp_path, 5, keep=3, plus=1)
    assert again.name == "step-00000005-2"
    assert checkpoints(tmp_path) == ["step-00000008", "step-00000012", "step-00000005-2"]
    assert load(tmp_path, PLACED, COMM).arrays["count"][0] == 42


def test_leftovers_are_cleaned_and_one_saves_at_a_time(tmp_path):
    import fcntl

    saved(tmp_path)
    for name in (".saving-1", ".removing-step-00000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("x")
    (tmp_path / ".latest-next").write_text("step-9")
    saved(tmp_path, 6)
    assert sorted(one.name for one in tmp_path.iterdir()) == [".lock", "latest", "step-00000005", "step-00000006"]
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another process is saving into"):
            saved(tmp_path, 7)
    assert checkpoints(tmp_path) == ["step-00000005", "step-00000006"]


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    saved(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device", "rank-file")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="cannot save into .*: rank-file: No space left on device"):
        saved(tmp_path, 6)
    monkeypatch.undo()
    assert checkpoints(tmp_path) == ["step-00000005"] and not list(tmp_path.glob(".saving*"))
    assert load(tmp_path, PLACED, COMM).step == 5


def test_plain_files(tmp_path):
    with pytest.raises(CheckpointError, match="plain: .* it is no safetensors file|plain: it is no safetensors file"):
        (tmp_path / "plain").write_bytes(b"no tensors in here")
        import_files([tmp_path / "plain"], tmp_path / "new")
    save_file({"a": np.arange(3)}, tmp_path / "one")
    save_file({"a": np.arange(4)}, tmp_path / "two")
    with pytest.raises(CheckpointError, match="a is in another of the files, too"):
        import_files([tmp_path / "one", tmp_path / "two"], tmp_path / "new")
    (tmp_path / "cut").write_bytes((tmp_path / "one").read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="its arrays end at byte"):
        import_files([tmp_path / "cut"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_latest_is_checked(tmp_path):
    """A list that is cut, emptied or changed is told; the list of older releases has no checksum and is read."""
    for step in (7, 3):
        saved(tmp_path, step)
    latest = tmp_path / "latest"
    text = latest.read_text()
    assert checkpoints(tmp_path) == ["step-00000007", "step-00000003"]
    for wrong in [text[:-1], text[:-2], text[: len(text) // 2], "", "\n", text.replace("3", "4"), text + "x", "\0\xff"]:
        latest.write_text(wrong)
        with pytest.raises(CheckpointError, match="latest is damaged"):
            find(tmp_path)
    latest.write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="no text in UTF-8"):
        find(tmp_path)
    latest.write_text(text.partition("\n")[2])
    assert find(tmp_path).name == "step-00000003"
    latest.unlink()
    assert find(tmp_path).name == "step-00000007"
