"""Settings of MindSpore's scripts, and what Model does besides training: the numbers of one device, as asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autoshard.mindspore as ms
from autoshard.mindspore import nn
from autoshard.mindspore.callbacks import TrainingError
from autoshard.mindspore.dataset import GeneratorDataset, NumpySlicesDataset
from autoshard.mindspore.metrics import MetricError, metrics_of
from autoshard.partition.program import Collective
from autoshard.util.errors import CheckpointError, ContextError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 24)).astype(np.float32), RNG.integers(0, 16, 64).astype(np.int32)
AUTO = {"parallel_mode": "auto_parallel", "device_num": 8, "full_batch": True}
SMALL = {"parallel_optimizer_threshold": 0}
ZERO = {"enable_parallel_optimizer": True, "parallel_optimizer_config": SMALL}


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense1, self.dense2 = nn.Dense(24, 48, activation="relu"), nn.Dense(48, 16)
        self.dense1.matmul.shard(((2, 1), (2, 1)))

    def construct(self, x: Any) -> Any:
        return self.dense2(self.dense1(x))


def data() -> NumpySlicesDataset:
    return NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(16)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    ms.reset_auto_parallel_context()
    yield
    ms.reset_auto_parallel_context()


def model(recompute: bool = False, reduction: str = "mean", **settings: Any) -> ms.Model:
    ms.set_seed(3)
    net = Net()
    if recompute:
        net.dense1.recompute()
    ms.set_auto_parallel_context(**settings)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction=reduction)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return ms.Model(net, loss, optimizer, metrics={"accuracy", "loss"})


def trained(**settings: Any) -> tuple[ms.Model, dict[str, np.ndarray]]:
    one = model(**settings)
    one.train(1, data())
    return one, {name: held.asnumpy().copy() for name, held in one.network.parameters_dict().items()}


@pytest.mark.parametrize(
    "settings",
    [
        {**AUTO, **ZERO},
        {**AUTO, "comm_fusion": {"openstate": False}},
        {**AUTO, "gradients_mean": True, "parameter_broadcast": True},
        {**AUTO, "recompute": True},
        {"parallel_mode": "semi_auto_parallel", "device_num": 8, "full_batch": True, **ZERO},
        {"parallel_mode": "data_parallel", "device_num": 8, "full_batch": True, "gradients_mean": True, **ZERO},
        {**AUTO, "search_mode": "dynamic_programming"},
    ],
    ids=lambda settings: "-".join(name for name in settings if name not in AUTO) or settings["parallel_mode"],
)
def test_training_is_that_of_one_device(settings: dict[str, Any]) -> None:
    _, want = trained(parallel_mode="stand_alone")
    ms.reset_auto_parallel_context()
    _, got = trained(**settings)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)


def test_the_parallel_optimizer_cuts_parameters_and_states_that_ranks_hold_alike() -> None:
    whole = model(**AUTO).infer_train_layout(data())
    ms.reset_auto_parallel_context()
    cut = model(**AUTO, **ZERO).infer_train_layout(data())
    size = {name: int(np.prod(told[2])) for name, told in whole.items()}
    assert all(int(np.prod(told[2])) <= size[name] for name, told in cut.items())
    assert np.prod(cut["dense1.weight"][2]) * 2 <= size["dense1.weight"]
    for name in ("dense1.weight", "dense2.weight"):
        assert cut[name] == cut[f"moments.{name}"]
    ms.reset_auto_parallel_context()
    large = model(**AUTO, enable_parallel_optimizer=True).infer_train_layout(data())
    assert large == whole  # all are below 64 KB


def test_an_order_of_parameters_is_that_of_gradients() -> None:
    net = Net()
    params = net.trainable_params()
    weights, biases = params[::2], params[1::2]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "grad_centralization": False}]
    optimizer = nn.SGD([*groups, {"order_params": params}], 0.5)
    before, grads = (
        [one.asnumpy() for one in params],
        [np.full(one.shape, i, np.float32) for i, one in enumerate(params)],
    )
    assert optimizer.parameters == tuple(params)
    optimizer(grads)
    for i, (one, was) in enumerate(zip(params, before, strict=True)):
        np.testing.assert_allclose(one.asnumpy(), was - 0.5 * (i + (0.1 * was if i % 2 == 0 else 0)), rtol=1e-5)
    with pytest.raises(ContextError, match="order_params has 3 parameters, the groups have 4; .* unlike dense2.bias"):
        nn.SGD([*groups, {"order_params": params[:3]}], 0.5)


def test_recomputed_cells_are_made_again() -> None:
    """But for what they give to others: of a Dense what its activation is given."""
    plain, again = model(**AUTO), model(True, **AUTO)
    for one in (plain, again):
        one.network.dense1.activation = nn.GELU()
        one.build(data())
    products = [
        sum(node.op.name == "MatMul" for node in one.planned.graph.nodes) for one in (plain, again) if one.planned
    ]
    assert products[1] == products[0] + 1


def test_without_fusion_there_are_no_joined_collectives() -> None:
    one = model(**AUTO, comm_fusion={"openstate": False})
    one.build(data())
    assert one.planned is not None and "combine" not in one.planned.passes
    assert any(isinstance(step, Collective) for step in one.planned.program.instructions)


def test_strategies_are_written_and_read(tmp_path: Any) -> None:
    file = str(tmp_path / "new" / "strategy.json")
    first = model(**AUTO, strategy_ckpt_config={"save_file": file})
    first.build(data())
    ms.reset_auto_parallel_context()
    second = model(**AUTO, strategy_ckpt_load_file=file)
    second.network.dense1.matmul.in_strategy = None
    second.build(data())
    assert first.planned is not None and second.planned is not None
    for one, other in zip(first.planned.graph.nodes, second.planned.graph.nodes, strict=True):
        assert one.name == other.name
        if one.name in ("dense1.matmul", "dense2.matmul", "dense2.bias_add"):
            ours, theirs = first.planned.plan.strategy(one), second.planned.plan.strategy(other)
            assert ours.in_strategy == theirs.in_strategy
    (tmp_path / "other.json").write_text('{"parallel_strategy_item": {"no.such": {"parallel_strategy": [[1]]}}}')
    ms.set_auto_parallel_context(strategy_ckpt_load_file=str(tmp_path / "other.json"), strategy_ckpt_save_file="")
    with pytest.raises(ContextError, match="names none of the operators"):
        model(**AUTO).build(data())


def by_hand(reduction: str, mean: bool, parts: int) -> dict[str, np.ndarray]:
    """Parameters after steps in which each of `parts` ranks differentiates the loss over its own rows, as MindSpore's
    data_parallel has it: gradients are added up, or their mean is taken."""
    one = model(reduction=reduction, parallel_mode="stand_alone")
    net, loss, found = one.network, one.loss_fn, {}
    weights = net.trainable_params()
    gradient = ms.value_and_grad(lambda x, y: loss(net(x), y).sum(), None, weights)
    velocity: dict[str, np.ndarray] = {}
    for x, y in data():
        ranks = [gradient(*rows)[1] for rows in zip(np.split(x, parts), np.split(y, parts), strict=True)]
        for i, weight in enumerate(weights):
            total = np.sum([np.asarray(rank[i]) for rank in ranks], 0) / (parts if mean else 1)
            velocity[weight.name] = 0.9 * velocity[weight.name] + total if weight.name in velocity else total
            weight.set_data(weight.asnumpy() - 0.1 * velocity[weight.name])
            found[weight.name] = weight.asnumpy().copy()
    return found


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_data_parallel_adds_up_the_gradients_of_the_ranks(reduction: str, mean: bool) -> None:
    want = by_hand(reduction, mean, 4)
    ms.reset_auto_parallel_context()
    _, got = trained(reduction=reduction, parallel_mode="data_parallel", device_num=4, gradients_mean=mean)
    assert want
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=2e-4, atol=2e-5, err_msg=name)


def test_ranks_that_all_have_all_rows_add_up_the_same_gradient() -> None:
    settings = {"parallel_mode": "data_parallel", "device_num": 4, "full_batch": True}
    _, one = trained(reduction="sum", parallel_mode="stand_alone")
    ms.reset_auto_parallel_context()
    _, mean = trained(reduction="sum", **settings, gradients_mean=True)
    ms.reset_auto_parallel_context()
    _, total = trained(reduction="sum", **settings)
    name = "dense2.bias"
    np.testing.assert_allclose(mean[name], one[name], rtol=1e-4, atol=1e-5)
    assert not np.allclose(total[name], one[name], rtol=1e-2)


def test_a_loss_that_does_not_tell_how_it_reduces_rows() -> None:
    settings = {"parallel_mode": "data_parallel", "device_num": 4}
    one = model(**settings)
    one.loss_fn = lambda scores, rows: nn.MSELoss()(scores, scores) * 2
    with pytest.raises(ContextError, match="does not tell how it reduces rows: give it an attribute reduction"):
        one.build(data())


def test_parameters_of_the_algorithm() -> None:
    ms.set_algo_parameters(fully_use_devices=True, tensor_slice_align_enable=True, tensor_slice_align_size=8)
    try:
        assert ms.get_algo_parameters("fully_use_devices") and ms.get_algo_parameters("tensor_slice_align_size") == 8
        one = model(**AUTO)
        one.build(data())
        assert one.planned is not None and one.planned.plan.search == "recursive_programming"
        configured = one.planned.graph.node("dense1.matmul")
        used = {
            one.planned.plan.strategy(node).work_split for node in one.planned.graph.nodes if node is not configured
        }
        assert used <= {1, 8}
        ms.set_auto_parallel_context(search_mode="sharding_propagation")
        with pytest.raises(ContextError, match="'sharding_propagation' has no fully_use_devices.*dynamic_programming"):
            model(search_mode="sharding_propagation").build(data())
        ms.set_algo_parameters(enable_algo_approxi=True)
        with pytest.raises(ContextError, match="'recursive_programming' has no enable_algo_approxi"):
            model(**AUTO, search_mode="recursive_programming").build(data())
    finally:
        ms.reset_algo_parameters()
    assert ms.get_algo_parameters("fully_use_devices") is False
    for wrong, words in (({"fully_use": True}, "there is no 'fully_use'"), ({"algo_approxi_epsilon": 2}, "at most 1")):
        with pytest.raises(ContextError, match=words):
            ms.set_algo_parameters(**wrong)


def test_a_mean_of_gradients_needs_a_mean() -> None:
    with pytest.raises(ContextError, match="gradients_mean=True with a loss of reduction='sum'"):
        model(reduction="sum", **AUTO, gradients_mean=True).build(data())


def test_fit_evaluates_after_epochs(capsys: Any) -> None:
    one = model(**AUTO)
    one.fit(3, data(), data(), valid_frequency=2)
    printed = capsys.readouterr().out
    assert printed.count("Eval result: epoch 2, metrics: {'accuracy'") == 1 and "epoch 1," not in printed
    found = one.eval(data())
    scores = np.concatenate([one.predict(rows).asnumpy() for rows in np.split(X, 4)])
    assert found["accuracy"] == (scores.argmax(1) == Y).mean()
    with pytest.raises(TrainingError, match="no metrics"):
        ms.Model(Net(), nn.MSELoss(), one.optimizer).fit(1, data(), data())


def test_layouts_are_told_without_a_step() -> None:
    one = model(**AUTO, search_mode="factor")
    before = one.network.dense1.weight.asnumpy().copy()
    told = one.infer_train_layout(data())
    assert set(told) >= {"dense1.weight", "dense1.bias", "moments.dense2.weight"}
    matrix, tensor_map, part, _, even, _ = told["dense1.weight"]
    assert np.prod(matrix) == 8 and tensor_map[0] != -1 and part == [24, 24] and even
    np.testing.assert_array_equal(one.network.dense1.weight.asnumpy(), before)
    assert set(one.infer_predict_layout(X[:16])) == {"dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"}


def test_metrics() -> None:
    scores, rows = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), np.array([1, 0, 0])
    for name, want in {"accuracy": 2 / 3, "top_1_accuracy": 2 / 3, "mae": 2.0, "mse": 2.0}.items():
        metric = metrics_of({name})[name]
        ones = np.ones((3, 2))
        metric.update(*((ones, ones + 1) if name in ("mae", "mse") else (scores, rows)))
        assert metric.eval() == pytest.approx(want)
    with pytest.raises(MetricError, match="there is no 'acuracy'"):
        metrics_of({"acuracy"})
    with pytest.raises(MetricError, match="nothing to evaluate"):
        metrics_of({"loss"})["loss"].eval()


class Counting(ms.Callback):
    """A callback as it is written for MindSpore."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def step_end(self, run_context: Any) -> None:
        told = run_context.original_args()
        assert np.isfinite(told.net_outputs)
        self.seen.append((told.cur_epoch_num, told.cur_step_num))


