"""What a measured step is predicted to take: its plan's program, priced; and where the time goes.

Layers are alike, so programs of few layers are priced and the rest follows: what one layer more takes, as often as the
model has it. A step of several micro batches takes the forward and backward pass as often, sums gradients up in between
(in the device's memory) and updates once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import cached_property

from autoshard.api import plan
from autoshard.cost.instructions import Costs, flops, mean_flops
from autoshard.cost.prices import prices_for
from autoshard.cost.program_memory import program_peak
from autoshard.cost.timeline import scheduled
from autoshard.ir.graph import DATA, PARAMETER, Graph, Node
from autoshard.layout.mesh import Mesh
from autoshard.optimize import DEFAULT, optimize
from autoshard.partition.program import (
    Bundle,
    Collective,
    Compute,
    Instruction,
    ManualCollective,
    Program,
    Register,
)
from autoshard.partition.verify_bundles import bundle_key
from autoshard.redistribute.step import Step
from autoshard.transform.recompute import AGAIN
from autoshard.truth.micro_memory import micro_batch_peak, started_by
from autoshard.truth.models import step_of
from autoshard.truth.rates import SUM_BYTES, adding_seconds, narrow_seconds, rates_of, with_attention
from autoshard.truth.rows import Row
from autoshard.truth.stages import (
    ATTENTION,
    EACH,
    EARLY,
    FIRST,
    LAST,
    LAYERS,
    LOSS,
    OVER,
    PRODUCTS,
    REST,
    SUMS,
    TIED,
    UPDATE,
    Ledger,
    ModelHomes,
    RowRates,
    SlotWork,
    StagedRow,
    StageShare,
    StepSlot,
    dealt_out,
    in_order,
    load,
)
from autoshard.util.errors import AutoshardError
from costmodel import Hardware, preset
from costmodel.host import HOSTS


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
    if row.axes.pp * row.chunks > row.model.layers:
        return "more stages than layers"
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
        except AutoshardError as error:
            return Prediction(row, refused=f"{row.plan}: {error}")
        if row.axes.pp > 1:
            return self._staged(row, few, more)
        times = (row.model.layers - few.layers) / (more.layers - few.layers)
        return Prediction(row, self._alone(row, few, more), _line(few.peak(row), more.peak(row), times))

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
        return Prediction(row, step.parts, step.peak_bytes(few.peak_bytes - sum(few.states.values())))

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
            row.precision, row.attention, row.fusion, row.overlap)  # fmt: skip


@dataclass(frozen=True)
class _Measures:
    """A program of few layers: seconds by part, and how many kernels and collectives are started, of all that a step
    does by where it belongs (`dealt`); seconds to add gradients up, and how many elements that are, before their
    reduction and after it; by home these elements, and bytes of parameters and states; bytes at most of a step, and
    of a micro batch that others follow without the gradients, where these are reduced once a step and where after each.
    """

    layers: int
    dealt: Mapping[StepSlot, SlotWork]
    adding: tuple[float, float]
    summed: Mapping[str, tuple[int, int]]
    states: Mapping[str, int]
    peak_bytes: int
    plain_bytes: int
    repeated: tuple[int, int]

    def peak(self, row: Row) -> int:
        """Bytes at most: over several micro batches gradients are summed in 4 bytes, before their reduction or after,
        beside all that a micro batch holds before the last update."""
        if row.micro_batches == 1:
            return self.peak_bytes
        again = row.reduced != "step"
        return max(self.peak_bytes, self.repeated[again] + 4 * self.elements[again])

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
        kept = more.kept_bytes - self.kept_bytes
        each = max(0.0, kept / (more.layers - self.layers))
        return StageShare(dealt, elements / self.elements[at] * self.adding[at], states + 4 * elements, each * layers)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the fullest moment without what layers have anyhow: parameters, states, and gradients. No collective
        is started ahead: how much these take for themselves is no matter of layers."""
        return self.plain_bytes - self.states[LAYERS] - 2 * self.elements[1]


@dataclass(frozen=True)
class _ShortStep:
    """The program of a step of few layers; and what it does, started from the one whose collectives run alone."""

    layers: int
    ranks: int
    work: Work
    beside: Program
    sums: int = 4
    """Bytes of an element of the sums of gradients over micro batches."""

    def measured(self, hardware: Hardware, joins: bool = False, narrow: bool = False) -> _Measures:
        known, work = hardware.for_ranks(self.ranks), self.work
        dealt = work.dealt(self.beside, prices_for(known).instructions, joins, narrow)
        before, after = (work.summed(late) for late in (work.late, work.updates))
        summed = {home: (before.get(home, 0), after.get(home, 0)) for home in (FIRST, LAYERS, LAST, TIED)}
        early, late = (adding_seconds(sum(some.values()), known, self.sums) for some in (before, after))
        peaks = program_peak(self.beside), program_peak(work.program)
        repeated = work.repeated_peak(self.beside, True), work.repeated_peak(self.beside, False)
        return _Measures(self.layers, dealt, (early, late), summed, work.states, *peaks, repeated)


