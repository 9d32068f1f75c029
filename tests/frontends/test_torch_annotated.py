"""Models of the samples with what is asked by name: it stands in the plan, and they equal torch, split and trained."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autoshard as ash
from autoshard.cli.agreement import compare
from autoshard.layout.mesh import Mesh

pytestmark = pytest.mark.torch
SAMPLES = Path(ash.__file__).parents[1] / "sample_code" / "07_torch_models" / "samples.py"
MESH = Mesh.parse("dp=2 tp=4")
# Tensors that are asked, states of the optimizer among them, and of these the ones split over tp.
ASKED = {
    "gpt2": (10, 9),
    "bert": (23, 21),
    "vit": (21, 20),
    "resnet": (7, 6),
    "mixtral": (15, 14),
    "t5": (35, 33),
    "llama_training": (32, 30),
}
QUICK = ("gpt2", "mixtral", "llama_training")


@pytest.fixture(scope="module")
def samples() -> Any:
    return runpy.run_path(str(SAMPLES))


def asked_layouts(model: Any) -> dict[str, str]:
    """The layout, as text, that is asked of each tensor."""
    specs = model.traced.asked.values
    return {
        value.name: ", ".join(".".join(axis.name for axis in dim.axes) or "-" for dim in spec.dims)
        for value, spec in specs.items()
    }


@pytest.mark.parametrize("name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in ASKED])
def test_what_is_asked_is_in_the_plan_and_the_result_is_that_of_torch(samples: Any, name: str) -> None:
    torch.manual_seed(0)
    model = samples[f"{name}_annotated"]()
    planned = ash.plan(model, mesh=MESH)
    asked = asked_layouts(model)
    assert (len(asked), sum("tp" in text for text in asked.values())) == ASKED[name]
    layouts = {value.name: str(planned.plan.layouts[value]) for value in planned.graph.inputs}
    assert {key: layouts[key] for key in asked} == asked
    used = {axis.name for node in planned.graph.nodes for axis in planned.plan.strategy(node).used}
    assert used == {"dp", "tp"}
    assert planned.program.collectives

    state = {key: tensor.numpy() for key, tensor in model.state().items()}
    found = planned.run(*model.example_arrays)
    leaves = [np.asarray(one) for one in torch.utils._pytree.tree_leaves(found)]
    updated = model.reference_state() if name.endswith("training") else {}
    after = {key: tensor.numpy() for key, tensor in model.state().items()}
    agreed = compare(leaves, model.reference(), state, after, updated)
    assert not agreed.wrong, agreed.wrong
    assert (agreed.updates > 20) == name.endswith("training")
