"""`Planned.export` and `autoshard export`: every form by name; plan files obey their published schema."""

from __future__ import annotations

import json
from copy import deepcopy

import jsonschema
import pytest
from typer.testing import CliRunner

from autoshard import nn
from autoshard.api import plan
from autoshard.cli.commands import app
from autoshard.exporters.mindspore import parse_lines
from autoshard.exporters.plan_file import load_plan
from autoshard.exporters.plan_records import plan_schema
from autoshard.layout import Layout, Mesh
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from tests.search.plans import FFN, array

X, LABEL = array(24, 12), array(24, 8)
SCRIPT = """
import numpy as np
from autoshard import ops


def model():
    return (lambda x, w: ops.relu(ops.matmul(x, w))), (np.ones((24, 12), np.float32), np.ones((12, 8), np.float32))
"""


def training(search: str = "megatron"):
    net = FFN(((2, 1), (1, 4)), sizes=(12, 24, 8))
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), X, LABEL)
    return plan(step, mesh="dp=2 tp=4", search=search)


def checker():
    schema = plan_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("search", ["megatron", "factor", "zero2"])
def test_plan_files_obey_the_schema_and_are_read_back(tmp_path, search):
    made = training(search)
    data = json.loads(made.export("json", tmp_path / "plan.json"))
    checker().validate(data)
    assert not made.plan.diff(load_plan(tmp_path / "plan.json", made.graph))


def test_a_loop_obeys_the_schema():
    from autoshard import ops

    def model(x):
        return ops.while_loop(lambda y: y.sum() < 50.0, lambda y: ops.relu(y) + y, x)

    data = json.loads(plan(model, (X,), mesh="dp=2 tp=4", search="factor").export("json"))
    checker().validate(data)
    assert any("entering" in one for one in data["operators"])


def _without(data, key):
    del data[key]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: _without(data, "mesh"),
        lambda data: data.update(format="autoshard plan 0"),
        lambda data: data.update(version=3),
        lambda data: data.update(more=1),
        lambda data: _without(data["operators"][0], "axes"),
        lambda data: data["operators"][0].update(decided=[1.0]),
        lambda data: data["operators"][0].update(entering=["-"]),
        lambda data: _without(data["operators"][0], "cause"),
        lambda data: data["layouts"].update(x=3),
        lambda data: data["operators"][0].update(carried="tp"),
    ],
)
def test_the_schema_and_the_reader_refuse_what_is_no_plan(tmp_path, change):
    made = training()
    data = json.loads(made.export("json"))
    wrong = deepcopy(data)
    change(wrong)
    assert checker().is_valid(data) and not checker().is_valid(wrong)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(PlanError, match="cannot read the plan|is no plan|is a plan of version 3"):
        load_plan(path, made.graph)


def test_every_form_without_a_framework(tmp_path):
    made = training()
    assert json.loads(made.export("mindspore"))["parallel_layout_item"].keys() <= {v.name for v in made.graph.inputs}
    assert len(parse_lines(made.export("shard")).operators) == len(made.graph.nodes)
    data = json.loads(made.export("dtensor", tmp_path / "placements.json"))
    assert data == json.loads((tmp_path / "placements.json").read_text()) and data["mesh"] == {"dp": 2, "tp": 4}


def test_an_unknown_form_is_told():
    with pytest.raises(PlanError) as error:
        training().export("mindspor")
    assert str(error.value) == (
        "cannot export a plan to 'mindspor'; did you mean 'mindspore'?; the forms are json, dtensor, jax, sdy, "
        "mindspore, shard, model_explorer, node_data, graphml, dot, torch-code, jax-code, stablehlo, memory_viz, chakra"
    )


def test_the_command(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    target = [f"{script}:model", "--mesh", "dp=2,tp=4"]
    done = CliRunner().invoke(app, ["export", *target, "--to", "shard"])
    assert done.exit_code == 0, done.output
    assert [line.partition("# ")[2] for line in done.output.splitlines()] == ["MatMul", "ReLU"]
    written = tmp_path / "plan.json"
    done = CliRunner().invoke(app, ["export", *target, "-o", str(written)])
    assert done.exit_code == 0 and done.output.strip() == str(written)
    data = json.loads(written.read_text())
    checker().validate(data)
    assert Layout.parse(data["outputs"][0]["layout"], Mesh.parse(data["mesh"])).rank == 2
    with pytest.raises(PlanError, match="cannot export a plan to 'torch'"):
        CliRunner().invoke(app, ["export", *target, "--to", "torch"], catch_exceptions=False)
