"""Trains a network in two stages, the way MindSpore's scripts say it; compares with one rank.

autoshard run -n 4 train.py       4 MPI ranks: two of each stage
python train.py                   the same 4 ranks in this one process
"""

from __future__ import annotations

import sys

import numpy as np

import autoshard.mindspore as ms
import autoshard.mindspore.communication as comm
from autoshard.mindspore import Model, lazy_inline, nn, ops, set_auto_parallel_context
from autoshard.mindspore.dataset import Dataset, NumpySlicesDataset

RANKS, STAGES, MICRO_BATCHES = 4, 2, 4
BATCH, SIZE, CLASSES, EPOCHS = 64, 32, 8, 3
TOLERANCE = 1e-5


class Block(nn.Cell):
    @lazy_inline
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((SIZE,))
        self.up, self.gelu, self.down = nn.Dense(SIZE, 4 * SIZE), nn.GELU(), nn.Dense(4 * SIZE, SIZE)
        self.add = ops.Add()

    def construct(self, x):
        return self.add(x, self.down(self.gelu(self.up(self.norm(x)))))


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.begin, self.end = nn.Dense(SIZE, SIZE), nn.Dense(SIZE, CLASSES)
        blocks = [Block() for _ in range(4)]
        for i, block in enumerate(blocks):
            block.pipeline_stage = i * STAGES // len(blocks)
            block.up.matmul.shard(((1, 1), (2, 1)))  # strategies are for the devices of one stage
        self.blocks = nn.CellList(blocks)
        self.begin.pipeline_stage, self.end.pipeline_stage = 0, STAGES - 1

    def construct(self, x):
        x = self.begin(x)
        for block in self.blocks:
            x = block(x)
        return self.end(x)


def dataset() -> Dataset:
    points = np.random.default_rng(3).normal(size=(8 * BATCH, SIZE)).astype(np.float32)
    labels = (points[:, :CLASSES] + points[:, -CLASSES:]).argmax(-1).astype(np.int32)
    return NumpySlicesDataset((points, labels), ["input", "label"], shuffle=False).batch(BATCH)


def train(**parallel) -> tuple[Model, list[float]]:
    """A network that was trained under these settings, and the loss of every step."""
    ms.set_seed(1)
    set_auto_parallel_context(**parallel)
    net = Network()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    history = ms.History()
    model = Model(nn.PipelineCell(nn.WithLossCell(net, loss), MICRO_BATCHES), optimizer=optimizer)
    model.train(EPOCHS, dataset(), callbacks=[ms.LossMonitor(8), history])
    return model, history.losses


def main() -> None:
    comm.init()
    stages = {"pipeline_stages": STAGES, "pipeline_config": {"pipeline_scheduler": "1f1b"}}
    auto = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", "full_batch": True}
    model, losses = train(**auto, device_num=RANKS, **stages)
    if comm.get_rank() != 0:
        return
    print(model.planned.report())
    print("\nwithout stages, on one rank:")
    _, expected = train(parallel_mode="stand_alone")
    difference = float(np.abs(np.array(losses) - expected).max() / np.abs(expected).max())
    print(f"\nlargest relative difference of a loss: {difference:.1e}")
    if difference > TOLERANCE:
        sys.exit(f"{STAGES} stages and one rank differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
