"""plan() and Planned: targets, results, pictures, dumps, dataset strategies, batch search, public names."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard as ash
from autoshard import nn, ops
from autoshard.layout.layout import Layout
from autoshard.ops.registry import remove
from autoshard.transform import train_step
from autoshard.util.errors import AutoshardError, PlanError, RuntimeSetupError
from costmodel import Link, Topology, preset

SAMPLES = Path(ash.__file__).parents[1] / "sample_code"


class Mlp(nn.Cell):
    def __init__(self, strategy=((2, 1), (3, 1))) -> None:
        super().__init__()
        self.dense1 = nn.Dense(12, 24)
        self.gelu = ops.GeLU()
        self.dense2 = nn.Dense(24, 6)
        if strategy:
            self.dense1.matmul.shard(strategy)

    def construct(self, x):
        return self.dense2(self.gelu(self.dense1(x)))


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = array(10, 12)
LINK = Link("wire", 1e-6, 1e9)


# -- targets and results -------------------------------------------------------------------------------------


def test_cell_and_traced_and_one_bare_input():
    net = Mlp()
    for planned in (
        ash.plan(net, (X,), mesh="dp=2 tp=3"),
        ash.plan(net, X, ash.Mesh(dp=2, tp=3)),
        ash.plan(ash.trace(net, X), mesh=ash.Mesh(dp=2, tp=3), hardware="h100"),
    ):
        np.testing.assert_allclose(planned.run(X), net(X), rtol=1e-5, atol=1e-6)
        assert planned.graph.node("dense1.matmul").op.name == "MatMul"
        assert planned.cost.seconds > 0


def test_what_is_evaluated_is_the_model_unsplit():
    net = Mlp()
    np.testing.assert_array_equal(ash.evaluate(net, X), net(X))
    np.testing.assert_array_equal(ash.evaluate(ash.trace(net, X), (X,)), net(X))
    found = ash.evaluate(lambda a, b: {"sum": a + b, "both": (a, b)}, (X, X * 2))
    np.testing.assert_array_equal(found["sum"], X * 3)
    graph = ash.trace(lambda a: ops.relu(a), X).graph
    np.testing.assert_array_equal(ash.evaluate(graph, [X])[0], np.maximum(X, 0))


def test_a_plan_says_what_it_does_not_follow():
    assert ash.plan(Mlp(), X, "dp=2 tp=3").ignored == ()
    alone = ash.plan(Mlp(), X, "dp=2 tp=3", search="data_parallel")
    assert alone.ignored == ("dense1.matmul",) and alone.to_json()["ignored"] == ["dense1.matmul"]
    assert "it does not follow what was asked of dense1.matmul\n" in alone.report()
    sharded = ash.trace(ops.relu, X, in_shardings=((None, "tp"),))
    assert ash.plan(sharded, mesh="dp=2 tp=3").ignored == ()
    assert ash.plan(sharded, mesh="dp=2 tp=3", search="data_parallel").ignored == ("input operands0",)


def test_function_with_nested_arguments_and_results():
    def model(batch, scale):
        y = ops.matmul(batch["x"], batch["w"]) * scale
        return {"sum": ops.reduce_sum(y, axis=0), "both": (y, batch["w"])}

    batch = {"x": array(6, 4), "w": array(4, 10)}
    planned = ash.plan(model, (batch, 2.0), devices=6)
    found = planned.run(batch, 2.0)
    np.testing.assert_allclose(found["both"][0], 2 * batch["x"] @ batch["w"], rtol=1e-5)
    np.testing.assert_allclose(found["sum"], 2 * (batch["x"] @ batch["w"]).sum(0), rtol=1e-4, atol=1e-5)
    assert (found["both"][1] == batch["w"]).all()


def test_types_are_enough_to_plan():
    planned = ash.plan(Mlp(), (ash.TensorType.of((10, 12)),), mesh="dp=2 tp=3")
    assert planned.run(X).shape == (10, 6)


def test_training_step_updates_parameters():
    net, alone = Mlp(), Mlp()
    ash.load_param_into_net(alone, {name: one.asnumpy() for name, one in net.parameters_dict().items()})

    def step(cell):
        loss = nn.WithLossCell(cell, nn.MSELoss())
        return train_step(loss, nn.Adam(cell.trainable_params(), 0.01, eps=1e-4), X, array(10, 6))

    planned, expected = ash.plan(step(net), mesh="dp=2 tp=3"), step(alone)
    for seed in range(3):
        label = array(10, 6, seed=seed)
        np.testing.assert_allclose(planned.run(X, label), expected(X, label), rtol=1e-5)
    for ours, theirs in zip(net.get_parameters(), alone.get_parameters(), strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=1e-4, atol=1e-6)


def test_tutorial_strategies():
    """MindSpore's tutorial: its strategies, and ReduceScatter where it has AllReduce and StridedSlice."""
    train = runpy.run_path(str(SAMPLES / "sharding_propagation" / "train.py"))
    planned = ash.plan(*train["forward"](), devices=8)
    strategies = [(node.op.name, str(planned.plan.strategy(node))) for node in planned.graph.nodes]
    assert strategies == [
        ("MatMul", "((2, 1), (1, 4))"),
        ("Add", "((2, 4), (4))"),
        ("ReLU", "((2, 4))"),
        ("MatMul", "((2, 4), (4, 1))"),
        ("Add", "((2, 4), (4))"),
    ]
    assert [one.step.kind for one in planned.program.collectives] == ["reduce_scatter"]
    assert planned.program.collectives[0].step.groups.members(0).tolist() == [0, 1, 2, 3]


