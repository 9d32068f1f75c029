"""What a measured step is predicted to take: its plan's program, priced; and where the time goes.

Layers are alike, so programs of few layers are priced and the rest follows: what one layer more takes, as often as the
model has it. A step of several micro batches takes the forward and backward pass as often, sums gradients up in between
(in the device's memory) and updates once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed

from autoshard.api import plan
from autoshard.cost.prices import prices_for
from autoshard.ir.graph import PARAMETER, Graph, Node
from autoshard.optimize import DEFAULT, optimize
from autoshard.partition.program import (
    Program,
)
from autoshard.truth.micro_memory import kept, step_peak
from autoshard.truth.models import step_of
from autoshard.truth.rates import LOSS_COPIES, SUM_BYTES, adding_seconds, rates_of, with_attention
from autoshard.truth.rows import Row
from autoshard.truth.stages import (
    FIRST,
    LAST,
    LAYERS,
    PRODUCTS,
    SUMS,
    TIED,
    Ledger,
    RowRates,
    SlotWork,
    StagedRow,
    StageShare,
    StepSlot,
    dealt_out,
    in_order,
    load,
)
from autoshard.truth.work import Work, is_again, part_of
from autoshard.util.errors import AutoshardError
from costmodel import Hardware, preset
from costmodel.host import HOSTS


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a row's step by part, and its peak in bytes."""

    row: Row
    parts: Ledger = field(default_factory=dict)
    peak_bytes: float = 0.0
    device_bytes: float = 0.0
    """The memory of a device that the row ran on."""
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
    if row.axes.pp * row.chunks > row.model.layers:
        return "more stages than layers"
    if row.model.heads % row.axes.tp:
        return "heads that tensor parallelism (tp) does not divide"
    if row.axes.dp % row.axes.ep:
        return "experts over devices (ep) that do not divide those that split data (dp)"
    if row.model.builder == "mixture" and not row.model.experts:
        return "a mixture of experts whose sizes are not told"
    if row.axes.cp > 1 and not any(one in row.plan for one in _SEQUENCES):
        return "devices that share a sequence (cp), and a plan that splits none"
    return ""


_SEQUENCES = ("context_parallel", "ulysses")


class Predictor:
    """Predicts rows, and remembers the programs of few layers that they share.

    Args:
        hardware: what a row's `hardware` stands for.
        rates: what a row's software does at which rate.
    """

    def __init__(
        self, hardware: Callable[[str], Hardware] = preset, rates: Callable[[Row, Hardware], RowRates] = rates_of
    ) -> None:
        self.hardware, self.rates = hardware, rates
        self._steps: dict[tuple, _ShortStep] = {}
        self._known: dict[tuple, _Measures] = {}

    def __call__(self, row: Row) -> Prediction:
        """The prediction of a row; refused if no plan expresses it."""
        why = refusal(row)
        if not why and row.precision == "f8" and "f8" not in dict(self.hardware(row.hardware).device.peak_flops):
            why = f"products in 8 bits on {row.hardware}, which has no peak for them"
        if why:
            return Prediction(row, refused=why)
        try:
            few, more = (self._measures(row, layers) for layers in _depths(row))
            if row.axes.pp > 1:
                return self._staged(row, few, more)
        except AutoshardError as error:
            return Prediction(row, refused=f"{row.plan}: {error}")
        times = (row.model.layers - few.layers) / (more.layers - few.layers)
        # What collectives take that are started ahead is no matter of layers: it is that of the few.
        peak = few.peak(row) + times * (more.peak(row, ahead=False) - few.peak(row, ahead=False))
        return Prediction(row, self._alone(row, few, more), peak, self._device_bytes(row))

    def _alone(self, row: Row, few: _Measures, more: _Measures) -> Ledger:
        """Seconds by part of a step that is in no stages: its host is never waited for by others, and may start the
        next micro batch while the device works on this one."""
        rates, share = self.rates(row, self.hardware(row.hardware)), few.of_stage(row, more, row.model.layers)
        forward, backward, *once = in_order(row, share)
        each = rates.done(forward, backward, row.micro_batches)
        found = {**each.ledger, SUMS: (row.micro_batches - 1) * share.adding}
        for works in once:
            for name, seconds in rates.done(works).ledger.items():
                found[name] = found.get(name, 0.0) + seconds
        return found

    def _staged(self, row: Row, few: _Measures, more: _Measures) -> Prediction:
        """The prediction of a row whose layers are dealt out to stages."""
        hardware = self.hardware(row.hardware)
        shares = (few.of_stage(row, more, layers, homes) for layers, homes in dealt_out(row))
        loads = tuple(load(row, share, self.rates(row, hardware)) for share in shares)
        step = StagedRow(row, loads, hardware)
        peak = step.peak_bytes(few.transient(row, more))
        return Prediction(row, step.parts, peak, self._device_bytes(row))

    def _device_bytes(self, row: Row) -> int:
        return self.hardware(row.hardware).device.memory_bytes

    def on(self, hardware: Callable[[str], Hardware]) -> Predictor:
        """One that takes rows' hardware for something else and shares the programs, made by this one's prices."""
        other = Predictor(hardware, self.rates)
        other._steps = self._steps
        return other

    def at(self, rates: Callable[[Row, Hardware], RowRates]) -> Predictor:
        """One whose rows' software has other rates, and that shares all else."""
        other = Predictor(self.hardware, rates)
        other._steps, other._known = self._steps, self._known
        return other

    def _measures(self, row: Row, layers: int) -> _Measures:
        key = (_alike(row), layers)
        if key not in self._known:
            hardware = with_attention(self.hardware(row.hardware), row)
            if key not in self._steps:
                self._steps[key] = _step_of(row, layers, hardware)
            self._known[key] = self._steps[key].measured(hardware, HOSTS[row.fusion].joins, row.precision == "f8")
        return self._known[key]


