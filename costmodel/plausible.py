"""Whether numbers of a file can be in the units that they are read in: `check_units(hardware)`.

A file that counts GB where bytes are read, or microseconds where seconds are, describes a machine that is a thousand or
a million times off, and plans for it would be made without a word. The ranges end below what a calibration finds on a
machine that is busy with other work (1.7e5 whole numbers a second were seen), and above what one writes in tera or
giga.

>>> from costmodel import preset
>>> check_units(preset("h100"))
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NamedTuple

from costmodel.hardware import Hardware


class Range(NamedTuple):
    """The least and the most of a quantity, and the unit that it is read in."""

    least: float
    most: float
    unit: str


OPERATIONS = Range(1e4, 1e18, "operations per second")
RATE = Range(1e4, 1e15, "bytes per second")
SIZE = Range(2.0**20, 2.0**50, "bytes")
TIME = Range(0.0, 1.0, "seconds")
DTYPES = ("f64", "f32", "tf32", "f16", "bf16", "f8", "f4", "i64", "i32", "i16", "i8", "i4", "i2", "u64", "u32", "u16",
          "u8", "u4", "u2", "c128", "c64", "bool")  # fmt: skip
"""Element types that a device may have a peak for; those of 8 and 4 bits may say more, such as f8e4m3fn."""


def check_units(hardware: Hardware) -> None:
    """Refuse hardware with a number that is out of its range.

    Raises:
        ValueError: the first one, with the place, the range and the unit; or a peak of an element type that is none,
            which no operator would ever meet.
    """
    for dtype, _ in hardware.device.peak_flops:
        if re.sub(r"^(f[48])e\w+$", r"\1", dtype) not in DTYPES:
            near = get_close_matches(dtype.lower(), DTYPES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(DTYPES)}"
            raise ValueError(
                f"device {hardware.device.name!r}: peak_flops of {dtype!r}, which is no element type; {hint}"
            )
    for place, value, of in _quantities(hardware):
        if not of.least <= value <= of.most:
            raise ValueError(f"{place} is {value:g}; it is in {of.unit}, {of.least:g} to {of.most:g} (another unit?)")
    for _, other in hardware.by_ranks:
        check_units(other)


def _quantities(hardware: Hardware) -> Iterator[tuple[str, float, Range]]:
    device = hardware.device
    where = f"device {device.name!r}:"
    for dtype, rate in device.peak_flops:
        yield f"{where} peak_flops of {dtype}", rate, OPERATIONS
    yield f"{where} memory_bandwidth", device.memory_bandwidth, RATE
    yield f"{where} memory_bytes", device.memory_bytes, SIZE
    for field in ("launch_seconds", "host_seconds", "host_collective_seconds", "packing_seconds"):
        yield f"{where} {field}", getattr(device, field), TIME
    for _, link in hardware.topology.levels:
        yield f"link {link.name!r}: bandwidth", link.bandwidth, RATE
        yield f"link {link.name!r}: latency", link.latency, TIME