def test_callbacks_of_mindspore_are_called_or_refused() -> None:
    counting = Counting()
    model(parallel_mode="stand_alone").train(2, data(), callbacks=counting)
    assert counting.seen == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 7), (2, 8)]


class Telling(ms.Callback):
    """Notes which of MindSpore's methods are called, when; and asks to stop."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        for name in ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end"):
            setattr(self, name, lambda context, name=name: self.note(name, context))

    def note(self, name: str, context: Any) -> None:
        told = context.original_args()
        self.seen.append(f"{told.mode} {name} {told.cur_step_num}")
        if name == "step_begin" and told.mode == "train":
            assert told.network.dense1.weight.asnumpy().any()  # what is trained can be read before steps, too
        if name == "step_end" and told.cur_step_num == 2:
            context.request_stop()
        if name == "end" and told.mode == "eval":
            assert told.metrics["accuracy"] >= 0


def test_callbacks_hear_begins_and_stop_training() -> None:
    telling, one = Telling(), model(parallel_mode="stand_alone")
    one.metrics = metrics_of({"accuracy"})
    one.train(3, data(), callbacks=telling)
    assert telling.seen == [
        f"train {word}" for word in (
            "begin 0", "epoch_begin 0", "step_begin 1", "step_end 1", "step_begin 2", "step_end 2", "epoch_end 2",
            "end 2",
        )
    ]  # fmt: skip
    telling.seen.clear()
    one.eval([(X[:16], Y[:16])], callbacks=[telling])
    assert telling.seen == [
        f"eval {word}" for word in ("begin 0", "epoch_begin 0", "step_begin 1", "step_end 1", "epoch_end 1", "end 1")
    ]


def test_files_of_checkpoints_go_on_with_the_optimizer(tmp_path: Any) -> None:
    """MindSpore's way: what a file holds is given to the network and to the optimizer."""
    whole, first, second = model(), model(), model()
    whole.train(2, data())
    config = ms.CheckpointConfig(save_checkpoint_steps=4, async_save=True, append_info=["epoch_num", {"best": 0.5}])
    first.train(1, data(), callbacks=[ms.ModelCheckpoint("net", tmp_path, config)])
    held = ms.load_checkpoint(tmp_path / "net-1_4.safetensors")
    assert held["epoch_num"] == 1 and held["best"] == 0.5
    with pytest.raises(
        CheckpointError, match="net-1_4.safetensors is a file of parameters, which load_checkpoint reads"
    ):
        second.load(tmp_path)
    ms.load_param_into_net(second.network, held)
    ms.load_param_into_net(second.optimizer, held)
    second.train(1, data())
    for name, want in whole.network.parameters_dict().items():
        np.testing.assert_array_equal(second.network.parameters_dict()[name].asnumpy(), want.asnumpy(), err_msg=name)
    alone = ms.CheckpointConfig(saved_network=first.network.dense2)
    first.train(1, data(), callbacks=[ms.ModelCheckpoint("part", tmp_path, alone)])
    assert set(ms.load_checkpoint(tmp_path / "part-1_4.safetensors")) == {"dense2.weight", "dense2.bias"}
    for wrong, text in ({"integrated_save": False}, "ShardedCheckpoint"), ({"append_info": ["loss"]}, "'loss'; it has"):
        with pytest.raises(TrainingError, match=text):
            ms.CheckpointConfig(**wrong)


