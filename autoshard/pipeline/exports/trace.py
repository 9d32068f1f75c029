"""A step in stages as a trace in the Trace Event Format: each rank is a process, with a lane for the actions of the
schedule, one for what it computes in them, and one for each set of mesh axes that it talks over.

Arrows lead from an action to those of other groups that need what it sends; a counter shows what a rank holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from autoshard.exporters.step_json import COMPUTE
from autoshard.exporters.trace import (
    FEW,
    MEASURED,
    Event,
    Span,
    TraceWriter,
    chosen_ranks,
    named,
    predicted_spans,
    rank_label,
    slice_of,
)
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import Busy, PipelinePrice, once_label
from autoshard.pipeline.planned.programs import Place
from autoshard.pipeline.schedules.action import Action
from autoshard.search.planned import PlannedData

MOST_PIECES = 400_000
"""Instructions that a trace shows at most: of longer steps it has the actions alone."""
SCHEDULE = "schedule"


def stages_trace(
    planned: PipelineData, ranks: Sequence[int] | None = None, measured: Mapping[int, Sequence[Span]] | None = None
) -> dict[str, Any]:
    """The trace of a step as plain data for JSON.

    Args:
        ranks: those to show; by default the first one of each group, FEW at most.
        measured: for each rank when it ran each of its group's pieces (`pieces_of`), to be shown beside what was
            predicted.

    Raises:
        PlanError: a rank that there is not.
    """
    firsts = [group.ranks[0] for group in planned.groups][:FEW]
    chosen = chosen_ranks(firsts if ranks is None else ranks, planned.devices)
    writer = _StagesWriter(planned, chosen)
    metadata = {
        "program": planned.graph.name,
        "devices": planned.described_devices,
        "hardware": planned.hardware_label,
        "predicted_seconds": writer.price.seconds,
        "instructions": "all" if writer.has_pieces else "left out: they are too many",
    }
    events = list(writer.events("" if measured is None else " predicted"))
    for rank, spans in (measured or {}).items():
        events += writer.measured(rank, spans) if rank in chosen else ()
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": metadata}


class _StagesWriter:
    """What the events of all ranks share."""

    def __init__(self, planned: PipelineData, ranks: Sequence[int]) -> None:
        self.planned, self.price = planned, PipelinePrice(planned)
        self.ranks = {rank: i for i, group in enumerate(planned.groups) for rank in group.ranks if rank in set(ranks)}

    @cached_property
    def busy(self) -> dict[int, list[Busy]]:
        """What the groups of the shown ranks do."""
        found: dict[int, list[Busy]] = {group: [] for group in self.ranks.values()}
        for one in self.price.busy:
            if one.group in found:
                found[one.group].append(one)
        return found

    @cached_property
    def has_pieces(self) -> bool:
        """Whether instructions are shown, too."""
        pieces = self.planned.programs.pieces
        ones = (one for group in self.ranks.values() for one in self.busy[group])
        return sum(len(pieces[place].program.instructions) for one in ones for place in one.places) <= MOST_PIECES

    def events(self, words: str) -> Iterator[Event]:
        """What is predicted."""
        for rank, group in self.ranks.items():
            yield from self._head(rank, rank, self.lanes[group], words)
            for one in self.busy[group]:
                yield slice_of(one.label, rank, 0, (one.start, one.end), self._told(one), SCHEDULE)
                if self.has_pieces:
                    yield from self._pieces(one, rank)
            yield from self._memory(rank, group)
        yield from self._arrows()

    def measured(self, rank: int, spans: Sequence[Span]) -> Iterator[Event]:
        """What a rank has done when, as a process of its own."""
        pid, pieces = rank + MEASURED, self.planned.pieces_of(self.ranks[rank])
        yield from self._head(pid, rank, [SCHEDULE], " measured")
        for one in spans:
            (stage, kind), micro = pieces[one.moment]
            name = once_label(kind) if micro is None else str(Action(kind, stage, micro))
            told = {"stage": stage} if micro is None else {"stage": stage, "micro_batch": micro, "kind": kind}
            yield slice_of(name, pid, 0, (one.start, one.end), told, SCHEDULE)

    def _head(self, pid: int, rank: int, lanes: Sequence[str], words: str) -> Iterator[Event]:
        group = self.ranks[rank]
        devices = self.planned.groups[group]
        place = rank_label(devices.mesh, devices.ranks.index(rank))
        yield named("process_name", pid, 0, f"rank {rank} (group {group}, {place}){words}")
        order = {"sort_index": 2 * rank + (pid != rank)}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": order}
        for tid, lane in enumerate(lanes):
            yield named("thread_name", pid, tid, f"over {lane}" if tid > 1 else lane)

    @cached_property
    def lanes(self) -> dict[int, list[str]]:
        """Of each shown group."""
        return {group: self._lanes(group) for group in self.busy}

    def _lanes(self, group: int) -> list[str]:
        stages = self.planned.schedule.chunks(group)
        own = (writer.own_lanes for place, (writer, _) in self._pieces_of.items() if place[0] in stages)
        lanes = dict.fromkeys(lane for one in own for lane in one)
        return [SCHEDULE, COMPUTE, *(lane for lane in lanes if lane != COMPUTE)]

    def _told(self, one: Busy) -> dict[str, Any]:
        if one.action is None:
            return {}
        return {"stage": one.action.stage, "micro_batch": one.action.micro, "kind": one.action.kind}

    def _pieces(self, one: Busy, rank: int) -> Iterator[Event]:
        """The instructions, one piece behind the other."""
        start = one.start
        for place in one.places:
            writer, spans = self._pieces_of[place]
            yield from (writer.slice(span, rank, self.lanes[one.group], start) for span in spans)
            start += max((span.end for span in spans), default=0.0)

    @cached_property
    def _pieces_of(self) -> dict[Place, tuple[TraceWriter, tuple[Span, ...]]]:
        """What writes the instructions of each piece, and when they run."""
        found = {}
        for place, ready in self.planned.programs.pieces.items():
            stage = self.planned.stage_hardware[place[0]]
            piece = PlannedData(self.planned.traced, ready.plan, stage, self.planned.passes)
            piece.__dict__["_optimized"] = ready.program, ()  # it is made already
            found[place] = TraceWriter(piece), predicted_spans(piece)
        return found

    def _memory(self, rank: int, group: int) -> Iterator[Event]:
        """A counter of bytes by kind, from the begin of each action on."""
        memory = self.price.memory[group]
        always = {"states": memory.states, "gradients": memory.accumulators, "transient": memory.transient}
        for start, size in ((0.0, 0), *self.price.held[group]):
            args = {**always, "activations": size}
            yield {"ph": "C", "pid": rank, "name": "memory", "cat": "memory", "ts": 1e6 * start, "args": args}

    def _arrows(self) -> Iterator[Event]:
        """From what sends to what receives, wherever a rank of both groups is shown."""
        first = {group: rank for rank, group in reversed(self.ranks.items())}
        acting = [(one, one.action.micro) for ones in self.busy.values() for one in ones if one.action is not None]
        at = {(place, micro): one for one, micro in acting for place in one.places}
        number = 0
        for (source, target), values in self._messages().items():
            for micro in range(self.planned.schedule.micro_batches):
                ends = at.get((source, micro)), at.get((target, micro))
                if ends[0] is None or ends[1] is None:
                    continue
                number += 1
                told = {"name": "sends", "cat": "sends", "id": number, "tid": 0, "args": {"values": values}}
                yield {"ph": "s", "pid": first[ends[0].group], "ts": 1e6 * (ends[0].start + ends[0].end) / 2, **told}
                middle = (ends[1].start + ends[1].end) / 2
                yield {"ph": "f", "bp": "e", "pid": first[ends[1].group], "ts": 1e6 * middle, **told}

    def _messages(self) -> dict[tuple[Place, Place], list[str]]:
        """What goes from piece to piece of each micro batch, from group to group."""
        found: dict[tuple[Place, Place], list[str]] = {}
        groups = self.planned.schedule.ranks_of_stages
        for route in self.price.crossing:
            if route.is_repeated and groups[route.stage] != groups[route.source[0]]:
                found.setdefault((route.source, route.readers[0]), []).append(route.value.name)
        return found
