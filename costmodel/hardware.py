"""Devices, links and how they nest, as plain hashable values; `preset("h100")` of presets.py for known ones.

All numbers are in seconds, bytes, bytes per second and operations per second. Presets are for planning: peaks
are the vendors' own, links are what collectives reach, and each says where it is from. Override any of them:

>>> from dataclasses import replace
>>> from costmodel import preset
>>> slower = replace(preset("h100").device, compute_efficiency=0.5)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.curves import CollectiveCurve, OperatorCurve

IDLE_SHARE = 110 / 700
"""Of a device's power what it takes idle: 110 W of an H100's 700 W (planning)."""
POWER_TO_CLOCK = 0.4
"""The clock's exponent of the power above idle: voltage and clock rise together (planning)."""
FUSIONS = ("none", "eager", "kernels", "xla", "inductor")


@dataclass(frozen=True)
class Device:
    """What one rank computes with.

    `peak_flops` pairs dtype names (f64 f32 f16 bf16 i8 i32 ...) with dense peak operations per second; a
    mapping is taken too. `memory_bandwidth` is bytes per second read plus written, `launch_seconds` the time
    to start one operator. The efficiencies are the share of both peaks that large operators reach. `operators` are
    measured times, which go before all of these for the operators that they name. `fusion` says what makes programs:
    "none" runs each operator by itself, as numpy does, "eager" too, but views cost nothing, "kernels", "xla"
    and "inductor" (torch.compile) make kernels of several (`autoshard.ir.fusion`).
    `attention_efficiency` is the share of the peak that attention reaches, by the operations that its operators count.
    `memory_overlap` is the share of the lesser of computing and moving bytes that hides behind the other: 1 is the
    roofline, 0 their sum, as of products whose first operands come and last results go while nothing is multiplied.
    `host_seconds` is what a host takes to start an operator, `host_collective_seconds` a collective, while the device
    works on what was started before: a step takes no less than all of them. Both are 0 where a device goes on by
    itself, as through a captured graph (`costmodel.host`).
    `packing_seconds` is what it takes, beside its bytes, to put a tensor into a buffer that collectives share and to
    take out what comes of it.
    `power` is the limit in watts at which the shares of the peaks hold, None where nobody says; see `at_power`.
    """

    name: str
    peak_flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    memory_bytes: int
    launch_seconds: float
    compute_efficiency: float = 0.7
    memory_efficiency: float = 0.7
    source: str = ""
    operators: tuple[OperatorCurve, ...] = ()
    fusion: str = "none"
    attention_efficiency: float | None = None
    memory_overlap: float = 1.0
    host_seconds: float = 0.0
    host_collective_seconds: float = 0.0
    packing_seconds: float = 0.0
    power: float | None = None

    def __post_init__(self) -> None:
        pairs = self.peak_flops.items() if isinstance(self.peak_flops, Mapping) else self.peak_flops
        object.__setattr__(self, "peak_flops", tuple((dtype, rate) for dtype, rate in pairs))
        if "f32" not in self._peaks:
            raise ValueError(f"device {self.name!r}: peak_flops needs an f32 entry, got {list(self._peaks)}")
        for dtype, rate in self.peak_flops:
            _require_positive(f"device {self.name!r}: peak_flops of {dtype}", rate)
        _require_positive(f"device {self.name!r}: memory_bandwidth", self.memory_bandwidth)
        _require_positive(f"device {self.name!r}: memory_bytes", self.memory_bytes)
        for field in ("launch_seconds", "host_seconds", "host_collective_seconds", "packing_seconds"):
            _require_not_negative(f"device {self.name!r}: {field}", getattr(self, field))
        for field in ("compute_efficiency", "memory_efficiency"):
            share = getattr(self, field)
            if not 0 < share <= 1:
                raise ValueError(f"device {self.name!r}: {field} is {share}; it lies in (0, 1]")
        if not 0 <= self.memory_overlap <= 1:
            raise ValueError(f"device {self.name!r}: memory_overlap is {self.memory_overlap}; it lies in [0, 1]")
        if self.attention_efficiency is not None and not 0 < self.attention_efficiency <= 1:
            raise ValueError(
                f"device {self.name!r}: attention_efficiency is {self.attention_efficiency}; it lies in (0, 1]"
            )
        if self.power is not None:
            _require_positive(f"device {self.name!r}: power", self.power)
        if self.fusion not in FUSIONS:
            raise ValueError(f"device {self.name!r}: fusion is {self.fusion!r}; it is one of {', '.join(FUSIONS)}")

    @cached_property
    def _peaks(self) -> dict[str, float]:
        return dict(self.peak_flops)

    def efficiency(self, operator: str) -> float:
        """The share of the peak that an operator reaches where computing limits it."""
        if self.attention_efficiency is not None and operator.startswith("Attention"):
            return self.attention_efficiency
        return self.compute_efficiency

    def peak(self, dtype: str) -> float:
        """Dense peak operations per second for a dtype: f8e4m3fn runs like f8 where it is not listed itself; a dtype
        not listed is taken to run like f32."""
        peaks = self._peaks
        return peaks.get(dtype) or peaks.get(dtype.partition("e")[0]) or peaks["f32"]

    @cached_property
    def _curves(self) -> dict[tuple[str, str], OperatorCurve]:
        return {(one.operator, one.dtype): one for one in self.operators}

    def curve(self, operator: str, dtype: str) -> OperatorCurve | None:
        """What was measured of an operator, if it was.

        Where time is by bytes alone, a measurement in f32 serves all dtypes; operations of other dtypes have rates
        of their own.
        """
        if not self.operators:
            return None
        known = self._curves.get((operator, dtype)) or self._curves.get((operator, "f32"))
        return None if known is None or (known.dtype != dtype and known.per_flop) else known

    def at_power(self, watts: float) -> Device:
        """The device under another limit of its power: products and attention are slower, memory is not.

        Dense products run at the limit: the clock grows with the power above what an idle device takes, to about 1 /
        2.5 (planning; 500 W of an H100's 700 W are 0.85 of its rate).

        Raises:
            ValueError: a device that does not say at which power it is, or a limit that is not between what it takes
                idle and that.

        >>> from costmodel import preset
        >>> h100 = preset("h100").device
        >>> round(h100.at_power(500).compute_efficiency / h100.compute_efficiency, 2)
        0.85
        """
        if self.power is None:
            raise ValueError(f"device {self.name!r} does not say at which power its rates are, to take {watts:g} W of")
        idle = IDLE_SHARE * self.power
        if not idle < watts <= self.power:
            raise ValueError(f"device {self.name!r}: power is {watts:g} W; it is above {idle:.3g}, to {self.power:g} W")
        rate = ((watts - idle) / (self.power - idle)) ** POWER_TO_CLOCK
        attention = self.attention_efficiency
        return replace(
            self,
            compute_efficiency=self.compute_efficiency * rate,
            attention_efficiency=None if attention is None else attention * rate,
            power=watts,
        )

    def slowed(self, times: float, more: float = 0.0) -> Device:
        """The device when it takes so many times as long, as when ranks take turns on it, and `more` seconds to start
        an operator."""
        return replace(
            self,
            peak_flops=tuple((dtype, rate / times) for dtype, rate in self.peak_flops),
            memory_bandwidth=self.memory_bandwidth / times,
            launch_seconds=self.launch_seconds * times + more,
            packing_seconds=self.packing_seconds * times,
            operators=tuple(one.slowed(times, more) for one in self.operators),
        )