def test_datasets_shuffle_by_a_buffer() -> None:
    rows = NumpySlicesDataset(np.arange(12), "x", shuffle=False)
    near = [int(x) for (x,) in rows.shuffle(3)]
    assert sorted(near) == list(range(12)) and near != list(range(12))
    assert all(value <= place + 3 for place, value in enumerate(near))
    mixed = NumpySlicesDataset(np.arange(12), "x", shuffle=True)
    assert sorted(int(x) for (x,) in mixed) == list(range(12))


def test_rows_that_can_be_had_by_number_come_in_random_order() -> None:
    """As in MindSpore, unless it is told otherwise; a generator's come as they are."""
    rows = [(np.float32(i),) for i in range(40)]

    class ByNumber:
        def __getitem__(self, i: int) -> tuple:
            return rows[i]

        def __len__(self) -> int:
            return len(rows)

    def order(dataset: Any) -> list[int]:
        return [int(x) for (x,) in dataset]

    straight = list(range(40))
    by_number = GeneratorDataset(ByNumber(), "x")
    for one in (by_number, GeneratorDataset(rows, "x"), NumpySlicesDataset(np.arange(40), "x")):
        first, second = order(one), order(one)
        assert sorted(first) == sorted(second) == straight != first != second
    for one in (
        GeneratorDataset(lambda: iter(rows), "x"),
        GeneratorDataset(ByNumber(), "x", shuffle=False),
        NumpySlicesDataset(np.arange(40), "x", shuffle=False),
    ):
        assert order(one) == straight
    assert order(GeneratorDataset(ByNumber(), "x")) == order(GeneratorDataset(rows, "x")), "alike on all ranks"


