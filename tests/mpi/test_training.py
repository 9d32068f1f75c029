"""Training with one process per rank, for any number of ranks: `mpiexec -n N python -m pytest tests/mpi`.

Every rank also trains alone, in its own process, and compares.
"""

from __future__ import annotations

import numpy as np
import pytest

import autoshard as ash
from autoshard import Model, Parameter, communication, nn, ops
from autoshard.mindspore.dataset import DataError, NumpySlicesDataset

communication.init()
RANK, RANKS = communication.get_rank(), communication.get_group_size()
BATCH = 12 * RANKS
"""Rows of a whole batch: every number of ranks divides them."""


class FFN(nn.Cell):
    """12 -> 24 -> 6; on an even number of ranks the first MatMul is configured as the tutorial's."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.dense1 = nn.Dense(
            12, 24, weight_init=random.normal(0, 0.3, (24, 12)).astype(np.float32), bias_init="zeros"
        )
        self.relu = ops.ReLU()
        self.dense2 = nn.Dense(24, 6, weight_init=random.normal(0, 0.3, (6, 24)).astype(np.float32), bias_init="zeros")
        if RANKS % 2 == 0 and 24 % (RANKS // 2) == 0:
            self.dense1.matmul.shard(((2, 1), (RANKS // 2, 1)))

    def construct(self, x):
        return self.dense2(self.relu(self.dense1(x)))


def rows(seed: int = 0, batches: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(batches, BATCH, 12)).astype(np.float32)
    labels = np.eye(6, dtype=np.float32)[random.integers(0, 6, (batches, BATCH))]
    return list(zip(x, labels, strict=True))


def train(net, data, optimizer=None, callbacks=(), **settings) -> list[float]:
    ash.reset_auto_parallel_context()
    ash.set_auto_parallel_context(**settings)
    optimizer = optimizer or nn.Momentum(net.trainable_params(), 0.1, 0.9)
    history = ash.History()
    loss = nn.SoftmaxCrossEntropyWithLogits(reduction="mean")
    Model(net, loss, optimizer).train(2, data, callbacks=[history, *callbacks])
    return history.losses


def assert_alike(net, losses, optimizer=None, seed: int = 0) -> None:
    """The same as training on one rank, in this process."""
    alone = FFN(seed)
    expected = train(alone, rows(), optimizer and optimizer(alone), parallel_mode="stand_alone")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, one in alone.parameters_dict().items():
        found = net.parameters_dict()[name].asnumpy()
        np.testing.assert_allclose(found, one.asnumpy(), rtol=1e-4, atol=1e-5)


AUTO = {"parallel_mode": "auto_parallel", "full_batch": True}


@pytest.mark.parametrize("settings", [AUTO, {"parallel_mode": "semi_auto_parallel", "full_batch": True}])
def test_full_batch(settings):
    net = FFN()
    assert_alike(net, train(net, rows(), device_num=RANKS, **settings))


def test_device_count_is_that_of_the_ranks():
    net = FFN()
    assert_alike(net, train(net, rows(), **AUTO))


def test_adam():
    def adam(net):
        return nn.Adam(net.trainable_params(), 0.01, eps=1e-4)

    net = FFN()
    assert_alike(net, train(net, rows(), adam(net), **AUTO), adam)


@pytest.mark.parametrize("mode", ["data_parallel", "auto_parallel"])
def test_each_rank_feeds_its_part(mode):
    net, each = FFN(), BATCH // RANKS
    own = [tuple(one[RANK * each : (RANK + 1) * each] for one in row) for row in rows()]
    # As in MindSpore, data_parallel adds the ranks' gradients unless their mean is asked for.
    settings = {"gradients_mean": True} if mode == "data_parallel" else {}
    assert_alike(net, train(net, own, parallel_mode=mode, dataset_strategy="data_parallel", **settings))


def test_parameters_of_the_first_rank_count():
    net = FFN(seed=RANK)
    assert_alike(net, train(net, rows(), **AUTO))


def test_data_of_the_first_rank_counts_where_all_should_be_alike():
    net = FFN()
    assert_alike(net, train(net, rows(seed=RANK), **AUTO))


def test_predict_and_eval_are_alike_on_all_ranks():
    net = FFN()
    x, label = rows()[0]
    ash.set_auto_parallel_context(**AUTO)
    model = Model(net, nn.SoftmaxCrossEntropyWithLogits(), nn.SGD(net.trainable_params(), 0.1))
    np.testing.assert_allclose(model.predict(x), net(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.eval([(x, label)]), model.loss_fn(net(x), label).mean(), rtol=1e-5)


def test_planned_runs_on_these_ranks():
    net = FFN()
    x = rows()[0][0]
    np.testing.assert_allclose(ash.plan(net, (x,)).run(x), net(x), rtol=1e-4, atol=1e-5)


def test_first_rank_prints_and_writes(tmp_path, capsys):
    net = FFN()
    saver = ash.ModelCheckpoint(directory=tmp_path, config=ash.CheckpointConfig(0))
    train(net, rows(), callbacks=[ash.LossMonitor(6), saver], **AUTO)
    assert capsys.readouterr().out.count("loss is") == (RANK == 0)
    assert [one.name for one in tmp_path.iterdir()] == ["CKP-2_3.safetensors"] * (RANK == 0)


def test_each_rank_dumps_its_own_program(tmp_path):
    ash.set_context(save_graphs=2, save_graphs_path=tmp_path)
    train(FFN(), rows(), **AUTO)
    expected = [f"rank_{RANK}"] if RANKS > 1 else ["rank_0"]
    assert [one.name for one in tmp_path.iterdir()] == expected


@pytest.mark.skipif(RANKS == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize(
    "wrong, words",
    [
        (
            lambda data: data[:2],
            f"epoch 1, step 3: the data of ranks 0.* goes on, that of ranks {RANKS - 1} has ended",
        ),
        (
            lambda data: [(x[:6], y[:6]) for x, y in data],
            "step 1: ranks .* read data of different shapes or types",
        ),
        (
            lambda data: [(x.astype(np.float64), y) for x, y in data],
            "different shapes or types; this rank has f",
        ),
    ],
)
def test_ranks_that_disagree_say_so(wrong, words):
    data = wrong(rows()) if RANK == RANKS - 1 else rows()
    with pytest.raises(DataError, match=words):
        train(FFN(), data, **AUTO)


def test_shuffled_batches_are_alike():
    x, labels = (np.concatenate(column) for column in zip(*rows(), strict=True))
    data = lambda: NumpySlicesDataset((x, labels)).shuffle(seed=4).batch(BATCH)  # noqa: E731
    net, alone = FFN(), FFN()
    losses = train(net, data(), **AUTO)
    np.testing.assert_allclose(losses, train(alone, data(), parallel_mode="stand_alone"), rtol=1e-5)


def test_scalar_parameter_and_state():
    class Scaled(FFN):
        def __init__(self):
            super().__init__()
            self.scale = Parameter(np.float32(2.0))

        def construct(self, x):
            return super().construct(x) * self.scale

    net, alone = Scaled(), Scaled()
    losses = train(net, rows(), nn.AdamW(net.trainable_params(), 0.01, eps=1e-4), **AUTO)
    expected = train(alone, rows(), nn.AdamW(alone.trainable_params(), 0.01, eps=1e-4), parallel_mode="stand_alone")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert net.scale.shape == ()
