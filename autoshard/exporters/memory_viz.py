"""What lies in a device's memory when, as a memory snapshot of PyTorch: https://pytorch.org/memory_viz draws it.

The page counts events, not seconds: they stand in the order of the program. An allocation's frames are the kind and the
name of what lies there, the operator before which it comes, and that operator's line in the user's code.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from autoshard.cost.memory import HeldBytes, MemoryUse
from autoshard.exporters.step_json import node_of
from autoshard.exporters.trace import moment_times, predicted_spans
from autoshard.partition.program import Program
from autoshard.search.planned import PlannedData
from autoshard.util.errors import PlanError

ALIGNED = 512
"""Bytes; PyTorch's allocator rounds addresses to them."""
Event = dict[str, Any]


def memory_snapshot(planned: PlannedData) -> bytes:
    """The pickle that `torch.cuda._memory_viz` and the page read: plain dicts, lists, texts and numbers.

    All devices hold the same; the snapshot is of the first. Its events add up to `planned.cost.memory` at every moment.

    Raises:
        PlanError: the plan's memory is not known.
    """
    return pickle.dumps(snapshot_data(planned), protocol=4)


def snapshot_data(planned: PlannedData) -> dict[str, Any]:
    """What `memory_snapshot` packs."""
    use = planned.cost.memory
    if use is None:
        raise PlanError(f"cannot tell the memory of {planned.program.name}: its plan has no timeline of memory")
    writer = _MemoryWriter(planned.program, use, moment_times(use.moments, predicted_spans(planned)))
    events = list(writer.events())
    return {
        "segments": [writer.segment()],
        "device_traces": [events],
        "allocator_settings": {},
        "external_annotations": [],
    }


class _MemoryWriter:
    """Gives each thing that lies in memory an address of its own."""

    def __init__(self, program: Program, use: MemoryUse, times: list[float]) -> None:
        self.program, self.use, self.times = program, use, times
        self.addresses: dict[int, int] = {}  # by identity: two things may be alike
        self.end = ALIGNED
        self.held = sorted((one for one in use.held if one.nbytes), key=lambda one: one.first)
        for one in self.held:
            self.addresses[id(one)] = self.end
            self.end += -(-one.nbytes // ALIGNED) * ALIGNED

    def events(self) -> Iterator[Event]:
        """Moment by moment: what is let go of, then what is made."""
        # The page fails where events have categories and none of them is "unknown".
        yield self._event("alloc", HeldBytes("the step begins", "unknown", 0, 0, 0), 0, 0)
        firsts: dict[int, list[HeldBytes]] = {}
        lasts: dict[int, list[HeldBytes]] = {}
        for one in self.held:
            firsts.setdefault(one.first, []).append(one)
            lasts.setdefault(one.last + 1, []).append(one)
        for moment in range(self.use.moments):
            for one in lasts.get(moment, ()):
                yield self._event("free_requested", one, self.addresses[id(one)], moment)
                yield self._event("free_completed", one, self.addresses[id(one)], moment)
            for one in firsts.get(moment, ()):
                yield self._event("alloc", one, self.addresses[id(one)], moment)

    def _event(self, action: str, one: HeldBytes, address: int, moment: int) -> Event:
        return {
            "action": action,
            "addr": address,
            "size": one.nbytes,
            "stream": 0,
            "time_us": round(1e6 * self.times[moment]) if self.times else 0,
            "frames": self._frames(one),
            "category": one.kind,
        }

    def _frames(self, one: HeldBytes) -> list[dict[str, Any]]:
        """Where it comes from, the innermost first."""
        instruction = self.program.instructions[one.first] if self.program.instructions else None
        node = None if instruction is None else node_of(instruction) or getattr(instruction, "serves", None)
        found = [_frame(one.kind, 0, one.what), _frame("at", one.first, self.use.describe(one.first))]
        if node is not None and node.source is not None:
            found.append(_frame(node.source.file, node.source.line, node.label))
        return found

    def segment(self) -> dict[str, Any]:
        """The memory as it is left: one segment, whose blocks are what stays."""
        stay = [one for one in self.held if one.last >= self.use.moments - 1]
        blocks, address = [], 0
        for one in stay:
            blocks.append(self._block("inactive", address, self.addresses[id(one)] - address))
            blocks.append(self._block("active_allocated", self.addresses[id(one)], one.nbytes, self._frames(one)))
            address = self.addresses[id(one)] + one.nbytes
        blocks = [one for one in (*blocks, self._block("inactive", address, self.end - address)) if one["size"]]
        used = sum(one.nbytes for one in stay)
        return {
            "address": 0,
            "total_size": self.end,
            "allocated_size": used,
            "active_size": used,
            "requested_size": used,
            "stream": 0,
            "device": 0,
            "segment_type": "large",
            "blocks": blocks,
        }

    def _block(self, state: str, address: int, size: int, frames: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        known = {} if frames is None else {"frames": frames}
        return {"address": address, "size": size, "requested_size": size, "state": state, **known}


def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}