def test_report_and_json_and_picture():
    planned = ash.plan(Mlp(), (X,), mesh="dp=2 tp=3")
    assert "dense1.matmul" in planned.report() and str(planned) == planned.report()
    first = planned.to_json()["operators"][0]
    assert (first["name"], first["in_strategy"], first["cause"]) == (
        "dense1.matmul",
        [[2, 1], [3, 1]],
        "configured",
    )
    assert planned.show_layout("dense1.matmul").splitlines()[0] == "dense1.matmul f32[10, 24] [dp, tp]"
    assert "0:8" in planned.show_layout("dense1.weight")
    with pytest.raises(AutoshardError, match="no node named 'dense9'"):
        planned.show_layout("dense9")


def test_dump(tmp_path):
    planned = ash.plan(Mlp(), (X,), mesh="dp=2 tp=3")
    files = planned.dump(tmp_path, ranks=[0, 5])
    assert {path.parent.name for path in files} == {"rank_0", "rank_5"}
    assert len(files) == 6 and all(path.is_file() for path in files)


# -- dataset strategies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy, layout",
    [
        ("full_batch", "-, -"),
        ("data_parallel", "dp.tp, -"),
        (((2, 1),), "dp, -"),
        (((2, 3),), "dp, tp"),
        (Layout.parse("-, tp", ash.Mesh(dp=2, tp=3)), "-, tp"),
    ],
)
@pytest.mark.parametrize("search", ["sharding_propagation", "batch"])
def test_dataset_strategy_is_where_data_lies(strategy, layout, search):
    net, x = Mlp(), array(12, 12)
    planned = ash.plan(net, (x,), mesh="dp=2 tp=3", dataset_strategy=strategy, search=search)
    assert str(planned.plan.layouts[planned.graph.inputs[0]]) == layout
    np.testing.assert_allclose(planned.run(x), net(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "strategy, words",
    [
        (
            "data_parallel",
            r"splits x: f32\[10, 12\] as \[dp.tp, -\] into \(6, 1\) parts, which do not divide",
        ),
        (((2, 1), (2,)), r"has 2 entries, but there are 1 data inputs \(x\)"),
        (((2,),), "gives 1 entries to data input x, which has 2 dims"),
        (((4, 1),), "dataset_strategy of data input x: .*4.*does not divide 6"),
    ],
)
def test_dataset_strategy_refusals(strategy, words):
    with pytest.raises(PlanError, match=words):
        ash.plan(Mlp(), (X,), mesh="dp=2 tp=3", dataset_strategy=strategy)


# -- the batch search ----------------------------------------------------------------------------------------


def test_batch_search_is_data_parallel_training():
    """All that has the batch is split by it, each parameter's gradient is reduced once, updates are whole."""
    net = Mlp(strategy=None)
    step = train_step(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1), X, array(10, 6))
    planned = ash.plan(step, devices=5, search="batch", dataset_strategy="data_parallel")
    kinds = [one.step.kind for one in planned.program.collectives]
    assert kinds == ["all_reduce"] * 5  # four parameters and the loss
    for value, role in zip(planned.graph.inputs, planned.graph.roles, strict=True):
        assert planned.plan.layouts[value].is_replicated == (role != "data")
    assert str(planned.plan.decisions[planned.graph.node("gelu")].cause) == "batch parallel from dense1.bias_add"


