"""--micro-batches of plan, compare and run: loops in reports, results of the whole batch, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("models.py")
STEP = f"{MODELS}:step"


def test_plan_and_compare(cli):
    code, out, _ = cli("plan", STEP, "-n", "2", "--micro-batches", "4", "--mode", "batch")
    assert code == 0 and "micro_batches" in out
    code, out, _ = cli("compare", STEP, "-n", "2", "--micro-batches", "4", "--mode", "batch", "--mode", "bfs", "--json")
    plans = json.loads(out)["plans"]
    assert code == 0 and len(plans) == 2


@pytest.mark.mpi
def test_a_run_is_compared_with_the_whole_batch(cli):
    code, out, err = cli(
        "run", STEP, "-n", "2", "--micro-batches", "4", "--mode", "batch", "--check", "--timeout", "120"
    )
    assert code == 0, err
    assert "the unsplit run" in out


NORMED = """
import numpy as np
from autoshard import ops
from autoshard.mindspore import nn
from autoshard.nn import SGD
from autoshard.trace import set_seed
from autoshard.transform import train_step

x = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)


def train():
    set_seed(1)
    net = nn.SequentialCell(nn.Dense(6, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Dense(10, 4), nn.BatchNorm1d(4))
    net.set_train(True)
    return train_step(lambda x: ops.reduce_mean(ops.square(net(x) - 1.0)), SGD(net.trainable_params(), 0.1), x)
"""


@pytest.mark.mpi
def test_a_loss_in_pieces_of_each_micro_batch(cli, tmp_path):
    script = tmp_path / "normed.py"
    script.write_text(NORMED.replace(", nn.BatchNorm1d(10)", "").replace(", nn.BatchNorm1d(4)", ""))
    asked = (f"{script}:train", "-n", "2", "--micro-batches", "3", "--loss-pieces", "2", "--mode", "batch")
    code, out, err = cli("plan", *asked)
    assert code == 0 and "loss_pieces" in out, err
    code, out, err = cli("run", asked[0], "--check", "--timeout", "120", *asked[1:])
    assert code == 0 and "equal to the unsplit run" in out, err
    staged = ("--mesh", "pp=2", "--pipeline", "pp", "--schedule", "zb_h1", "--micro-batches", "3", "--loss-pieces", "2")
    code, out, err = cli("run", asked[0], "-n", "2", "--check", "--timeout", "120", *staged)
    assert code == 0 and "equal to the unsplit run" in out, err
    code, _, err = cli("compare", asked[0], "-n", "2", "--loss-pieces", "5", "--mode", "batch")
    assert code == 2 and "no dim of rows that 5 divides; 2, 3, 4, 6, 12 would" in err


@pytest.mark.mpi
@pytest.mark.parametrize(
    "where", [["--mesh", "pp=2,dp=2", "--pipeline", "pp", "--schedule", "zbv"], ["--mode", "batch"]]
)
def test_statistics_of_each_micro_batch(cli, tmp_path, where):
    script = tmp_path / "normed.py"
    script.write_text(NORMED)
    asked = ("run", f"{script}:train", "-n", "4", *where, "--micro-batches", "3", "--check", "--timeout", "120")
    code, _, err = cli(*asked)
    assert code and "--statistics micro_batch takes them of each micro batch instead" in err
    code, out, err = cli(*asked, "--statistics", "micro-batch")
    assert code == 0, err
    assert "equal to the unsplit run" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", STEP, "-n", "2", "--statistics", "mini"), "it can be batch or micro-batch"),
        (("plan", STEP, "-n", "2", "--micro-batches", "5"), "x has 48 rows, which 5 does not divide; 1, 2, 3, 4, 6, 8"),
        (("plan", STEP, "-n", "2", "--micro-batches", "0"), "into 0 micro batches: give a number from 1 on"),
        (("run", str(MODELS), "-n", "2", "--micro-batches", "2"), "which plans itself"),
        (("plan", STEP, "-n", "2", "--loss-pieces", "5"), "give a training step whose logits are a product"),
        (("plan", STEP, "--mesh", "pp=2", "--pipeline", "pp", "--loss-pieces", "2"), "whose logits are a product"),
    ],
)
def test_mistakes(cli, arguments, message):
    if arguments[0] == "run":
        arguments = ("run", *arguments[2:], arguments[1])
    code, _, err = cli(*arguments)
    assert code == 2 and message in err
