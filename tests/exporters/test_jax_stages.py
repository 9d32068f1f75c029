"""Stages on JAX: on 8 devices two steps lead to what they lead to in one piece, from Python and as a module alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.util.errors import PlanError, RuntimeSetupError
from tests.exporters.stage_models import STEPS, assert_close, planned_case, unsplit
from tests.xla_flags import without_devices

pytestmark = pytest.mark.jax
pytest.importorskip("jax")
SCRIPT = Path(__file__).with_name("stage_devices.py")
BLOCKED = "raise ImportError('this module is not there')\n"
WAYS = {
    "tied uneven": "moved joined data donated",
    "tied inner": "moved joined data donated",
    "padded": "padded moved joined data donated",
    "zero1": "partial moved donated",
    "zero3": "partial moved donated",
    "uneven": "partial moved donated",
    "scanned": "moved donated",
    "every schedule": "",
}
"""What of the ways of values is in each case."""


def on_devices(*cases: str) -> list[str]:
    environment = {**os.environ, "XLA_FLAGS": without_devices(os.environ.get("XLA_FLAGS", ""))}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, SCRIPT, *cases], capture_output=True, text=True, timeout=900, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_stages_on_devices_lead_to_the_step_in_one_piece() -> None:
    assert on_devices(*WAYS) == [f"{name}: {ways}" for name, ways in WAYS.items()]


@pytest.mark.torch
@pytest.mark.slow
def test_a_model_of_torch_with_a_tied_table() -> None:
    pytest.importorskip("torch")
    assert on_devices("words", "looped") == ["words: moved data donated", "looped: partial moved donated"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied uneven", "zero1", "scanned"])
def test_the_module_runs_alone(name: str, tmp_path: Path) -> None:
    planned, given, graph = planned_case(name)
    (tmp_path / "autoshard.py").write_text(BLOCKED)
    planned.export("jax-stages", tmp_path / "stages.py")
    arrays: dict[str, Any] = dict(given)
    np.savez(tmp_path / "in.npz", **arrays)
    environment = {**os.environ, "XLA_FLAGS": without_devices(os.environ.get("XLA_FLAGS", ""))}
    environment |= {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "stages.py", "in.npz", "out.npz", "--steps", str(STEPS)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.load(tmp_path / "out.npz")
    assert_close({key: found[key] for key in found.files}, unsplit(graph, given))


def test_the_module_reads_as_stages() -> None:
    planned, _, _ = planned_case("zero1")
    text = planned.export("jax-stages")
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert len(set(functions)) == len(functions)
    wanted = [f"stage{stage}_{word}" for stage in range(2) for word in ("forward", "weight_gradient", "update_0")]
    assert {*wanted, "stage1_input_gradient"} <= {*functions}
    start = text[: text.index("# -- operators")]
    kinds = {one.step.kind for ready in planned.programs.pieces.values() for one in ready.program.collectives}
    assert kinds and all(f"c.{kind}" in start or f"c.bundle({kind!r}" in start for kind in kinds)
    assert not [line for line in text.splitlines() if "import" in line and "autoshard" in line]


def test_too_few_devices_are_told_before_anything_runs() -> None:
    import jax

    planned, _, _ = planned_case("zero1")
    with pytest.raises(RuntimeSetupError, match="for 8 devices, but 2 are given"):
        planned.to_jax(jax.devices()[:1] * 2)


def test_inputs_are_checked() -> None:
    planned, given, _ = planned_case("scanned", mesh=None, pipeline="tp=1/tp=1", schedule="1f1b")
    import jax

    stages = planned.to_jax(jax.devices()[:1] * 2)
    with pytest.raises(ValueError, match="there is no input w; there are x, "):
        stages.run({"w": given["x"]})
    with pytest.raises(ValueError, match=r"x is float32\[12, 8\], not of shape \[8, 12\]"):
        stages.run({**given, "x": given["x"].T})


def test_forms_of_one_piece_are_told_apart() -> None:
    planned, _, _ = planned_case("scanned")
    with pytest.raises(PlanError, match="a plan in stages has no form 'jax' yet; its forms are .*jax-stages, mpmd"):
        planned.export("jax")
