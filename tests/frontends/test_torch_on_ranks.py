"""Samples on 4 MPI ranks: planned by one process, which alone imports torch, and equal to torch on all ranks."""

from __future__ import annotations

import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autoshard as ash
from autoshard.cli import model_run
from autoshard.layout.mesh import Mesh

pytestmark = [pytest.mark.torch, pytest.mark.mpi]
FOLDER = Path(ash.__file__).parents[1] / "sample_code" / "07_torch_models"
MESH = Mesh.parse("dp=2 tp=2")
NAMES = ("vit_annotated", "gpt2_training_annotated")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return runpy.run_path(str(FOLDER / "check_all.py"))["check"](NAMES, MESH, timeout=300)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_on_four_ranks_equals_torch(found: dict[str, dict[str, Any]], name: str) -> None:
    row = found[name]
    assert row.get("wrong") == [] and row["outputs"] == 1 and row["difference"] < 1e-4
    assert row["split"] > 30 and row["collectives"] > 0
    assert (row["updates"] > 20) == ("training" in name) and row["step_difference"] < 1e-3


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    return model_run.prepare(f"{FOLDER / 'samples.py'}:llama_training", Mesh.parse("tp=2"), None, True, folder)


def test_ranks_need_no_torch(prepared: Path) -> None:
    code = (
        "import pickle, sys\nfrom autoshard.cli import model_run\n"
        f"prepared = pickle.loads(open({str(prepared)!r}, 'rb').read())\n"
        "assert prepared.planned.program.instructions and len(prepared.wanted.updated) > 20\n"
        "assert not {'torch', 'transformers', 'jax'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_step_that_is_not_that_of_torch_is_told(prepared: Path, tmp_path: Path, capsys: Any) -> None:
    """A hundredth more of a step is wanted than was made, on ranks of this process."""
    assert model_run.run_prepared(prepared) == 0
    held = pickle.loads(prepared.read_bytes())
    name = "model.layers.1.mlp.up_proj.weight"
    before = next(one.data for one in held.planned.traced.parameters.values() if one.name == name)
    held.wanted.updated[name] += 0.01 * (held.wanted.updated[name] - before)
    other = tmp_path / "other.pickle"
    other.write_bytes(pickle.dumps(held))
    assert model_run.run_prepared(other) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith(f"differs from PyTorch's result: {name} after its update, by up to ")
