"""What a step in stages costs on a device of the group that works longest, as a Cost like that of other plans."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.cost.evaluate import AxisCost, Cost, evaluate
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import PipelinePrice
from autoshard.pipeline.stages.whole import runs_per_micro_batch

STAGES = "stages"
"""What the messages from stage to stage are called beside the axes of collectives."""

ROUNDED = 1e-9
"""Share of a step that a group does not wait for others: sums in another order differ by less."""


def step_cost(planned: PipelineData) -> Cost:
    """Of all micro batches and the update: the seconds are those of the step, `waiting_seconds` what the group waits
    for others. Messages from stage to stage go on beside the computing, or are waited for. Memory is that of the
    fullest group."""
    price = PipelinePrice(planned)
    group = max(range(len(planned.groups)), key=lambda one: 1 - price.idle[one])
    pieces = list(_pieces(planned, group))
    axes: dict[str, AxisCost] = {}
    for cost, times in pieces:
        for one in cost.axes:
            axes[one.axes] = _plus(axes.get(one.axes), one.seconds, one.nbytes, one.collectives, times, one.axes)
    inside = sum(one.seconds for one in axes.values())
    for seconds, nbytes, times in _messages(planned, price, group):
        axes[STAGES] = _plus(axes.get(STAGES), seconds, nbytes, 1, times, STAGES)
    sent = axes[STAGES].seconds if STAGES in axes else 0.0
    compute = sum(times * cost.compute_seconds for cost, times in pieces)
    hidden = sum(times * cost.hidden_seconds for cost, times in pieces) + sent
    peak = max(one.nbytes for one in price.memory)
    nbytes = sum(one.nbytes for one in axes.values())
    waiting = price.seconds - (compute + inside + sent - hidden)
    waiting = waiting if waiting > ROUNDED * price.seconds else 0.0
    return Cost(compute, inside + sent, nbytes, peak, tuple(axes.values()), None, hidden, waiting)


def _pieces(planned: PipelineData, group: int) -> Iterator[tuple[Cost, int]]:
    """What each piece of a group costs, and how often it is done."""
    stages = planned.schedule.chunks(group)
    for (stage, kind), ready in planned.programs.pieces.items():
        if stage in stages:
            times = planned.schedule.micro_batches if runs_per_micro_batch(kind) else 1
            yield evaluate(ready.program, ready.plan.graph, planned.stage_hardware[stage]), times


def _messages(planned: PipelineData, price: PipelinePrice, group: int) -> Iterator[tuple[float, float, int]]:
    """What a group sends to others: seconds, the bytes of one of its devices, and how often."""
    groups = planned.schedule.ranks_of_stages
    for route in price.crossing:
        if groups[route.source[0]] == group and groups[route.stage] != group:
            times = planned.schedule.micro_batches if route.is_repeated else 1
            yield price.moving(route), route.value.type.nbytes / len(planned.groups[group].ranks), times


def _plus(known: AxisCost | None, seconds: float, nbytes: float, count: int, times: int, axes: str) -> AxisCost:
    before = known or AxisCost(axes, 0.0, 0.0, 0)
    more = before.seconds + times * seconds, before.nbytes + times * nbytes, before.collectives + times * count
    return AxisCost(axes, *more)
