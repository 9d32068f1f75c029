"""`autoshard checkpoint`: what it shows, what it finds damaged, files in and out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from autoshard.core.tensortype import type_of
from autoshard.layout import Layout, Mesh
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import LocalBlocks, Placed, save
from autoshard.runtime.local import LocalComm

W = np.arange(54, dtype=np.float32).reshape(6, 9)


@pytest.fixture
def saved(tmp_path):
    mesh, comm = Mesh(dp=2, tp=2), LocalComm(4)
    arrays = {"net.w": (W, "dp, tp"), "net.b": (np.arange(9), "-"), "m.w": (W * 2, "dp, -")}
    for step in (10, 20):
        held = {}
        for name, (array, text) in arrays.items():
            layout = Layout.parse(text, mesh)
            held[name] = LocalBlocks(cut(array, layout, comm.ranks), Placed(type_of(array), layout))
        save(tmp_path / "ck", held, comm, step, {"states": ["m.w"]})
    return tmp_path / "ck"


def test_show(cli, saved):
    code, out, _ = cli("checkpoint", "show", str(saved))
    assert code == 0
    first, second, third = out.splitlines()[:3]
    assert first == f"{saved}/step-00000020: step 20, 3 tensors, 504 B"
    assert second == "saved on mesh dp=2 tp=2, in 4 files"
    assert third == "checkpoints, oldest first: step-00000010, step-00000020"
    assert "net.w   f32[6, 9]  [dp, tp]       4  216 B" in out
    told = json.loads(cli("checkpoint", "show", str(saved), "--step", "10", "--json")[1])
    assert told["step"] == 10 and told["tensors"]["m.w"] == {"type": "f32[6, 9]", "layout": "dp, -", "blocks": 2}


def test_no_states_are_no_line(cli, tmp_path):
    layout = Layout.parse("-", Mesh(dp=1))
    held = {"b": LocalBlocks(cut(np.arange(9), layout, range(1)), Placed(type_of(np.arange(9)), layout))}
    save(tmp_path / "ck", held, LocalComm(1), 1, {"states": []})
    assert "states:" not in cli("checkpoint", "show", str(tmp_path / "ck"))[1]


def test_verify(cli, saved):
    code, out, _ = cli("checkpoint", "verify", str(saved))
    assert code == 0 and out.endswith("step-00000020: 3 tensors in 4 files, all as they were written\n")
    path = saved / "step-00000020" / "rank-00003-of-00004.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (saved / "step-00000020" / "rank-00001-of-00004.safetensors").unlink()
    code, out, _ = cli("checkpoint", "verify", str(saved))
    first, second = out.splitlines()
    assert code == 1 and first.endswith("rank-00001-of-00004.safetensors is missing")
    assert "rank-00003-of-00004.safetensors is damaged: tensor 'net.w', bytes" in second
    assert cli("checkpoint", "verify", str(saved), "--step", "10")[0] == 0


def test_export_needs_a_file_that_can_be_written(cli, saved):
    code, _, err = cli("checkpoint", "export", str(saved), ".")
    assert code == 2 and "it is a directory; name a file" in err


def test_export_and_import(cli, saved, tmp_path):
    file = tmp_path / "out" / "plain.safetensors"
    code, out, _ = cli("checkpoint", "export", str(saved), str(file), "--rename", r"^net\.=model.")
    assert code == 0 and out.startswith(f"{file}: 2 tensors")
    found = load_file(file)
    assert sorted(found) == ["model.b", "model.w"] and (found["model.w"] == W).all()
    assert cli("checkpoint", "export", str(saved), str(file), "--states", "--only", "*.w")[0] == 0
    assert sorted(load_file(file)) == ["m.w", "net.w"]
    save_file({"extra": np.ones(2)}, tmp_path / "more")
    code, out, _ = cli("checkpoint", "import", str(file), str(tmp_path / "more"), "--to", str(tmp_path / "new"))
    assert code == 0 and out == f"{tmp_path}/new/step-00000000: 3 tensors, 448 B\n"
    assert cli("checkpoint", "verify", str(tmp_path / "new"))[0] == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("show", "{}/none"), "none: No such file or directory"),
        (("verify", "{}", "--step", "11"), "there is no checkpoint of step 11 in"),
        (("export", "{}", "{}/x", "--only", "none*"), "no tensors are left"),
        (("export", "{}", "{}/x", "--rename", r"net\.\w=same"), "net.w and net.b would both be called same"),
        (("export", "{}", "{}/x", "--rename", "(=b"), "cannot read --rename '(=b'"),
        (("export", "{}", "{}/x", "--rename", "net"), "it has no =; write REGEX=NEW"),
        (("import", "{}/latest", "--to", "{}/new"), "it is no safetensors file, or is damaged"),
        (("import", "{}/none", "--to", "{}/new"), "none: No such file or directory"),
    ],
)
def test_bad_input(cli, saved, arguments, words):
    code, out, err = cli("checkpoint", *(text.replace("{}", str(saved)) for text in arguments))
    assert code == 2 and words in err and not (saved / "x").exists() and not (saved / "new").exists()
