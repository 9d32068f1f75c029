"""What a planned pipeline is, in a table for people: a row per stage, one per group, and what bounds the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import PipelinePrice
from autoshard.pipeline.planned.searched import StageSearch
from costmodel import format_bytes, format_seconds


def report(planned: PipelineData) -> str:
    """The stages, their times and memory, and the step."""
    return "\n".join(_lines(planned, PipelinePrice(planned)))


def _lines(planned: PipelineData, price: PipelinePrice) -> Iterator[str]:
    line, schedule = price.durations, planned.schedule
    yield f"{planned.graph.name}: {planned.described_devices}"
    yield ""
    rows = [["stage", "group", "operators", "parameters", "forward", "input grad", "weight grad", "sends on", "back"]]
    for i, stage in enumerate(planned.whole.pipeline.stages):
        operators = sum(len(piece.graph.nodes) for piece in planned.graphs[i].pieces.values())
        nbytes = format_bytes(sum(value.type.nbytes for value in stage.parameters))
        times = (line.forward, line.input_gradient, line.weight_gradient, line.forward_transfers)
        seconds = [format_seconds(float(one[i])) for one in (*times, line.backward_transfers)]
        rows.append([str(i), str(schedule.ranks_of_stages[i]), str(operators), nbytes, *seconds])
    yield from _aligned(rows)
    yield ""
    rows = [["group", "devices", "update", "idle", "memory", "states", "gradients", "activations", "transient"]]
    for i, group in enumerate(planned.groups):
        one = price.memory[i]
        sizes = (one.nbytes, one.states, one.accumulators, one.activations, one.transient)
        shown = [format_seconds(price.updates[i]), f"{100 * price.idle[i]:.0f} %", *map(format_bytes, sizes)]
        rows.append([str(i), str(group), *shown])
    yield from _aligned(rows)
    yield ""
    for i, group in enumerate(planned.groups):
        if price.memory[i].nbytes > planned.room(i):
            kind = group.hardware or planned.hardware.name
            needs, has = format_bytes(price.memory[i].nbytes), format_bytes(planned.room(i))
            yield f"memory  a device of group {i} needs {needs}, more than {kind} has, {has}"
    yield f"step    {format_seconds(price.seconds)}, predicted for one device of each group"
    yield f"bubble  {100 * price.timeline.bubble_share:.1f} % of the groups' time in the schedule"
    makespan = float(price.timeline.makespan)
    over = 100 * (makespan / price.bound - 1) if price.bound else 0.0
    yield f"bound   no order takes less than {format_seconds(price.bound)}; {schedule.name} takes {over:.1f} % more"
    yield f"        {_slowest(price)}"
    if planned.searched is not None:
        yield f"search  {planned.searched}"
        yield from _others(planned.searched)


def _others(searched: StageSearch) -> Iterator[str]:
    """What else was priced."""
    head = "others  "
    for one in searched.others:
        fits = "" if one.fits else ", more memory than there is"
        yield f"{head}{format_seconds(one.seconds)}: {one.label}{fits}"
        head = " " * len(head)


def _slowest(price: PipelinePrice) -> str:
    """What the step takes most of its time for."""
    busy = [float(one) for one in price.timeline.busy]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    mean = sum(busy) / len(busy)
    over = f", {100 * (busy[slowest] / mean - 1):.0f} % more than the mean" if mean else ""
    return f"group {slowest} computes {format_seconds(busy[slowest])} of the schedule{over}"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def to_json(planned: PipelineData) -> dict[str, Any]:
    """The same as plain data."""
    price = PipelinePrice(planned)
    line = price.durations
    return {
        "schedule": planned.schedule.name,
        "micro_batches": planned.schedule.micro_batches,
        "seconds": price.seconds,
        "schedule_seconds": float(price.timeline.makespan),
        "schedule_bound": price.bound,
        "bubble_share": price.timeline.bubble_share,
        "others": [] if planned.searched is None else [asdict(one) for one in planned.searched.others],
        "groups": [
            {
                "mesh": str(group.mesh),
                "hardware": group.hardware or planned.hardware.name,
                "ranks": list(group.ranks),
                "stages": list(planned.schedule.chunks(i)),
                "idle_share": price.idle[i],
                "update_seconds": price.updates[i],
                "bytes": price.memory[i].nbytes,
                "state_bytes": price.memory[i].states,
                "accumulator_bytes": price.memory[i].accumulators,
                "activation_bytes": price.memory[i].activations,
                "transient_bytes": price.memory[i].transient,
            }
            for i, group in enumerate(planned.groups)
        ],
        "stages": [
            {
                "operators": sum(len(piece.graph.nodes) for piece in planned.graphs[i].pieces.values()),
                "parameters": [value.name for value in stage.parameters],
                "parameter_bytes": sum(value.type.nbytes for value in stage.parameters),
                "forward_seconds": line.forward[i],
                "input_gradient_seconds": line.input_gradient[i],
                "weight_gradient_seconds": line.weight_gradient[i],
                "sent_on_seconds": line.forward_transfers[i],
                "sent_back_seconds": line.backward_transfers[i],
            }
            for i, stage in enumerate(planned.whole.pipeline.stages)
        ],
    }
