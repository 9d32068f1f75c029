"""Seconds one operator takes on one device: the roofline, plus what it costs to start it.

>>> from costmodel import preset
>>> f"{operator_seconds(2 * 64 * 256 * 1024, 4 * 344064, preset('h100').device):.3g} s"
'2.77e-06 s'
"""

from __future__ import annotations

from typing import overload

import numpy as np

from costmodel.curves import OperatorCurve
from costmodel.hardware import Device


@overload
def operator_seconds(
    flops: float, nbytes: float, device: Device, dtype: str = "f32", operator: str = "", starts: bool = True
) -> float: ...


@overload
def operator_seconds(
    flops: np.ndarray,
    nbytes: float | np.ndarray,
    device: Device,
    dtype: str = "f32",
    operator: str = "",
    starts: bool = True,
) -> np.ndarray: ...


@overload
def operator_seconds(
    flops: float, nbytes: np.ndarray, device: Device, dtype: str = "f32", operator: str = "", starts: bool = True
) -> np.ndarray: ...


def operator_seconds(
    flops: float | np.ndarray,
    nbytes: float | np.ndarray,
    device: Device,
    dtype: str = "f32",
    operator: str = "",
    starts: bool = True,
) -> float | np.ndarray:
    """Seconds for an operator of `flops` that moves `nbytes` to and from device memory (local sizes).

    launch + max(flops / (efficiency * peak), nbytes / (efficiency * bandwidth)), the roofline of Williams,
    Waterman and Patterson (CACM 52(4), 2009); of the lesser of the two is added what does not hide behind the other
    (`Device.memory_overlap`). The launch time is added and not a floor under the sum: a floor
    would price all ways to split a small operator the same, and a search could not see that splitting saves
    work. An operator that was measured on the device under its name takes what its curve says. No flops and no
    bytes (a view) cost 0: nothing is launched. Nor is an operator that is part of a kernel which another one
    `starts`. Numbers or arrays, also mixed; ValueError for negative ones.
    """
    if operator and (measured := device.curve(operator, dtype)) is not None:
        return _measured(measured, flops, nbytes)
    compute_rate = device.efficiency(operator) * device.peak(dtype)
    launch = device.launch_seconds if starts else 0.0
    memory_rate = device.memory_efficiency * device.memory_bandwidth
    beside = 1.0 - device.memory_overlap
    if isinstance(flops, np.ndarray) or isinstance(nbytes, np.ndarray):
        return _many(np.asarray(flops), np.asarray(nbytes), compute_rate, memory_rate, launch, beside)
    if not (flops >= 0 and nbytes >= 0):
        raise _negative(flops, nbytes)
    computing, moving = flops / compute_rate, nbytes / memory_rate
    busy = max(computing, moving) + beside * min(computing, moving)
    return launch + busy if busy else 0.0


def _measured(curve: OperatorCurve, flops: float | np.ndarray, nbytes: float | np.ndarray) -> float | np.ndarray:
    if not (np.all(np.asarray(flops) >= 0) and np.all(np.asarray(nbytes) >= 0)):
        raise _negative(flops, nbytes)
    if isinstance(flops, np.ndarray) or isinstance(nbytes, np.ndarray):
        return curve.seconds(np.asarray(flops, float), np.asarray(nbytes, float))
    return curve.seconds(flops, nbytes)


def _many(
    flops: np.ndarray, nbytes: np.ndarray, compute_rate: float, memory_rate: float, launch: float, beside: float
) -> np.ndarray:
    if not (np.all(flops >= 0) and np.all(nbytes >= 0)):
        raise _negative(flops, nbytes)
    computing, moving = flops / compute_rate, nbytes / memory_rate
    busy = np.maximum(computing, moving) + beside * np.minimum(computing, moving)
    return np.where(busy > 0, launch + busy, 0.0)


def _negative(flops: object, nbytes: object) -> ValueError:
    return ValueError(f"operator with {flops} flops and {nbytes} bytes: both are numbers from 0 up")
