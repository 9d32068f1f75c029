"""Moving redistributions to where the value is smallest: past the operators that read it, or before those that make it.

A gather goes before an upcast, a broadcast or an expansion, and after a slice or a reduction; terms are added up after
a linear operator that makes them fewer or joins two sums into one (x + y of two partial values: one collective), or
before one that makes more of them. Whole chains of operators are tried, so that a step also passes those that change no
size on the way to one that does. A sum never changes its element type: it stays as wide as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from autoshard.core.strategy import Strategy
from autoshard.cost.instructions import Costs, Setting
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.optimize.chains import as_step, brought, gains
from autoshard.optimize.relayout_strategies import movable, reduces, with_operand, with_result, with_strategy
from autoshard.optimize.rewrite import Accepted, InstructionBlock, Namer, Replacement, dying, swept
from autoshard.partition.program import Collective, Compute, Instruction, Program, Register
from autoshard.util.errors import RedistributeError

_MOVING = ("move", "slice", "broadcast")
"""How operators spread that compute nothing."""

LONGEST = 6
"""How many operators a step passes at once."""


class PendingRelayout(NamedTuple):
    """A way half gone: what is taken out, what is put before which positions."""

    removed: tuple[int, ...]
    inserted: dict[int, tuple[Instruction, ...]]


def move(program: Program, setting: Setting) -> Program:
    """The program with steps before or after operators wherever that moves fewer bytes in no more time."""
    namer = Namer(program)

    def sweep(block: InstructionBlock) -> Sequence[Replacement]:
        accepted = Accepted(block)
        for position, one in enumerate(block.instructions):
            step = as_step(one)
            if block.manual or step is None or not step.step.communicates or not accepted.free((position,)):
                continue
            ways = (*_later(block, position, step, namer, setting), *_earlier(block, position, step, namer, setting))
            change = _best(block, ways, setting.costs)
            if change is not None and setting.ok(change.site):
                accepted.add(change)
        return accepted.changes

    return swept(program, sweep)


def _best(block: InstructionBlock, ways: Iterable[Replacement], costs: Costs) -> Replacement | None:
    """The change that saves most, if one gains anything."""

    def left(change: Replacement) -> tuple[float, float, float]:
        old = costs.total(block.instructions[i] for i in sorted(change.removed))
        new = costs.total(change.new)
        return new.nbytes - old.nbytes, new.collectives - old.collectives, new.seconds - old.seconds

    return min((way for way in ways if gains(block, way, costs)), key=left, default=None)


# -- after the operators that read a value


def _later(
    block: InstructionBlock, position: int, step: Collective, namer: Namer, setting: Setting
) -> Iterator[Replacement]:
    """The step, or what is left of it, after one, two, ... of the operators behind it."""
    front, now = step.result, step.operand
    way = PendingRelayout((position,), {})
    for _ in range(LONGEST):
        users = block.users(front)
        one = movable(block.instructions[users[0]]) if len(users) == 1 and users[0] < block.end else None
        if one is None or one.node in setting.fixed or front.size is not None or now.size is not None:
            return
        places = [i for i, register in enumerate(one.operands) if register is front]
        strategy = with_operand(one, places, now.layout)
        if strategy is None or not _keeps_precision(one, strategy, now, front):
            return
        try:
            steps, operands = _operands(block, one, strategy, {front: now}, namer)
        except RedistributeError:
            return
        result = Register(namer(one.results[0].name), one.results[0].whole, strategy.result_layouts[0])
        run = with_strategy(one, strategy, operands, result)
        way = PendingRelayout((*way.removed, users[0]), {**way.inserted, users[0]: (*steps, run)})
        front, now = one.results[0], result
        if (change := _ended(block, way, front, now, step.result.name, namer)) is not None:
            yield change


def _keeps_precision(one: Compute, strategy: Strategy, now: Register, front: Register) -> bool:
    """Whether sums are still made in the element type that they were made in.

    In a narrow one also no terms come to be, and with those that are nothing is computed: each rank would round.
    """
    made = one.results[0].whole.dtype
    carries = reduces(now.layout, front.layout)
    if carries and made != front.whole.dtype:
        return False
    if not made.is_float or made.itemsize >= 4:
        return True
    return not strategy.reduced and (not carries or one.op.spread in _MOVING)


def _operands(
    block: InstructionBlock, one: Compute, strategy: Strategy, known: dict[Register, Register], namer: Namer
) -> tuple[list[Instruction], list[Register]]:
    """Steps that bring the operands into the layouts that a strategy wants, and the registers that they are in then.

    Raises:
        RedistributeError: one cannot be brought there.
    """
    steps: list[Instruction] = []
    found: dict[tuple[Register, Layout], Register] = {}
    operands = []
    for register, layout in zip(one.operands, strategy.operand_layouts, strict=True):
        if register in known and known[register].layout is layout:
            operands.append(known[register])
            continue
        if (register, layout) not in found:
            target = Register(namer(register.name), register.whole, layout)
            new, names = brought(_holding(block, register), [(target, one.node)], namer)
            steps += new
            found[register, layout] = names.get(target, target)
        operands.append(found[register, layout])
    return steps, operands


def _holding(block: InstructionBlock, register: Register) -> list[Register]:
    """The register, and those from which steps have made it: they hold the same value."""
    found = [register]
    while (step := as_step(block.maker(found[-1]))) is not None and step.operand.size is None:
        found.append(step.operand)
    return found


def _ended(
    block: InstructionBlock, way: PendingRelayout, front: Register, now: Register, site: str, namer: Namer
) -> Replacement | None:
    """The way with what `front` is read for made from `now`: at once what steps make of it, if only steps read it."""
    users = block.users(front)
    steps = [step for user in users if user < block.end and (step := as_step(block.instructions[user]))]
    joined = bool(users) and len(steps) == len(users)
    targets = [(step.result, step.serves) for step in steps] if joined else [(front, _node_of(block, front))]
    at, more = (users[0], users) if joined else (way.removed[-1], [])
    try:
        new, names = brought([now], targets, namer)
    except RedistributeError:
        return None
    inserted = {**way.inserted, at: (*way.inserted.get(at, ()), *new)}
    every = [one for some in inserted.values() for one in some]
    return Replacement(site, dying(block, (*way.removed, *more), every, names.values()), inserted, names)


def _node_of(block: InstructionBlock, register: Register) -> Node | None:
    """The node of the operator that makes a register."""
    maker = block.maker(register)
    return maker.node if isinstance(maker, Compute) else None


# -- before the operators that make a value


def _earlier(
    block: InstructionBlock, position: int, step: Collective, namer: Namer, setting: Setting
) -> Iterator[Replacement]:
    """The step before one, two, ... of the operators that make its operand."""
    source, target = step.operand, step.result
    way, reader = PendingRelayout((position,), {}), position
    while len(way.removed) <= LONGEST:
        at = block.makers.get(source)
        one = None if at is None else movable(block.instructions[at])
        if at is None or one is None or target.size is not None or block.users(source) != [reader]:
            return
        if one.node in setting.fixed:
            return
        strategy = with_result(one, target.layout)
        if strategy is None or not _adds_in_kind(one, source.layout, target.layout):
            return
        try:
            steps, operands = _operands(block, one, strategy, {}, namer)
        except RedistributeError:
            return
        run = with_strategy(one, strategy, operands, target)
        removed = (*way.removed, at)
        inserted = {**way.inserted, at: (*steps, run)}
        every = [new for some in inserted.values() for new in some]
        yield Replacement(step.result.name, dying(block, removed, every), inserted)
        moved = {
            (old, new)
            for old, new in zip(one.operands, operands, strict=True)
            if any(made.step.communicates for made in _towards(steps, new))
        }
        if len(moved) != 1:
            return
        ((source, target),) = moved
        way = PendingRelayout(removed, {**way.inserted, at: (*_without(steps, target), run)})
        reader = at


def _adds_in_kind(one: Compute, old: Layout, new: Layout) -> bool:
    """Whether terms that end now before the operator are added up in the type that they were added up in after it."""
    if not reduces(old, new):
        return True
    return all(
        register.whole.dtype == one.results[0].whole.dtype for register in one.operands if register.layout.partial
    )


def _towards(steps: Sequence[Instruction], register: Register) -> list[Collective]:
    """The steps that lead to a register."""
    made = {one.result: one for one in steps if isinstance(one, Collective)}
    found = []
    while register in made:
        found.append(made[register])
        register = made[register].operand
    return found


def _without(steps: Sequence[Instruction], register: Register) -> list[Instruction]:
    """The steps without those that lead to a register."""
    gone = _towards(steps, register)
    return [one for one in steps if one not in gone]