def test_batch_search_splits_as_far_as_divides():
    net = Mlp(strategy=None)
    planned = ash.plan(net, (X,), devices=4, search="batch")
    assert planned.plan.strategy(planned.graph.node("gelu")).in_strategy == ((2, 1),)
    np.testing.assert_allclose(planned.run(X), net(X), rtol=1e-5, atol=1e-6)


def test_batch_is_followed_through_reshapes():
    def heads(x, w):
        y = ops.reshape(ops.matmul(x, w), shape=(12, 5, 4, 6))
        y = ops.transpose(y, perm=(0, 2, 1, 3))
        y = ops.softmax(ops.batch_matmul(y, y, transpose_b=True))
        return ops.reshape(y, shape=(240, 5))

    x, w = array(12, 5, 10), array(10, 24)
    planned = ash.plan(heads, (x, w), devices=6, search="batch", dataset_strategy=((6, 1, 1), (1, 1)))
    assert not planned.program.collectives
    np.testing.assert_allclose(planned.run(x, w), ash.trace(heads, x, w)(x, w), rtol=1e-4, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([4, 6, 10, 12]), st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from(["batch"]))
def test_batch_search_never_changes_results(rows, devices, search):
    net, x = Mlp(strategy=None), array(rows, 12)
    planned = ash.plan(net, (x,), devices=devices, search=search)
    np.testing.assert_allclose(planned.run(x), net(x), rtol=1e-5, atol=1e-6)


