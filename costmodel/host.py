"""What a host takes to start what its device does, by what makes the kernels: `hosted(device, "eager")`.

A device works on what was started before while its host starts more, so a step takes no less than all starts together,
and one that computes little waits for its host. Presets have none: a device that runs a captured graph (CUDA graphs),
or a program that lies on it whole (TPUs), goes on by itself.

>>> from costmodel import preset
>>> hosted(preset("h100").device, "eager").host_seconds
1e-05
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from costmodel.hardware import FUSIONS, Device


class HostTimes(NamedTuple):
    """Seconds in which a host starts an operator, and a collective."""

    operator: float
    collective: float
    source: str


HOSTS = {
    "none": HostTimes(0.0, 0.0, "numpy: an operator ends before the next one starts, and its call is a part of it"),
    "eager": HostTimes(10e-6, 10e-6, "4 to 10 us of PyTorch for an operator"),
    "kernels": HostTimes(
        56e-6,
        56e-6,
        "fitted to vTrain's steps of small models, whose Megatron-DeepSpeed of 2022 starts more than its graph has",
    ),
    "xla": HostTimes(2e-6, 2e-6, "1 to 2 us for a kernel of a compiled program"),
}
"""By `Device.fusion`."""


def hosted(device: Device, how: str) -> Device:
    """The device behind a host that starts kernels made in this way.

    Args:
        how: as `Device.fusion`.

    Raises:
        ValueError: no such way.
    """
    if how not in HOSTS:
        raise ValueError(f"kernels are made by {how!r}; it is one of {', '.join(FUSIONS)}")
    times = HOSTS[how]
    return replace(device, host_seconds=times.operator, host_collective_seconds=times.collective)
