"""What the engine torch makes on a device other than CPUs: nothing lies elsewhere, and numbers are numpy's.

Run in a process of its own, `python -m tests.engines.device_checks`: torch keeps a device that it was once told of, and
takes it for an accelerator from then on.
"""

from __future__ import annotations

import pytest
import torch

from autoshard.engines.kernels import kernels_of
from tests.engines.pretended import Mixed, pretended
from tests.engines.test_engine_operators import _assert_same, _ran_on_torch, _samples


def check_the_device_refuses_operands_of_cpus() -> None:
    with pretended() as device:
        x = torch.ones(3, device=device)
        assert (x + 1 + torch.tensor(2.0)).cpu().tolist() == [4.0] * 3
        with pytest.raises(Mixed, match=r"add.Tensor of tensors on cpu, pretended:0"):
            torch.add(x, torch.ones(3))


def check_operators() -> int:
    """How many samples of operators ran on the device, equal to numpy."""
    with pretended() as device:
        kernels = kernels_of("torch", device)
        samples = _samples(kernels)
        for sample, arrays in samples:
            _assert_same(sample, _ran_on_torch(kernels, sample, arrays), arrays)
    return len(samples)


if __name__ == "__main__":
    check_the_device_refuses_operands_of_cpus()
    print(check_operators())
