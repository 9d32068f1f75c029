"""A cluster of a user's own as hardware: a TOML file says how many nodes there are, and how they are linked.

    name = "lab"
    nodes = 4
    devices = 8                      # of each node
    [device]
    like = "h100"                    # the figures of a preset; those that follow replace them
    memory = "94 GB"
    [[links]]                        # from the inside out
    name = "NVLink"
    joins = 8                        # so many consecutive devices
    bandwidth = "450 GB/s"           # of one device, one way
    latency = "2 us"                 # of a message
    [[links]]
    name = "rails"
    joins = 32
    bandwidth = "50 GB/s"
    latency = "4 us"

Device d of node n is rank n * devices + d. Between the links of a node and those that join all, there may be further
ones (pods, racks). `docs/how-to/describe_a_cluster.md` has all fields.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from costmodel.hardware import Device, Hardware, Link, Topology
from costmodel.json_door import MOST_BYTES, JsonError, Positive, Record, contents, convert
from costmodel.plausible import check_units
from costmodel.preset_table import PRESETS
from costmodel.units import parse_bytes, parse_rate, parse_seconds, parse_watts

ENDING = ".toml"
_NEEDED = ("peak_flops", "memory_bandwidth", "memory", "launch")


class DeviceFile(Record, frozen=True):
    """What computes. Without `like`, the first four fields below it are needed.

    Attributes:
        like: a preset whose device it is but for what follows.
        peak_flops: by dtype (bf16, f32, ...) dense operations per second.
        memory_bandwidth: bytes per second read plus written, a number or text such as "3.35 TB/s".
        memory: bytes, a number or text such as "80 GB".
        launch: seconds to start an operator, a number or text such as "7 us".
        host: seconds in which a host starts an operator or a collective while the device works, such as "10 us".
        compute_efficiency: the share of the peak that large operators reach; memory_efficiency that of the bandwidth.
        fusion: what makes programs: none, eager, kernels, xla or inductor, as `Device.fusion`.
        power: the limit of a device in watts, a number or text such as "500 W", below that of the preset.
    """

    like: str | None = None
    peak_flops: dict[str, float] | None = None
    memory_bandwidth: float | str | None = None
    memory: int | str | None = None
    launch: float | str | None = None
    host: float | str | None = None
    compute_efficiency: float | None = None
    memory_efficiency: float | None = None
    fusion: str | None = None
    power: float | str | None = None


class LinkFile(Record, frozen=True):
    """What joins runs of `joins` consecutive devices; `bandwidth` of a device, one way, `latency` of a message."""

    name: str
    joins: Positive
    bandwidth: float | str
    latency: float | str
    source: str = ""


class ClusterFile(Record, frozen=True):
    """The file as a whole."""

    name: str
    nodes: Positive
    devices: Positive
    device: DeviceFile
    links: list[LinkFile]


def read_cluster(path: str | Path) -> Hardware:
    """The hardware that a cluster file describes; it joins as many devices as the file says, and no more.

    Raises:
        ValueError: no such file, no TOML, fields that are missing, unknown or of another kind, or links that do not
            join the devices, or numbers out of what their unit allows; the message has the file and the place in it.
    """
    try:
        data = contents(path)
    except FileNotFoundError:
        raise ValueError(f"there is no cluster file {path}") from None
    except OSError as error:
        raise ValueError(f"cannot read the cluster file {path}: {error.strerror}") from None
    try:
        if len(data) > MOST_BYTES:
            raise JsonError(f"it has more than {MOST_BYTES} bytes")
        found = _hardware(convert(tomllib.loads(_text(data)), ClusterFile))
        check_units(found)
        return found
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cluster file {path}: {error}") from None


def _text(data: bytes) -> str:
    """The text of a file, without the mark that some editors begin it with."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None


def _hardware(file: ClusterFile) -> Hardware:
    _check_links(file)
    levels = tuple((link.joins, _link(link)) for link in file.links)
    return Hardware(file.name, _device(file.device, file.name), Topology(levels))


def _check_links(file: ClusterFile) -> None:
    """The links grow from within a node to all devices, and a node is joined by one of them."""
    whole, joins = file.nodes * file.devices, [link.joins for link in file.links]
    if not joins or joins[-1] != whole:
        raise ValueError(
            f"the last of links joins {joins[-1] if joins else 'nothing'}, but {file.nodes} nodes of {file.devices} "
            f"devices are {whole} devices, which it has to join"
        )
    for inner, outer in zip((1, *joins), joins, strict=False):
        if outer % inner or (outer <= inner and inner > 1):
            raise ValueError(f"links join {joins} devices; each number is larger than the one before and divides by it")
    if file.nodes > 1 and file.devices > 1 and file.devices not in joins:
        raise ValueError(f"links join {joins} devices, and none of them the {file.devices} devices of a node")


def _link(file: LinkFile) -> Link:
    where = f"link {file.name!r}"
    bandwidth, latency = parse_rate(file.bandwidth, where), parse_seconds(file.latency, where)
    return Link(file.name, latency, bandwidth, file.source or "cluster file")


def _device(file: DeviceFile, name: str) -> Device:
    if file.like is None:
        missing = [field for field in _NEEDED if getattr(file, field) is None]
        if missing:
            raise ValueError(f"[device] lacks {', '.join(missing)}; give them, or `like` with a preset's name")
        base = None
    elif file.like not in PRESETS:
        raise ValueError(f"[device] is like {file.like!r}, which is no preset; there are {', '.join(PRESETS)}")
    else:
        base = PRESETS[file.like].device
    host = file.host if file.host is None else parse_seconds(file.host, "[device] host")
    given = {
        "peak_flops": file.peak_flops,
        "memory_bandwidth": file.memory_bandwidth and parse_rate(file.memory_bandwidth, "[device] memory_bandwidth"),
        "memory_bytes": file.memory and parse_bytes(file.memory),
        "launch_seconds": file.launch if file.launch is None else parse_seconds(file.launch, "[device] launch"),
        "host_seconds": host,
        "host_collective_seconds": host,
        "compute_efficiency": file.compute_efficiency,
        "memory_efficiency": file.memory_efficiency,
        "fusion": file.fusion,
    }
    fields = {field: value for field, value in given.items() if value is not None}
    if base is None:
        made = Device(f"device of {name}", source="cluster file", **fields)
    else:
        made = replace(base, **fields) if fields else base
    return made if file.power is None else made.at_power(parse_watts(file.power, "[device] power"))
