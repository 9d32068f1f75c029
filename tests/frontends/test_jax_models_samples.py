"""Samples of JAX models, planned and split: outputs, gradients and updates equal to JAX."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import autoshard as ash
from autoshard.cli.agreement import compare
from autoshard.cli.model_run import arrays_in

pytestmark = pytest.mark.jax
FOLDER = Path(ash.__file__).parents[1] / "sample_code" / "08_jax_models"
# One that autoshard differentiates, and one with a loop, annotated by a pytree of PartitionSpecs.
NAMES = ("moe_training", "gpt_annotated")


@pytest.fixture(scope="module")
def samples() -> Any:
    sys.path.insert(0, str(FOLDER))
    yield runpy.run_path(str(FOLDER / "samples.py"))
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", NAMES)
def test_it_equals_jax(samples: Any, name: str) -> None:
    model = samples[name]()
    planned = ash.plan(model, mesh="dp=2 tp=4")
    before = {one.name: one.data.copy() for one in planned.traced.parameters.values()}
    outputs = arrays_in(planned.run(*model.example_arrays))
    after = {one.name: one.data for one in planned.traced.parameters.values()}
    wanted = model.reference_state()
    assert set(wanted) == {one.name for one in planned.traced.updated.values()}
    assert bool(wanted) == ("training" in name)
    assert compare(outputs, model.reference(), before, after, wanted).wrong == ()
    assert any(planned.plan.strategy(node).work_split == 8 for node in planned.graph.nodes)
