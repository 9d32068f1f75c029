"""Steps that were measured on an H100, against plans priced by what calibration measured of the same GPU."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["llama-long", "vit", "bert"])
def test_compiled_steps(name: str) -> None:
    from benchmarks.gpu_predicted import STEPS, calibrated, predicted
    from benchmarks.gpu_truth import MODELS, step_of

    rows = json.loads(STEPS.read_text())["rows"]
    measured = next(one for one in rows if (one["model"], one["way"]) == (name, "compiled"))
    found = predicted(step_of(MODELS[name]), calibrated(), "compiled")
    assert found["seconds"] == pytest.approx(measured["seconds"], rel=0.1)
    for part in ("products", "attention"):
        assert found["parts"][part] == pytest.approx(measured["busy"]["parts"][part], rel=0.25)


def test_shares_of_an_h100() -> None:
    from benchmarks.gpu_predicted import calibrated

    device = calibrated().device
    assert device.efficiency("MatMul") * device.peak("bf16") == pytest.approx(0.767 * 989e12, rel=0.01)
    assert device.efficiency("Attention") * device.peak("bf16") == pytest.approx(577e12, rel=0.01)
    assert device.memory_efficiency * device.memory_bandwidth == pytest.approx(2.99e12, rel=0.01)
