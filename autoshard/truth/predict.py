"""What a measured step is predicted to take: its plan's program, priced; and where the time goes.

Layers are alike, so programs of few layers are priced and the rest follows: what one layer more takes, as often as the
model has it. A step of several micro batches takes the forward and backward pass as often, sums gradients up in between
(f32, in the device's memory) and updates once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.api import plan
from autoshard.cost.instructions import Costs
from autoshard.cost.prices import prices_for
from autoshard.ir.graph import Graph, Node
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Bundle, Collective, Compute, Instruction, Program, Register, Together
from autoshard.truth.models import step_of
from autoshard.truth.rows import Row
from autoshard.util.errors import AutoshardError
from costmodel import Hardware, operator_seconds, preset

ATTENTION, PRODUCTS, REST, LOSS, UPDATE, SUMS = "attention", "products", "rest", "loss", "update", "gradient sums"
Ledger = Mapping[str, float]
"""Seconds by part: the names above, and "over dp" and the like for collectives."""


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a row's step by part, and its peak in bytes."""

    row: Row
    parts: Ledger = field(default_factory=dict)
    peak_bytes: float = 0.0
    refused: str = ""
    """Why there is none, in words that several rows share."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def ratio(self) -> float:
        """Predicted to measured."""
        return self.seconds / self.row.measured.seconds


def refusal(row: Row) -> str:
    """What a row has that no plan can say yet; empty if nothing."""
    if row.axes.pp > 1:
        return "stages of a pipeline"
    if row.axes.cp > 1:
        return "a sequence split over devices (context parallel)"
    if row.model.builder == "mixture":
        return "a mixture of experts"
    if row.precision == "f8":
        return "products in 8 bits"
    return ""


class Predictor:
    """Predicts rows, and remembers the programs of few layers that they share.

    Args:
        hardware: what a row's `hardware` stands for.
    """

    def __init__(self, hardware: Callable[[str], Hardware] = preset) -> None:
        self.hardware = hardware
        self._known: dict[tuple, _Measures] = {}

    def __call__(self, row: Row) -> Prediction:
        """The prediction of a row; refused if no plan expresses it."""
        if why := refusal(row):
            return Prediction(row, refused=why)
        try:
            few, more = (self._measures(row, layers) for layers in _depths(row))
        except AutoshardError as error:
            return Prediction(row, refused=f"{row.plan}: {error}")
        times = (row.model.layers - few.layers) / (more.layers - few.layers)
        names = dict.fromkeys((*few.parts(row), *more.parts(row)))
        parts = {name: _line(few.parts(row).get(name, 0.0), more.parts(row).get(name, 0.0), times) for name in names}
        return Prediction(row, parts, _line(few.peak_bytes, more.peak_bytes, times))

    def _measures(self, row: Row, layers: int) -> _Measures:
        key = (_alike(row), layers)
        if key not in self._known:
            self._known[key] = _measured(row, layers, self.hardware(row.hardware))
        return self._known[key]


def _depths(row: Row) -> tuple[int, int]:
    """Numbers of layers that are priced: where every second product is made again, two layers in a row differ."""
    return (2, 4) if row.recompute == "products" else (1, 2)


def _line(few: float, more: float, times: float) -> float:
    return few + times * (more - few)


def _alike(row: Row) -> tuple:
    """What rows agree in that have the same program of few layers."""
    model = row.model
    sizes = (model.builder, model.hidden, model.heads, model.vocabulary, model.inner, model.kv_heads, model.dropout)
    return (sizes, row.sequence, row.hardware, row.axes, row.plan, row.micro_batch, row.recompute, row.precision,
            row.attention)  # fmt: skip


@dataclass(frozen=True)
class _Measures:
    """A program of few layers: seconds by part of what each micro batch does, of the reduction of gradients, of what
    is done once a step, and of adding up gradients before and after their reduction."""

    layers: int
    each: Ledger
    reduction: Ledger
    once: Ledger
    sum_before: float
    sum_after: float
    peak_bytes: int

    def parts(self, row: Row) -> dict[str, float]:
        """Seconds of a whole step by part."""
        times, by_step = row.micro_batches, row.reduced == "step"
        found: dict[str, float] = {}
        for ledger, often in ((self.each, times), (self.reduction, 1 if by_step else times), (self.once, 1)):
            for name, seconds in ledger.items():
                found[name] = found.get(name, 0.0) + often * seconds
        found[SUMS] = (times - 1) * (self.sum_before if by_step else self.sum_after)
        return found


def _measured(row: Row, layers: int, hardware: Hardware) -> _Measures:
    step = step_of(row, layers, row.micro_batch * row.axes.dp)
    planned = plan(step, mesh=row.axes.mesh, search=row.plan, hardware=hardware)
    known = planned.hardware
    work = _Work(planned.program, planned.graph, prices_for(known).instructions, planned.plan.mesh)
    return _Measures(
        layers,
        work.ledger(one for one in planned.program.instructions if one not in work.late),
        work.ledger(one for one in work.late if one not in work.updates),
        work.ledger(work.updates),
        _adding(work.summed(work.late), known),
        _adding(work.summed(work.updates), known),
        planned.cost.peak_memory_bytes,
    )


def _adding(elements: int, hardware: Hardware) -> float:
    """Seconds to add gradients of 2 bytes to sums of 4, which are read and written."""
    return float(operator_seconds(elements, elements * (2 + 4 + 4), hardware.device, "f32"))


class _Work:
    """The instructions of a step, those apart that several micro batches need only once."""

    def __init__(self, program: Program, graph: Graph, costs: Costs, mesh: Mesh) -> None:
        self.program, self.graph, self.costs, self.mesh = program, graph, costs, mesh

    @cached_property
    def updates(self) -> dict[Instruction, None]:
        """New values of parameters and states, and all that follows from them."""
        tied = {node for node in self.graph.nodes if any(value in self.graph.tied for value in node.results)}
        made: set[Register] = set()
        found: dict[Instruction, None] = {}
        for one in self.program.instructions:
            is_update = isinstance(one, Compute) and (one.composite or one.node) in tied and _is_float(one)
            if is_update or any(register in made for register in one.operands):
                found[one] = None
                made.update(one.results)
        return found

    @cached_property
    def late(self) -> dict[Instruction, None]:
        """The updates, and before them what only brings gradients to them: their reduction, casts and cuts."""
        wanting: dict[Register, list[Instruction]] = {}
        for one in self.program.instructions:
            for register in one.operands:
                wanting.setdefault(register, []).append(one)
        found = dict(self.updates)
        outputs = set(self.program.outputs)
        for one in reversed(self.program.instructions):
            carries = not isinstance(one, Compute) or _is_sum(one)
            readers = [by for register in one.results for by in wanting.get(register, ())]
            ends = any(register in outputs for register in one.results)
            if carries and readers and not ends and all(by in found for by in readers):
                found[one] = None
        return found

    def summed(self, late: Mapping[Instruction, None]) -> int:
        """Elements of the gradients that enter these instructions: floats that the others make."""
        made = {register for one in self.program.instructions if one not in late for register in one.results}
        entering = dict.fromkeys(register for one in late for register in one.operands if register in made)
        return sum(register.local.elements for register in entering if register.local.dtype.is_float)

    def ledger(self, instructions: Iterable[Instruction]) -> dict[str, float]:
        """Seconds by part."""
        found: dict[str, float] = {}
        for one in instructions:
            price = self.costs.of(one)
            if price.computing or price.talking:
                name = self._part(one)
                found[name] = found.get(name, 0.0) + price.seconds
        return found

    def _part(self, one: Instruction) -> str:
        if isinstance(one, Compute):
            return UPDATE if one in self.updates else _part_of(one.composite or one.node)
        first = one.parts[0] if isinstance(one, Bundle) else one
        assert isinstance(first, Collective | Together)
        order = [name for name, _ in self.mesh.axes]
        return "over " + ".".join(sorted({ref.name for ref in first.step.axes}, key=order.index))


def _is_sum(one: Compute) -> bool:
    """Whether it makes another form of one tensor, or the sum of several."""
    if len(one.operands) == 1:
        return not one.op.has_rule or not one.node.rule.summed
    return any(len(members or one.operands) == len(one.operands) for members in one.op.linear)


def _is_float(one: Compute) -> bool:
    """Whether it makes new values of floats; counters of random numbers go on with each micro batch."""
    return any(register.whole.dtype.is_float and register.whole.rank for register in one.results)


def _part_of(node: Node) -> str:
    """What an operator's seconds are counted as."""
    if node.op.name.startswith("Attention") or _is_attention(node):
        return ATTENTION
    if "loss" in node.label.split(".")[0] or "CrossEntropy" in node.op.name:
        return LOSS
    is_product = node.op.has_rule and len(node.operands) > 1 and bool(node.rule.contracted)
    return PRODUCTS if is_product and node.op.name in _PRODUCTS else REST


_PRODUCTS = ("MatMul", "BatchMatMul", "Einsum")


def _is_attention(node: Node) -> bool:
    """Whether an operator works on scores: [batch, heads, queries, keys]."""
    types = (*node.operand_types, *node.result_types)
    return any(of.rank == 4 and of.shape[-1] == of.shape[-2] for of in types)
