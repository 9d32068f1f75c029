"""The instructions of a measured step's program: which are done once, which in each micro batch, and their seconds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from autoshard.cost.instructions import Costs, flops, mean_flops
from autoshard.cost.timeline import scheduled
from autoshard.ir.graph import DATA, PARAMETER, Graph, Node
from autoshard.layout.mesh import Mesh
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
from autoshard.truth.rates import float8_seconds
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
    TIED,
    UPDATE,
    ModelHomes,
    SlotWork,
    StepSlot,
)


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
            carries = not isinstance(one, Compute) or _is_sum(one) and not is_again(one.node)
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

    def repeated_peak(self, program: Program, once: bool, copies: int = 0) -> int:
        """Bytes at most of a micro batch that others follow, without gradients.

        Args:
            program: the same one, perhaps with collectives that run beside operators.
            once: gradients are reduced once a step, and what brings parameters to their users is done once, too.
            copies: as `step_peak`.
        """
        late = self.late if once else self.updates
        stays = {register for one in self.early if once for register in one.results}
        return micro_batch_peak(program, self.early, late, {*self.entering(late)}, stays, copies)

    def dealt(self, program: Program, costs: Costs, joins: bool, float8: bool = False) -> dict[StepSlot, SlotWork]:
        """Seconds by part, and how many kernels and collectives are started, by where instructions belong.

        Args:
            program: the same one, perhaps with collectives that run beside operators: what these hide is left out.
            joins: one kernel updates all parameters, and one buffer holds all gradients that are reduced.
            float8: products of layers are done in 8 bits.
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
            elif float8 and slot.home == LAYERS and isinstance(what, Compute) and self._part(what) == PRODUCTS:
                seconds = float8_seconds(what, costs.hardware.device)
            elif isinstance(what, Compute):
                seconds *= _balanced_share(what)
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


def is_again(node: Node) -> bool:
    """Whether a node makes something of the forward pass again."""
    return any(AGAIN in value.name for value in node.results)


def _starts(one: Instruction) -> bool:
    """Whether it is a kernel of its own, or stands for one."""
    return not isinstance(one, Compute) or one.node.traffic is None or one.node.traffic.launches


def _balanced_share(one: Compute) -> float:
    """The mean work of ranks to the most. Parts of a plan's sequences lie in their order: causal attention works most
    on the last, and sees all or nothing of a block that comes in a ring. Megatron-core and PyTorch's context_parallel
    deal each rank a part from the front and one from the back, which see half of each block."""
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
