"""A .pt2 file is data: whatever it holds, reading it runs nothing, and what is refused is so by the project's error."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autoshard as ash
from autoshard.util.errors import AutoshardError, ParseError

pytestmark = pytest.mark.torch
TRACE = "executed.txt"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 6)
        self.register_buffer("scale", torch.arange(6.0), persistent=False)

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"y": self.layer(x) * self.scale + more["k"] + torch.tensor([1.0, 2, 3, 4, 5, 6])}


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (TRACE,)


class Pair(tuple):
    """A type of the file's own."""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Net(), (torch.ones(2, 4), {"k": torch.ones(2, 6)})), path)
    with zipfile.ZipFile(path) as archive:
        return {one.filename.partition("/")[2]: archive.read(one) for one in archive.infolist()}


def saved(folder: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(folder / "net.pt2", "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"net/{name}", data)
    return folder / "net.pt2"


def pickled(held: Any) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(held, protocol=2))
        archive.writestr("model/version", "3\n")
        archive.writestr("model/byteorder", "little")
    return made.getvalue()


MODEL, WEIGHTS, SAMPLES = "models/model.json", "data/weights/model_weights_config.json", "data/sample_inputs/model.pt"
RUN = f"__import__('os').mkdir('{TRACE}')"


def edited(name: str, edit: Callable[[Any], Any]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def changed(members: dict[str, bytes]) -> dict[str, bytes]:
        data = json.loads(members[name])
        edit(data)
        return {**members, name: json.dumps(data).encode()}

    return changed


def renamed(old: str, new: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    """Another text in all places of the program."""
    return lambda members: {
        **members,
        MODEL: members[MODEL].replace(json.dumps(old).encode(), json.dumps(new).encode()),
    }


def with_pickled_weight(members: dict[str, bytes]) -> dict[str, bytes]:
    changed = edited(WEIGHTS, lambda data: data["config"]["layer.bias"].update(use_pickle=True))(members)
    return {**changed, "data/weights/weight_1": pickled(Evil())}


def with_object(members: dict[str, bytes]) -> dict[str, bytes]:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    name = "data/constants/model_constants_config.json"
    changed = edited(name, lambda data: data["config"].update(evil=entry))(members)
    return {**changed, "data/constants/opaque_obj_0": pickle.dumps(Evil())}


def with_import(data: Any) -> None:
    signature = data["graph_module"]["module_call_graph"][0]["signature"]
    protocol, spec = json.loads(signature["in_spec"])
    spec["children_spec"][1]["context"] = json.dumps({"\u005f_enum__": True, "fqn": "this:Evil", "name": "x"})
    signature["in_spec"] = json.dumps([protocol, spec])


def first_node(**what: Any) -> Callable[[Any], None]:
    return lambda data: data["graph_module"]["graph"]["nodes"][0].update(what)


def with_size(data: Any) -> None:
    size = {"as_expr": {"expr_str": RUN, "hint": None}}
    data["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = size


HOSTILE: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "sample inputs": lambda members: {**members, SAMPLES: pickled(Evil())},
    "sample inputs of other types": lambda members: {**members, SAMPLES: pickled((Pair((1,)), {}))},
    "a pickled weight": with_pickled_weight,
    "a pickled object": with_object,
    "an operator": edited(MODEL, first_node(target="torch.hub.load")),
    "an operator that loads": edited(MODEL, first_node(target="torch.ops.load_library")),
    "a size": edited(MODEL, with_size),
    "a name": renamed("x", f"x=print({RUN})"),
    "a node's name": edited(MODEL, first_node(name=f"a = {RUN}\n    b")),
    "a parameter's name": renamed("layer.bias", f'layer.bias" + {RUN} + "'),
    "an imported module": edited(MODEL, with_import),
    "a member twice": lambda members: {**members, "./../net/" + MODEL: b"{}", "models//model.json": b"{}"},
    "no program": lambda members: {name: data for name, data in members.items() if name != MODEL},
    "no weights": lambda members: {name: data for name, data in members.items() if name != "data/weights/weight_0"},
    "deep JSON": lambda members: {**members, MODEL: b"[" * 100_000},
    "a long number": lambda members: {**members, MODEL: b'{"graph_module": ' + b"9" * 5000 + b"}"},
    "another kind of JSON": lambda members: {**members, MODEL: b"[1]"},
    "a table of another kind": lambda members: {**members, WEIGHTS: b'{"config": [1]}'},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_runs_nothing(
    what: str, members: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path, HOSTILE[what](members))
    if what == "a member twice":  # names are no paths: these are other members, which nobody reads
        ash.from_torch(path)
    else:
        with pytest.raises(ParseError, match="cannot read .* as an exported program") as refused:
            ash.from_torch(path)
        assert len(str(refused.value)) < 2000
    assert not Path(TRACE).exists()


def test_guards_and_libraries_of_a_file_are_left_out(
    members: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changed = edited(MODEL, lambda data: data.update(guards_code=[RUN]))(members)
    changed |= {"data/aotinductor/model/evil.so": b"no library", "extra/note": b"hello"}
    model = ash.from_torch(saved(tmp_path, changed))
    found = ash.plan(model, mesh="x=2").run(*model.example_arrays)["y"]
    np.testing.assert_allclose(found, model.reference()[0], rtol=1e-5, atol=1e-6)
    assert not Path(TRACE).exists()


def test_mutations_are_read_or_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        name = (MODEL, WEIGHTS, SAMPLES)[rng.integers(3)]
        data = bytearray(members[name])
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.integers(32, 127)
        path = saved(tmp_path, {**members, name: bytes(data)})
        try:
            ash.from_torch(path)
        except AutoshardError as error:
            assert len(str(error)) < 2000
            refused += 1
    assert refused > 30


def test_a_compressed_member_is_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="is compressed"):
        ash.from_torch(saved(tmp_path, members, zipfile.ZIP_DEFLATED))