# -- what it refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ash.plan(Mlp(), (X,), devices=0), "devices is 0"),
        (lambda: ash.plan(Mlp(), (X,), mesh=8), "mesh is 8; give a Mesh or its text"),
        (
            lambda: ash.plan(Mlp(), (X,), mesh="dp=2 tp=3", devices=8),
            "'dp=2 tp=3' has 6 devices, but devices is 8",
        ),
        (
            lambda: ash.plan(Mlp(), (X,), devices=6, search="guess"),
            "unknown search mode 'guess'; known are auto, batch",
        ),
        (
            lambda: ash.plan(Mlp(), (X,), devices=6, hardware="abacus"),
            "hardware 'abacus': no hardware preset",
        ),
        (lambda: ash.plan(7, (X,), devices=6), "7 \\(int\\) is neither a model"),
        (
            lambda: ash.plan(ash.trace(Mlp(), X), (X[1:],), devices=6),
            r"'mlp' is traced already, for \(x: f32\S+ \d+\]\), and the inputs are of shapes",
        ),
        (
            lambda: ash.plan(Mlp(), (X,), devices=6, hardware=replace(preset("cpu"), topology=Topology(((4, LINK),)))),
            "hardware 'cpu' joins 4 devices at most, and mesh 'd=6' has 6; take fewer",
        ),
        (
            lambda: ash.plan(Mlp(), (X,), devices=6, search="optimum"),
            "unknown search mode 'optimum'; did you mean optimal\\?; known are auto",
        ),
        (lambda: ash.plan(Mlp(), (array(10, 11),), devices=6), "dense1.matmul.*k|dense1.matmul.*11"),
        (lambda: ash.plan(Mlp(((2, 1), (1, 5))), (X,), devices=10), "dim 1 of operand 1 has size 12"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(AutoshardError, match=words):
        call()


def test_run_refuses_other_inputs():
    planned = ash.plan(Mlp(), (X,), mesh="dp=2 tp=3")
    with pytest.raises(RuntimeSetupError, match=r"x is f32\[10, 12\], but got f32\[4, 12\]"):
        planned.run(array(4, 12))
    with pytest.raises(RuntimeSetupError, match=r"nested as in \(x: f32\[10, 12\],\)"):
        planned.run(X, X)


# -- the public page -----------------------------------------------------------------------------------------


def test_every_public_name_is_there():
    for name in ash.__all__:
        assert getattr(ash, name) is not None
    assert set(ash.__all__) <= set(dir(ash))
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        ash.plam  # noqa: B018


def test_functions_are_not_hidden_by_modules():
    import autoshard.plan.plan
    import autoshard.trace  # noqa: F401

    assert callable(ash.plan) and callable(ash.trace)
    assert ash.plan.__module__ == "autoshard.api"


def test_tensor_makes_arrays():
    assert ash.Tensor([1.0, 2.0]).dtype == np.float32
    assert ash.Tensor(np.ones(4)).dtype == np.float64
    assert ash.Tensor(np.ones([4, 6]), dtype=ash.float16).dtype == np.float16
    assert ash.Tensor([1, 2]).dtype == np.int64
    assert ash.Tensor([1, 0], ash.bool_).tolist() == [True, False]


def test_importing_pulls_in_nothing_heavy():
    code = (
        "import sys, autoshard; assert 'numpy' not in sys.modules; import autoshard.mindspore.model, autoshard.nn;"
        "print(*[name for name in ('torch', 'jax', 'mpi4py', 'rich', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_own_operator_sample(capsys):
    try:
        runpy.run_path(str(SAMPLES / "05_own_operator.py"), run_name="__main__")
    finally:
        remove("SquaredReLU")
    out = capsys.readouterr().out
    assert "act              SquaredReLU  ((2, 3))" in out
    difference = float(out.split("against one:")[1].split()[0])
    losses = [float(line.split()[-1]) for line in out.splitlines() if "loss is" in line]
    assert difference < 1e-5 and len(losses) == 3 and losses[-1] < losses[0] / 2


def test_own_operator_has_the_gradient_it_says():
    sample = runpy.run_path(str(SAMPLES / "05_own_operator.py"))
    try:
        x = array(4, 6).astype(np.float64)
        loss = lambda x: np.sum(sample["squared_relu"](x))  # noqa: E731
        (slope,) = sample["squared_relu"].cotangents(np.ones_like(x), sample["squared_relu"](x), [x], {})
        step = np.zeros_like(x)
        step[2, 3] = 1e-6
        np.testing.assert_allclose(slope[2, 3], (loss(x + step) - loss(x - step)) / 2e-6, rtol=1e-5, atol=1e-8)
    finally:
        remove("SquaredReLU")


def test_a_session_tells_data_that_does_not_fit():
    session = ash.plan(nn.Dense(6, 4), (np.ones((8, 6), np.float32),), mesh="dp=2").session
    with pytest.raises(ash.errors.RuntimeSetupError, match=r"takes data for x f32\[8, 6\]; 0 were given"):
        session.run([])
    with pytest.raises(ash.errors.RuntimeSetupError, match=r"x is f32\[8, 6\], but got an array \(4, 6\)"):
        session.cut([np.ones((4, 6), np.float32)])
