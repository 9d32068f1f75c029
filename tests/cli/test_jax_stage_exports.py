"""`autoshard export --pipeline ... --to jax-stages | mpmd`: written to a file or shown."""

from __future__ import annotations

import ast

import pytest

pytestmark = pytest.mark.jax
pytest.importorskip("jax")
SCRIPT = """
import numpy as np
from autoshard import nn, ops
from autoshard.transform import train_step


def step():
    net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 4))
    x = np.ones((12, 6), np.float32)
    return train_step(lambda x: ops.reduce_mean(ops.square(net(x))), nn.SGD(net.trainable_params(), 0.1), x)
"""
STAGES = ("--mesh", "pp=2,dp=2", "--pipeline", "pp", "--micro-batches", "3", "--schedule", "zb_h1")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("stages") / "train.py"
    path.write_text(SCRIPT)
    return f"{path}:step"


def test_a_module_of_functions(target, cli, tmp_path):
    code, out, err = cli("export", target, *STAGES, "--to", "jax-stages", "-o", str(tmp_path / "stages.py"))
    assert code == 0 and "stages.py" in out, err
    names = [one.name for one in ast.parse((tmp_path / "stages.py").read_text()).body if hasattr(one, "name")]
    assert {"stage0_forward", "stage1_input_gradient", "stage1_update_0", "functions_of"} <= {*names}


def test_a_module_of_mpmd(target, cli):
    code, out, err = cli("export", target, *STAGES, "--to", "mpmd")
    assert code == 0, err
    assert '#mpmd.topology<<"group0" : <["dp"=2]>>, <"group1" : <["dp"=2]>>>' in out
    assert out.count("split_keep_transferred") == out.count("split_drop_transferred") == 3