PREFETCH = 4.0
"""How many times the memory of a step of few layers collectives may take that are started ahead: of many layers the
weights of the next ones are a small part."""


def _step_of(row: Row, layers: int, hardware: Hardware) -> _ShortStep:
    step = step_of(row, layers, row.micro_batch * row.axes.dp)
    made_by = changed(hardware, device=changed(hardware.device, fusion=row.fusion))
    planned = plan(step, mesh=row.axes.mesh, search=row.plan, hardware=made_by, passes=False)
    again = {node for node in planned.graph.nodes if _is_again(node)}
    # Few layers leave room to keep what many layers make again. Gradients are reduced as they are, for they may be sums
    # over micro batches by then.
    again.update(_gradients(planned.graph))
    program, _ = optimize(planned.program, planned.hardware, DEFAULT, fixed=again)
    ahead = ("overlap",) if row.overlap else ()
    beside, _ = optimize(program, planned.hardware, ahead, more_memory=PREFETCH, fixed=again)
    work = Work(program, planned.graph, planned.plan.mesh)
    return _ShortStep(layers, row.axes.of_stage.devices, work, beside, SUM_BYTES.get(row.precision, 4))


def _is_again(node: Node) -> bool:
    """Whether a node makes something of the forward pass again."""
    return any(AGAIN in value.name for value in node.results)


def _gradients(graph: Graph) -> Iterator[Node]:
    """The products that make gradients of parameters."""
    for gradient, of in graph.cotangents.items():
        node, _ = graph.producers.get(gradient, (None, 0))
        while node is not None and len(node.operands) == 1:
            node, _ = graph.producers.get(node.operands[0], (None, 0))
        if node is not None and graph.role_of.get(of) == PARAMETER and part_of(node) == PRODUCTS:
            yield node


