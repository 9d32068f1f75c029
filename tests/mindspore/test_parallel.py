"""Layout, shard, AutoParallel, to_float, TrainOneStepCell, and checkpoints from one split to another."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import autoshard as ash
import autoshard.mindspore as ms
from autoshard.exporters.mindspore import from_checkpoint, save_checkpoint
from autoshard.mindspore import nn, ops
from autoshard.mindspore.parallel import (
    AutoParallel,
    load_distributed_checkpoint,
    merge_sliced_parameter,
    rank_list_for_transform,
    transform_checkpoint_by_rank,
    transform_checkpoints,
)
from autoshard.runtime.array import cut
from autoshard.util.errors import CheckpointError, ContextError, GraphError, LayoutError, StrategyError
from tests.mindspore.test_settings import AUTO, Net, X, Y, data

LOSS = {"sparse": True, "reduction": "mean"}


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    ms.reset_auto_parallel_context()
    yield
    ms.reset_auto_parallel_context()


def test_layouts_by_names() -> None:
    layout = ms.Layout((2, 2, 2), ("dp", "sp", "mp"))
    assert str(layout("dp", "None")) == "dp, -" and str(layout(("dp", "mp"), "sp")) == "dp.mp, sp"
    assert layout("mp", "dp").parts == (2, 2)
    within = ms.Layout((2, 4, 2), ("dp", "mp", "interleaved_parallel"))
    assert within.device_matrix == (2, 4, 2) and within.mesh.devices == 8
    assert str(within(("dp", "interleaved_parallel"), "mp")) == "dp, mp" and str(within("interleaved_parallel")) == "-"
    for names in (("interleaved_parallel", "dp"), ("None", "dp")):
        with pytest.raises(LayoutError, match="is the last one|stands for a dim that is whole"):
            ms.Layout((2, 4), names)
    for wrong in (lambda: layout("dp", "dp"), lambda: layout("tp"), lambda: ms.Layout((2,), ("a", "b"))):
        with pytest.raises(LayoutError):
            wrong()


def test_shard_and_reshard_fix_what_they_say() -> None:
    layout = ms.Layout((2, 4), ("dp", "mp"))
    sharded = ms.shard(lambda x: ops.relu(ms.reshard(x, layout("dp", "mp"))), ((2, 1),), (None,))
    planned = ash.plan(sharded, (X[:, :16],), mesh="dp=2 mp=4")
    given = {node.name: planned.plan.strategy(node).in_strategy for node in planned.graph.nodes}
    assert ((2, 1),) in given.values() and ((2, 4),) in given.values()
    np.testing.assert_array_equal(planned.run(X[:, :16]), np.maximum(X[:, :16], 0))
    with pytest.raises(StrategyError, match="parameter_plan is for a cell"):
        ms.shard(lambda x: x, ((1,),), parameter_plan={"w": (1,)})


@pytest.mark.parametrize("mode", ["semi_auto", "sharding_propagation"])
def test_auto_parallel_has_settings_of_its_own(mode: str) -> None:
    def losses(wrap: Any) -> tuple[ms.Model, np.ndarray]:
        ms.set_seed(3)
        net = Net()
        wrapped = wrap(net)
        model = ms.Model(
            wrapped, nn.SoftmaxCrossEntropyWithLogits(**LOSS), nn.Momentum(net.trainable_params(), 0.1, 0.9)
        )
        model.train(1, data())
        return model, net.dense1.weight.asnumpy()

    def parallel(net: Net) -> AutoParallel:
        found = AutoParallel(net, mode)
        found.dataset_strategy("full_batch")
        found.hsdp(threshold=0)
        return found

    ms.set_auto_parallel_context(device_num=8)
    _, want = losses(lambda net: net)
    model, got = losses(parallel)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert model.planned is not None and model.planned.plan.mesh.devices == 8
    assert set(model.network.parameters_dict()) == set(Net().parameters_dict())
    with pytest.raises(ContextError, match="parallel_mode is 'dynamic_programming'"):
        AutoParallel(Net(), "dynamic_programming")
    with pytest.raises(ContextError, match="level2 are not offered"):
        AutoParallel(Net()).hsdp(optimizer_level="level2")


def test_computing_in_another_float_type() -> None:
    net = nn.SequentialCell(nn.Dense(24, 8), nn.Dense(8, 4))
    net[0].to_float(ms.float16)
    assert net(X).dtype == ms.float32 or net(X).dtype == ms.float16
    assert net[0](X).dtype == ms.float16 and net[0].weight.dtype == ms.float32
    half = X.astype(np.float16) @ net[0].weight.asnumpy().astype(np.float16).T + net[0].bias.asnumpy().astype(
        np.float16
    )
    np.testing.assert_allclose(net[0](X), half, rtol=2e-3, atol=2e-3)
    traced = ash.trace(net[0], X)
    np.testing.assert_array_equal(traced(X), net[0](X))
    assert [node.op.name for node in traced.graph.nodes].count("Cast") == 3
    with pytest.raises(GraphError, match="i32 is no float type"):
        net.to_float(ms.int32)


def test_one_step_is_a_step_of_the_model() -> None:
    def first(parallel: bool) -> tuple[float, np.ndarray]:
        ms.reset_auto_parallel_context()
        ms.set_seed(3)
        net = Net()
        if parallel:
            ms.set_auto_parallel_context(**AUTO)
        loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(**LOSS))
        step = nn.TrainOneStepCell(loss, nn.Momentum(net.trainable_params(), 0.1, 0.9))
        found = [float(step(X[:16], Y[:16])) for _ in range(2)]
        return found[1], net.dense2.weight.asnumpy()

    (loss, weight), (want, known) = first(True), first(False)
    assert loss == pytest.approx(want, rel=1e-5) and loss < 4
    np.testing.assert_allclose(weight, known, rtol=1e-5, atol=1e-6)


def test_cells_parameters_and_primitives_have_mindspores_methods() -> None:
    net = Net()
    assert list(net.name_cells()) == ["dense1", "dense2"] and net.set_grad().set_comm_fusion(2) is net
    net.insert_child_to_cell("dense3", nn.Dense(4, 6))
    net.insert_param_to_cell("scale", ms.Parameter(np.ones(4, np.float32)))
    assert {"dense3.weight", "scale"} <= set(net.parameters_dict())
    for again in (lambda: net.insert_child_to_cell("dense3", nn.ReLU()), lambda: net.insert_param_to_cell("a.b", None)):
        with pytest.raises(GraphError, match="there is an attribute 'dense3' already|the name 'a.b' has a dot"):
            again()
    bias = net.dense1.bias
    same, zeros = bias.clone(), bias.clone(init="zeros")
    np.testing.assert_array_equal(same.asnumpy(), bias.asnumpy())
    assert zeros.name == "dense1.bias" and not zeros.asnumpy().any() and bias.init_data() is bias
    with pytest.raises(AttributeError, match="call that cell's recompute()"):
        net.dense1.matmul.recompute()
    with pytest.raises(AttributeError, match="no attribute 'shad'; did you mean 'shard'"):
        ops.MatMul().shad(((1, 1), (1, 1)))
    assert nn.Accuracy is ms.Accuracy


def test_element_types_have_a_module() -> None:
    assert ms.dtype.float16 is ms.float16 and ms.dtype_to_nptype(ms.dtype.bool_) is np.bool_


@pytest.mark.parametrize("scale", [None, 64])
def test_a_model_of_a_step_trains_as_the_step_does(scale: int | None) -> None:
    def made() -> tuple[Any, Any]:
        ms.set_seed(3)
        net = Net()
        loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(**LOSS))
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        if scale is None:
            return net, nn.TrainOneStepCell(loss, optimizer)
        update = nn.DynamicLossScaleUpdateCell(scale, 2, 2)
        return net, nn.TrainOneStepWithLossScaleCell(loss, optimizer, update)

    ms.set_auto_parallel_context(**AUTO)
    (one, step), (other, whole) = made(), made()
    for _ in range(2):
        step(X[:16], Y[:16])
    ms.Model(whole).train(2, [(X[:16], Y[:16])])
    np.testing.assert_array_equal(other.dense2.weight.asnumpy(), one.dense2.weight.asnumpy())
    assert scale is None or float(whole.scale_sense.asnumpy()) == 2 * scale


def test_a_table_that_is_the_heads_weight_lies_for_both() -> None:
    """As in MindSpore's transformers: tuples tell parts, and a place that both take is found."""

    class Tied(nn.Cell):
        def __init__(self, rows: tuple) -> None:
            super().__init__()
            self.table = ms.Parameter(X[:12, :8], name="table")
            self.gather, self.head = ops.Gather().shard(rows), ops.MatMul(transpose_b=True).shard(((2, 1), (2, 1)))

        def construct(self, ids: Any) -> Any:
            return self.head(self.gather(self.table, ids, 0), self.table)

    ids = np.arange(16, dtype=np.int32) % 12
    for rows in ((2, 1), (2,)), ((2, 1), (1,)):
        for search in ("batch", "sharding_propagation", "dynamic_programming"):
            planned = ash.plan(Tied(rows), (ids,), devices=4, search=search)
            (table,) = [value for value in planned.graph.inputs if value.name == "table"]
            assert str(planned.plan.layouts[table]) == "d:(2)2, -"
            np.testing.assert_allclose(planned.run(ids), X[ids, :8] @ X[:12, :8].T, rtol=1e-4, atol=1e-5)


