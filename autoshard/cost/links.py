"""Links: what the steps of redistributions take on given hardware, in seconds; remembered by the groups of ranks.

A collective that can share a common buffer with others (`bundling.py`) pays the latency of its links once for all of
them, and for each of its bytes besides to be copied into the buffer and out of it: `shared_step` is the least that it
adds to any such bundle, with a part of the latency if so many can share it at most.
"""

from __future__ import annotations

import math

from autoshard.core.tensortype import TensorType
from autoshard.layout.mesh import Grouping, Groups
from autoshard.partition.manual_step import ManualStep
from autoshard.partition.verify_bundles import BUNDLED
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep
from costmodel import Hardware, Topology, group_levels, grouped_seconds, listed_levels

HUGE = 2.0**50
"""Bytes of a message beside which latency is nothing: what a byte takes is read off it."""


class LinkPrices:
    """Asks costmodel for one kind of hardware, and remembers."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._levels: dict[Grouping, tuple] = {}
        self._per_byte: dict[tuple[str, Grouping], float] = {}

    def step(self, step: Step | WindowStep | ManualStep, of: TensorType) -> float:
        """Seconds of one step; local steps are free."""
        if not step.communicates:
            return 0.0
        if isinstance(step, WindowStep):
            each = step.nbytes_priced(of.shape, of.dtype.itemsize) / step.messages
            return step.messages * grouped_seconds("permute", each, self.levels(step.groups))
        return self.sized_step(step, step.nbytes_priced(of.shape, of.dtype.itemsize))

    def sized_step(self, step: Step | ManualStep, nbytes: float) -> float:
        """Seconds of a step that communicates, for a tensor of which `nbytes` count (`Step.nbytes_priced`)."""
        if step.rounds > 1:
            each = grouped_seconds(step.kind, nbytes / step.rounds, self.levels(step.groups))
            return step.messages * each
        return grouped_seconds(step.kind, nbytes, self.levels(step.groups))

    def shared_step(self, step: Step, nbytes: float, copied: float, share: float = 0.0) -> float:
        """Seconds that a step adds at least to collectives with which it shares a buffer; or alone, if that is less.

        Args:
            nbytes: as in `sized_step`.
            copied: bytes of its operand's and its result's local blocks, which are copied (see `packing`).
            share: the part of the latency that it counts (`bundling.latency_shares`).
        """
        alone = self.sized_step(step, nbytes)
        if step.kind not in BUNDLED:
            return alone
        return min(alone, share * self.start(step) + nbytes * self.per_byte(step) + self.packing(copied))

    def start(self, step: Step) -> float:
        """Seconds that a step takes at least beside those of its bytes; 0 for links whose times were measured, which
        may bend anywhere."""
        levels = self.levels(step.groups)
        return 0.0 if any(link.curves for _, link in levels) else self.sized_step(step, 0.0)

    def packing(self, copied: float, tensors: int = 1) -> float:
        """Seconds to copy so many bytes between tensors and a common buffer: each is read and written."""
        device = self.hardware.device
        return 2 * copied / device.memory_bandwidth + tensors * device.packing_seconds

    def per_byte(self, step: Step) -> float:
        """Seconds of a byte in a message so long that latency is nothing."""
        key = step.kind, step.groups
        known = self._per_byte.get(key)
        if known is None:
            known = self._per_byte[key] = grouped_seconds(step.kind, HUGE, self.levels(step.groups)) / HUGE
        return known

    def levels(self, groups: Grouping) -> tuple:
        """The (ranks, link) levels that the groups span, innermost first."""
        known = self._levels.get(groups)
        if known is None:
            known = self._levels[groups] = levels_of(groups, self.hardware.topology)
        return known


def levels_of(groups: Grouping, topology: Topology) -> tuple:
    """The (ranks, link) levels that groups span; on a mesh with a device order, those between the devices in it."""
    if not isinstance(groups, Groups) or groups.mesh.order is None:
        return group_levels(topology, _strides(groups))
    spaced = [(ref.size, groups.mesh.spacing(ref)) for ref in groups.refs]
    even = [(count, gap) for count, gap in spaced if gap is not None]
    return group_levels(topology, even) if len(even) == len(spaced) else listed_levels(topology, groups.rows)


def copied_share(step: Step) -> float:
    """Of a tensor's elements, those in a rank's blocks before and after the step."""
    return 1 / math.prod(step.before.parts) + 1 / math.prod(step.after.parts)


def _strides(groups: Grouping) -> list[tuple[int, int]]:
    """How many ranks are how far apart, for each axis of the groups; of groups that are listed the farthest ones."""
    if isinstance(groups, Groups):
        return [(ref.size, groups.mesh.stride(ref)) for ref in groups.refs]
    gaps = [abs(one - other) for row in groups.rows for one, other in zip(row, row[1:], strict=False)]
    return [(groups.size, max(gaps))] if gaps else []
