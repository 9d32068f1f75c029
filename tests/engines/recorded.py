"""What a rank did, collective by collective, and what its program has it do, in one form to compare.

difference(run.collectives.done, program, rank)     # "" if both are the same
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from autoshard.partition.program import Bundle, Collective, Instruction, ManualCollective, Nest, Program, Start
from autoshard.redistribute.window import WindowStep

Done = tuple[str, tuple[int, ...], int]
"""Kind, the members of the group in order (of a permute: all ranks), and how many elements a rank put in."""


def difference(done: Iterable[Done], program: Program, rank: int, runs: int = 1) -> str:
    """How what a rank did in so many runs differs from what the program says; empty if it does not.

    Of loops and branches, whose turns are known in the run only, the collectives are compared, not how often each was
    done.
    """
    once, inside = planned_on(program, rank)
    found, wanted = Counter(done), Counter({one: runs * count for one, count in once.items()})
    for one in inside:
        found[one] = wanted[one] = min(found[one], wanted[one])
    extra, missing = found - wanted, wanted - found
    told = (("done but not planned", extra), ("planned but not done", missing))
    return "; ".join(f"{what}: {dict(some)}" for what, some in told if some)


def planned_on(program: Program, rank: int) -> tuple[Counter[Done], set[Done]]:
    """The collectives that a rank does once in a run, and those inside of loops and branches."""
    once: Counter[Done] = Counter()
    inside: set[Done] = set()
    everyone = tuple(range(program.mesh.devices))
    for one in program.instructions:
        if isinstance(one, Nest):
            inside.update(found for each in _nested(one) for found in _of(each, rank, everyone))
        else:
            once.update(_of(one, rank, everyone))
    return once, inside


def _nested(nest: Nest) -> Iterator[Instruction]:
    for body in nest.bodies:
        for one in body.instructions:
            yield from _nested(one) if isinstance(one, Nest) else (one,)


def _of(one: Instruction, rank: int, everyone: tuple[int, ...]) -> Iterator[Done]:
    if isinstance(one, Start):
        yield from _of(one.of, rank, everyone)
    elif isinstance(one, Bundle):
        yield one.parts[0].step.kind, _members(one.parts[0], rank), sum(map(_elements, one.parts))
    elif isinstance(one, ManualCollective) and one.communicates:
        group = everyone if one.kind == "permute" else _members(one, rank)
        yield from ((one.kind, group, math.prod(operand.local.shape)) for operand in one.operands)
    elif isinstance(one, Collective) and one.step.communicates:
        by_group = one.step.kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        if by_group:
            yield one.step.kind, _members(one, rank), _elements(one)
        elif one.step.messages:  # where each rank keeps what it has, nothing is sent
            yield "permute", everyone, _elements(one)


def _members(one: Collective | ManualCollective, rank: int) -> tuple[int, ...]:
    return tuple(map(int, one.step.groups.members(rank)))


def _elements(one: Collective) -> int:
    """Elements of a rank's operand, padded to what the step works on."""
    step = one.step
    return math.prod(one.operand.local.shape) if isinstance(step, WindowStep) else step.before.local_size(one.of.shape)
