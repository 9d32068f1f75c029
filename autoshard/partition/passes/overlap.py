"""Overlap: a collective is started when its operands are there, and waited for where its results are first read.

In between the rank computes. Waits come as late as readers allow; starts as early as operands do and as is of use, for
what a collective makes lies in memory from its start. No start passes other communication, so that collectives begin in
the order that the program had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.cost.instructions import Costs, Setting
from autoshard.partition.passes.block import Block, Change, rewritten
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
    communicates,
)
from autoshard.partition.verify_bundles import bundle_key


def overlap(program: Program, setting: Setting) -> Program:
    """The program with collectives begun apart wherever operators can run meanwhile."""

    def sweep(block: Block) -> Sequence[Change]:
        changes: list[Change] = []
        last = 0  # where the latest start stands, or what comes after other communication
        waits: dict[Register, int] = {}
        for place, one in enumerate(block.instructions):
            begun = _can_start(one)
            change = None if begun is None else _apart(block, place, begun, last, waits, setting.costs)
            if change is not None and setting.ok(change.site):
                changes.append(change)
                last = max(last, min(change.inserted))
                waits.update(dict.fromkeys(one.results, max(change.inserted)))
            elif communicates(one):
                last = place + 1
        return changes

    return rewritten(program, sweep)


def _can_start(one: Instruction) -> Collective | Bundle | None:
    if isinstance(one, Bundle):
        return one
    return one if isinstance(one, Collective) and one.step.communicates and bundle_key(one) is not None else None


def _apart(
    block: Block, place: int, one: Collective | Bundle, last: int, waits: Mapping[Register, int], costs: Costs
) -> Change | None:
    """The collective as a start and a wait, if operators lie between the two.

    Args:
        last: before which position it may stand at the earliest.
        waits: before which positions registers are waited for.
    """
    ready = (waits.get(register, block.makers.get(register, -1) + 1) for register in one.operands)
    first = max(last, *ready)
    read = min(min(block.users(register), default=block.end) for register in one.results)
    read = min(read, _next_nest(block, place))
    first = _early_enough(block, first, place, read, costs)
    between = (block.instructions[i] for i in range(first, read) if i != place)
    if not any(isinstance(other, Compute) and costs.of(other).computing for other in between):
        return None
    start = Start(one)
    inserted: dict[int, tuple[Instruction, ...]] = {first: (start,)}
    inserted[read] = (*inserted.get(read, ()), Wait(start))
    return Change(one.results[0].name, frozenset((place,)), inserted)


def _early_enough(block: Block, first: int, place: int, read: int, costs: Costs) -> int:
    """Where to start: as late as still leaves as much computing behind as the collective takes. What it sends and makes
    lies in memory from there on."""
    left = costs.of(block.instructions[place]).talking
    for at in range(read - 1, first - 1, -1):
        other = block.instructions[at]
        left -= costs.of(other).computing if isinstance(other, Compute) else 0.0
        if left <= 0 and at <= place:
            return at
    return min(first, place)


def _next_nest(block: Block, place: int) -> int:
    """The place of the next loop or branch: no collective runs on beside what may communicate inside."""
    rest = range(place + 1, block.end)
    return next((i for i in rest if isinstance(block.instructions[i], Nest)), block.end)
