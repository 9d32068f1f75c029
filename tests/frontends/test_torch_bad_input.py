"""Imported models that are asked, planned or placed as they cannot be: the texts say what is wrong and what fits."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import autoshard as ash
from autoshard.exporters.dtensor import parallelize
from autoshard.util.errors import (
    AutoshardError,
    GraphError,
    MeshError,
    ParseError,
    PlanError,
    ShardingError,
    UnknownNameError,
)

pytestmark = pytest.mark.torch


def net(width: int = 10, layers: int = 2) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(6 if i == 0 else width, width) for i in range(layers)))


def imported(**sizes: int) -> Any:
    return ash.from_torch(net(**sizes), (torch.ones(4, 6),), name="net")


@pytest.mark.parametrize(
    "patterns, kind, message",
    [
        ({"0.wieght": ("dp", None)}, UnknownNameError,
         "pattern '0.wieght' matches no input or parameter; the nearest names are 0.weight"),
        ({"2.*": ("dp", None)}, UnknownNameError, "pattern '2.*' matches no input or parameter; the nearest names"),
        ({"0.mul": ((2, 1), (1, 2))}, UnknownNameError,
         "pattern '0.mul' matches no operator; the nearest names are 0.matmul"),
        ({"0": ("dp",)}, ShardingError, "0.weight (f32[10, 6])"),
        ({"0": ["S(0)", "R", "R"]}, ShardingError,
         "0.weight: 3 placements ['S(0)', 'R', 'R'] for the 2 axes of mesh 'dp=2 tp=2'; give one per axis"),
        ({"0": ["R", "S(2)"]}, ShardingError,
         "0.weight (f32[10, 6]) cannot be placed as S(2) along 'tp': it has 2 dims"),
        ({"0": (3, 1)}, ShardingError, "0.weight (f32[10, 6]) cannot be split into (3, 1)"),
        ({"0": ("pp", None)}, AutoshardError, "0.weight"),
        ({"0.matmul": ((2, 1),)}, ShardingError, "0.matmul (MatMul) takes operands of [2, 2] dims, which"),
    ],
)  # fmt: skip
def test_what_is_asked_of_a_model_has_to_fit(patterns: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        ash.annotate(imported(), patterns, "dp=2 tp=2")


def test_placements_of_a_model_need_its_mesh() -> None:
    with pytest.raises(
        MeshError, match=r"\['R', 'S\(0\)'\] says something for each mesh axis or device; give the mesh"
    ):
        ash.annotate(imported(), {"0": ["R", "S(0)"]})


def test_a_plan_file_of_another_model_is_told_by_the_first_tensor_that_differs(tmp_path: Path) -> None:
    file = ash.plan(imported(), mesh="dp=2 tp=2").save(tmp_path / "plan.json")
    assert ash.plan(imported(), mesh="dp=2 tp=2", search=str(file)).plan.mesh.devices == 4
    with pytest.raises(
        PlanError, match=r"is for another model than 'net': input 1 is 0.weight: f32\[10, 6\] in the file"
    ):
        ash.plan(imported(width=12), mesh="dp=2 tp=2", search=str(file))
    with pytest.raises(PlanError, match="is for another model than 'net': "):
        ash.plan(imported(layers=3), mesh="dp=2 tp=2", search=str(file))


@pytest.fixture
def alone() -> Iterator[Any]:
    """torch.distributed of this process alone, and a plan for it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ash.plan(imported(), mesh="dp=1 tp=1")
    dist.destroy_process_group()


def test_a_plan_is_put_on_its_own_module_alone(alone: Any) -> None:
    assert parallelize(net(), alone)(torch.ones(4, 6)).shape == (4, 10)
    with pytest.raises(
        PlanError, match="the plan is for another module than Sequential, which has no 1.weight, 1.bias"
    ):
        parallelize(net(layers=1), alone)
    other = net()
    other[1] = torch.nn.Conv1d(10, 10, 1)
    with pytest.raises(
        PlanError, match=r"another module: it splits 1.weight as \[-, -\], which has shape \(10, 10, 1\)"
    ):
        parallelize(other, alone)
    step = ash.from_torch(
        net(), (torch.ones(4, 6),), loss=lambda output, x: output.mean(),
        optimizer=lambda params: ash.optim.SGD(params, 0.1, loss_scale=ash.optim.DynamicLossScale()),
    )  # fmt: skip
    assert parallelize(net(), ash.plan(step, mesh="dp=1 tp=1"))(torch.ones(4, 6)).shape == (4, 10)


def test_a_plan_is_for_tensors_of_its_shapes(alone: Any) -> None:
    module = parallelize(net(), alone)
    with pytest.raises(PlanError, match=r"the plan is for input \(input 0\) of shape \(4, 6\), but it has \(3, 6\)"):
        module(torch.ones(3, 6))
    with pytest.raises(PlanError, match=r"the plan is for 1 tensors \(input\), but 2 were given"):
        module(torch.ones(4, 6), torch.ones(4, 6))


@pytest.mark.parametrize(
    "missing, words",
    [
        ("torch", "it imports torch, which is not installed; pip install 'autoshard[torch]'"),
        ("nowhere", "it imports nowhere, which is not installed; install it, or add its folder to "),
    ],
)
def test_a_script_whose_packages_are_missing_says_which_extra_brings_them(
    tmp_path: Path, missing: str, words: str
) -> None:
    script = tmp_path / "model.py"
    script.write_text(f"import {missing}\ndef net(): pass\n")
    # None in sys.modules makes an import fail as that of a package that is not there.
    code = (
        f"import sys\nsys.modules[{missing!r}] = None\n"
        f"sys.argv = ['autoshard', 'plan', {f'{script}:net'!r}, '-n', '2']\n"
        "from autoshard.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(f"autoshard: cannot load {script}: {words}"), done.stderr


# -- what a step of training is asked with


def squared(found: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return (found**2).mean()


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"loss": 5}, "from_torch: loss is 5, but has to be a path into the result, such as 'loss', or a function"),
        ({"loss": squared, "optimizer": "adam"}, "from_torch: optimizer is 'adam', but has to be a function of the"),
        ({"loss": squared, "optimizer": torch.optim.Adam}, "an optimizer of autoshard.optim, such as lambda params:"),
        ({"loss": squared, "optimizer": len}, "from_torch: optimizer makes a int, but has to be"),
    ],
)
def test_a_loss_and_an_optimizer_are_of_known_kinds(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        ash.from_torch(net(), (torch.ones(4, 6),), **asked)


def test_patterns_are_a_dict() -> None:
    with pytest.raises(ShardingError, match=re.escape("annotate takes a dict from patterns to what they ask")):
        ash.annotate(imported(), ["0"])  # type: ignore[arg-type]


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.max().item()


def test_a_number_out_of_a_tensor_is_a_tensor() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    model = ash.from_torch(Scaled(), (x,))
    found = ash.plan(model, mesh="dp=2").run(*model.arrays(x))
    assert found.tolist() == (x * x.max()).tolist()


def test_a_model_that_fails_in_torch_cannot_be_compared() -> None:
    model = ash.from_torch(net().half(), (torch.ones(4, 6),))
    with pytest.raises(GraphError, match=r"Sequential cannot be compared with PyTorch, .*same dtype.* at .*\.py:\d+"):
        model.reference()


def test_torch_logs_nothing_of_the_errors_that_are_raised(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ParseError, match="torch.export cannot capture Sequential"):
        ash.from_torch(net(), (torch.ones(4, 7),))
    assert "Traceback" not in "".join(capfd.readouterr())
