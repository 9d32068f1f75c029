"""What the ranks of `test_hosts.py` run: training that saves after each step, and goes on from what is saved.

    hosts_training.py FOLDER STEPS SECONDS

A rank writes the name of its host to FOLDER/hosts, and rank 0 the loss of each step to FOLDER/losses. Each step takes
at least so many seconds, so that a host can be lost meanwhile.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import numpy as np

from autoshard import Parameter, nn, ops
from autoshard.mindspore import Callback, Model, reset_auto_parallel_context, set_auto_parallel_context
from autoshard.mindspore.callbacks import ShardedCheckpoint
from autoshard.mindspore.communication import get_group_size, get_rank
from autoshard.mindspore.dataset import Dataset, NumpySlicesDataset
from autoshard.runtime.checkpoint import checkpoints

BATCHES = 4


class Net(nn.Cell):
    """12 -> 20 -> 6; the first weight is split by columns over all ranks."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        self.first = Parameter(rng.normal(0, 0.3, (12, 20)).astype(np.float32), name="first")
        self.second = Parameter(rng.normal(0, 0.3, (20, 6)).astype(np.float32), name="second")
        self.matmul, self.relu = ops.MatMul(), ops.ReLU()
        self.matmul.shard(((1, 1), (1, parts)))

    def construct(self, x):
        return ops.MatMul()(self.relu(self.matmul(x, self.first)), self.second)


class Log(Callback):
    """Writes each loss down, and takes its time."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.path, self.seconds = folder / "losses", seconds

    def on_step_end(self, progress) -> None:
        if not get_rank():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{(progress.epoch - 1) * BATCHES + progress.step} {progress.loss:.7f} {get_group_size()}\n")
        time.sleep(self.seconds)


def model(ranks: int) -> Model:
    """The net with Momentum, on so many ranks."""
    reset_auto_parallel_context()
    set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="bfs", device_num=ranks, full_batch=True)
    net = Net(ranks)
    return Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))


def data() -> Dataset:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(8 * BATCHES, 12)), rng.normal(size=(8 * BATCHES, 6))
    return NumpySlicesDataset((x.astype(np.float32), y.astype(np.float32)), shuffle=False).batch(8)


def main(folder: Path, epochs: int, seconds: float) -> None:
    """Train, from the newest checkpoint if there is one."""
    with (folder / "hosts").open("a", encoding="utf-8") as file:
        file.write(f"{get_rank()} {get_group_size()} {socket.gethostname()}\n")
    one, saved = model(get_group_size()), folder / "saved"
    if saved.is_dir() and checkpoints(saved):
        one.load(saved)
    one.train(epochs, data(), callbacks=[ShardedCheckpoint(saved, keep=3), Log(folder, seconds)], resume=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
