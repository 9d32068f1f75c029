"""`autoshard calibrate --device`: what torch computes on, as a hardware file; on CPUs here, by the code for GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.calibrate import Effort
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Graph
from autoshard.trace import trace
from autoshard.transform.grad import gradient
from costmodel import load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
MODELS = Path(__file__).with_name("models.py")


@pytest.mark.mpi
@pytest.mark.slow
def test_a_device_and_what_two_ranks_send(cli, tmp_path, monkeypatch):
    from autoshard.calibrate import by_torch

    monkeypatch.setattr(by_torch, "QUICK", Effort((2**9, 2**13, 2**21), (), 1e-3, 2e-3, 1))
    path = tmp_path / "torch.json"
    code, out, err = cli("calibrate", "--device", "cpu", "--quick", "-n", "2", "-o", str(path))
    assert code == 0, err
    assert "measuring this machine's CPU by torch\nmeasuring with 2 ranks" in err
    for row in ("MatMul", "Softmax", "Attention", "all_reduce of 2", "permute of 2", f"--hardware {path}"):
        assert row in out
    found = load(path)
    assert found.device.fusion == "eager" and found.device.attention_efficiency
    assert 1e7 < found.device.peak("f32") < 1e13 and 1e8 < found.device.memory_bandwidth < 1e13
    link = found.topology.link(2)
    assert link.name == "gloo" and {one.ranks for one in link.curves} == {2} and len(link.curves) == 5
    assert cli("hardware", "show", str(path), "-n", "2")[0] == 0
    code, out, err = cli("plan", f"{MODELS}:free", "-n", "2", "--hardware", str(path), "--json")
    assert code == 0, err
    assert json.loads(out)["hardware"] == "calibrated"


def test_one_rank_and_nothing_saved_of_what_fails(cli, tmp_path, monkeypatch):
    from autoshard.calibrate import by_torch, torch_operators
    from costmodel.measure import OperatorSample

    path = tmp_path / "one.json"
    code, _, err = cli("calibrate", "--device", "cpu", "--quick", "--json", "-o", str(path))
    assert code == 0, err
    assert "one rank was measured" in load(path).topology.link(2).source
    before = path.read_bytes()
    broken = OperatorSample("Add", "f32", 1.0, 8, 0.0)
    monkeypatch.setattr(torch_operators, "_moves", lambda *_: [broken])
    with pytest.raises(ValueError, match="finite and above 0"):
        by_torch.calibrate_device("cpu", quick=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--device", "cude"), "unknown device 'cude'; did you mean 'cuda'?"),
        (("--device", "cuda"), "torch sees no CUDA device"),
        (("--device", "cpu", "-n", "0"), "cannot calibrate with 0 ranks"),
        (("--device", "cpu", "--threads", "2"), "leave it out with --device"),
        ((), "-n is missing"),
    ],
)
def test_what_is_refused(cli, arguments, words):
    if torch.cuda.is_available() and "no CUDA" in words:
        pytest.skip("there is one")
    code, _, err = cli("calibrate", *arguments)
    assert code == 2 and words in " ".join(err.split())


def test_clocks_take_the_median_of_rounds():
    from autoshard.calibrate.clock import seconds_of

    told = iter([9.0, 1.0, 5.0, 1.0, 3.0])  # warm-up, a first call, and rounds
    assert seconds_of(lambda: None, lambda action, count: next(told), 0.1, rounds=3) == 3.0
    with pytest.raises(ValueError, match="both are numbers above 0"):
        seconds_of(lambda: None, lambda action, count: 1.0, 0.0)


def test_the_operations_of_attention_and_its_gradient():
    """What is measured of both together is counted as the operators count."""
    from autoshard import ops
    from autoshard.calibrate.torch_operators import GRADIENT

    of = TensorType.of((1, 4, 2048, 128), "bf16")
    graph = trace(lambda q, k, v: ops.reduce_sum(ops.attention(q, k, v, causal=True)), of, of, of).graph
    whole, _ = gradient(graph, graph.outputs[0], graph.inputs)

    def counted(one: Graph) -> float:
        nodes = (node for node in one.nodes if node.op.name.startswith("Attention"))
        return sum(float(node.op.flops(node.operand_types, node.attrs)) for node in nodes)

    assert counted(whole) / counted(graph) == pytest.approx(1 + GRADIENT, rel=0.05)
