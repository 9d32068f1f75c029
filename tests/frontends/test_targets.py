"""Targets of plan: imported models with their inputs, and PyTorch models as they are."""

from __future__ import annotations

import numpy as np
import pytest

import autoshard as ash
from autoshard.cli.target import load_target
from autoshard.util.errors import PlanError

pytestmark = pytest.mark.torch
SCRIPT = """
import numpy as np
import torch
import autoshard as ash

net = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 4))
x = torch.ones(8, 6)
model = ash.from_torch(net, (x,))

def imported():
    return model

def with_inputs():
    return model, (x,)

def with_arrays():
    return model, (np.ones((8, 6), np.float32),)

def module():
    return net, (x,)

def program():
    return torch.export.export(net, (x,))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("targets") / "models_to_plan.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("name", ["model", "imported", "with_inputs", "with_arrays", "module", "program"])
def test_what_a_script_gives_can_be_planned_and_run(script, name):
    model, inputs = load_target(f"{script}:{name}")
    planned = ash.plan(model, inputs, devices=2)
    found = planned.run(*(inputs or (np.ones((8, 6), np.float32),)))
    np.testing.assert_allclose(found, ash.evaluate(model, (np.ones((8, 6), np.float32),)), rtol=1e-5, atol=1e-6)


def test_torch_modules_are_targets_themselves():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(6, 4)
    positional = ash.plan(net, (torch.ones(8, 6),), devices=2)
    assert (
        ash.plan(net, {"input": torch.ones(8, 6)}, devices=2).plan.layouts.keys() and positional.graph.name == "Linear"
    )
    model = ash.from_torch(net, (torch.ones(8, 6),))
    with pytest.raises(PlanError, match=r"'Linear' is traced already, for \(input: f32\[8, 6\]\), and the inputs are"):
        ash.plan(model, (torch.ones(3, 6),), devices=2)