class Critic(nn.Cell):
    """The loss of a WGAN's critic, or with one argument its generator's."""

    def __init__(self, generator: nn.Cell, judge: nn.Cell) -> None:
        super().__init__()
        self.generator, self.judge = generator, judge

    def construct(self, noise: Any, x: Any = None) -> Any:
        made = ops.ReduceMean()(self.judge(ops.tanh(self.generator(noise))))
        return -made if x is None else made - ops.ReduceMean()(self.judge(x))


@pytest.mark.parametrize("settings", [{}, {"parallel_mode": "auto_parallel", "device_num": 6, "full_batch": True}])
def test_steps_of_two_models_and_written_cells_are_gone_on_with(settings: dict[str, Any]) -> None:
    """A WGAN: critic and generator in turn, and the critic's weights clipped between steps; as torch does it."""
    torch = pytest.importorskip("torch")
    ms.set_seed(3)
    ms.set_auto_parallel_context(**settings)
    parts = nn.Dense(4, 6), nn.SequentialCell(nn.Dense(6, 8, activation="tanh"), nn.Dense(8, 1))
    theirs = [torch.nn.Linear(4, 6), torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))]
    for part, other in zip(parts, theirs, strict=True):
        for one, tensor in zip(part.trainable_params(), other.parameters(), strict=True):
            tensor.data = torch.from_numpy(one.asnumpy().copy())
    made, judge = [nn.TrainOneStepCell(Critic(*parts), nn.SGD(part.trainable_params(), 0.3)) for part in parts]
    optimizers = [torch.optim.SGD(part.parameters(), 0.3) for part in theirs]
    random, found, wanted = np.random.default_rng(1), [], []

    def torch_step(turn: int, loss: Any) -> None:
        optimizers[turn].zero_grad()
        loss.backward()
        optimizers[turn].step()
        wanted.append(loss.item())

    for _ in range(3):
        noise, x = (random.normal(size=(12, size)).astype(np.float32) for size in (4, 6))
        found.append(float(judge(noise, x)))
        for one in parts[1].trainable_params():
            one.set_data(np.clip(one.asnumpy(), -0.2, 0.2))
        found.append(float(made(noise)))
        drawn = torch.tanh(theirs[0](torch.from_numpy(noise)))
        torch_step(1, theirs[1](drawn).mean() - theirs[1](torch.from_numpy(x)).mean())
        for tensor in theirs[1].parameters():
            tensor.data.clamp_(-0.2, 0.2)
        torch_step(0, -theirs[1](torch.tanh(theirs[0](torch.from_numpy(noise)))).mean())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_gradients_of_functions_train_a_network() -> None:
    ms.set_seed(3)
    net, loss = Net(), nn.SoftmaxCrossEntropyWithLogits(**LOSS)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    found = ms.value_and_grad(lambda x, y: (loss(net(x), y), net(x)), None, optimizer.parameters, has_aux=True)
    values = []
    for _ in range(3):
        (value, scores), grads = found(X, Y)
        optimizer(grads)
        values.append(float(value))
        assert scores.shape == (64, 16)
    assert values[2] < values[0]