class Work:
    """The instructions of a step, those apart that several micro batches need only once."""

    def __init__(self, program: Program, graph: Graph, mesh: Mesh) -> None:
        self.program, self.graph, self.mesh = program, graph, mesh

    @cached_property
    def early(self) -> dict[Instruction, None]:
        """What only brings parameters to those that use them first: casts, cuts and gathers."""
        inputs = zip(self.graph.inputs, self.program.inputs, strict=True)
        known = {register for value, register in inputs if self.graph.role_of[value] == PARAMETER}
        found: dict[Instruction, None] = {}
        for one in self.program.instructions:
            carries = not isinstance(one, Compute) or _is_sum(one) and not _is_again(one.node)
            if carries and one.operands and known.issuperset(one.operands):
                found[one] = None
                known.update(one.results)
        return found

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

    @cached_property
    def homes(self) -> ModelHomes:
        """Which part of the model each instruction belongs to."""
        return ModelHomes(self.graph)

    @cached_property
    def states(self) -> dict[str, int]:
        """Bytes of parameters and states by home."""
        found: dict[str, int] = dict.fromkeys((FIRST, LAYERS, LAST, TIED), 0)
        for value, register in zip(self.graph.inputs, self.program.inputs, strict=True):
            if self.graph.role_of[value] != DATA:
                found[self.homes.of_input(value.name)] += register.local.nbytes
        return found

    def summed(self, late: Mapping[Instruction, None]) -> dict[str, int]:
        """Elements by home of the gradients that enter these instructions."""
        found: dict[str, int] = {}
        for register in self.entering(late):
            home = self.homes.of_name(register.name)
            found[home] = found.get(home, 0) + register.local.elements
        return found

    def entering(self, late: Mapping[Instruction, None]) -> dict[Register, None]:
        """The gradients that enter these instructions: floats that the others make."""
        made = {register for one in self.program.instructions if one not in late for register in one.results}
        reads = (register for one in late for register in one.operands if register in made)
        return dict.fromkeys(register for register in reads if register.local.dtype.is_float)

    def repeated_peak(self, program: Program, once: bool) -> int:
        """Bytes at most of a micro batch that others follow, without gradients.

        Args:
            program: the same one, perhaps with collectives that run beside operators.
            once: gradients are reduced once a step, and what brings parameters to their users is done once, too.
        """
        late = self.late if once else self.updates
        stays = {register for one in self.early if once for register in one.results}
        return micro_batch_peak(program, self.early, late, {*self.entering(late)}, stays)

    def dealt(self, program: Program, costs: Costs, joins: bool, narrow: bool = False) -> dict[StepSlot, SlotWork]:
        """Seconds by part, and how many kernels and collectives are started, by where instructions belong.

        Args:
            program: the same one, perhaps with collectives that run beside operators: what these hide is left out.
            joins: one kernel updates all parameters, and one buffer holds all gradients that are reduced.
            narrow: products of layers are done in 8 bits.
        """
        ledgers: dict[StepSlot, dict[str, float]] = {}
        kernels: dict[StepSlot, int] = {}
        collectives: dict[StepSlot, int] = {}
        together = self._joined(program, costs) if joins else {}
        backward = False
        for one in scheduled(program, costs):
            what = started_by(one.instruction)
            backward = backward or isinstance(what, Compute) and what.node.label.startswith("grad.")
            slot = StepSlot(self._moment(what), self.homes.of(what), backward)
            joined = joins and slot.when != EACH
            starts, started = one.end > one.start and _starts(what), collectives if one.communicates else kernels
            started[slot] = max(started.get(slot, 0), 1) if joined else started.get(slot, 0) + starts
            ledger = ledgers.setdefault(slot, {})
            seconds = one.exposed if one.communicates else one.end - one.start
            if what in together:
                seconds *= together[what] / (one.end - one.start)
            elif joined and starts and not one.communicates:
                seconds -= costs.hardware.device.launch_seconds
            elif narrow and slot.home == LAYERS and isinstance(what, Compute) and self._part(what) == PRODUCTS:
                seconds = narrow_seconds(what, costs.hardware.device)
            elif isinstance(what, Compute):
                seconds *= _evened(what)
            if seconds:
                name = self._part(what)
                ledger[name] = ledger.get(name, 0.0) + seconds
        return {slot: SlotWork(each, kernels.get(slot, 0), collectives.get(slot, 0)) for slot, each in ledgers.items()}

    def _moment(self, one: Instruction) -> int:
        """When an instruction is done: EARLY, in EACH micro batch, LATE, or among the UPDATES."""
        return EARLY if one in self.early else EACH + (one in self.late) + (one in self.updates)

    def _joined(self, program: Program, costs: Costs) -> dict[Instruction, float]:
        """Of what is communicated once in a step the seconds of each, as a part of a buffer with all of its kind."""
        kinds: dict[tuple, list[tuple[Instruction, Step, float]]] = {}
        for what in map(started_by, program.instructions):
            parts = what.parts if isinstance(what, Bundle) else (what,)
            first = parts[0]
            if self._moment(what) == EACH or not isinstance(first, Collective) or (key := bundle_key(first)) is None:
                continue
            assert isinstance(first.step, Step)
            sent = sum(costs.size(one).sent for one in parts if isinstance(one, Collective))
            kinds.setdefault(key, []).append((what, first.step, sent))
        found = {}
        for rows in kinds.values():
            total = sum(sent for *_, sent in rows)
            whole = costs.links.sized_step(rows[0][1], total)
            found.update({what: whole * sent / total for what, _, sent in rows})
        return found

    def _part(self, one: Instruction) -> str:
        if isinstance(one, Compute):
            return UPDATE if one in self.updates else part_of(one.composite or one.node)
        first = one.parts[0] if isinstance(one, Bundle) else one
        assert isinstance(first, Collective | ManualCollective)
        order = [name for name, _ in self.mesh.axes]
        return OVER + ".".join(sorted({ref.name for ref in first.step.axes}, key=order.index))


def _starts(one: Instruction) -> bool:
    """Whether it is a kernel of its own, or stands for one."""
    return not isinstance(one, Compute) or one.node.traffic is None or one.node.traffic.launches


def _evened(one: Compute) -> float:
    """The mean work of ranks to the most. Parts of a plan's sequences lie in their order: causal attention works most
    on the last, and sees all or nothing of a block that comes in a ring. Megatron-core and PyTorch's context_parallel
    deal each rank a part from the front and one from the back, which see half of each block."""
    if one.op.name.endswith("Turn") and one.attrs.get("causal"):
        return 0.5
    return min(1.0, mean_flops(one) / flops(one)) if one.op.uneven else 1.0


def _is_sum(one: Compute) -> bool:
    """Whether it makes another form of one tensor, or the sum of several."""
    if len(one.operands) == 1:
        return not one.op.has_rule or not one.node.rule.summed
    count = len(one.operands)
    return any(len(members) == count for members in one.op.linear_in(count))


def _is_float(one: Compute) -> bool:
    """Whether it makes new values of floats; counters of random numbers go on with each micro batch."""
    return any(register.whole.dtype.is_float and register.whole.rank for register in one.results)


def part_of(node: Node) -> str:
    """What an operator's seconds are counted as."""
    if node.op.name.startswith("Attention") or _is_attention(node):
        return ATTENTION
    if "loss" in node.label.split(".")[0] or "CrossEntropy" in node.op.name:
        return LOSS
    return PRODUCTS if node.is_product and node.op.name in _PRODUCTS else REST


_PRODUCTS = ("MatMul", "BatchMatMul", "Einsum")


def _is_attention(node: Node) -> bool:
    """Whether an operator works on scores: [batch, heads, queries, keys]."""
    types = (*node.operand_types, *node.result_types)
    return any(of.rank == 4 and of.shape[-1] == of.shape[-2] for of in types)
