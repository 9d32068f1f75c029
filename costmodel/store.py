"""Hardware in files: `save(hardware, path)`, `load(path)`; JSON, checked when loaded, and nothing in it is run.

The name "calibrated" stands for the file that `autoshard calibrate` writes when it is given no other: that which
AUTOSHARD_CALIBRATION names, else autoshard/calibrated.json in the user's folder of caches.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from costmodel.curves import CollectiveCurve, OperatorCurve
from costmodel.hardware import Device, Hardware, Link, Topology
from costmodel.json_door import Natural, Record, read, short
from costmodel.plausible import check_units
from costmodel.whole_file import write_whole

CALIBRATED = "calibrated"
FORMAT, VERSION = "autoshard hardware", 1


def is_saved(name: str) -> bool:
    """Whether a name of hardware is that of a file, or stands for one."""
    return name == CALIBRATED or name.endswith(".json")


def calibrated_path() -> Path:
    """Where the calibration of this machine lies, or will."""
    named = os.environ.get("AUTOSHARD_CALIBRATION")
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "autoshard" / "calibrated.json"


def save(hardware: Hardware, path: str | Path) -> Path:
    """Write hardware to a file, all or nothing: who reads it meanwhile sees the old file or the new one.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    data = {"format": FORMAT, "version": VERSION, "hardware": hardware_data(hardware)}
    return write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def load(name: str | Path) -> Hardware:
    """Hardware from a file that `save` wrote, or of the name "calibrated".

    Raises:
        ValueError: no such file, it holds something else, or a number is out of what its unit allows; the message says
            what and where.
    """
    path = calibrated_path() if name == CALIBRATED else Path(name)
    try:
        found = _hardware(read(path, HardwareFile).hardware)
        check_units(found)
        return found
    except FileNotFoundError:
        hint = "`autoshard calibrate -n RANKS` makes it" if name == CALIBRATED else "save one by `autoshard calibrate`"
        raise ValueError(f"there is no hardware file {path}; {hint}") from None
    except OSError as error:
        raise ValueError(f"cannot read the hardware file {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no hardware file: {short(str(error))}") from None


def hardware_data(hardware: Hardware) -> dict[str, Any]:
    """Hardware as plain data: what a HardwareRecord says."""
    return {
        "name": hardware.name,
        "device": asdict(hardware.device),
        "topology": [[span, asdict(link)] for span, link in hardware.topology.levels],
        "by_ranks": [[ranks, hardware_data(one)] for ranks, one in hardware.by_ranks],
    }


# -- what the file holds


class CollectiveRecord(Record, frozen=True):
    """A CollectiveCurve."""

    kind: str
    ranks: int
    latency: float
    per_byte: float
    knee: float
    per_byte_beyond: float


class OperatorCurveRecord(Record, frozen=True):
    """An OperatorCurve."""

    operator: str
    dtype: str
    launch: float
    per_flop: float
    per_byte: float
    knee: float
    per_byte_beyond: float


class DeviceRecord(Record, frozen=True):
    """A Device."""

    name: str
    peak_flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    memory_bytes: Natural
    launch_seconds: float
    compute_efficiency: float
    memory_efficiency: float
    source: str
    operators: tuple[OperatorCurveRecord, ...]
    fusion: Literal["none", "eager", "kernels", "xla", "inductor"] = "none"
    attention_efficiency: float | None = None
    memory_overlap: float = 1.0
    host_seconds: float = 0.0
    host_collective_seconds: float = 0.0
    packing_seconds: float = 0.0
    power: float | None = None


class LinkRecord(Record, frozen=True):
    """A Link."""

    name: str
    latency: float
    bandwidth: float
    source: str
    curves: tuple[CollectiveRecord, ...]


class HardwareRecord(Record, frozen=True):
    """A Hardware: the links with the ranks that each spans, and what was measured with other numbers of ranks."""

    name: str
    device: DeviceRecord
    topology: tuple[tuple[Natural | None, LinkRecord], ...]
    by_ranks: tuple[tuple[Natural, HardwareRecord], ...]


class HardwareFile(Record, frozen=True):
    """The whole file."""

    format: Literal["autoshard hardware"]
    version: Literal[1]
    hardware: HardwareRecord


def _hardware(one: HardwareRecord) -> Hardware:
    operators = tuple(OperatorCurve(**_fields(each)) for each in one.device.operators)
    device = Device(**{**_fields(one.device), "operators": operators})
    levels = tuple((span, _link(link)) for span, link in one.topology)
    others = tuple((ranks, _hardware(each)) for ranks, each in one.by_ranks)
    return Hardware(one.name, device, Topology(levels), others)


def _link(one: LinkRecord) -> Link:
    curves = tuple(CollectiveCurve(**_fields(each)) for each in one.curves)
    return Link(**{**_fields(one), "curves": curves})


def _fields(one: Record) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}
