"""`benchmarks/gpu.py` without a GPU: it says what it could not do; and its code runs on CPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def _found(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict]]:
    from benchmarks import gpu

    code = gpu.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _found(capsys)
    assert code == 0
    checks = ["operators", "programs", "nccl", "compiled", "xla", "calibration", "step"]
    assert [one["check"] for one in found] == checks
    assert {(one["state"], one["told"].partition(";")[0]) for one in found} == {
        ("not done", "torch sees no CUDA device")
    }


@pytest.mark.slow
def test_on_cpus(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import gpu

    monkeypatch.setattr(gpu, "SMALL", gpu.SMALL[1:])
    code, found = _found(capsys, "--device", "cpu", "--quick", "--ranks", "1", "--only", "operators,programs,nccl")
    told = {one["check"]: (one["state"], one["told"]) for one in found}
    assert code == 0, told
    assert told["nccl"][0] == "not done"
    assert told["programs on 1 rank: training"] == ("done", "equal to PyTorch's result")
    assert told["operators"][0] == "done" and " samples equal" in told["operators"][1]


def test_a_check_that_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import gpu

    def broken(_: object) -> Iterator[gpu.Found]:
        raise ValueError("of no use")

    monkeypatch.setitem(gpu.CHECKS, "step", broken)
    code, found = _found(capsys, "--device", "cpu", "--only", "step,nccl")
    assert code == 1 and [one["state"] for one in found] == ["failed", "not done"]
    assert found[0]["told"] == "ValueError: of no use"


@pytest.mark.parametrize(
    "arguments, words", [(("--only", "stop"), "no check stop; there are operators"), (("--ranks", "two"), "--ranks")]
)
def test_what_it_refuses(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    from benchmarks import gpu

    with pytest.raises(SystemExit):
        gpu.main(list(arguments))
    assert words in capsys.readouterr().err
