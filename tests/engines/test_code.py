"""Exported code gives the same numbers without autoshard; a StableHLO module holds exactly the planned collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autoshard import annotate, ops, plan, trace
from autoshard.api import Planned
from autoshard.core.tensortype import TensorType, dtype
from autoshard.engines.code import CARRIED, code, defined_in, needed_by
from autoshard.nn import Adam, Cell, Dense, LayerNorm
from autoshard.trace.initializer import set_seed
from autoshard.transform.train import train_step
from tests.xla_flags import without_devices

BLOCKED = "raise ImportError('this module is not there')\n"
STEPS = 2


class Net(Cell):
    """Sizes that 2 ranks do not divide: 5 columns, and 3."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = LayerNorm(6), Dense(6, 5), Dense(5, 3)

    def construct(self, x):
        return ops.reduce_mean(ops.square(self.down(self.up(self.norm(x)))))


@cache
def trained() -> tuple[Planned, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A planned step of training, what goes in by name, and what two steps lead to."""
    set_seed(3)
    network = Net()
    x = np.random.default_rng(2).normal(size=(8, 6)).astype(np.float32)
    step = train_step(network, Adam(network.trainable_params(), 0.1, eps=1e-4), x)
    planned = plan(step, (), "dp=2", search="zero1")
    arrays = [np.array(one) for one in planned.traced.inputs(x)]
    inputs = dict(zip([one.name for one in planned.program.inputs], arrays, strict=True))
    found = [np.asarray(planned.run(x)) for _ in range(STEPS)][-1:]
    return planned, inputs, {planned.program.outputs[0].name: found[0]}


def _run_alone(framework: str, folder: Path, command: list[str]) -> None:
    """Run the exported module where autoshard cannot be imported, and compare the loss of the second step."""
    planned, inputs, wanted = trained()
    (folder / "autoshard.py").write_text(BLOCKED)
    planned.export(f"{framework}-code", folder / "plan.py")
    arrays: dict[str, Any] = dict(inputs)
    np.savez(folder / "in.npz", **arrays)
    environment = {**os.environ, "XLA_FLAGS": without_devices(os.environ.get("XLA_FLAGS", ""))}
    environment |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    arguments = [*command, "plan.py", "in.npz", "out.npz", "--steps", str(STEPS)]
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found = np.load(folder / "out.npz")
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


@pytest.mark.torch
@pytest.mark.slow
def test_torch_code_runs_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _run_alone("torch", tmp_path, [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"])


@pytest.mark.jax
@pytest.mark.slow
def test_jax_code_runs_alone(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    _run_alone("jax", tmp_path, [sys.executable])


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_code_of_loops_and_branches(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)

    def model(x):
        def turn(state):
            i, y = state
            return i + 1, ops.cond(i > 1, ops.exp, lambda y: ops.sharding_constraint(ops.tanh(y), '[{"dp"}, {?}]'), y)

        return ops.while_loop(lambda state: state[0] < 3, turn, (np.int32(0), x))[1]

    x = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)
    planned = plan(model, (x,), "dp=1", search="factor")
    module = ModuleType("exported")
    monkeypatch.setitem(sys.modules, "exported", module)
    exec(compile(planned.export(f"{framework}-code"), "plan.py", "exec"), module.__dict__)
    control = module.TorchControl() if framework == "torch" else module.XlaControl()
    given = import_module("torch").tensor(x) if framework == "torch" else x
    (found,) = module.step(control, None, given)
    np.testing.assert_allclose(found, np.exp(np.tanh(np.tanh(x))), rtol=1e-5)


@pytest.mark.jax
def test_jax_code_of_a_function_that_is_called_twice() -> None:
    """Its variables are defined once more, each under a name of its own; parameters are hashable."""
    jax = pytest.importorskip("jax")
    from autoshard.engines.jax_code import function_text

    @jax.jit
    def inner(x):
        return jax.numpy.cos(jax.numpy.sin(x) * 2)

    def call(x):
        return (inner(inner(x)) - jax.lax.pad(x, np.float32(0), [(np.int64(0), np.int64(0), 0)]),)

    x = np.linspace(0, 1, 6, dtype=np.float32)
    names: dict[str, Any] = {"lax": jax.lax, "jnp": jax.numpy, "np": np}
    exec(function_text("exported", call, [TensorType.of((6,), dtype("f32"))]), names)
    np.testing.assert_allclose(names["exported"](x), call(x)[0], rtol=1e-6)


@pytest.mark.jax
def test_stablehlo_holds_the_planned_collectives() -> None:
    pytest.importorskip("jax")
    from autoshard.engines.xla_whole import XlaStep
    from tests.engines.compiled_collectives import traced_differences

    planned, *_ = trained()
    step = XlaStep(planned.program)
    lowered = step.lowered()
    assert not traced_differences(lowered.compiler_ir("stablehlo"), planned.program, step.text.grid)
    assert "sdy.manual_computation" in lowered.as_text() and planned.program.collectives


@pytest.mark.jax
def test_what_is_gathered_again_stays_behind_a_barrier() -> None:
    """XLA would keep the first, and with it the memory that the plan gives back."""
    pytest.importorskip("jax")
    from autoshard.engines.xla_engine import compiler_options
    from autoshard.engines.xla_whole import XlaStep

    class Deep(Cell):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.mid, self.down = Dense(6, 8), Dense(8, 8), Dense(8, 4)

        def construct(self, x):
            return ops.reduce_mean(ops.square(self.down(ops.tanh(self.mid(ops.tanh(self.up(x)))))))

    network, x = Deep(), np.ones((8, 6), np.float32)
    planned = plan(train_step(network, Adam(network.trainable_params(), 0.1, eps=1e-4), x), (), "dp=2", search="zero3")
    step = XlaStep(planned.program)
    assert step.text.repeats and step.text.source.count("c.again(") == step.lowered().as_text().count("_barrier")
    assert compiler_options(planned.program, step.text, "cpu") == {"xla_disable_hlo_passes": "cse"}
    assert compiler_options(planned.program, step.text, "gpu") is None


def test_carried_files_share_no_name_and_need_no_others() -> None:
    for files in CARRIED.values():
        names = [name for one in files for name in defined_in(one)]
        assert len(set(names)) == len(names), [one for one in names if names.count(one) > 1]
        assert {home for one in files for home in needed_by(one)} <= set(files)


@pytest.mark.torch
def test_code_reads_as_the_program() -> None:
    pytest.importorskip("torch")
    planned, *_ = trained()
    text = code(planned.program, "torch")
    assert not [line for line in text.splitlines() if "import" in line and "autoshard" in line]
    start = text[: text.index("# -- operators")]
    kinds = {one.step.kind for one in planned.program.collectives}
    assert all(f"c.{kind}" in start or f"c.bundle({kind!r}" in start for kind in kinds)


@pytest.mark.jax
def test_axes_that_only_inputs_and_outputs_are_split_by() -> None:
    """A half of an axis that nobody talks over: JAX had no name for it, and the array lay whole."""
    pytest.importorskip("jax")
    from autoshard.engines.xla_whole import XlaStep

    asked = annotate(trace(lambda x: ops.relu(x), np.ones((8, 6), np.float32)), {"x": "[{d:(1)2}, {}]"}, mesh="d=4")
    step = XlaStep(plan(asked, mesh="d=4", search="factor").program)
    assert step.text.grid.axes == (("d_0", 2), ("d_1", 2))
    assert [tuple(spec) for spec in (*step.in_specs, *step.out_specs)] == [("d_0", None)] * 2
