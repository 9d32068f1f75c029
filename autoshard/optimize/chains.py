"""Chains: what is only redistributed further is brought where it is wanted in one go.

An all_reduce of which only slices are read becomes a reduce_scatter, an all_gather of which other dims are cut an
all_to_all. Wanted layouts of one value are made in order, each from the nearest that there is by then, as lowering
does; what changes is that the layout in between need not exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.cost.instructions import Costs, Setting
from autoshard.ir.graph import Node
from autoshard.optimize.rewrite import Accepted, InstructionBlock, Namer, Replacement, dying, swept
from autoshard.partition.forms import Form, padded_steps
from autoshard.partition.program import Collective, Compute, Instruction, Program, Register
from autoshard.redistribute.window import WindowStep
from autoshard.util.errors import RedistributeError


def chains(program: Program, setting: Setting) -> Program:
    """The program with fewer bytes, or as many in fewer collectives, where steps follow on steps."""
    namer = Namer(program)

    def sweep(block: InstructionBlock) -> Sequence[Replacement]:
        accepted = Accepted(block)
        for position, one in enumerate(block.instructions):
            step = as_step(one)
            if (
                block.manual
                or step is None
                or not accepted.free((position,))
                or _restores_wanted_layout(block, step, setting)
            ):
                continue
            change = _joined(block, position, step, namer)
            if change is not None and gains(block, change, setting.costs) and setting.ok(change.site):
                accepted.add(change)
        return accepted.changes

    return swept(program, sweep)


def as_step(one: Instruction | None) -> Collective | None:
    """The instruction, if it is a step of a redistribution, which keeps the value."""
    return one if isinstance(one, Collective) and not isinstance(one.step, WindowStep) else None


def _restores_wanted_layout(block: InstructionBlock, step: Collective, setting: Setting) -> bool:
    """Whether the step brings the result of an operator into the layout that somebody wants it left in."""
    maker = block.maker(step.operand)
    return isinstance(maker, Compute) and maker.node is step.serves and maker.node in setting.fixed


def _joined(block: InstructionBlock, position: int, one: Collective, namer: Namer) -> Replacement | None:
    """What reads the result of this step made from its operand instead."""
    users = block.users(one.result)
    steps = [step for user in users if user < block.end and (step := as_step(block.instructions[user]))]
    if not users or len(steps) < len(users):
        return None
    try:
        new, names = brought([one.operand], [(step.result, step.serves) for step in steps], namer)
    except RedistributeError:
        return None
    return Replacement(
        one.result.name, dying(block, (position, *users), new, names.values()), {users[0]: tuple(new)}, names
    )


def brought(
    sources: Sequence[Register], targets: Sequence[tuple[Register, Node | None]], namer: Namer
) -> tuple[list[Instruction], dict[Register, Register]]:
    """Steps that make the targets (each with whom it serves) from registers that hold the same value; and targets that
    there is no need to make, with the registers that stand for them.

    Raises:
        RedistributeError: no steps lead there.
    """
    held = list(sources)
    new: list[Instruction] = []
    names: dict[Register, Register] = {}
    for target, serves in targets:
        ways = [(one, padded_steps(form(one), form(target), target.true.shape)) for one in held]
        now, way = min(ways, key=lambda pair: (pair[1].moved, len(pair[1].steps)))
        if not way.steps:
            names[target] = now
            continue
        for step, made in way.steps[:-1]:
            result = made.register(namer(target.name), target.true)
            new.append(Collective(step, now, result, serves))
            now = result
        new.append(Collective(way.steps[-1][0], now, target, serves))
        held.append(target)
    return new, names


def form(register: Register) -> Form:
    """How a register holds its value."""
    return Form(register.layout, register.whole.shape)


def gains(block: InstructionBlock, change: Replacement, costs: Costs) -> bool:
    """Whether a change moves fewer bytes, or as many in fewer collectives, in no more time."""
    removed, new = [block.instructions[i] for i in sorted(change.removed)], change.new
    if costs.moved(new) >= costs.moved(removed):  # most changes; what they compute need not be looked at
        return False
    return costs.total(new).seconds <= costs.total(removed).seconds * (1 + 1e-9)