def _depths(row: Row) -> tuple[int, int]:
    """Numbers of layers that are priced: where every second product is made again, two layers in a row differ."""
    return (2, 4) if row.recompute == "products" else (1, 2)


def _line(few: float, more: float, times: float) -> float:
    return few + times * (more - few)


def _alike(row: Row) -> tuple:
    """What rows agree in that have the same program of few layers."""
    model = row.model
    sizes = tuple(getattr(model, name) for name in model.__struct_fields__ if name != "layers")
    return (sizes, row.sequence, row.hardware, row.axes.of_stage, row.plan, row.micro_batch, row.recompute,
            row.precision, row.attention, row.loss, row.fusion, row.overlap)  # fmt: skip


@dataclass(frozen=True)
class _Measures:
    """A program of few layers: seconds by part, and how many kernels and collectives are started, of all that a step
    does by where it belongs (`dealt`); seconds to add gradients up, and how many elements that are, before their
    reduction and after it; by home these elements, and bytes of parameters and states; bytes at most of a step, and
    of a micro batch that others follow without the gradients, where these are reduced once a step and where after each;
    and both where each collective is started when it is waited for (`plain`); bytes of activations, and of weights
    that were gathered, which lie from one pass to the other.
    """

    layers: int
    dealt: Mapping[StepSlot, SlotWork]
    adding: tuple[float, float]
    summed: Mapping[str, tuple[int, int]]
    states: Mapping[str, int]
    peak_bytes: int
    repeated: tuple[int, int]
    plain_bytes: int
    plain_repeated: tuple[int, int]
    kept: tuple[int, int]

    def peak(self, row: Row, ahead: bool = True) -> int:
        """Bytes at most: over several micro batches gradients are summed in 4 bytes, before their reduction or after,
        beside all that a micro batch holds before the last update.

        Args:
            ahead: whether collectives are started ahead of what waits for them.
        """
        whole, repeated = (self.peak_bytes, self.repeated) if ahead else (self.plain_bytes, self.plain_repeated)
        if row.micro_batches == 1:
            return whole
        again = row.reduced != "step"
        return max(whole, repeated[again] + 4 * self.elements[again])

    @property
    def elements(self) -> tuple[int, int]:
        """Elements of all gradients before their reduction and after it."""
        return sum(before for before, _ in self.summed.values()), sum(after for _, after in self.summed.values())

    def of_stage(self, row: Row, more: _Measures, layers: int, homes: Sequence[str] | None = None) -> StageShare:
        """What a stage of so many layers does that has besides what belongs to these homes; all of the model, where
        no homes are given."""
        times = (layers - self.layers) / (more.layers - self.layers)
        at = row.reduced != "step"

        def mixed(few: float, many: float, home: str) -> float:
            return _line(few, many, times) if homes is None or home == LAYERS else few * (home in homes)

        dealt = {}
        for slot in dict.fromkeys((*self.dealt, *more.dealt)):
            few, many = (one.dealt.get(slot, SlotWork({}, 0, 0)) for one in (self, more))
            names = dict.fromkeys((*few.ledger, *many.ledger))
            ledger = {name: mixed(few.ledger.get(name, 0), many.ledger.get(name, 0), slot.home) for name in names}
            counts = (mixed(getattr(few, of), getattr(many, of), slot.home) for of in ("kernels", "collectives"))
            dealt[slot] = SlotWork(ledger, *counts)
        gradients = [{home: pair[at] for home, pair in one.summed.items()} for one in (self, more)]
        elements, states = (
            sum(mixed(few[home], many[home], home) for home in few)
            for few, many in (gradients, (self.states, more.states))
        )
        activations, weights = self.kept_by_layer(more)
        adding = elements / self.elements[at] * self.adding[at]
        return StageShare(dealt, adding, states + 4 * elements + weights * layers, activations * layers)

    def kept_by_layer(self, more: _Measures) -> tuple[float, float]:
        """Bytes of activations and of gathered weights that a layer keeps from one pass to the other."""
        layers = more.layers - self.layers
        return (more.kept[0] - self.kept[0]) / layers, (more.kept[1] - self.kept[1]) / layers

    def transient(self, row: Row, more: _Measures) -> float:
        """Bytes that a micro batch takes besides parameters, states, sums of gradients, and what layers keep."""
        layers = self.layers * sum(self.kept_by_layer(more))
        return max(0.0, self.plain_repeated[row.reduced != "step"] - sum(self.states.values()) - layers)


