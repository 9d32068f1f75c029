"""Every command has --json, and what it prints then obeys the schema that `autoshard schema` prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import typer

from autoshard.calibrate import Calibration
from autoshard.cli.commands import app
from autoshard.cli.schemas import SCHEMAS
from autoshard.core.tensortype import type_of
from autoshard.layout import Layout, Mesh
from autoshard.runtime.array import cut
from autoshard.runtime.checkpoint import LocalBlocks, Placed, export_file, save
from autoshard.runtime.local import LocalComm
from costmodel import preset
from costmodel.fit import CurveErrors

ROOT = Path(__file__).resolve().parents[2]
FFN = f"{ROOT}/sample_code/sharding_propagation/train.py:forward"
MLP = f"{ROOT}/sample_code/06_shardings_by_rule/mlp.py:forward"
MODULE = f"{ROOT}/sample_code/06_shardings_by_rule/mlp.mlir"
STAGES = f"{ROOT}/tests/cli/models.py:step"
CALLS = {
    "plan": [[FFN, "-n", "8"], [FFN, "-n", "8", "--all", "--alternatives"]],
    "plan pipeline": [["plan", STAGES, "--mesh", "pp=2", "--pipeline", "pp", "--micro-batches", "2"]],
    "dump": [[FFN, "-n", "2", "-o", "FOLDER", "--ranks", "1"]],
    "partition": [[FFN, "-n", "8"]],
    "compare": [[FFN, "-n", "8", "--mode", "bfs", "--mode", "expert_parallel", "--memory", "1 MiB"]],
    "diff": [[FFN, "-n", "8", "--against", "data_parallel"]],
    "view": [[FFN, "-n", "8", "--against", "data_parallel", "-o", "FOLDER/plan.html"]],
    "trace": [[FFN, "-n", "8", "-o", "FOLDER/trace.json.gz", "--ranks", "0,5"]],
    "export": [[FFN, "-n", "8", "--to", "shard"], [FFN, "-n", "8", "--to", "dot", "-o", "FOLDER/plan.dot"]],
    "propagate": [[MLP, "--mesh", "batch=2,model=4"]],
    "explain": [
        [MLP, "matmul", "--mesh", "batch=2,model=4", "--mode", "megatron"],
        [FFN, "dense2.matmul", "-n", "8", "--mode", "zero3"],
        [MODULE, "%2", "--pass", "basic"],
    ],
    "run": [[FFN, "-n", "2", "--check"]],
    "layout": [["f32[64, 1024]", "dp, tp", "--mesh", "dp=2,tp=4"], ["f32[7, 6]", "dp, - +tp", "--mesh", "dp=2,tp=4"]],
    "redistribute": [
        ["f32[64, 1024] dp, tp -> tp, dp", "--mesh", "dp=2,tp=4"],
        ["f32[24, 5] a.b, - -> f32[4, 30] b, a", "--mesh", "a=2,b=4"],
    ],
    "schedule": [["1f1b", "--stages", "4", "--micro-batches", "8"]],
    "operators": [[], ["Softmax"], ["MatMul", "f32[64, 24]", "f32[24, 12]", "-n", "4"]],
    "modes": [[]],
    "hardware": [[]],
    "hardware show": [["h100", "-n", "16"], [f"{ROOT}/sample_code/cluster.toml"]],
    "calibrate": [["-n", "2", "--quick", "-o", "FOLDER/mine.json"]],
    "truth": [["--only", "GPT 22B tp=8 full", "--only", "GPT 39.1B"]],
    "schema": [[]],
    "checkpoint show": [["FOLDER/saved"]],
    "checkpoint verify": [["FOLDER/saved"]],
    "checkpoint export": [["FOLDER/saved", "FOLDER/whole.safetensors"]],
    "checkpoint import": [["FOLDER/there.safetensors", "--to", "FOLDER/imported"]],
}
"""Of each command calls that show what its JSON may hold; FOLDER is a folder of the test's own."""
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, and a file of tensors."""
    found = tmp_path_factory.mktemp("json")
    comm, array = LocalComm(4), np.arange(54, dtype=np.float32).reshape(6, 9)
    layout = Layout.parse("dp, tp", Mesh(dp=2, tp=2))
    save(
        found / "saved",
        {"w": LocalBlocks(cut(array, layout, comm.ranks), Placed(type_of(array), layout))},
        comm,
        10,
        {},
    )
    export_file(found / "saved", found / "there.safetensors")
    return found


def _measured(ranks: int, **_: Any) -> Calibration:
    """What a calibration finds, without measuring."""
    return Calibration(preset("cpu"), (("operators", (CurveErrors("MatMul", 3, 0.1, 0.2, 1e-3, 9e-4),)),))


def commands() -> Iterator[tuple[str, Any]]:
    """All commands by name, those in groups too, and groups that do something by themselves."""
    for name, one in typer.main.get_command(app).commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        inside = getattr(one, "commands", {})
        yield from ((f"{name} {inner}", each) for inner, each in inside.items())
        if not inside or one.invoke_without_command:
            yield name, one


def test_every_command_has_json_with_a_schema_and_is_called_here(cli: Cli):
    known = dict(commands())
    assert {*known, "plan pipeline"} == set(SCHEMAS) == set(CALLS) == set(cli("schema")[1].splitlines())
    for name, command in known.items():
        options = {opt for one in command.params for opt in one.opts}
        assert {"--json", "-q", "--quiet", "-v", "--verbose"} <= options, name
        if "--mode" in options:
            assert "--search" in options, name


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.mpi] * (one == "run")) for one in CALLS])
def test_json_obeys_its_schema(cli: Cli, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("autoshard.calibrate.calibrate", _measured)
    schema = json.loads(cli("schema", *name.split())[1])
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    assert f"autoshard {name}" in schema["title"] or name == "diff"
    for call in CALLS[name]:
        command = [] if name == "plan pipeline" else name.split()
        code, out, err = cli(*command, *(one.replace("FOLDER", str(folder)) for one in call), "--json")
        assert code == 0, err
        data = json.loads(out)
        checker.validate(data)
        assert not checker.is_valid({**data, "more": 1}) and not checker.is_valid({})
        written = data.get("files", []) if name in ("dump", "export") else [data["file"]] if "file" in data else []
        assert all(Path(one).is_file() for one in written) or name == "calibrate"


def test_a_schema_that_is_not_there(cli: Cli):
    told = cli("schema", "plann")[2]
    assert told.startswith("autoshard: there is no schema of 'plann'; did you mean 'plan'")
