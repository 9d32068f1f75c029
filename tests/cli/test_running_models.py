"""`autoshard run SCRIPT.py:NAME`: models in scripts on ranks, compared with PyTorch or with their unsplit run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TORCH = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
pair = (net, (torch.randn(6, 8),))
def by_name():
    return net, {"input": torch.randn(6, 8)}
def wrong():
    import autoshard as ash
    model = ash.from_torch(net, (torch.randn(6, 8),))
    honest = model.reference
    model.reference = lambda: [one + 1 for one in honest()]
    return model
bare = net
"""
OWN = """
import numpy as np
import autoshard as ash
from autoshard import nn
def dense():
    return nn.Dense(8, 4), (np.ones((6, 8), np.float32),)
def traced():
    return ash.trace(*dense())
def lowered():
    import jax
    x = jax.numpy.arange(48.0).reshape(6, 8)
    return ash.from_jax(lambda x, rows: jax.numpy.tanh(x)[rows] @ x.T, x, np.int32([5, 0])), (x, np.int32([5, 0]))
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "in_torch.py").write_text(TORCH)
    (tmp_path / "own.py").write_text(
        OWN.replace("trace(*dense())", "trace(nn.Dense(8, 4), np.ones((6, 8), np.float32))")
    )
    return tmp_path


@pytest.mark.mpi
@pytest.mark.torch
@pytest.mark.parametrize("name", ["pair", "by_name"])
def test_a_torch_module_runs_on_ranks_equal_to_torch(cli, scripts, name):
    target = f"{scripts / 'in_torch.py'}:{name}"
    code, out, err = cli("run", target, "-n", "2", "--mesh", "tp=2", "--check", "--timeout", "120")
    assert code == 0, err
    assert "Sequential ran on mesh tp=2: " in out and out.endswith("\nequal to PyTorch's result\n")


@pytest.mark.torch
@pytest.mark.parametrize(
    "words, wanted",
    [
        (("--device", "cuda"), "engine numpy computes on CPUs"),
        (("--device", "mps", "--engine", "torch"), "unknown device 'mps'; known are auto, cpu, cuda"),
        (("--device", "cuda", "--engine", "torch"), "torch sees no CUDA device"),
    ],
)
def test_devices_are_checked_before_ranks_are_started(cli, scripts, words, wanted):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() and "no CUDA device" in wanted:
        pytest.skip("there is one")
    code, _, err = cli("run", f"{scripts / 'in_torch.py'}:pair", "-n", "2", *words)
    assert code and wanted in " ".join(err.split())


@pytest.mark.mpi
@pytest.mark.torch
def test_what_differs_is_told_and_is_the_exit_code(cli, scripts):
    code, _, err = cli("run", f"{scripts / 'in_torch.py'}:wrong", "-n", "2", "--check", "--timeout", "120")
    assert code == 1 and "differs from PyTorch's result: output 0, float32[6, 4], by up to 1" in err


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["dense", "traced", pytest.param("lowered", marks=pytest.mark.jax)])
def test_own_models_run_equal_to_their_unsplit_run(cli, scripts, name):
    code, out, err = cli("run", f"{scripts / 'own.py'}:{name}", "-n", "2", "--check", "--timeout", "60")
    assert code == 0, err
    assert out.endswith("\nequal to the unsplit run\n")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("own.py:dense", "-n", "2", "--mesh", "dp=2 tp=2"), "mesh 'dp=2 tp=2' has 4 devices, but -n starts 2 ranks"),
        (("own.py:dense", "-n", "2", "more"), "is a model and takes no arguments, but got more"),
        (("own.py:none", "-n", "2"), "has no function 'none'"),
        (("-n", "2", "--mesh", "tp=2", "own.py"), "--mesh: for a model (SCRIPT.py:NAME) or a module (.mlir), not for"),
        (("own.py", "-n", "2"), "-n stands behind"),
        (("own.py:dense", "-n", "2", "--search", "nonsense"), "unknown search mode 'nonsense'"),
        (("own.py:dense", "-n", "2", "--memory", "1 KiB"), "over the memory limit"),
        (("own.py:dense", "-n", "2", "--option", "depth=3"), "no option 'depth'"),
        (("own.py:dense", "-n", "9999999"), "cannot start 9999999 ranks on this machine: it has"),
        (("own.py:dense", "-n", "2", "--hosts", "nowhere"), "cannot read the host file nowhere"),
        (("own.py:dense", "-n", "2", "--save", __file__), "test_running_models.py is a file"),
    ],
)
def test_what_cannot_be_run(cli, scripts, arguments, words):
    given = [str(scripts / one) if one.startswith("own.py") else one for one in arguments]
    code, _, err = cli("run", *given)
    assert code != 0 and words in " ".join(err.split())


@pytest.mark.torch
def test_a_torch_module_needs_its_arguments(cli, scripts):
    code, _, err = cli("plan", f"{scripts / 'in_torch.py'}:bare", "-n", "2")
    assert code != 0 and "gives a torch module, which needs its arguments: return (module, args)" in " ".join(
        err.split()
    )
    code, out, _ = cli("plan", f"{scripts / 'in_torch.py'}:pair", "-n", "2")
    assert code == 0 and "0.matmul" in out


@pytest.mark.mpi
def test_a_run_is_traced(cli, scripts, tmp_path):
    folder = tmp_path / "traced"
    code, out, err = cli("run", f"{scripts / 'own.py'}:dense", "-n", "2", "--trace", str(folder), "--timeout", "120")
    assert code == 0 and "traced to" in err, err
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {f"rank {rank} (d={rank}) {words}" for rank in (0, 1) for words in ("predicted", "measured")}
    by_rank = {}
    for one in events:
        if one["ph"] == "X":
            by_rank.setdefault(one["pid"], []).append(one["name"])
    predicted, measured = by_rank[0], by_rank[1_000_000]
    assert [one for one in measured if one in predicted] == predicted
