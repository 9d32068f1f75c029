"""From measurements to a device without curves: peaks, bandwidth and the shares of both that operators reach.

`fit_roofline(name, RooflineSamples(...), ...)` is for accelerators, whose operators follow the roofline of
`compute.operator_seconds` far beyond the sizes that are measured; `fit.fit_device` keeps a curve for each operator.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.compute import operator_seconds
from costmodel.hardware import Device
from costmodel.measure import OperatorSample

_SHARES = np.linspace(0.2, 1.0, 81)
"""Shares of a peak that are tried."""
_OVERLAPS = np.linspace(0.0, 1.0, 11)
"""Shares of the lesser of computing and moving that are tried to hide behind the other."""


_BEYOND_CACHES = 1 / 16
"""Of the bytes of the largest sample those that a cache does not hold: from these on bandwidth is that of memory."""
_HOST_AHEAD = 3.0
"""How many times what a host takes to start the smallest operator one lasts at least for which a device does not wait:
on an H100 an addition takes 7 us to start, a product 14."""
_LONG = 1 / 16
"""Of the operations of the longest attention those from which on a host is ahead, which starts a gradient in 0.2 ms."""


@dataclass(frozen=True)
class RooflineSamples:
    """What was measured of a device.

    Attributes:
        products: matrix products of several shapes, in each element type.
        moves: operators that mostly move bytes.
        attention: attention, forward, and forward with backward; operators are named "Attention".
        launch_seconds: what the smallest operator takes.
        host_seconds: what a host takes to start one; 0 where it waits for each.
        host_collective_seconds: to start a collective.
    """

    products: tuple[OperatorSample, ...]
    moves: tuple[OperatorSample, ...]
    attention: tuple[OperatorSample, ...]
    launch_seconds: float
    host_seconds: float = 0.0
    host_collective_seconds: float = 0.0

    @property
    def from_memory(self) -> tuple[OperatorSample, ...]:
        """Those that move more than caches hold."""
        least = _BEYOND_CACHES * max((one.nbytes for one in self.moves), default=0)
        return tuple(one for one in self.moves if one.nbytes >= least)

    @property
    def of_device(self) -> tuple[OperatorSample, ...]:
        """Products that a device is busy with; all, where a host takes longer to start each."""
        least = _HOST_AHEAD * self.host_seconds
        return tuple(one for one in self.products if one.seconds >= least) or self.products

    @property
    def long_attention(self) -> tuple[OperatorSample, ...]:
        """Attention that a device is busy with."""
        least = _LONG * max((one.flops for one in self.attention), default=0.0)
        return tuple(one for one in self.attention if one.flops >= least)

    @property
    def operators(self) -> tuple[OperatorSample, ...]:
        return (*self.products, *self.moves, *self.attention)


def fit_roofline(name: str, samples: RooflineSamples, memory_bytes: int, fusion: str, source: str) -> Device:
    """A device by the roofline: peaks and bandwidth are the most that was seen, shares of them what fits all shapes.

    Raises:
        ValueError: no product in f32, nothing that moves bytes, or a sample without a time.
    """
    wrong = [one for one in samples.operators if not 0 < one.seconds < float("inf")]
    if wrong:
        raise ValueError(f"measured seconds are finite and above 0, not {wrong[0].seconds:g} ({wrong[0].operator})")
    peaks = _peaks(samples)
    if not samples.moves:
        raise ValueError("no operator was measured that moves more than it computes")
    launch = min(samples.launch_seconds, *(0.9 * one.seconds for one in samples.operators))
    device = Device(
        name,
        peaks,
        memory_bandwidth=max(one.nbytes / (one.seconds - launch) for one in samples.from_memory),
        memory_bytes=memory_bytes,
        launch_seconds=launch,
        source=source,
        fusion=fusion,
        host_seconds=samples.host_seconds,
        host_collective_seconds=samples.host_collective_seconds,
    )
    moved = [replace(device, memory_efficiency=float(share)) for share in _SHARES]
    device = min(moved, key=lambda one: _misfit(one, samples.from_memory))
    shared = [
        replace(device, compute_efficiency=float(share), memory_overlap=float(overlap))
        for share in _SHARES
        for overlap in _OVERLAPS
    ]
    device = min(shared, key=lambda one: _misfit(one, samples.of_device))
    return replace(device, attention_efficiency=_attention(device, samples.long_attention))


def _peaks(samples: RooflineSamples) -> tuple[tuple[str, float], ...]:
    """The most operations a second that were seen in each element type."""
    rates: dict[str, float] = {}
    for one in samples.products:
        rates[one.dtype] = max(rates.get(one.dtype, 0.0), one.flops / one.seconds)
    if "f32" not in rates:
        raise ValueError("no product was measured in f32")
    return tuple(sorted(rates.items()))


def _misfit(device: Device, samples: Sequence[OperatorSample]) -> float:
    """How far the device is from samples: the mean of the logarithms, so that twice and half are as far."""
    found = [float(operator_seconds(one.flops, one.nbytes, device, one.dtype, one.operator)) for one in samples]
    return float(np.mean([abs(np.log(one / sample.seconds)) for one, sample in zip(found, samples, strict=True)]))


def _attention(device: Device, samples: Sequence[OperatorSample]) -> float | None:
    """The share of the peak that attention reaches in the median."""
    if not samples:
        return None
    rates = [one.flops / (one.seconds - device.launch_seconds) / device.peak(one.dtype) for one in samples]
    return min(1.0, max(1e-3, statistics.median(rates)))
