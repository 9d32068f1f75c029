"""`autoshard plan MODULE.mlir` and `autoshard run MODULE.mlir -n N --check`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autoshard.api import Planned, plan
from autoshard.cli.module_run import differences, random_inputs, run_planned
from autoshard.frontends import from_stablehlo

pytestmark = pytest.mark.jax

MODULE = """sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %w: tensor<16x6xf32>,
    %i: tensor<8x6xi32>) -> (tensor<8x6xf32>, tensor<8x6xi32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x6xf32>) -> tensor<8x6xf32>
  %1 = stablehlo.tanh %0 : tensor<8x6xf32>
  %2 = stablehlo.add %i, %i : tensor<8x6xi32>
  return %1, %2 : tensor<8x6xf32>, tensor<8x6xi32>
}
"""  # noqa: E501


@pytest.fixture
def path(tmp_path) -> Path:
    file = tmp_path / "model.mlir"
    file.write_text(MODULE)
    return file


def test_plan(cli, path):
    code, out, _ = cli("plan", str(path), "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["search"], found["mesh"], found["devices"]) == ("sharding_propagation", "x=2 y=2", 4)
    assert found["operators"][0]["in_strategy"] == [[2, 2], [2, 1]]
    code, out, _ = cli("plan", str(path), "--search", "factor", "-n", "4")
    assert code == 0 and "factor: " in out


def test_dump(cli, path, tmp_path):
    code, out, _ = cli("dump", str(path), "-o", str(tmp_path / "out"), "--ranks", "0")
    assert code == 0 and out.splitlines()
    assert all(Path(line).is_file() for line in out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "{path}", "-n", "8"), "written for the mesh 'x=2 y=2' of 4 devices, not for 8"),
        (("plan", "{path}", "--mesh", "dp=4"), "not for 'dp=4'; leave mesh out"),
        (("plan", "{path}", "--dataset-strategy", "data_parallel"), "leave it out"),
        (("plan", "missing.mlir"), "cannot read missing.mlir: No such file"),
        (("run", "{path}", "-n", "8"), "of 4 devices, not for 8"),
        (("run", "{path}", "-n", "4", "more"), "takes no arguments, but got more"),
        (
            ("run", "-n", "4", "--check", "train.py"),
            "--check goes with a model (SCRIPT.py:NAME) or a module (.mlir), not with train.py",
        ),
        (("run", "{path}"), "-n"),
    ],
)
def test_errors(cli, path, arguments, words):
    code, out, err = cli(*(one.format(path=path) for one in arguments))
    assert code == 2 and not out
    assert words in " ".join(err.split())


@pytest.mark.mpi
def test_run_on_ranks(cli, path):
    code, out, _ = cli("run", str(path), "-n", "4", "--check", "--timeout", "120")
    assert code == 0
    assert out.splitlines() == [
        "main ran on mesh x=2 y=2: 3 of 3 operators split, 1 collective; outputs float32[8, 6], int32[8, 6]",
        "equal to the unsplit run",
    ]


def test_check_tells_what_differs(path, monkeypatch, capsys):
    """In this process, with a run that is wrong in one number."""
    planned = plan(path)
    assert run_planned(planned, check=True) == 0
    true_run = Planned.run

    def wrong(self, *inputs, **settings):
        outputs = list(true_run(self, *inputs, **settings))
        outputs[1] = outputs[1] + np.eye(8, 6, dtype=np.int32)
        return outputs

    monkeypatch.setattr(Planned, "run", wrong)
    assert run_planned(planned, check=True) == 1
    assert "differs from the unsplit run: output 1, int32[8, 6]" in capsys.readouterr().err
    assert run_planned(planned, check=False) == 0


def test_differences():
    one = np.array([1.0, np.nan, np.inf, -3.0], np.float32)
    assert differences([one, one[:2] > 0], [one * np.float32(1 + 1e-6), one[:2] > 0]) == []
    assert differences([one], [np.array([1.0, np.nan, np.inf, -3.1], np.float32)])
    assert differences([one], [np.array([1.0, 2.0, np.inf, -3.0], np.float32)])
    assert differences([np.array([2])], [np.array([3])])


def test_random_inputs_are_the_same_for_a_seed():
    graph = from_stablehlo(MODULE).graph
    first, again, other = (random_inputs(graph, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert [array.dtype.name for array in first] == ["float32", "float32", "int32"]
