"""What a program keeps in memory when: its registers from their making to their last use, and what comes and goes.

Inputs that an update replaces are given up at their last use, as a Session does; the others stay, for somebody else
holds them. A view takes no memory and keeps what it is a view of. A loop or a branch takes while it runs what its
largest body does at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import HeldBytes, MemoryUse, kind_of, runtime_bytes
from autoshard.ir.graph import Graph
from autoshard.partition.program import (
    Bundle,
    Collective,
    Compute,
    Instruction,
    Nest,
    Program,
    Register,
    Start,
    Wait,
    parts_of,
    walk,
)
from autoshard.redistribute.buffers import staging_bytes
from autoshard.redistribute.window import WindowStep
from costmodel import live_bytes, peak

_ONE = ("activation",)
_MOST_NAMES = 3
"""Names of a bundle that a moment is told by."""


def program_memory(program: Program, graph: Graph | None) -> MemoryUse:
    """What one rank holds during each instruction of a program, which was made of `graph` (None: kinds are not told).

    What a started collective makes lies in memory from its start.
    """
    spans = list(program_spans(program, graph))
    held = [HeldBytes(_called(one.what), *one[1:]) for one in spans]
    end = max(len(program.instructions) - 1, 0)
    held.append(HeldBytes("the interpreter", "runtime", 0, end, _interpreter(program, spans)))
    return MemoryUse(tuple(held), end + 1, lambda moment: _describe(program, moment))


def program_peak(program: Program) -> int:
    """`program_memory(program, None).peak`, in less time."""
    spans = list(program_spans(program))
    steps = max(len(program.instructions), 1)
    return int(live_bytes([one[2:] for one in spans], steps).max(initial=0)) + _interpreter(program, spans)


def program_spans(program: Program, graph: Graph | None = None) -> Iterator[LiveRange]:
    """What a program holds, each from its making to its last use; see `program_memory`."""
    replaced = {program.inputs[into] for into in program.updates.values()}
    stay = [one for one in program.inputs if one not in replaced]
    return _spans(program.inputs, program.instructions, (*program.outputs, *stay), graph)


def _interpreter(program: Program, spans: Sequence[LiveRange]) -> int:
    """Bytes that Python itself takes."""
    steps = max(len(program.instructions), 1)
    arrays = live_bytes([(one.first, one.last, 1) for one in spans if one.kind != "scratch"], steps)
    others = [one for one in program.instructions if not isinstance(one, Compute | Collective)]
    count = len(program.instructions) - len(others) + sum(not parts_of(one) for one in walk(others))
    return runtime_bytes(int(arrays.max(initial=0)), count)


class LiveRange(NamedTuple):
    """A register, or what an instruction takes while it runs: `nbytes` at the moments first..last."""

    what: Register | Instruction
    kind: str
    first: int
    last: int
    nbytes: int


def _spans(
    inputs: Sequence[Register],
    instructions: Sequence[Instruction],
    kept: Collection[Register],
    graph: Graph | None = None,
    fixed: Collection[Register] = (),
) -> Iterator[LiveRange]:
    """What a block of instructions holds of its own: `kept` to its end, other registers to their last use.

    In the memory of those that are `fixed` no result is made, for somebody else holds them. `graph` is for the whole
    program: its values tell of what kind the registers are.
    """
    own, strided = _owners(inputs, instructions)
    read = _moments(instructions)
    last = _last_uses(read, own, kept, max(len(instructions) - 1, 0))
    given = dict(_given(instructions, own, read, last, (*kept, *fixed)))
    kinds = graph.roles if graph else ("activation",) * len(inputs)
    for one, kind in zip(inputs, kinds, strict=True):
        yield LiveRange(one, kind, 0, last.get(one, max(len(instructions) - 1, 0)), one.local.nbytes)
    begun = {one: moment for moment, one in enumerate(instructions) if isinstance(one, Start)}
    for moment, instruction in enumerate(instructions):
        first = begun[instruction.start] if isinstance(instruction, Wait) else moment
        for one, kind in zip(instruction.results, _kinds(instruction, graph), strict=True):
            # Until it has run, the memory that a result is made in counts as that of the operand that gave it.
            begins = first + (one in given)
            if own[one] is one and begins <= last[one]:
                yield LiveRange(one, kind, begins, last[one], one.local.nbytes)
        if nbytes := _scratch(instruction, strided):
            yield LiveRange(instruction, "scratch", moment, moment, nbytes)


def _given(
    instructions: Sequence[Instruction],
    own: dict[Register, Register],
    read: dict[Register, int],
    last: dict[Register, int],
    fixed: Collection[Register],
) -> Iterator[tuple[Register, Register]]:
    """Results that are made in the memory of a register that ends there, as operators say (`Compute.givers`)."""
    stays, held = set(fixed), {own.get(one, one) for one in fixed}
    for moment, instruction in enumerate(instructions):
        if not isinstance(instruction, Compute) or not instruction.op.over:
            continue
        taken: set[Register] = set()
        ending = {one for one in instruction.operands if read[one] == moment and one not in stays}
        for result, places in zip(instruction.results, instruction.givers(ending), strict=False):
            owners = (own.get(instruction.operands[i]) for i in places)
            for owner in owners:
                if owner is None or owner in held or owner in taken or last[owner] != moment:
                    continue
                if owner.local.nbytes == result.local.nbytes and own[result] is result:
                    taken.add(owner)
                    yield result, owner
                    break


def _moments(instructions: Sequence[Instruction]) -> dict[Register, int]:
    """Where each register is last read, or made."""
    found: dict[Register, int] = {}
    for moment, instruction in enumerate(instructions):
        for one in instruction.operands:
            found[one] = moment
        for one in instruction.results:
            found[one] = moment
    return found


def _kinds(instruction: Instruction, graph: Graph | None) -> Sequence[str]:
    """Of what kind the results of an instruction are."""
    if graph is None:
        count = len(instruction.results)
        return _ONE if count == 1 else _ONE * count
    if isinstance(instruction, Collective | Bundle | Start | Wait):
        return ["copy"] * len(instruction.results)
    if isinstance(instruction, Compute) and len(instruction.results) != len(instruction.node.results):
        return ["copy"] * len(instruction.results)  # what is done beside the node's own operator
    values = instruction.node.results
    return [kind_of(graph, value) for value in values]


def _owners(
    inputs: Sequence[Register], instructions: Sequence[Instruction]
) -> tuple[dict[Register, Register], set[Register]]:
    """Register -> the one in whose memory it lies: itself, unless it is a view. What is not here lies outside. And the
    registers whose elements do not lie one behind the other."""
    own = {register: register for register in inputs}
    strided: set[Register] = set()
    for instruction in instructions:
        operands, results = instruction.operands, instruction.results
        if not isinstance(instruction, Compute) or not operands:
            for register in results:
                own[register] = register
            continue
        view, first = instruction.op.view, operands[0]
        turned = first in strided
        holder = own.get(first, first) if view and not (turned and view == "reshape") else None
        for register in results:
            own[register] = holder or register
        if (
            view == "strided"
            or turned
            and view == "same"
            or not strided.isdisjoint(operands)
            and _keeps_order(instruction, own, strided)
        ):
            strided.update(results)
    return own, strided


def _keeps_order(instruction: Compute, own: dict[Register, Register], strided: set[Register]) -> bool:
    """Whether numpy gives the results the order of a turned operand (repeated ones have no say in it)."""
    turned = (
        one for one in instruction.operands if one in strided and own.get(one, one).local.elements >= one.local.elements
    )
    return instruction.op.spread == "pointwise" and any(True for _ in turned)


def _last_uses(
    read: dict[Register, int], own: dict[Register, Register], kept: Collection[Register], end: int
) -> dict[Register, int]:
    last = {own.get(register, register): end for register in kept}
    for register, moment in read.items():
        owner = own.get(register, register)
        if last.get(owner, -1) < moment:
            last[owner] = moment
    return last


def _scratch(instruction: Instruction, strided: set[Register]) -> int:
    if isinstance(instruction, Compute):
        return instruction.call_bytes
    if isinstance(instruction, Nest):
        blocks = [
            list(_spans(body.args, body.instructions, body.outputs, fixed=(*body.args, *body.captured)))
            for body in instruction.bodies
        ]
        return max((_peak(held) for held in blocks), default=0)
    if isinstance(instruction, Bundle):  # what is sent, and what comes, side by side
        return sum(one.local.nbytes for one in (*instruction.operands, *instruction.results))
    if isinstance(instruction, Start):
        return _scratch(instruction.of, strided)
    if not isinstance(instruction, Collective):
        return 0
    if isinstance(instruction.step, WindowStep):  # what has come, before it is put in its place
        return instruction.result.local.nbytes if instruction.step.communicates else 0
    return staging_bytes(instruction.step, instruction.operand.whole, instruction.operand in strided)


def _peak(spans: Sequence[LiveRange]) -> int:
    return peak(np.asarray([one[2:] for one in spans], np.int64).reshape(-1, 3))[0]


def _called(what: Register | Instruction) -> str:
    return what.name if isinstance(what, Register) else _label(what)


def _label(instruction: Instruction) -> str:
    if isinstance(instruction, Collective | Bundle | Start | Wait):
        return (*instruction.results, *instruction.operands)[0].name
    return instruction.node.label


def _describe(program: Program, moment: int) -> str:
    if not program.instructions:
        return "the inputs"
    instruction = program.instructions[moment]
    if isinstance(instruction, Collective):
        return f"{instruction.step} of {instruction.operand.name}"
    if isinstance(instruction, Bundle | Start | Wait):
        names, more = [one.name for one in instruction.operands[:_MOST_NAMES]], len(instruction.operands) - _MOST_NAMES
        told = f"{', '.join(names)} and {more} more" if more > 0 else ", ".join(names)
        return f"{type(instruction).__name__.lower()} of {told}"
    return f"{instruction.node.label} ({instruction.node.op.name})"
