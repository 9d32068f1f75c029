"""Plans as files: what is written is read back, replayed and compared; plans for something else are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.api import plan
from autoshard.exporters.plan_file import load_plan, plan_data
from autoshard.layout import Mesh
from autoshard.transform import train_step
from autoshard.util.errors import PlanError
from tests.search.plans import FFN, array

X, LABEL = array(24, 12), array(24, 8)


def training(hidden: int = 24, first=((2, 1), (1, 4))):
    net = FFN(first, sizes=(12, hidden, 8))
    return train_step(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), X, LABEL)


@pytest.mark.parametrize("search", ["bfs", "factor", "zero2", "megatron"])
def test_a_saved_plan_is_the_plan(tmp_path, search):
    made = plan(training(), mesh="dp=2 tp=4", search=search)
    path = made.save(tmp_path / "plan.json")
    loaded = load_plan(path, made.graph)
    assert not made.plan.diff(loaded) and str(made.plan.diff(loaded)) == "the plans are equal"
    assert plan_data(loaded) == plan_data(made.plan) and loaded.mesh is made.plan.mesh
    causes = [[str(one.cause) for one in of.decisions.values()] for of in (loaded, made.plan)]
    assert causes[0] == causes[1]


def test_carried_sums_are_kept(tmp_path):
    def model(x, w):
        return ops.scalar_mul(ops.matmul(x, w), factor=2.0)

    made = plan(model, (array(8, 16), array(16, 6)), "tp=4", search="bfs")
    path = made.save(tmp_path / "plan.json")
    carrying = [one.strategy for one in load_plan(path, made.graph).decisions.values() if one.strategy.carried]
    assert carrying == [one.strategy for one in made.plan.decisions.values() if one.strategy.carried]


def test_a_plan_replays_on_the_model_traced_anew(tmp_path):
    step = training()
    made = plan(step, mesh="dp=2 tp=4", search="zero2")
    path = made.save(tmp_path / "plan.json")
    again = plan(training(), mesh="dp=2 tp=4", search=str(path))
    assert not made.plan.diff(again.plan) and again.plan.search == "zero2"
    assert again.cost == made.cost
    np.testing.assert_allclose(again.run(X, LABEL), training()(X, LABEL), rtol=1e-5)


def test_plans_of_loops_are_kept(tmp_path):
    def model(x, w):
        start = np.int32(0), x
        return ops.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, ops.matmul(state[1], w)), start)[
            1
        ]

    made = plan(model, (array(8, 16), array(16, 16)), "dp=2 tp=2", search="factor")
    loaded = load_plan(made.save(tmp_path / "plan.json"), made.graph)
    assert plan_data(loaded) == plan_data(made.plan)


def test_differences_are_told():
    step = training()
    one, other = (plan(step, mesh="dp=2 tp=4", search=search) for search in ("data_parallel", "megatron"))
    found = one.plan.diff(other.plan)
    assert found and {change.kind for change in found.changes} >= {"operator", "input"}
    weight = next(change for change in found.changes if change.name == "dense1.weight")
    assert (weight.kind, weight.before, weight.after) == ("input", "[-, -]", "[-, tp]")
    assert "input dense1.weight: [-, -] -> [-, tp]" in str(found)
    flat = plan(step, mesh="8", search="data_parallel")
    assert str(one.plan.diff(flat.plan)).startswith("mesh : dp=2 tp=4 -> d=8")
    with pytest.raises(PlanError, match="cannot be compared: number 2 of the inputs is dense1.weight"):
        one.plan.diff(plan(training(16), mesh="dp=2 tp=4", search="megatron").plan)


def test_plans_for_something_else_are_refused(tmp_path):
    step = training()
    path = plan(step, mesh="dp=2 tp=4", search="zero2").save(tmp_path / "plan.json")
    other = r"is for another model than .*: input 2 is dense1.weight: f32\[12, 24\] in the file"
    with pytest.raises(PlanError, match=other):
        plan(training(16), mesh="dp=2 tp=4", search=str(path))
    with pytest.raises(PlanError, match="for mesh 'dp=2 tp=4', not 'dp=4 tp=2'"):
        load_plan(path, step.graph, Mesh.parse("dp=4 tp=2"))
    text = path.read_text()
    data = json.loads(text)
    data["operators"][0]["axes"][0] = "rows"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match="cannot be used"):
        load_plan(path, step.graph)
    data = json.loads(text)
    data["layouts"]["dense1.weight"] = "-, - +tp"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=r"cannot be used: dense1.weight is an input in the layout \[-, - \+tp\]"):
        load_plan(path, step.graph)


TWICE = [
    (
        lambda data: data["inputs"][0].update(layout="dp, -"),
        r"input data0 lies as \[dp, -\] among the inputs, and as \[-, -\]",
    ),
    (lambda data: data.update(devices=4), "its mesh 'dp=2 tp=4' has 8 devices, but devices is 4"),
    (lambda data: data["layouts"].update(dense3="-, -"), "layouts has dense3, which the model has not"),
]


@pytest.mark.parametrize("edit, why", TWICE)
def test_what_a_file_says_twice_has_to_agree(tmp_path, edit, why):
    step = training()
    path = plan(step, mesh="dp=2 tp=4", search="bfs").save(tmp_path / "plan.json")
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=why):
        load_plan(path, step.graph)


BAD = [(None, "cannot read the plan .*No such file"), ("{", "truncated"), ('{"format": "1"}', "its format is '1'")]


@pytest.mark.parametrize("text, why", BAD)
def test_files_that_are_no_plan_are_refused(tmp_path, text, why):
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlanError, match=why):
        load_plan(path, training().graph)


def looping(x, w, v):
    start = np.int32(0), x
    y = ops.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, ops.matmul(state[1], w)), start)[1]
    return ops.relu(ops.scalar_mul(ops.matmul(y, v), factor=2.0))


def test_a_file_of_version_1_is_read():
    """Written by release 0.1 for this model."""
    old = Path(__file__).with_name("plan_of_version_1.json")
    inputs = array(8, 16), array(16, 16), array(16, 6)
    made = plan(looping, inputs, "dp=2 tp=4", search="bfs")
    loaded = plan(looping, inputs, "dp=2 tp=4", search=str(old))
    assert not made.plan.diff(loaded.plan)
    causes = [[str(one.cause) for one in of.plan.decisions.values()] for of in (loaded, made)]
    assert causes[0] == causes[1]
    np.testing.assert_allclose(loaded.run(*inputs), made.run(*inputs), rtol=1e-6)


def test_what_plan_prints_as_json_is_a_plan_file(tmp_path):
    made = plan(looping, (array(8, 16), array(16, 16), array(16, 6)), "dp=2 tp=4", search="bfs")
    path = tmp_path / "told.json"
    path.write_text(json.dumps(made.to_json()))
    assert not made.plan.diff(load_plan(path, made.graph))


def test_terms_of_a_sum_are_carried_only_where_that_is_right(tmp_path):
    """A file that asks for relu of the terms of a sum would give wrong numbers."""

    def model(x, w):
        return ops.relu(ops.matmul(x, w))

    made = plan(model, (array(8, 16), array(16, 6)), "tp=4", search="bfs")
    data = json.loads(made.save(tmp_path / "plan.json").read_text())
    data["operators"][1] |= {"carried": "tp", "carriers": [0], "axes": ["", ""]}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(PlanError, match="relu .ReLU. cannot run on terms of a sum"):
        load_plan(tmp_path / "plan.json", made.graph)
