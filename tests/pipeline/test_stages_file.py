"""Plans in stages as files: read back for the same step they are what they were, and run; others are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.api import plan
from autoshard.mindspore import nn as ms
from autoshard.pipeline import plan_pipeline
from autoshard.pipeline.exports.records import stages_schema
from autoshard.pipeline.stages.assign import forward_nodes
from autoshard.trace import Cell, CellList, evaluate, set_seed
from autoshard.transform import train_step
from autoshard.transform.recompute import recompute
from autoshard.util.errors import PlanError
from tests.pipeline.test_planned_pipelines import Tied, X, Y


def tied_step():
    set_seed(3)
    cell = Tied()
    return train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-4), X, Y)


class Deep(Cell):
    """Equal layers, of which a search for stages plans one for all."""

    def __init__(self, count: int) -> None:
        super().__init__()
        pairs = [(nn.Dense(6, 10, dtype="f64"), nn.Dense(10, 6, dtype="f64")) for _ in range(count)]
        self.layers = CellList(nn.SequentialCell(one, nn.Tanh(), other) for one, other in pairs)

    def construct(self, x, y):
        for layer in self.layers:
            x = x + layer(x)
        return ops.reduce_mean(ops.square(x - y))


def deep_step(layers: int = 9):
    set_seed(4)
    cell = Deep(layers)
    return train_step(cell, nn.SGD(cell.trainable_params(), 0.1), X, Y)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (tied_step, {"mesh": "pp=2,dp=2", "micro_batches": 4, "schedule": "zbv"}),
        (tied_step, {"pipeline": "tp=2/dp=2,tp=2/tp=2", "micro_batches": 2, "schedule": "gpipe"}),
        (tied_step, {"mesh": "dp=2,pp=2", "stages": {"layers.{0..2}": 0, "layers.3": 1}, "micro_batches": 3}),
        (deep_step, {"mesh": "2", "pipeline": "auto", "micro_batches": 2, "schedule": "gpipe"}),
    ],
)
def test_plans_in_stages_are_read_back(make, settings, tmp_path):
    made, path = plan_pipeline(make(), **settings), tmp_path / "stages.json"
    made.save(path)
    jsonschema.Draft202012Validator(stages_schema()).validate(json.loads(path.read_text()))
    step = make()
    found = plan_pipeline(step, search=str(path))
    assert found.export("json") == path.read_text()
    assert found.price.seconds == made.price.seconds and found.schedule == made.schedule
    given = step.traced.inputs(X, Y)
    for one, other in zip(evaluate(step.graph, given), found.session.run(given).outputs, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)


def test_whose_statistics_are_taken_is_read_back(tmp_path):
    def step():
        set_seed(4)
        net = ms.SequentialCell(ms.Dense(6, 8), ms.BatchNorm1d(8), ms.Tanh(), ms.Dense(8, 6)).set_train()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        return train_step(lambda x: ops.reduce_mean(ops.square(net(x) - 1.0)), optimizer, narrow)

    narrow, path = X.astype(np.float32), tmp_path / "stages.json"
    made = plan_pipeline(step(), mesh="pp=2", micro_batches=3, statistics="micro_batch")
    made.save(path)
    found = plan_pipeline(step(), search=str(path))
    assert found.export("json") == path.read_text() and found.run(narrow) == made.run(narrow)


def test_layers_that_are_made_again_are_so_when_the_plan_is_read(tmp_path):
    traced, path = deep_step(5).traced, tmp_path / "stages.json"
    chosen = [node for node in forward_nodes(traced.graph) if node.label.startswith("layers.")]
    made = plan_pipeline(replace(traced, graph=recompute(traced.graph, chosen)), mesh="pp=2,dp=2", micro_batches=2)
    made.save(path)
    assert json.loads(path.read_text())["again"]
    found = plan_pipeline(deep_step(5), search=str(path))
    assert found.export("json") == path.read_text() and found.report() == made.report()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "stages.json"
    plan_pipeline(tied_step(), mesh="pp=2,dp=2", micro_batches=4, schedule="gpipe").save(path)
    return path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_batches": 2}, "has micro batches 4, not 2"),
        ({"schedule": "zb_h1"}, "has schedule gpipe, not zb_h1"),
        ({"mesh": "pp=2,tp=2"}, r"has groups dp=2 on ranks 0-1, .*not tp=2 on ranks 0-1"),
        ({"mesh": "2"}, "has devices 4, not 2"),
        ({"statistics": "micro_batch"}, "has statistics batch, not micro_batch"),
        ({"chunks": 2, "stages": {"layers.0": 0}}, "says where stages lie: leave out chunks and stages"),
    ],
)
def test_what_is_given_besides_has_to_be_the_same(saved, settings, message):
    with pytest.raises(PlanError, match=message):
        plan_pipeline(tied_step(), search=str(saved), **settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "autoshard plan"}, "is no plan in stages: its format is 'autoshard plan', version 1"),
        ({"version": 2}, "version 2, not 'autoshard stages', version 1"),
        ({"operators": {"nothing": 0}}, "operators: nothing is not in this model"),
        ({"parameters": {"table": 7}}, "parameters: table is in stage 7, but the schedule has 2 stages"),
        ({"groups": [{"mesh": "dp=2", "ranks": [0, 1]}]}, "has 1 groups, its schedule 2"),
        (
            {"groups": [{"mesh": "dp=2", "ranks": [0, 1]}, {"mesh": "dp=2", "ranks": [1, 2]}]},
            r"has \[0, 1, 1, 2\] ranks",
        ),
        ({"micro_batches": 3}, "has 3 micro batches, its schedule 4"),
        ({"schedule": {"name": "x", "rows": [["0F0"], ["1F0"]]}}, "the schedule of the plan in .*stages.json"),
        ({"stages": []}, "has 0 stages, its schedule 2"),
        ({"again": 3}, "again"),
    ],
)
def test_files_that_are_no_plan_of_the_step(saved, tmp_path, change, message):
    path = tmp_path / "stages.json"
    path.write_text(json.dumps({**json.loads(saved.read_text()), **change}))
    with pytest.raises(PlanError, match=message):
        plan_pipeline(tied_step(), search=str(path))


def test_a_plan_of_another_step_is_refused(saved):
    with pytest.raises(PlanError, match="not in this model|is for another model"):
        plan_pipeline(deep_step(), search=str(saved))
    with pytest.raises(PlanError, match="is a plan in stages: it goes with --pipeline"):
        plan(tied_step(), mesh="dp=2", search=str(saved))
