"""A dozen cases from end to end on one page, in two seconds: look here first when something is wrong."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard as ash
from autoshard import Model, Parameter, nn, ops
from autoshard.util.errors import StrategyError

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(6, 12)).astype(np.float32)


class Net(nn.Cell):
    def __init__(self, strategy=None):
        super().__init__()
        self.w = Parameter(W.copy())
        self.matmul = ops.MatMul()
        self.relu = ops.ReLU()
        if strategy:
            self.matmul.shard(strategy)

    def construct(self, x):
        return self.relu(self.matmul(x, self.w))


def planned(strategy, devices=None, mesh=None, **options):
    return ash.plan(Net(strategy), (X,), mesh, devices=devices, **options)


def kinds(plan):
    return [one.step.kind for one in plan.program.collectives]


EXPECTED = np.maximum(X @ W, 0)


def test_rows_need_no_communication():
    plan = planned(((4, 1), (1, 1)), devices=4)
    assert kinds(plan) == []
    np.testing.assert_allclose(plan.run(X), EXPECTED, rtol=1e-5)


def test_columns_split_the_parameter():
    plan = planned(((1, 1), (1, 4)), devices=4)
    assert "0:3" in plan.show_layout("w")
    np.testing.assert_allclose(plan.run(X), EXPECTED, rtol=1e-5)


def test_contraction_is_reduced_where_it_is_split_next():
    plan = planned(((1, 2), (2, 1)), devices=2)
    assert kinds(plan) == ["reduce_scatter"]
    np.testing.assert_allclose(plan.run(X), EXPECTED, rtol=1e-5)


def test_propagation_follows_the_configured_operator():
    plan = planned(((2, 1), (1, 3)), mesh="dp=2 tp=3")
    relu = plan.graph.node("relu")
    assert str(plan.plan.strategy(relu)) == "((2, 3))"
    assert str(plan.plan.decisions[relu].cause) == "propagated from matmul"


def test_more_devices_than_parts_repeat_the_work():
    plan = planned(((2, 1), (1, 1)), devices=4)
    np.testing.assert_allclose(plan.run(X), EXPECTED, rtol=1e-5)


def test_no_annotation_says_where_it_started():
    plan = planned(None, devices=2)
    assert plan.plan.started_from.startswith("no operator is configured")
    np.testing.assert_allclose(plan.run(X), EXPECTED, rtol=1e-5)


def test_one_device_is_the_model_itself():
    plan = planned(None, devices=1)
    assert (plan.run(X) == Net()(X)).all() and plan.cost.bytes_per_device == 0


def test_a_strategy_that_does_not_divide():
    with pytest.raises(StrategyError, match=r"\(\(3, 1\), \(1, 1\)\) of matmul .*test_tiny.py.*size 4, which 3"):
        planned(((3, 1), (1, 1)), devices=3)


def test_a_million_devices_cost_nothing_to_plan():
    plan = planned(((4, 1), (1, 6)), mesh=ash.Mesh(dp=4, tp=6, rest=65536))
    assert plan.plan.mesh.devices == 1_572_864 and plan.cost.seconds > 0


def test_the_same_program_dumps_as_text(tmp_path):
    files = planned(((2, 1), (1, 3)), mesh="dp=2 tp=3").dump(tmp_path, ranks=[5])
    assert any("(2, 4)" in file.read_text() for file in files)


def test_training_on_ranks_and_on_one_device():
    losses = []
    for settings in (
        {"parallel_mode": "stand_alone"},
        {"parallel_mode": "auto_parallel", "mesh": "dp=2 tp=3"},
    ):
        ash.set_auto_parallel_context(full_batch=True, **settings)
        net, history = Net(((2, 1), (1, 3))), ash.History()
        model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
        model.train(3, [(X, np.zeros((4, 12), np.float32))], callbacks=[history])
        losses.append(history.losses)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_graph_and_ranks_agree_on_attention():
    def attention(q, k, v):
        return ops.batch_matmul(ops.softmax(ops.batch_matmul(q, k, transpose_b=True)), v)

    q, k, v = np.random.default_rng(2).normal(size=(3, 6, 4, 10)).astype(np.float32)
    plan = ash.plan(attention, (q, k, v), devices=6, dataset_strategy=((6, 1, 1),) * 3)
    assert kinds(plan) == []
    np.testing.assert_allclose(plan.run(q, k, v), ash.trace(attention, q, k, v)(q, k, v), rtol=1e-5)
