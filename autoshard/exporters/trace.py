"""A step as a trace in the Trace Event Format of Chrome, which Perfetto opens too: predicted, measured, or both.

Each rank is a process, with a lane for what it computes and one for each set of mesh axes that it talks over; arrows
lead through the ranks that take part in a collective, and a counter shows memory by kind. Predicted times are those of
the timeline that the price is; measured ones are of a run (`autoshard run --trace`), as processes of their own below.

Times are in microseconds, as the format has it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autoshard.cost.memory import MemoryUse
from autoshard.cost.prices import prices_for
from autoshard.cost.timeline import scheduled
from autoshard.exporters.step_json import COMPUTE, lane_of, node_of
from autoshard.ir.graph import Node
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Bundle, Collective, Instruction, ManualCollective, Nest, Start, Wait, walk
from autoshard.report.summary import OperatorRow, summarize
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically

if TYPE_CHECKING:
    from autoshard.search.planned import PlannedData

FEW = 8
"""Ranks that a trace shows unless others are asked for."""
MEASURED = 1_000_000
"""Added to a rank for the process of what was measured on it."""
_SHORTEST = 0.001
"""Microseconds; viewers leave out what takes no time."""
Event = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """An instruction of a program on a rank, in seconds from the start of the step."""

    moment: int
    start: float
    end: float
    exposed: float | None = None


def predicted_spans(planned: PlannedData) -> tuple[Span, ...]:
    """When each instruction runs by the price of the plan."""
    costs = prices_for(planned.hardware).instructions
    return tuple(Span(one.moment, one.start, one.end, one.exposed) for one in scheduled(planned.program, costs))


def trace_data(
    planned: PlannedData, ranks: Sequence[int] | None = None, measured: Mapping[int, Sequence[Span]] | None = None
) -> dict[str, Any]:
    """The trace of a step as plain data for JSON.

    Args:
        ranks: those to show; by default the first FEW.
        measured: for each rank what was measured on it, to be shown beside what was predicted.

    Raises:
        PlanError: a rank that the mesh has not.
    """
    world = planned.plan.mesh.devices
    chosen = chosen_ranks(range(min(world, FEW)) if ranks is None else ranks, world)
    writer = TraceWriter(planned)
    spans = predicted_spans(planned)
    events = list(writer.ranks(dict.fromkeys(chosen, spans), 0, "" if measured is None else " predicted"))
    if planned.cost.memory is not None:
        events += writer.memory(planned.cost.memory, spans, chosen)
    if measured:
        shown = {rank: measured[rank] for rank in chosen if rank in measured}
        events += writer.ranks(shown, MEASURED, " measured")
    metadata = {
        "program": planned.program.name,
        "mesh": str(planned.plan.mesh),
        "hardware": planned.hardware.name,
        "mode": planned.plan.search,
        "predicted_seconds": planned.cost.seconds,
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": metadata}


def chosen_ranks(ranks: Iterable[int], world: int) -> list[int]:
    """Ranks to be traced, each once.

    Raises:
        PlanError: none, or one that `world` ranks do not have.
    """
    chosen = list(dict.fromkeys(ranks))
    wrong = [rank for rank in chosen if not 0 <= rank < world]
    if wrong or not chosen:
        raise PlanError(f"cannot trace the ranks {wrong or 'of an empty list'}: there are ranks 0 to {world - 1}")
    return chosen


def save_trace(data: Mapping[str, Any], path: str | Path) -> Path:
    """Write a trace to a file, packed where its name ends in .gz; the path.

    Raises:
        PlanError: the file cannot be written.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    packed = str(path).endswith(".gz")
    return write_atomically(path, gzip.compress(text.encode(), mtime=0) if packed else text, PlanError)


