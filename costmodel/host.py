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
    """What a host does to start the kernels of a training step.

    Attributes:
        forward: seconds in which it starts an operator of the forward pass.
        backward: of the backward pass.
        collective: a collective of one rank.
        source: where these are from.
        waits: whether it waits for the device at both ends of each pass, and so is never ahead by more than a pass.
        joins: whether one kernel updates all parameters, and one buffer holds all gradients that are reduced.
        crowd: seconds more of a collective for the square of how many other ranks of the node are in it.
    """

    forward: float
    backward: float
    collective: float
    source: str
    waits: bool = False
    joins: bool = False
    crowd: float = 0.0

    def collective_among(self, ranks: int) -> float:
        """Seconds in which hosts of one node start a collective among so many of its ranks: the last one counts.

        >>> HOSTS["kernels"].collective_among(8) > 5 * HOSTS["kernels"].collective_among(2)
        True
        """
        return self.collective + self.crowd * (ranks - 1) ** 2


HOSTS = {
    "none": HostTimes(
        0.0, 0.0, 0.0, "numpy: an operator ends before the next one starts, and its call is a part of it"
    ),
    "eager": HostTimes(10e-6, 10e-6, 10e-6, "4 to 10 us of PyTorch for an operator"),
    "kernels": HostTimes(
        112e-6,
        32e-6,
        35e-6,
        "fitted to vTrain's steps of small models: Megatron-LM of 2020 to 2022 calls the forward pass from Python and "
        "the backward pass from autograd's own thread; its timers of both passes call torch.cuda.synchronize "
        "(megatron/global_vars.py), Apex updates lists of tensors, and gradients lie in one buffer; hosts of 8 ranks "
        "take 0.9 ms a layer longer than that of one, of 2 and 4 0.1 to 0.4 ms",
        waits=True,
        joins=True,
        crowd=4.1e-6,
    ),
    "xla": HostTimes(2e-6, 2e-6, 2e-6, "1 to 2 us for a kernel of a compiled program"),
    "inductor": HostTimes(2e-6, 2e-6, 2e-6, "1 to 2 us for a kernel of a compiled program"),
}
"""By `Device.fusion`."""


def hosted(device: Device, how: str) -> Device:
    """The device behind a host that starts kernels made in this way, of which two in three are of a backward pass.

    Args:
        how: as `Device.fusion`.

    Raises:
        ValueError: no such way.
    """
    if how not in HOSTS:
        raise ValueError(f"kernels are made by {how!r}; it is one of {', '.join(FUSIONS)}")
    times = HOSTS[how]
    operator = (times.forward + 2 * times.backward) / 3
    return replace(device, host_seconds=operator, host_collective_seconds=times.collective)