def test_checkpoints_from_one_split_to_another(tmp_path: Any) -> None:
    net = Net()
    arrays = {name: one.asnumpy() for name, one in net.parameters_dict().items()}
    files = {}
    for name, strategy in {"source": ((2, 1), (4, 1)), "target": ((1, 1), (2, 1))}.items():
        net.dense1.matmul.shard(strategy)
        planned = ash.plan(net, (X[:16],), devices=8 if name == "source" else 4)
        files[name] = save_checkpoint(planned.plan, tmp_path / f"{name}.json")
        layouts = {value.name: planned.plan.layouts[value] for value in planned.traced.parameters}
        for rank in range(planned.plan.mesh.devices):
            own = {key: cut(array, layouts[key], [rank])[0] for key, array in arrays.items()}
            ms.save_checkpoint(own, tmp_path / name / f"rank_{rank}" / f"net{rank}.safetensors")
    source, target = str(files["source"]), str(files["target"])
    assert rank_list_for_transform(3, source, target) == list(range(8))
    transform_checkpoints(
        str(tmp_path / "source"), str(tmp_path / "made"), "net", source, target, output_format="safetensors"
    )
    for rank in range(4):
        made = ms.load_checkpoint(tmp_path / "made" / f"rank_{rank}" / f"net{rank}.safetensors")
        want = ms.load_checkpoint(tmp_path / "target" / f"rank_{rank}" / f"net{rank}.safetensors")
        assert made.keys() == want.keys() and all((made[key] == want[key]).all() for key in made)
    by_rank = {rank: str(tmp_path / "source" / f"rank_{rank}" / f"net{rank}.safetensors") for rank in range(8)}
    transform_checkpoint_by_rank(2, by_rank, str(tmp_path / "two.safetensors"), source, target)
    two, want = (ms.load_checkpoint(tmp_path / one) for one in ("two.safetensors", "target/rank_2/net2.safetensors"))
    assert two.keys() == want.keys() and all((two[key] == want[key]).all() for key in two)
    other = Net()
    names = [str(tmp_path / "source" / f"rank_{rank}" / f"net{rank}.safetensors") for rank in range(8)]
    load_distributed_checkpoint(other, names, train_strategy_filename=source)
    assert all((one.asnumpy() == arrays[name]).all() for name, one in other.parameters_dict().items())
    views = from_checkpoint(files["source"]).parameters
    parts = [ms.Parameter(ms.load_checkpoint(path)["dense1.weight"], name="dense1.weight") for path in names]
    np.testing.assert_array_equal(merge_sliced_parameter(parts, views), arrays["dense1.weight"])
    with pytest.raises(CheckpointError, match="checkpoints of 7 ranks, but the strategy file is for 8"):
        load_distributed_checkpoint(other, names[:7], train_strategy_filename=source)


