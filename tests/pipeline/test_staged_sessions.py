"""Parameters of a pipeline stay in blocks of their groups from step to step, and are what one process makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn, ops
from autoshard.pipeline import plan_pipeline
from autoshard.pipeline.execute.session import PipelineSession
from autoshard.pipeline.execute.training import StagedSession, readings
from autoshard.runtime.local import LocalComm
from autoshard.trace import Cell, CellList, Parameter, set_seed, trace
from autoshard.transform import train_step
from autoshard.util.errors import RuntimeSetupError

X, Y = (np.random.default_rng(seed).normal(size=(12, 6)) for seed in range(2))


class Tied(Cell):
    """A table at both ends, a parameter with a row for each row of the batch, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(5)
        self.table = Parameter(random.normal(size=(6, 10)), "table")
        self.shift = Parameter(random.normal(size=(12, 6)), "shift")
        self.scale = Parameter(random.normal(size=10), "scale", requires_grad=False)
        self.layers = CellList(nn.Dense(10, 10, dtype="f64") for _ in range(4))

    def construct(self, x, y):
        made = ops.matmul(x + self.shift, self.table)
        for layer in self.layers:
            made = ops.tanh(layer(made)) * self.scale
        made = ops.matmul(made, ops.transpose(self.table, perm=(1, 0)))
        return ops.reduce_mean((made - y) * (made - y)), made


def step():
    set_seed(3)
    cell = Tied()
    return train_step(cell, nn.Adam(cell.trainable_params(), 0.1, eps=1e-4), X, Y)


def session(of, engine="numpy", **settings):
    planned = plan_pipeline(of, micro_batches=4, **settings)
    comm = LocalComm(planned.devices)
    return StagedSession(planned, comm, PipelineSession(planned, comm, engine))


@pytest.mark.parametrize(
    "settings",
    [
        {"mesh": "pp=2,dp=2"},
        {"mesh": "pp=2,tp=2", "schedule": "interleaved_1f1b"},
        {"mesh": "pp=2", "schedule": "zbv"},
        {"pipeline": "tp=1/dp=1,tp=2/tp=1", "schedule": "gpipe"},
        pytest.param({"mesh": "pp=2,tp=2", "schedule": "zbv", "engine": "torch"}, marks=pytest.mark.torch),
    ],
)
def test_steps_lead_to_what_one_process_makes_of_them(settings):
    if "engine" in settings:
        pytest.importorskip("torch")
    alone, staged = step(), step()
    one = session(staged, **settings)
    with pytest.raises(RuntimeSetupError, match="has no values of .*: they were never loaded"):
        one.step([X, Y])
    one.load()
    for _ in range(3):
        assert one.step([X, Y]) == pytest.approx(float(alone(X, Y)[0]), rel=1e-9)
    before = {name: np.array(parameter.asnumpy()) for name, parameter in named(staged).items()}
    one.store()
    for name, parameter in named(alone).items():
        np.testing.assert_allclose(named(staged)[name].asnumpy(), parameter.asnumpy(), rtol=1e-7, atol=1e-9)
        assert name == "scale" or not np.array_equal(before[name], parameter.asnumpy())  # only now in the cells


def named(of):
    return {value.name: parameter for value, parameter in of.traced.parameters.items()}


def test_a_parameter_lies_where_its_stage_is():
    one = session(step(), mesh="pp=2,dp=2", stages={"layers.{0..1}": 0, "layers.{2..3}": 1})
    one.load()
    ranks = {parameter.name: held.placed.ranks for parameter, held in one.blocks()}
    assert ranks["layers.1.weight"] == ranks["moment2.layers.1.weight"] == (0, 1)
    assert ranks["layers.3.weight"] == ranks["moment1.layers.3.bias"] == (2, 3)
    assert set(ranks) == set(named(one.planned))
    read = readings(one.planned, one.planned.traced.parameters)
    groups = {value.name: [reading.group for reading in found] for value, found in read.items()}
    assert sorted(set(groups["table"])) == [0, 1] and set(groups["layers.3.weight"]) == {1}


def test_what_is_only_applied_passes_forward():
    set_seed(3)
    cell = Tied()
    one = session(trace(cell, X, Y), mesh="pp=2", schedule="gpipe")
    loss, made = one.call(X, Y)
    np.testing.assert_allclose(loss, cell(X, Y)[0], rtol=1e-12)
    np.testing.assert_allclose(made, cell(X, Y)[1], rtol=1e-12)
    kinds = {kind for _, kind in one.planned.programs.pieces}
    assert kinds <= {"F", "P"}
