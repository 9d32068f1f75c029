"""Hardware in files: `save(hardware, path)`, `load(path)`; JSON, checked when loaded, and nothing in it is run.

The name "calibrated" stands for the file that `autoshard calibrate` writes when it is given no other: that which
AUTOSHARD_CALIBRATION names, else autoshard/calibrated.json in the user's folder of caches.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from costmodel.curves import CollectiveCurve, OperatorCurve
from costmodel.hardware import Device, Hardware, Link, Topology

CALIBRATED = "calibrated"
FORMAT, VERSION = "autoshard hardware", 1
_LARGEST = 2**26
"""Bytes of the largest file that is read; a calibration has a few hundred kilobytes."""

Record = TypeVar("Record", Device, Link, CollectiveCurve, OperatorCurve)


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
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, "version": VERSION, "hardware": _plain(hardware)}, indent=1, allow_nan=False)
    handle, scratch = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.chmod(scratch, 0o644)  # mkstemp lets the owner alone read
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    return path


def load(name: str | Path) -> Hardware:
    """Hardware from a file that `save` wrote, or of the name "calibrated".

    Raises:
        ValueError: no such file, or it holds something else; the message says what and where.
    """
    path = calibrated_path() if name == CALIBRATED else Path(name)
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError:
        hint = "`autoshard calibrate -n RANKS` makes it" if name == CALIBRATED else "save one by `autoshard calibrate`"
        raise ValueError(f"there is no hardware file {path}; {hint}") from None
    except OSError as error:
        raise ValueError(f"cannot read the hardware file {path}: {error}") from None
    try:
        if len(text) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST} bytes")
        return _read(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is no hardware file: {error}") from None


def _plain(hardware: Hardware) -> dict[str, Any]:
    return {
        "name": hardware.name,
        "device": asdict(hardware.device),
        "topology": [[span, asdict(link)] for span, link in hardware.topology.levels],
        "by_ranks": [[ranks, _plain(one)] for ranks, one in hardware.by_ranks],
    }


def _read(data: Any) -> Hardware:
    outer = _mapping("the file", data, {"format", "version", "hardware"})
    if outer["format"] != FORMAT or outer["version"] != VERSION:
        found = f"{outer['format']!r}, version {outer['version']!r}"
        raise ValueError(f"it says {found}; {FORMAT!r}, version {VERSION} can be read")
    return _hardware("hardware", outer["hardware"])


def _hardware(where: str, data: Any) -> Hardware:
    parts = _mapping(where, data, {"name", "device", "topology", "by_ranks"})
    levels = []
    for i, (span, link) in enumerate(_pairs(f"{where}.topology", parts["topology"])):
        if span is not None:
            _expect(f"{where}.topology[{i}]: span", span, "int")
        levels.append((span, _record(Link, f"{where}.topology[{i}]", link)))
    others = []
    for i, (ranks, one) in enumerate(_pairs(f"{where}.by_ranks", parts["by_ranks"])):
        _expect(f"{where}.by_ranks[{i}]: ranks", ranks, "int")
        others.append((ranks, _hardware(f"{where}.by_ranks[{i}]", one)))
    _expect(f"{where}.name", parts["name"], "str")
    device = _record(Device, f"{where}.device", parts["device"])
    return Hardware(parts["name"], device, Topology(tuple(levels)), tuple(others))


def _record(kind: type[Record], where: str, data: Any) -> Record:
    """A dataclass from a JSON object with exactly its fields, each of its type."""
    given = dict(_mapping(where, data, {field.name for field in fields(kind)}))
    for field in fields(kind):
        value = given[field.name]
        if field.name == "operators":
            given[field.name] = _records(OperatorCurve, f"{where}.operators", value)
        elif field.name == "curves":
            given[field.name] = _records(CollectiveCurve, f"{where}.curves", value)
        elif field.name == "peak_flops":
            given[field.name] = tuple(_rates(f"{where}.{field.name}", value))
        else:
            _expect(f"{where}.{field.name}", value, str(field.type))
    return kind(**given)


def _records(kind: type[Record], where: str, data: Any) -> tuple[Record, ...]:
    return tuple(_record(kind, f"{where}[{i}]", one) for i, one in enumerate(_list(where, data)))


def _rates(where: str, data: Any) -> list[tuple[str, float]]:
    for dtype, rate in _pairs(where, data):
        _expect(f"{where}: dtype", dtype, "str")
        _expect(f"{where}: rate of {dtype}", rate, "float")
    return [(dtype, rate) for dtype, rate in data]


def _mapping(where: str, data: Any, names: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {type(data).__name__}; an object is expected")
    if set(data) != names:
        raise ValueError(f"{where} has the entries {sorted(data)}; expected are {sorted(names)}")
    return data


def _list(where: str, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{where} is {type(data).__name__}; a list is expected")
    return data


def _pairs(where: str, data: Any) -> list[Any]:
    for one in _list(where, data):
        if not isinstance(one, list) or len(one) != 2:
            raise ValueError(f"{where} holds {one!r}; pairs are expected")
    return data


def _expect(what: str, value: Any, kind: str) -> None:
    kinds = {"str": str, "int": int, "float": (int, float)}
    if isinstance(value, bool) or not isinstance(value, kinds[kind]):
        raise ValueError(f"{what} is {value!r}; a {kind} is expected")
