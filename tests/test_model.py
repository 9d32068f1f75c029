"""Model: training on ranks equals training on one device in every mode; callbacks, checkpoints, errors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import autoshard as ash
import autoshard.mindspore as ms
from autoshard import Model, Parameter, nn, ops
from autoshard.mindspore import set_seed
from autoshard.mindspore.callbacks import TrainingError
from autoshard.mindspore.checkpoint import CheckpointError
from autoshard.mindspore.dataset import DataError, NumpySlicesDataset
from autoshard.mindspore.shown import InTraining
from autoshard.util.errors import AutoshardError, ContextError, GraphError, StrategyError

AUTO = {"parallel_mode": "auto_parallel", "full_batch": True}


class Net(nn.Cell):
    """12 -> 24 -> 6, one operator annotated; `strategy` None leaves everything open."""

    def __init__(self, strategy=((2, 1), (3, 1)), dropout: float = 0.0) -> None:
        super().__init__()
        self.dense1 = nn.Dense(12, 24)
        self.relu = ops.ReLU()
        self.dropout = nn.Dropout(p=dropout, seed=5)
        self.dense2 = nn.Dense(24, 6)
        if strategy is not None:
            self.dense1.matmul.shard(strategy)

    def construct(self, x):
        return self.dense2(self.dropout(self.relu(self.dense1(x))))


def data(rows: int = 36, batch: int = 12, seed: int = 0) -> NumpySlicesDataset:
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 12)).astype(np.float32)
    labels = np.eye(6, dtype=np.float32)[(x @ random.normal(size=(12, 6))).argmax(-1)]
    return NumpySlicesDataset((x, labels), ["input", "label"], shuffle=False).batch(batch)


def copy_of(net: Net, **changes) -> Net:
    other = Net(**changes)
    ash.load_param_into_net(other, {name: one.asnumpy() for name, one in net.parameters_dict().items()})
    return other


def momentum(net):
    return nn.Momentum(net.trainable_params(), 0.05, 0.9, weight_decay=0.01)


def train(net, optimizer=momentum, dataset=None, epochs=2, loss=None, **settings) -> list[float]:
    """The losses of all steps under these parallel settings (none: one device)."""
    ash.reset_auto_parallel_context()
    ash.set_auto_parallel_context(**settings)
    history = ash.History()
    loss = loss or nn.SoftmaxCrossEntropyWithLogits(reduction="mean")
    Model(net, loss, optimizer(net)).train(epochs, dataset or data(), callbacks=history)
    return history.losses


def assert_like_one_device(net, optimizer=momentum, dataset=None, loss=None, tolerance=2e-5, **settings):
    alone = copy_of(net)
    alone.dropout.rate, alone.dropout.dropout = net.dropout.rate, net.dropout.dropout
    losses = train(net, optimizer, dataset, loss=loss, **settings)
    np.testing.assert_allclose(losses, train(alone, optimizer, dataset, loss=loss), rtol=tolerance)
    for ours, theirs in zip(net.parameters_dict().values(), alone.parameters_dict().values(), strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=10 * tolerance, atol=tolerance)
    return losses


def test_evaluation_takes_batches_of_several_sizes():
    ash.set_auto_parallel_context(**MESH, **AUTO)
    net = Net()
    rows = [tuple(column[:size] for column in row) for row, size in zip(data(), (12, 6, 12), strict=True)]
    loss = nn.SoftmaxCrossEntropyWithLogits(reduction="mean")
    found = Model(net, loss).eval(rows)
    ash.reset_auto_parallel_context()
    assert found == pytest.approx(np.mean([float(loss(net(x), label)) for x, label in rows]), rel=1e-5)


MESH = {"mesh": "dp=2 tp=3"}


@pytest.fixture(autouse=True)
def same_first_weights():
    set_seed(1)


@pytest.mark.parametrize(
    "settings",
    [
        {**AUTO, **MESH},
        {**AUTO, **MESH, "search_mode": "batch"},
        {"parallel_mode": "auto_parallel", **MESH},
        {"parallel_mode": "semi_auto_parallel", **MESH, "full_batch": True},
        {"parallel_mode": "data_parallel", "device_num": 6, "gradients_mean": True},
        {"parallel_mode": "data_parallel", "device_num": 4, "full_batch": True, "gradients_mean": True},
        {**AUTO, **MESH, "dataset_strategy": ((2, 3), (2, 1))},
    ],
)
def test_ranks_equal_one_device(settings):
    if "dataset_strategy" in settings:
        settings.pop("full_batch")
    losses = assert_like_one_device(Net(), **settings)
    assert np.mean(losses[3:]) < np.mean(losses[:3])


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda net: nn.SGD(net.trainable_params(), 0.1),
        lambda net: nn.Momentum(net.trainable_params(), [0.1, 0.05, 0.01], 0.9, use_nesterov=True),
        lambda net: nn.AdamW(net.trainable_params(), 0.01, eps=1e-4),
        lambda net: ms.nn.Momentum(net.trainable_params(), ms.nn.CosineDecayLR(0.01, 0.1, 4), 0.9),
    ],
)
def test_optimizers(optimizer):
    assert_like_one_device(Net(), optimizer, **AUTO, **MESH)


@pytest.mark.parametrize("settings", [{**AUTO, **MESH}, {"parallel_mode": "data_parallel", "device_num": 3}])
def test_gradients_of_micro_batches_are_added_up(settings):
    net = Net()
    other = copy_of(net)
    whole = train(net, **settings)
    in_parts = train(other, grad_accumulation_step=2, **settings)
    np.testing.assert_allclose(in_parts, whole, rtol=1e-5)


def test_micro_batches_that_do_not_divide_a_batch_are_refused():
    with pytest.raises(AutoshardError, match="5"):
        train(Net(), grad_accumulation_step=5)


def test_layout_annotation_and_eight_devices():
    layout = ash.Layout((2, 4), ("dp", "mp"))
    net = Net(strategy=(layout("dp", "None"), layout("mp", "None")))
    assert_like_one_device(net, **AUTO, mesh="dp=2 mp=4")


def test_no_annotation_at_all():
    assert_like_one_device(Net(strategy=None), **AUTO, device_num=4)


def test_dropout_does_not_depend_on_the_split():
    net = Net(dropout=0.5)
    assert_like_one_device(net, **AUTO, **MESH)
    assert int(net.dropout.counter.asnumpy()) == 6


def test_loss_per_row_trains_its_sum_and_shows_its_mean():
    ones = lambda: nn.SoftmaxCrossEntropyWithLogits()  # noqa: E731
    net = Net()
    alone = copy_of(net)
    small = lambda net: nn.SGD(net.trainable_params(), 0.01)  # noqa: E731
    losses = assert_like_one_device(net, small, loss=ones(), **AUTO, **MESH)
    large = lambda net: nn.SGD(net.trainable_params(), 0.12)  # noqa: E731
    np.testing.assert_allclose(losses, train(alone, large), rtol=1e-4)


def test_last_batch_may_be_shorter():
    assert_like_one_device(Net(), dataset=data(rows=30), **AUTO, **MESH)


def test_parameters_that_do_not_train_stay():
    net = Net()
    net.dense1.weight.requires_grad = False
    before = net.dense1.weight.asnumpy().copy()
    train(net, **AUTO, **MESH)
    assert (net.dense1.weight.asnumpy() == before).all()
    assert net.dense1.bias.asnumpy().any()


def test_network_that_returns_its_loss():
    class WithLoss(Net):
        def construct(self, x, label):
            return ops.reduce_mean(ops.square(super().construct(x) - label))

    ash.set_auto_parallel_context(**AUTO, **MESH)
    net, history = WithLoss(), ash.History()
    Model(net, optimizer=momentum(net)).train(3, data(), callbacks=[history])
    assert len(history.losses) == 9 and history.epoch_losses[-1] < history.epoch_losses[0]
    np.testing.assert_allclose(history.epoch_losses[0], np.mean(history.losses[:3]))


def test_training_goes_on_where_it_stopped():
    net = Net()
    alone = copy_of(net)
    ash.set_auto_parallel_context(**AUTO, **MESH)
    model, history = (
        Model(net, nn.SoftmaxCrossEntropyWithLogits(reduction="mean"), momentum(net)),
        ash.History(),
    )
    model.train(1, data(), callbacks=[history])
    model.train(1, data(), callbacks=[history])
    np.testing.assert_allclose(history.losses, train(alone), rtol=2e-5)


# -- eval and predict ----------------------------------------------------------------------------------------


def test_predict_equals_the_eager_network():
    net = Net(dropout=0.5)
    ash.set_auto_parallel_context(**AUTO, **MESH)
    x = np.random.default_rng(1).normal(size=(10, 12)).astype(np.float32)
    model = Model(net)
    np.testing.assert_allclose(model.predict(x), net(x), rtol=1e-5, atol=1e-6)
    net.dense2.bias.set_data(np.arange(6, dtype=np.float32))
    np.testing.assert_allclose(model.predict(x), net(x), rtol=1e-5, atol=1e-6)


def test_eval_is_the_mean_loss_and_changes_nothing():
    net, loss = Net(dropout=0.5), nn.SoftmaxCrossEntropyWithLogits()
    ash.set_auto_parallel_context(**AUTO, **MESH)
    model = Model(net, loss, momentum(net))
    expected = np.mean([np.mean(loss(net(x), label)) for x, label in data()])
    np.testing.assert_allclose(model.eval(data()), expected, rtol=1e-5)
    model.train(1, data())
    assert net.training
    after = model.eval(data())
    assert net.training
    net.set_train(False)
    np.testing.assert_allclose(after, np.mean([np.mean(loss(net(x), label)) for x, label in data()]), rtol=1e-5)


# -- callbacks and checkpoints -------------------------------------------------------------------------------


class Recorder(ash.Callback):
    def __init__(self):
        self.seen = []

    def on_train_begin(self, progress):
        self.seen.append("begin")

    def on_step_end(self, progress):
        self.seen.append((progress.epoch, progress.step, progress.total_steps))

    def on_epoch_end(self, progress):
        self.seen.append(("epoch", progress.epoch))

    def on_train_end(self, progress):
        self.seen.append("end")


def test_callbacks_are_called_in_order():
    net, recorder = Net(), Recorder()
    Model(net, nn.MSELoss(), momentum(net)).train(2, data(24), callbacks=[recorder])
    assert recorder.seen == [
        "begin", (1, 1, 1), (1, 2, 2), ("epoch", 1), (2, 1, 3), (2, 2, 4), ("epoch", 2), "end",
    ]  # fmt: skip


def test_monitors_print(capsys):
    net = Net()
    monitors = [ash.LossMonitor(2), ash.LossMonitor(0), ash.TimeMonitor()]
    Model(net, nn.MSELoss(), momentum(net)).train(1, data(), callbacks=monitors)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch: 1 step: 2, loss is ")
    assert lines[1].startswith("epoch: 1 step: 3, loss is ")
    assert lines[2].startswith("epoch: 1, ") and lines[2].endswith(" ms a step")


def test_sync_brings_parameters_into_the_cells():
    net = Net()

    class Watch(ash.Callback):
        biases = []

        def on_step_end(self, progress):
            progress.model.sync()
            self.biases.append(net.dense2.bias.asnumpy().copy())

    ash.set_auto_parallel_context(**AUTO, **MESH)
    Model(net, nn.MSELoss(), momentum(net)).train(1, data(), callbacks=Watch())
    first, second, third = Watch.biases
    assert (first != second).any() and (second != third).any()
    assert (third == net.dense2.bias.asnumpy()).all()


class Clamp(ash.Callback):
    """Weights kept small, as a WGAN's critic has them, in MindSpore's words; and an average of what they were."""

    def __init__(self, sync=False):
        self.sync, self.average, self.seen = sync, None, []

    def on_train_step_end(self, run_context):
        if self.sync:
            run_context.model.sync()
        asked = run_context.original_args()
        self.seen.append((asked.cur_step_num - 1) % asked.batch_num + 1)
        for one in asked.network.trainable_params():
            one.set_data(np.clip(one.asnumpy(), -0.2, 0.2))
        weight = np.array(asked.network.dense1.weight.asnumpy())
        self.average = weight if self.average is None else 0.9 * self.average + 0.1 * weight


def clamped(settings, rows, **train):
    """Network and callback after two epochs."""
    ash.reset_auto_parallel_context()
    ms.set_seed(4)
    ash.set_auto_parallel_context(**settings)
    net, clamp = Net(), Clamp()
    Model(net, nn.MSELoss(), momentum(net)).train(2, rows, callbacks=[ash.LossMonitor(2), clamp], **train)
    return net, clamp


@pytest.mark.parametrize("settings", [{**AUTO, **MESH}, {"parallel_mode": "data_parallel", "device_num": 2}])
def test_callbacks_read_and_write_what_is_trained(settings):
    """What a step left, and what the next one goes on with; however it is split as on one device."""
    settings = {"gradients_mean": True, **settings}
    (one, alone), (many, split) = clamped({}, data()), clamped({"full_batch": True, **settings}, data())
    assert alone.seen == split.seen == [1, 2, 3] * 2
    np.testing.assert_allclose(split.average, alone.average, rtol=1e-4, atol=1e-6)
    for left, right in zip(one.trainable_params(), many.trainable_params(), strict=True):
        np.testing.assert_allclose(right.asnumpy(), left.asnumpy(), rtol=1e-4, atol=1e-6)
        assert np.abs(left.asnumpy()).max() <= 0.2


def test_where_each_rank_is_a_process_reading_says_to_bring_values_together():
    one = Parameter(np.ones(3, np.float32), name="weight")
    session = SimpleNamespace(comm=SimpleNamespace(ranks=(0,), world=2))
    one.data = InTraining(one, session)
    assert one.shape == (3,)
    with pytest.raises(TrainingError, match=r"weight is read at .*test_model.py:\d+ while .*run_context.model.sync"):
        one.asnumpy()


def test_a_callback_that_fails_leaves_the_cells_as_they_were():
    net = Net()
    before = net.dense1.weight.asnumpy().copy()

    class Fails(ash.Callback):
        def on_step_end(self, progress):
            assert (net.dense1.weight.asnumpy() != before).any()
            raise KeyError("own")

    ash.set_auto_parallel_context(**AUTO, **MESH)
    with pytest.raises(KeyError, match="own"):
        Model(net, nn.MSELoss(), momentum(net)).train(1, data(), callbacks=Fails())
    assert np.isfinite(net.dense1.weight.asnumpy()).all()


def test_checkpoints_are_kept_and_load(tmp_path):
    net = Net()
    config = ash.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2)
    ash.set_auto_parallel_context(**AUTO, **MESH)
    saver = ash.ModelCheckpoint("ffn", tmp_path / "deep", config)
    Model(net, nn.MSELoss(), momentum(net)).train(2, data(60), callbacks=[saver])
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == [
        "ffn-2_3.safetensors",
        "ffn-2_5.safetensors",
    ]
    fresh = Net()
    held = ash.load_checkpoint(tmp_path / "deep" / "ffn-2_5.safetensors")
    report = ash.load_param_into_net(fresh, held)
    assert not report.missing and set(report.unexpected) == {f"moments.{one.name}" for one in net.trainable_params()}
    assert ash.load_param_into_net(fresh, held, strict_load=True) == report  # states may be there besides
    alone = ash.load_param_into_net(fresh, {name: held[name] for name in net.parameters_dict()})
    assert not alone and str(alone) == "all parameters were loaded"
    for name, one in net.parameters_dict().items():
        assert (fresh.parameters_dict()[name].asnumpy() == one.asnumpy()).all()


def test_checkpoint_is_whole_or_old(tmp_path, monkeypatch):
    path = ash.save_checkpoint({"w": np.arange(6.0)}, tmp_path / "w.safetensors")

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(CheckpointError, match="w.safetensors: No space left"):
        ash.save_checkpoint({"w": np.zeros(6)}, path)
    monkeypatch.undo()
    assert ash.load_checkpoint(path)["w"].tolist() == [0, 1, 2, 3, 4, 5]
    assert [one.name for one in tmp_path.iterdir()] == ["w.safetensors"]


def test_checkpoint_refusals(tmp_path):
    net = Net()
    (tmp_path / "bad").write_bytes(b"no tensors in here")
    with pytest.raises(CheckpointError, match="bad: it is no safetensors file"):
        ash.load_checkpoint(tmp_path / "bad")
    with pytest.raises(CheckpointError, match="missing: No such file"):
        ash.load_checkpoint(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="holds no parameters"):
        ash.save_checkpoint({}, tmp_path / "none")
    given = {"dense1.bias": np.zeros(24, np.float32), "extra": np.zeros(4)}
    report = ash.load_param_into_net(net, given)
    assert report.unexpected == ("extra",) and "dense2.weight" in report.missing
    with pytest.raises(CheckpointError, match="not in the checkpoint: dense1.weight.*not in the network: extra"):
        ash.load_param_into_net(net, given, strict_load=True)
    with pytest.raises(CheckpointError, match=r"dense1.bias.*checkpoint has shape \(10,\), the network \(24,\)"):
        ash.load_param_into_net(net, {"dense1.bias": np.zeros(10)})


# -- dumps ---------------------------------------------------------------------------------------------------


def test_save_graphs_writes_every_rank(tmp_path):
    ash.set_context(save_graphs=2, save_graphs_path=tmp_path)
    train(Net(), epochs=1, **AUTO, **MESH)
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"rank_{rank}" for rank in range(6)]
    names = sorted(one.name for one in (tmp_path / "rank_4").iterdir())
    assert [name.rstrip("0123456789.ir").strip("_") for name in names] == [
        "02_validate", "step_parallel_begin", "step_parallel_end",
    ]  # fmt: skip
    begin = next((tmp_path / "rank_4").glob("step_parallel_begin_*")).read_text()
    assert "in_strategy: ((2, 1), (3, 1))" in begin and "%para1_input" in begin


# -- what it refuses -----------------------------------------------------------------------------------------


def test_refusals(tmp_path):
    net = Net()
    loss, optimizer = nn.MSELoss(), momentum(net)
    with pytest.raises(TrainingError, match="no optimizer; give one"):
        Model(net, loss).train(1, data())
    with pytest.raises(TrainingError, match="network is 3; it is a Cell"):
        Model(3, loss)
    model = Model(net, loss, optimizer)
    with pytest.raises(TrainingError, match="epoch is 0"):
        model.train(0, data())
    with pytest.raises(TrainingError, match="dataset_sink_mode=True"):
        model.train(1, data(), dataset_sink_mode=True)
    with pytest.raises(TrainingError, match=r"resume is 'folder'; it must be True or False; load\(directory\) takes"):
        model.train(1, data(), resume="folder")  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="is no Callback"):
        model.train(1, data(), callbacks=[print])
    with pytest.raises(DataError, match=r"epoch 1: the dataset is 5 \(int\); it must give rows one after the other"):
        model.train(1, 5)
    with pytest.raises(GraphError, match="a row of the dataset has 1 column, the last is the label: "):
        model.train(1, [np.ones((4, 6), np.float32)])
    with pytest.raises(TrainingError, match="no rows in epoch 1"):
        model.train(1, [])
    with pytest.raises(TrainingError, match="no rows in epoch 2"):
        model.train(2, iter(data()))
    with pytest.raises(TrainingError, match="eval: the dataset has no rows"):
        model.eval([])
    with pytest.raises(TrainingError, match="per_print_times is -1"):
        ash.LossMonitor(-1)
    ash.set_context(mode=ash.PYNATIVE_MODE)
    with pytest.raises(ContextError, match="Model runs whole graphs"):
        model.train(1, data())


def test_data_that_does_not_fit():
    net = Net()
    ash.set_auto_parallel_context(**AUTO, **MESH)
    model = Model(net, nn.MSELoss(), momentum(net))
    x, label = next(iter(data()))
    broken = x.copy()
    broken[4, 10] = np.nan
    with pytest.raises(DataError, match=r"epoch 1, step 2: column input0 f32\[12, 12\] has a NaN at \(4, 10\)"):
        model.train(1, [(x, label), (broken, label)])
    with pytest.raises(DataError, match="step 1: column input1 holds <U2"):
        model.train(1, [(x, np.array(["no"]))])
    with pytest.raises(AutoshardError, match="dense1.matmul.*MatMul"):
        model.train(1, [(x[:, :10], label)])
    with pytest.raises(StrategyError, match="dense1.matmul.*test_model.py:.* has size 5, which 2 parts do not"):
        model.train(1, [(x[:5], label[:5])])
    ash.set_auto_parallel_context(dataset_strategy="data_parallel")
    with pytest.raises(AutoshardError, match=r"splits input0: f32\[10, 12\].*do not divide"):
        model.train(1, [(x[:10], label[:10])])


def test_loss_that_is_no_number():
    net = Net()
    net.dense2.bias.set_data(np.full(6, np.inf, np.float32))
    with (
        pytest.raises(TrainingError, match="the loss is (nan|inf) at epoch 1 step 1"),
        np.errstate(all="ignore"),
    ):
        Model(net, nn.MSELoss(), momentum(net)).train(1, data(), callbacks=[ash.LossMonitor()])


def test_conflict_on_a_shared_parameter_names_both_lines():
    class Twice(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(np.ones((12, 12), np.float32))
            self.first = ops.MatMul().shard(((1, 1), (1, 2)))
            self.second = ops.MatMul().shard(((1, 2), (2, 1)))

        def construct(self, x):
            return self.second(self.first(x, self.weight), self.weight)

    net = Twice()
    ash.set_auto_parallel_context(**AUTO, device_num=2, search_mode="sharding_propagation")
    with pytest.raises(StrategyError, match="shared parameter weight .*test_model.py:.*test_model.py:"):
        Model(net).predict(np.ones((4, 12), np.float32))
