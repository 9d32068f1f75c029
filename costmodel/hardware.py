"""Devices, links and how they nest, as plain hashable values; `preset("h100")` for known ones.

All numbers are in seconds, bytes, bytes per second and operations per second. Presets are for planning: peaks
are the vendors' own, links are what collectives reach, and each says where it is from. Override any of them:

>>> from dataclasses import replace
>>> slower = replace(preset("h100").device, compute_efficiency=0.5)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Device:
    """What one rank computes with.

    `peak_flops` pairs dtype names (f64 f32 f16 bf16 i8 i32 ...) with dense peak operations per second; a
    mapping is taken too. `memory_bandwidth` is bytes per second read plus written, `launch_seconds` the time
    to start one operator. The efficiencies are the share of both peaks that large operators reach.
    """

    name: str
    peak_flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    memory_bytes: int
    launch_seconds: float
    compute_efficiency: float = 0.7
    memory_efficiency: float = 0.7
    source: str = ""

    def __post_init__(self) -> None:
        pairs = self.peak_flops.items() if isinstance(self.peak_flops, Mapping) else self.peak_flops
        object.__setattr__(self, "peak_flops", tuple((dtype, rate) for dtype, rate in pairs))
        if "f32" not in self._peaks:
            raise ValueError(f"device {self.name!r}: peak_flops needs an f32 entry, got {list(self._peaks)}")
        for dtype, rate in self.peak_flops:
            _require_positive(f"device {self.name!r}: peak_flops of {dtype}", rate)
        _require_positive(f"device {self.name!r}: memory_bandwidth", self.memory_bandwidth)
        _require_positive(f"device {self.name!r}: memory_bytes", self.memory_bytes)
        _require_not_negative(f"device {self.name!r}: launch_seconds", self.launch_seconds)
        for field in ("compute_efficiency", "memory_efficiency"):
            share = getattr(self, field)
            if not 0 < share <= 1:
                raise ValueError(f"device {self.name!r}: {field} is {share}; it lies in (0, 1]")

    @cached_property
    def _peaks(self) -> dict[str, float]:
        return dict(self.peak_flops)

    def peak(self, dtype: str) -> float:
        """Dense peak operations per second for a dtype; a dtype not listed is taken to run like f32."""
        peaks = self._peaks
        return peaks.get(dtype) or peaks["f32"]


@dataclass(frozen=True)
class Link:
    """A port of one rank: `latency` in seconds per message, `bandwidth` in bytes per second, one way.

    Bandwidth is what one rank sends while it receives as much.
    """

    name: str
    latency: float
    bandwidth: float
    source: str = ""

    def __post_init__(self) -> None:
        _require_not_negative(f"link {self.name!r}: latency", self.latency)
        _require_positive(f"link {self.name!r}: bandwidth", self.bandwidth)


@dataclass(frozen=True)
class Topology:
    """Links from the inside out: (span, link) says that aligned runs of `span` ranks are joined by `link`.

    Spans grow and each divides the next; the span of the last level may be None, for any number of ranks.
    """

    levels: tuple[tuple[int | None, Link], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple((span, link) for span, link in self.levels))
        if not self.levels:
            raise ValueError("a topology needs at least one (span, link) level")
        inner = 1
        for position, (span, link) in enumerate(self.levels, start=1):
            if span is None and position == len(self.levels):
                return
            if span is None or span < 1 or span % inner or (span == inner and position > 1):
                raise ValueError(
                    f"topology level {position} ({link.name!r}) spans {span} ranks after {inner}; "
                    "spans grow, each dividing the next, and only the last may be None"
                )
            inner = span

    def link(self, span: int) -> Link:
        """The link that limits a group whose ranks lie within `span` consecutive ranks.

        The run starts at a multiple of its length; ValueError if `span` is below 1 or above the outermost
        level.
        """
        if span < 1:
            raise ValueError(f"a group spans at least 1 rank, not {span}")
        for limit, link in self.levels:
            if limit is None or span <= limit:
                return link
        raise ValueError(f"a group spans {span} ranks but the topology ends at {self.levels[-1][0]}")


@dataclass(frozen=True)
class Hardware:
    """One kind of device, many times, and the links between them."""

    name: str
    device: Device
    topology: Topology


def preset(name: str) -> Hardware:
    """Hardware by name, see `presets()`; ValueError with all names for an unknown one."""
    from costmodel.preset_table import PRESETS  # the table is written in terms of the classes above

    if name not in PRESETS:
        raise ValueError(f"no hardware preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def presets() -> tuple[str, ...]:
    """Names that `preset` knows."""
    from costmodel.preset_table import PRESETS

    return tuple(PRESETS)


def _require_positive(what: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{what} is {value}; it is a finite number above 0")


def _require_not_negative(what: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{what} is {value}; it is a finite number from 0 up")