@pytest.mark.parametrize("name", ["strategy_ckpt_save_file", "save_graphs_path"])
def test_what_cannot_be_written_is_told_before_planning(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "new")
    one = model(**AUTO, **({name: path} if name == "strategy_ckpt_save_file" else {}))
    if name == "save_graphs_path":
        ms.set_context(save_graphs=True, save_graphs_path=path)
    monkeypatch.setattr("autoshard.mindspore.sessions.planned_as_set", lambda *_: pytest.fail("planned"))
    try:
        with pytest.raises(ContextError, match=r"cannot write into .*: .*file is a file"):
            one.build(data())
    finally:
        ms.set_context(save_graphs=False, save_graphs_path=".")


@pytest.mark.parametrize(
    ("settings", "values", "ends", "best"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.5, 2.4, 1.0], 4, 2),
        ({"patience": 2, "min_delta": 1.5}, [3.0, 2.0, 2.5, 1.0], 3, 1),
        ({"monitor": "eval_accuracy", "patience": 1}, [0.1, 0.2, 0.2, 0.9], 3, 2),
        ({"monitor": "eval_loss", "mode": "max", "baseline": 5.0, "patience": 2}, [1.0, 2.0, 3.0], 2, 2),
        ({}, [3.0, 2.0, 1.0], 0, 3),
    ],
)
def test_early_stopping_restores_the_best(
    settings: dict[str, Any], values: list[float], ends: int, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, kept, begun = model(**AUTO), {}, []
    stopping = ms.EarlyStopping(restore_best_weights=True, **settings)
    name = stopping.monitor.removeprefix("eval_")

    def note(context: Any) -> None:
        given.sync()
        kept[context.epoch] = given.network.dense1.weight.asnumpy().copy()

    listeners = [ms.LambdaCallback(on_train_epoch_end=note, on_train_epoch_begin=lambda _: begun.append(1)), stopping]
    heard = iter(values)
    monkeypatch.setattr(given.metrics[name], "eval", lambda: next(heard))
    given.fit(len(values), data(), data(), callbacks=listeners)
    assert stopping.stopped_epoch == ends
    assert len(begun) == (ends or len(values))
    np.testing.assert_array_equal(given.network.dense1.weight.asnumpy(), kept[best])


def test_early_stopping_names_the_metrics_that_there_are() -> None:
    with pytest.raises(TrainingError, match="monitor is 'eval_f1'; known are loss, eval_"):
        model().fit(1, data(), data(), callbacks=ms.EarlyStopping("eval_f1"))
    with pytest.raises(TrainingError, match="mode is 'most'"):
        ms.EarlyStopping(mode="most")
    with pytest.raises(AttributeError, match="give the optimizer a rate for each step"):
        _ = ms.ReduceLROnPlateau
