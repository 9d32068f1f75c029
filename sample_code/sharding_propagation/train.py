"""Trains a feed-forward network on all ranks from one annotated operator; compares with one rank.

    bash run.sh 8                                  8 MPI ranks
    python train.py                                8 ranks in this one process
    autoshard plan train.py:forward -n 8           the plan alone

The network, and the way to write it, are those of MindSpore's tutorial on sharding propagation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import autoshard as ash
import autoshard.mindspore as ms
import autoshard.mindspore.communication as comm
from autoshard.mindspore import Model, Parameter, Tensor, nn, ops, set_auto_parallel_context, set_context
from autoshard.mindspore.dataset import NumpySlicesDataset
from costmodel import format_bytes, format_seconds

RANKS = comm.get_group_size() if comm.get_group_size() > 1 else 8
BATCH, SIZE, EPOCHS = 64, 64, 4
TOLERANCE = 1e-5
HERE = Path(__file__).parent
random = np.random.default_rng(2)


class Dense(nn.Cell):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight = random.normal(0, inputs**-0.5, (inputs, outputs))
        self.weight = Parameter(Tensor(weight, ms.float32), name="weight")
        self.bias = Parameter(Tensor(np.zeros(outputs), ms.float32), name="bias")
        self.matmul = ops.MatMul()
        self.add = ops.Add()

    def construct(self, x):
        x = self.matmul(x, self.weight)
        x = self.add(x, self.bias)
        return x


class FFN(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense1 = Dense(SIZE, SIZE)
        self.relu = ops.ReLU()
        self.dense2 = Dense(SIZE, SIZE)
        self.dense1.matmul.shard(((2, 1), (1, RANKS // 2)))

    def construct(self, x):
        x = self.dense1(x)
        x = self.relu(x)
        x = self.dense2(x)
        return x


def forward() -> tuple[FFN, tuple]:
    """The network without training, for `autoshard plan`."""
    return FFN(), (np.zeros((BATCH, SIZE), np.float32),)


def dataset() -> NumpySlicesDataset:
    """Random points, each labelled with one of 64 classes by a teacher: another network of the same form."""
    points = np.random.default_rng(3).normal(size=(8 * BATCH, SIZE)).astype(np.float32)
    scores = TEACHER(points)
    labels = np.eye(SIZE, dtype=np.float32)[scores.argmax(-1)]
    return NumpySlicesDataset((points, labels), ["input", "label"]).batch(BATCH)


def train(net: FFN, **parallel) -> tuple[Model, list[float]]:
    """The loss of every step, under the given parallel settings."""
    set_auto_parallel_context(**parallel)
    history = ms.History()
    optimizer = nn.Momentum(net.trainable_params(), 0.5, 0.9)
    model = Model(net, nn.SoftmaxCrossEntropyWithLogits(reduction="mean"), optimizer)
    model.train(EPOCHS, dataset(), callbacks=[history])
    return model, history.losses


def difference(found, expected) -> float:
    """The largest difference, relative to the largest expected value."""
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


def show_losses(losses: list[float]) -> None:
    print(f"\nloss of {len(losses)} steps, {EPOCHS} epochs")
    for epoch in np.reshape(losses, (EPOCHS, -1)):
        print(" ".join(f"{loss:6.3f}" for loss in epoch), " ", "#" * round(8 * epoch.mean()))


def main() -> None:
    comm.init()
    net, alone = FFN(), FFN()
    ms.load_param_into_net(alone, {name: one.asnumpy() for name, one in net.parameters_dict().items()})
    set_context(mode=ms.GRAPH_MODE, save_graphs=2, save_graphs_path=HERE)
    auto = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"}
    model, losses = train(net, **auto, device_num=RANKS, full_batch=True)
    if comm.get_rank() != 0:
        return
    print(ash.plan(*forward(), devices=RANKS).report())
    cost = model.planned.cost
    print(f"a training step is predicted to take {format_seconds(cost.seconds)} on each of {RANKS} devices,")
    print(f"which sends {format_bytes(cost.bytes_per_device)}; dumps are in {HERE}/rank_*/")
    show_losses(losses)

    set_context(save_graphs=0)
    _, expected = train(alone, parallel_mode="stand_alone")
    step = max(map(difference, losses, expected))
    pairs = zip(net.parameters_dict().values(), alone.parameters_dict().values(), strict=True)
    final = max(difference(ours.asnumpy(), theirs.asnumpy()) for ours, theirs in pairs)
    print(f"\nlargest relative difference from one rank: loss of a step {step:.1e}, parameters {final:.1e}")
    if max(step, final) > TOLERANCE:
        sys.exit(f"{RANKS} ranks and one rank differ by more than {TOLERANCE}")


TEACHER = FFN()

if __name__ == "__main__":
    main()