@dataclass(frozen=True)
class Link:
    """A port of one rank: `latency` in seconds per message, `bandwidth` in bytes per second, one way.

    Bandwidth is what one rank sends while it receives as much; of a measured link the most that any collective
    reaches. `curves` are measured times of collectives, which go before both.
    """

    name: str
    latency: float
    bandwidth: float
    source: str = ""
    curves: tuple[CollectiveCurve, ...] = ()

    def __post_init__(self) -> None:
        _require_not_negative(f"link {self.name!r}: latency", self.latency)
        _require_positive(f"link {self.name!r}: bandwidth", self.bandwidth)

    @cached_property
    def _by_kind(self) -> dict[str, list[CollectiveCurve]]:
        found: dict[str, list[CollectiveCurve]] = {}
        for one in sorted(self.curves, key=lambda one: one.ranks):
            found.setdefault(one.kind, []).append(one)
        return found

    def slowed(self, times: float, more: float = 0.0) -> Link:
        """The link where everything takes so many times as long, and each collective `more` seconds."""
        return replace(
            self,
            latency=times * self.latency + more,
            bandwidth=self.bandwidth / times,
            curves=tuple(one.slowed(times, more) for one in self.curves),
        )

    def curve(self, kind: str, ranks: int) -> CollectiveCurve | None:
        """What was measured of a collective among as many ranks, or the least more, else the most; None if nothing."""
        known = self._by_kind.get(kind) if self.curves and ranks > 1 else None
        return None if known is None else next((one for one in known if one.ranks >= ranks), known[-1])


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
    """One kind of device, many times, and the links between them.

    Ranks that share a machine slow each other down. What was measured with several numbers of ranks stands in
    `by_ranks`, and `for_ranks` chooses.
    """

    name: str
    device: Device
    topology: Topology
    by_ranks: tuple[tuple[int, Hardware], ...] = ()

    def __post_init__(self) -> None:
        counts = [ranks for ranks, _ in self.by_ranks]
        if counts != sorted(set(counts)) or (counts and counts[0] < 1):
            raise ValueError(f"hardware {self.name!r}: by_ranks is for {counts} ranks; the numbers grow from 1")
        if any(one.by_ranks for _, one in self.by_ranks):
            raise ValueError(f"hardware {self.name!r}: what stands in by_ranks has no by_ranks of its own")

    def for_ranks(self, ranks: int) -> Hardware:
        """The hardware as a job of so many ranks meets it: as measured with as many, or the least more.

        Beyond the most that was measured that one is taken: further ranks run on further machines like it.
        """
        if not self.by_ranks:
            return self
        return next((one for count, one in self.by_ranks if count >= ranks), self.by_ranks[-1][1])


def _require_positive(what: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{what} is {value}; it is a finite number above 0")


def _require_not_negative(what: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{what} is {value}; it is a finite number from 0 up")