@dataclass(frozen=True)
class _ShortStep:
    """The program of a step of few layers; and what it does, started from the one whose collectives run alone."""

    layers: int
    ranks: int
    work: Work
    beside: Program
    sums: int = 4
    """Bytes of an element of the sums of gradients over micro batches."""
    copies: int = 0
    """As `step_peak`."""

    def measured(self, hardware: Hardware, joins: bool = False, float8: bool = False) -> _Measures:
        known, work, copies = hardware.for_ranks(self.ranks), self.work, self.copies
        dealt = work.dealt(self.beside, prices_for(known).instructions, joins, float8)
        before, after = (work.summed(late) for late in (work.late, work.updates))
        summed = {home: (before.get(home, 0), after.get(home, 0)) for home in (FIRST, LAYERS, LAST, TIED)}
        early, late = (adding_seconds(sum(some.values()), known, self.sums) for some in (before, after))
        peaks = (
            (step_peak(one, copies), (work.repeated_peak(one, True, copies), work.repeated_peak(one, False, copies)))
            for one in (self.beside, work.program)
        )
        (peak, repeated), (plain, plain_repeated) = peaks
        lies = kept(work.program, work.early)
        made = dealt, (early, late), summed, work.states
        return _Measures(self.layers, *made, peak, repeated, plain, plain_repeated, lies)


PREFETCH = 4.0
"""How many times the memory of a step of few layers collectives may take that are started ahead: of many layers the
weights of the next ones are a small part."""


def _step_of(row: Row, layers: int, hardware: Hardware) -> _ShortStep:
    step = step_of(row, layers, row.micro_batch * row.axes.dp)
    made_by = changed(hardware, device=changed(hardware.device, fusion=row.fusion))
    planned = plan(step, mesh=row.axes.mesh, search=row.plan, hardware=made_by, passes=False)
    again = {node for node in planned.graph.nodes if is_again(node)}
    # Few layers leave room to keep what many layers make again. Gradients are reduced as they are, for they may be sums
    # over micro batches by then.
    again.update(_gradients(planned.graph))
    # Common buffers as a share of what a step holds grow with its layers, of which few are priced here.
    program, _ = optimize(planned.program, planned.hardware, DEFAULT, bucket=0, fixed=again)
    ahead = ("overlap",) if row.overlap else ()
    beside, _ = optimize(program, planned.hardware, ahead, more_memory=PREFETCH, bucket=0, fixed=again)
    work = Work(program, planned.graph, planned.plan.mesh)
    return _ShortStep(
        layers, row.axes.of_stage.devices, work, beside, SUM_BYTES.get(row.precision, 4), LOSS_COPIES.get(row.loss, 0)
    )


def _gradients(graph: Graph) -> Iterator[Node]:
    """The products that make gradients of parameters."""
    for gradient, of in graph.cotangents.items():
        node, _ = graph.producers.get(gradient, (None, 0))
        while node is not None and len(node.operands) == 1:
            node, _ = graph.producers.get(node.operands[0], (None, 0))
        if node is not None and graph.role_of.get(of) == PARAMETER and part_of(node) == PRODUCTS:
            yield node
