"""JAX: functions run as plans say on eight host devices equal themselves; specs of plans; what does not fit is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import autoshard as ash
from autoshard.exporters.jax_sharding import jax_shardings, jit, jit_model
from autoshard.util.errors import PlanError, RuntimeSetupError

pytestmark = pytest.mark.jax
SCRIPT = Path(__file__).with_name("jax_devices.py")
# A sample of JAX models: its pytree of parameters lies as the plan says.
MODELS = ("vit_annotated/dp=2,tp=4/factor",)
CASES = (*MODELS, "mlp/dp=2,tp=4/factor", "mlp/d=8/factor", "gradient/dp=4,tp=2/factor",
         "attention/dp=2,tp=4/sharding_propagation",
         "image/dp=4,tp=2/factor", "repeated/dp=4,tp=2/factor")  # fmt: skip


def test_functions_on_eight_devices_equal_themselves() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, SCRIPT, *CASES], capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for case, told in zip(CASES, json.loads(done.stdout), strict=True):
        assert told["apart"] <= 1e-5 * max(1.0, told["size"]), (case, told)
        assert told["as_planned"] and told["split"] > 2, (case, told)
        assert told["axes"] == (["d_0", "d_1"] if "d=8" in case else ["dp", "tp"])


def mlp(params, x):
    return jax.nn.relu(x @ params["up"]) @ params["down"]


ARGS = ({"up": np.ones((12, 16), np.float32), "down": np.ones((16, 6), np.float32)}, np.ones((24, 12), np.float32))


def test_the_specs_are_the_layouts() -> None:
    planned = ash.plan(ash.from_jax(mlp, *ARGS), mesh="dp=2 tp=4", search="factor")
    told = jax_shardings(planned)
    for value, spec in zip(planned.graph.inputs, told.inputs, strict=True):
        parts = [np.prod([told.pieces.sizes[axis] for axis in _axes(entry)], dtype=int) for entry in spec]
        assert tuple(parts) == planned.plan.layouts[value].parts, value
    data = json.loads(json.dumps(told.to_data()))
    assert (
        data["mesh"] == {"dp": 2, "tp": 4} and len(data["inputs"]) == 3 and data["values"].keys() == told.values.keys()
    )


def _axes(entry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def test_axes_that_do_not_divide_are_left_out() -> None:
    from autoshard.core.tensortype import TensorType, dtype
    from autoshard.exporters.jax_sharding import _spec
    from autoshard.exporters.pieces import Pieces
    from autoshard.ir.graph import Value
    from autoshard.layout import Layout, Mesh

    mesh = Mesh(dp=2, tp=4)
    layout = Layout.parse("dp.tp, -", mesh)
    value = Value(TensorType.of((6, 5), dtype("f32")), "x")
    assert _spec(layout, value, Pieces.of(mesh, [layout])) == PartitionSpec("dp", None)


def test_another_function_is_refused() -> None:
    planned = ash.plan(ash.from_jax(mlp, *ARGS), mesh="dp=1", search="factor")

    def other(params, x):
        return x @ params["up"] @ params["down"] @ params["down"].T

    with pytest.raises(PlanError, match="the plan is for another function: it has the products"):
        jit(other, planned, *ARGS)
    with pytest.raises(PlanError, match=r"the plan is for inputs of shapes .* but the arguments have \[\(3, 3\)\]"):
        jit(mlp, planned, np.ones((3, 3), np.float32))


def test_a_named_pytree_gets_its_shardings() -> None:
    params, x = ARGS
    model = ash.annotate(ash.from_jax(mlp, x, params=params), {"up": (None, "tp"), "x": ("dp", None)})
    planned = ash.plan(model, mesh="dp=2 tp=4", search="factor")
    told = jax_shardings(planned)
    found = told.tree(params, devices=jax.devices() * 8)
    assert {name: one.spec for name, one in found.items()} == {
        "up": PartitionSpec(None, "tp"),
        "down": PartitionSpec("tp", None),
    }
    assert told.to_data()["names"] == ["x", "down", "up"]
    with pytest.raises(PlanError, match="the plan has no input 'layers.down'; the nearest are down"):
        told.tree(params, "layers", devices=jax.devices() * 8)
    with pytest.raises(PlanError, match="the plan has up with 2 dims, but it has 1"):
        told.tree({"up": np.ones(12)}, devices=jax.devices() * 8)
    other = ash.from_jax(lambda params, x: x @ params["w"], x, params={"w": params["up"]})
    with pytest.raises(PlanError, match="the plan is for another model: it has no input 'w'"):
        jit_model(other, planned, devices=jax.devices() * 8)


def test_too_few_devices_are_told() -> None:
    planned = ash.plan(ash.from_jax(mlp, *ARGS), mesh="dp=2 tp=4", search="factor")
    with pytest.raises(RuntimeSetupError, match=r"the plan is for 8 devices \(mesh 'dp=2 tp=4'\), but JAX has"):
        jit(mlp, planned, *ARGS, devices=jax.devices()[:1])