@pytest.mark.parametrize(
    "module, names",
    {
        "train": ("Model", "LossMonitor", "Accuracy"),
        "train.callback": ("ModelCheckpoint", "CheckpointConfig"),
        "train.metrics": ("Metric", "MAE"),
        "train.serialization": ("load_checkpoint", "save_checkpoint"),
        "train.model": ("Model",),
        "train.loss_scale_manager": ("DynamicLossScaleManager",),
        "common.dtype": ("dtype_to_nptype",),
        "common.parameter": ("Parameter", "ParameterTuple"),
        "common.tensor": ("Tensor",),
        "common.api": ("jit",),
        "nn.cell": ("Cell",),
        "parallel": ("AutoParallel", "Layout", "shard"),
        "parallel.auto_parallel": ("AutoParallel",),
        "common.initializer": ("initializer", "Normal", "HeUniform"),
        "communication.management": ("init", "get_rank", "get_group_size"),
        "ops.operations": ("MatMul", "LayerNorm"),
        "ops.functional": ("relu", "split"),
        "nn": ("Cell", "TrainOneStepCell"),
        "dataset": ("GeneratorDataset", "NumpySlicesDataset"),
        "context": ("set_context", "set_auto_parallel_context"),
    }.items(),
)
def test_modules_have_mindspores_names(module: str, names: tuple[str, ...]) -> None:
    found = import_module(f"autoshard.mindspore.{module}")
    assert all(callable(getattr(found, name)) for name in names)
