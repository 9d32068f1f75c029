"""What a layer costs a pipeline, and what lies before the layers and behind them: from one pipeline of few layers.

    stage 0: embedding and the first layer | stage 1: two layers in the middle | stage 2: the last layer, logits, loss

Half of the second stage is a layer; the others less a layer are what first and last stage have besides. So a stage of
any number of layers, with embedding or logits or without, takes sums of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from autoshard.ir.graph import STATE
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import PipelinePrice, transient_bytes
from autoshard.pipeline.schedules.action import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from autoshard.pipeline.stages.whole import runs_per_micro_batch

LAYERS, MIDDLE = 4, 2
"""Layers of the pipeline that is priced, and those of them in its second stage."""
_ORDER = {FORWARD: 0, INPUT_GRADIENT: 1, WEIGHT_GRADIENT: 2}


@dataclass(frozen=True)
class PartPrice:
    """What a part of a model costs the devices of its stage: seconds by kind, and bytes of one device.

    Attributes:
        forward, input_gradient, weight_gradient: seconds of one micro batch.
        before, update: seconds once in a step.
        states: bytes of parameters and states, other forms of parameters, sums of gradients.
        optimizer: those of them that are states of the optimizer.
        once: bytes that the largest of what is done once in a step takes besides.
        kept: bytes that a micro batch leaves from its forward action on.
        for_weights: those of them that the gradient of weights reads, and gradients kept for it.
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    before: float
    update: float
    states: float
    optimizer: float
    once: float
    kept: float
    for_weights: float

    def plus(self, other: PartPrice, times: float = 1.0) -> PartPrice:
        """This one and so many of another."""
        return PartPrice(*(getattr(self, one.name) + times * getattr(other, one.name) for one in fields(self)))

    @property
    def seconds(self) -> float:
        """Seconds of one micro batch."""
        return self.forward + self.input_gradient + self.weight_gradient


NOTHING = PartPrice(*[0.0] * len(fields(PartPrice)))


@dataclass(frozen=True)
class LayerPrices:
    """What the parts of a model cost on the mesh of a stage.

    Attributes:
        first, last: what the first stage and the last have besides their layers.
        onward, back: seconds of a message to the next stage and to the one before, on the same node and on another.
        transient: bytes that an action of a micro batch takes besides what goes in and stays.
    """

    first: PartPrice
    layer: PartPrice
    last: PartPrice
    onward: tuple[float, float]
    back: tuple[float, float]
    transient: float

    def stage(self, layers: int, is_first: bool, is_last: bool) -> PartPrice:
        """A stage of so many layers. The first one of several sends nothing back: all its backward pass is the gradient
        of weights."""
        found = NOTHING.plus(self.layer, layers)
        found = found.plus(self.first) if is_first else found
        found = found.plus(self.last) if is_last else found
        least = {one.name: max(0.0, getattr(found, one.name)) for one in fields(PartPrice)}
        if is_first:
            least["weight_gradient"] = max(0.0, found.input_gradient + found.weight_gradient)
            least["input_gradient"] = 0.0
        return PartPrice(**least)


def layer_prices(short: PipelineData) -> LayerPrices:
    """The parts of a pipeline of three stages as above; its first two stages on one node, the third on another."""
    assert short.stages == len(short.groups) == LAYERS - MIDDLE + 1, "a layer, two, and one"
    price = PipelinePrice(short)
    first, middle, last = (_stage(price, number) for number in range(3))
    layer = NOTHING.plus(middle, 1 / MIDDLE)
    line = price.durations
    onward, back = line.forward_transfers[:2], line.backward_transfers[1:]
    often = [ready for ready in short.programs.pieces.values() if runs_per_micro_batch(ready.piece.kind)]
    transient = max(transient_bytes(short.programs, ready) for ready in often)
    return LayerPrices(
        first.plus(layer, -1), layer, last.plus(layer, -1), _pair(onward), _pair(back), max(0.0, transient)
    )


def _pair(seconds: Sequence) -> tuple[float, float]:
    near, far = map(float, seconds)
    return near, far


def _stage(price: PipelinePrice, number: int) -> PartPrice:
    line, memory = price.durations, price.memory[number]
    kept, weights = _kept(price.planned, number)
    pieces = (ready for place, ready in price.planned.programs.pieces.items() if place[0] == number)
    rare = (ready for ready in pieces if not runs_per_micro_batch(ready.piece.kind))
    once = max((transient_bytes(price.planned.programs, ready) for ready in rare), default=0)
    return PartPrice(
        forward=float(line.forward[number]),
        input_gradient=float(line.input_gradient[number]),
        weight_gradient=float(line.weight_gradient[number]),
        before=price.before[number],
        update=price.updates[number],
        states=memory.states + memory.accumulators,
        optimizer=_optimizer_bytes(price.planned, number),
        once=once,
        kept=kept,
        for_weights=weights,
    )


def _optimizer_bytes(planned: PipelineData, stage: int) -> int:
    """Bytes of states of the optimizer on one device."""
    roles, found = planned.graph.role_of, {}
    for place, ready in planned.programs.pieces.items():
        for value, register in zip(ready.inputs, ready.program.inputs, strict=True):
            if place[0] == stage and roles.get(value) == STATE:
                found[value] = register.local.nbytes
    return sum(found.values())


def _kept(planned: PipelineData, stage: int) -> tuple[float, float]:
    """Bytes that a micro batch leaves in a stage behind its forward action; those that the gradient of weights reads,
    and gradients that wait for it."""
    found: dict[object, tuple[int, int, int]] = {}
    for route in planned.programs.routes:
        kinds = [_ORDER[place[1]] for place in route.readers if place[1] in _ORDER]
        if route.stage != stage or not route.is_repeated or not kinds:
            continue
        begin = _ORDER[route.source[1]] if route.stays else min(kinds)
        key, size = planned.programs.held_as(route)
        known = found.get(key, (begin, max(kinds), size))
        found[key] = min(begin, known[0]), max(*kinds, known[1]), size
    kept = sum(size for begin, end, size in found.values() if begin == 0 and end > 0)
    weights = sum(size for begin, end, size in found.values() if begin < end == 2)
    return float(kept), float(weights)
