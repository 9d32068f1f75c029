"""The engine torch on a device other than CPUs: nothing that it makes lies elsewhere, and numbers are numpy's."""

from __future__ import annotations

import pytest

from autoshard.engines.kernels import kernels_of
from tests.engines.test_engine_operators import _assert_same, _ran_on_torch, _samples

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_the_device_refuses_operands_of_cpus() -> None:
    from tests.engines.pretended import Mixed, pretended

    with pretended() as device:
        x = torch.ones(3, device=device)
        assert (x + 1 + torch.tensor(2.0)).cpu().tolist() == [4.0] * 3
        with pytest.raises(Mixed, match=r"add.Tensor of tensors on cpu, pretended:0"):
            torch.add(x, torch.ones(3))


def test_operators_on_a_device() -> None:
    from tests.engines.pretended import pretended

    with pretended() as device:
        kernels = kernels_of("torch", device)
        samples = _samples(kernels)
        for sample, arrays in samples:
            _assert_same(sample, _ran_on_torch(kernels, sample, arrays), arrays)
    assert len(samples) > 270