def named(what: str, pid: int, tid: int, name: str) -> Event:
    """What a process or a lane is called."""
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def rank_label(mesh: Mesh, rank: int) -> str:
    """Where a rank stands on a mesh: `dp=0, tp=1`."""
    return ", ".join(f"{name}={mesh.index(rank, (mesh.axis(name),))}" for name, _ in mesh.axes)


def slice_of(name: str, pid: int, tid: int, span: tuple[float, float], args: Mapping[str, Any], category: str) -> Event:
    """What a lane does from one second to another."""
    times = {"ts": 1e6 * span[0], "dur": max(_SHORTEST, 1e6 * (span[1] - span[0]))}
    return {"ph": "X", "pid": pid, "tid": tid, **times, "cat": category, "name": name, "args": dict(args)}


class TraceWriter:
    """What the events of all ranks of a plan share."""

    def __init__(self, planned: PlannedData) -> None:
        summary = summarize(planned)
        self.planned, self.mesh, self.program = planned, planned.plan.mesh, planned.program
        self.rows: dict[Node | None, OperatorRow] = {row.node: row for row in summary.operators}
        self.moves = {one: move for move in summary.moves for one in move.collectives}
        lanes = dict.fromkeys(map(lane_of, self.program.instructions))
        self.own_lanes = [COMPUTE, *(name for name in lanes if name != COMPUTE)]

    def ranks(self, spans: Mapping[int, Sequence[Span]], shift: int, words: str) -> Iterator[Event]:
        """The events of ranks, each of its own spans, as processes numbered from `shift`."""
        for rank, own in spans.items():
            yield named("process_name", rank + shift, 0, f"rank {rank} ({rank_label(self.mesh, rank)}){words}")
            yield {
                "ph": "M",
                "pid": rank + shift,
                "name": "process_sort_index",
                "args": {"sort_index": 2 * rank + bool(shift)},
            }
            for tid, lane in enumerate(self.own_lanes):
                yield named("thread_name", rank + shift, tid, lane if lane == COMPUTE else f"over {lane}")
            yield from (self.slice(one, rank + shift, self.own_lanes) for one in own)
        yield from self._flows(spans, shift)

    def slice(self, span: Span, pid: int, lanes: Sequence[str], begin: float = 0.0) -> Event:
        """An instruction on its lane; `begin` is when the program begins, in seconds."""
        one = self.program.instructions[span.moment]
        lane = lane_of(one)
        category = "compute" if lane == COMPUTE else "communication"
        args = self._communication(one) if lane != COMPUTE else self._computing(one)
        name = args.pop("name")
        exposed = {} if span.exposed is None or lane == COMPUTE else {"exposed_us": 1e6 * span.exposed}
        times = begin + span.start, begin + span.end
        return slice_of(name, pid, lanes.index(lane), times, {**args, **exposed, "moment": span.moment}, category)

    def _computing(self, one: Instruction) -> dict[str, Any]:
        node = node_of(one)
        row = self.rows.get(node)
        if row is None or node is None:
            named = (*one.results, *one.operands)
            return {"name": f"{_word(one)} {named[0].name}" if named else _word(one)}
        return {
            "name": node.label,
            "op": node.op.name,
            "strategy": str(row.decision.strategy),
            "leaves": [str(layout) for layout in row.layouts],
            "cause": str(row.decision.cause),
            "source": "" if node.source is None else str(node.source),
        }

    def _communication(self, one: Instruction) -> dict[str, Any]:
        parts = [part for part in walk((one,)) if isinstance(part, Collective | ManualCollective)]
        moves = [self.moves[part] for part in parts if part in self.moves]
        users = dict.fromkeys(user for move in moves for user in move.users)
        nodes = [move.serves for move in moves if move.serves is not None and move.serves.source is not None]
        return {
            "name": f"{parts[0].step.kind} {parts[0].operands[0].name if parts[0].operands else ''}".strip(),
            "over": lane_of(one),
            "ranks": parts[0].step.groups.size,
            "bytes_sent": sum(part.nbytes_moved for part in parts),
            "values": [move.value.name for move in moves],
            "for": list(users),
            "source": str(nodes[0].source) if nodes else "",
        }

    def _flows(self, spans: Mapping[int, Sequence[Span]], shift: int) -> Iterator[Event]:
        """An arrow through the ranks of each group of each collective."""
        talking = {
            rank: {one.moment: one for one in own if lane_of(self.program.instructions[one.moment]) != COMPUTE}
            for rank, own in spans.items()
        }
        number = shift
        for moment, one in enumerate(self.program.instructions):
            if lane_of(one) == COMPUTE:
                continue
            first = next(part for part in walk((one,)) if isinstance(part, Collective | ManualCollective))
            for group in _groups(first, sorted(talking)):
                there = [(rank, talking[rank][moment]) for rank in group if moment in talking[rank]]
                if len(there) > 1:
                    number += 1
                    yield from self._flow(there, number, shift, lane_of(one))

    def _flow(self, there: Sequence[tuple[int, Span]], number: int, shift: int, lane: str) -> Iterator[Event]:
        for i, (rank, span) in enumerate(there):
            phase = "s" if i == 0 else "f" if i == len(there) - 1 else "t"
            end = {"bp": "e"} if phase == "f" else {}
            middle = 1e6 * (span.start + span.end) / 2
            named = {"name": "group", "cat": "group", "id": number, "tid": self.own_lanes.index(lane)}
            yield {"ph": phase, "pid": rank + shift, "ts": middle, **named, **end}

    def memory(self, use: MemoryUse, spans: Sequence[Span], ranks: Iterable[int]) -> Iterator[Event]:
        """Counters of bytes by kind wherever they change, and a mark at the peak; each rank holds the same."""
        times = moment_times(use.moments, spans)
        kinds = dict.fromkeys(one.kind for one in use.held if one.nbytes)
        changes = {kind: np.zeros(use.moments + 1, np.int64) for kind in kinds}
        for one in use.held:
            if one.nbytes:
                changes[one.kind][one.first] += one.nbytes
                changes[one.kind][one.last + 1] -= one.nbytes
        at = {kind: np.cumsum(steps) for kind, steps in changes.items()}
        moving = [i for i in range(use.moments) if i == 0 or any(steps[i] for steps in changes.values())]
        for rank in ranks:
            for i in moving:
                args = {kind: int(steps[i]) for kind, steps in at.items()}
                yield {"ph": "C", "pid": rank, "name": "memory", "cat": "memory", "ts": 1e6 * times[i], "args": args}
            peak = {"ts": 1e6 * times[use.peak_moment], "args": {"at": use.peak_at, "bytes": use.peak}}
            yield {"ph": "i", "s": "p", "pid": rank, "tid": 0, "name": "peak memory", "cat": "memory", **peak}


def moment_times(moments: int, spans: Sequence[Span]) -> list[float]:
    """When each instruction begins; one that takes no time begins when what comes after it does."""
    found = [-1.0] * moments
    for one in spans:
        found[one.moment] = one.start
    later = max((one.end for one in spans), default=0.0)
    for i in range(moments - 1, -1, -1):
        later = found[i] = min(later, found[i]) if found[i] >= 0 else later
    return found


def _groups(one: Collective | ManualCollective, ranks: Sequence[int]) -> Iterator[list[int]]:
    """The groups of a collective, as far as their ranks are shown."""
    left = dict.fromkeys(ranks)
    while left:
        members = {int(rank) for rank in one.step.groups.members(next(iter(left)))}
        group = [rank for rank in left if rank in members]
        yield group
        for rank in group:
            del left[rank]


def _word(one: Instruction) -> str:
    if isinstance(one, Wait):
        return "wait for"
    if isinstance(one, Collective | Bundle | Start | ManualCollective):
        return "local"
    return "loop" if isinstance(one, Nest) else "besides"
