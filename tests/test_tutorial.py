"""A training script like that of MindSpore r2.0's tutorial on sharding propagation, but for its imports.

It is our own version of that script; what it relies on is the same: contexts, communication, a generator
dataset without batching, dense labels, parameters that share their name argument, callbacks.
"""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

import autoshard as ash

SCRIPT = """
import numpy as np
import autoshard.mindspore as ms
from autoshard.mindspore import Tensor, Parameter, set_context, GRAPH_MODE, set_auto_parallel_context
from autoshard.mindspore.nn import Cell, Momentum
import autoshard.mindspore.ops as ops
from autoshard.mindspore.train import Model
from autoshard.mindspore.nn import SoftmaxCrossEntropyWithLogits
import autoshard.mindspore.dataset as ds
import autoshard.mindspore.communication as D
from autoshard.mindspore.train import LossMonitor, ModelCheckpoint

step_per_epoch = 4


def make_dataset(*shapes):
    rng = np.random.RandomState(7)

    def rows():
        for _ in range(step_per_epoch):
            yield tuple(rng.rand(*shape).astype(np.float32) for shape in shapes)

    return rows


class Dense(Cell):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        weight, bias = np.ones([in_channels, out_channels]), np.ones([out_channels])
        self.weight = Parameter(Tensor(weight, dtype=ms.float32), name="weight1")
        self.bias = Parameter(Tensor(bias, dtype=ms.float32), name="bias1")
        self.matmul = ops.MatMul()
        self.add = ops.Add()

    def construct(self, x):
        x = self.matmul(x, self.weight)
        x = self.add(x, self.bias)
        return x


class FFN(Cell):
    def __init__(self):
        super().__init__()
        self.dense1 = Dense(64, 64)
        self.relu = ops.ReLU()
        self.dense2 = Dense(64, 64)

    def construct(self, x):
        x = self.dense1(x)
        x = self.relu(x)
        x = self.dense2(x)
        return x


if __name__ == "__main__":
    set_context(mode=GRAPH_MODE, device_target="Ascend", save_graphs=True)
    D.init()
    rank = D.get_rank()
    set_auto_parallel_context(
        parallel_mode="PARALLEL_MODE", search_mode="SEARCH_MODE", device_num=8, full_batch=True
    )

    dataset = ds.GeneratorDataset(make_dataset((64, 64), (64, 64)), ["input", "label"])
    net = FFN()
    net.dense1.matmul.shard(((2, 1), (1, 4)))
    loss = SoftmaxCrossEntropyWithLogits()
    opt = Momentum(net.trainable_params(), 0.001, 0.1)
    model = Model(net, loss_fn=loss, optimizer=opt)
    callbacks = [LossMonitor(), ModelCheckpoint(directory=str(rank))]
    model.train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)
"""


def run(
    folder: Path, mode: str, monkeypatch, capsys, search: str = "sharding_propagation"
) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses that the script prints and its last checkpoint."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(SCRIPT.replace("PARALLEL_MODE", mode).replace("SEARCH_MODE", search))
    runpy.run_path(str(folder / "train.py"), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch: 1 step: ")]
    ash.reset_context()
    ash.reset_auto_parallel_context()
    return [float(line.split("loss is ")[1]) for line in lines], ash.load_checkpoint("0/CKP-1_4.safetensors")


def test_tutorial_script_trains_as_on_one_device(tmp_path, monkeypatch, capsys):
    losses, weights = run(tmp_path / "ranks", "auto_parallel", monkeypatch, capsys)
    expected, expected_weights = run(tmp_path / "alone", "stand_alone", monkeypatch, capsys)
    assert len(losses) == 4
    # Weights of ones make logits of some thousands, of whose 24 bits the softmax keeps few.
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    names = ["dense1.bias1", "dense1.weight1", "dense2.bias1", "dense2.weight1"]
    assert sorted(weights) == [*names, *(f"moments.{name}" for name in names)]
    for name, array in weights.items():
        np.testing.assert_allclose(array, expected_weights[name], rtol=1e-5, atol=1e-4)


FORWARD = ["((2, 1), (1, 4))", "((2, 4), (4))", "((2, 4))", "((2, 4), (4, 1))"]


@pytest.mark.parametrize(
    "search, last, collective",
    # MindSpore's propagation goes on as the tutorial shows. Prices find that summing at once, as rules alone would,
    # saves the gathering before the loss; that is what MindSpore 2.10 does.
    [("bfs", "((2, 4), (4))", "ReduceScatter"), ("sharding_propagation", "((2, 1), (1))", "AllReduce")],
)
def test_tutorial_script_dumps_what_the_tutorial_shows(search, last, collective, tmp_path, monkeypatch, capsys):
    run(tmp_path / "ranks", "auto_parallel", monkeypatch, capsys, search)
    folder = tmp_path / "ranks" / "rank_0"
    begin = next(folder.glob("step_parallel_begin_*.ir")).read_text()
    assert re.findall(r"\{in_strategy: (.*)\}", begin)[:5] == [*FORWARD, last]
    validate = next(folder.glob("*_validate_*.ir")).read_text()
    assert collective in validate and "group_ranks: 0-1-2-3" in validate
    assert sorted(one.name for one in (tmp_path / "ranks").iterdir() if one.is_dir()) == [
        "0", *(f"rank_{rank}" for rank in range(8)),
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 8])
def test_sample_equals_one_rank(ranks, tmp_path, capsys):
    """The sample's own check ends it with an error where ranks and one rank differ."""
    sample = Path(ash.__file__).parents[1] / "sample_code" / "sharding_propagation" / "train.py"
    shutil.copy(sample, tmp_path)
    ash.set_auto_parallel_context(device_num=ranks)
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert f"ffn on mesh d={ranks} ({ranks} devices" in out
    assert "largest relative difference from one rank: loss of a step" in out
    assert len(list(tmp_path.glob("rank_*/*.ir"))) == 3 * ranks
