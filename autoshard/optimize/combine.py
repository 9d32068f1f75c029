"""Combining small collectives: those of one kind, groups and element type work on a common buffer as one.

What that saves is the latency of all but one; what it costs is copying into the buffer and out of it. So a bundle grows
as long as the hardware's latency is worth more than its memory takes for the copies. Only collectives that can be
brought to one place are combined: later ones to the place of the first, or earlier ones to that of the last. And only
those of parameters on their way into a step and of gradients on their way out of it (`bundling.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from autoshard.cost.instructions import BundleSize, Costs, Setting
from autoshard.optimize.rewrite import InstructionBlock, Replacement, rewritten
from autoshard.partition.bundling import Ends, bundled
from autoshard.partition.program import Bundle, Collective, Program, Register
from autoshard.partition.verify_bundles import bundle_key


def combine(program: Program, setting: Setting) -> Program:
    """The program with bundles where these take less time than their parts one by one."""
    program = rewritten(program, partial(_cut_sooner, among=bundled(program)))
    for early in (True, False):
        among = bundled(program)

        def sweep(block: InstructionBlock, early: bool = early, among: Ends[Register] = among) -> Sequence[Replacement]:
            return [_bundled(group, early) for group in _groups(block, early, setting, among)]

        program = rewritten(program, sweep)
    return program


def _cut_sooner(block: InstructionBlock, among: Ends[Register]) -> list[Replacement]:
    """What ranks only cut of late values, right behind what makes these: collectives that read it can be done there."""
    found: list[Replacement] = []
    places: dict[Register, int] = {}
    for position, one in enumerate(block.instructions):
        if not isinstance(one, Collective) or one.step.communicates or among.of(one.operand) != "late":
            continue
        place = places.get(one.operand, block.makers.get(one.operand, -1) + 1)
        if 0 < place < position:
            places[one.result] = place
            found.append(Replacement(one.result.name, frozenset((position,)), {place: (one,)}))
    return found


def _bundled(group: Sequence[tuple[int, Collective]], early: bool) -> Replacement:
    places = [position for position, _ in group]
    bundle = Bundle(tuple(one for _, one in group))
    return Replacement(bundle.results[0].name, frozenset(places), {places[0] if early else places[-1]: (bundle,)})


class _Group:
    """Collectives to be done together, with their positions, and what that takes, kept as the group grows."""

    def __init__(self, block: InstructionBlock, position: int, one: Collective, costs: Costs) -> None:
        self.parts = [(position, one)]
        self.size = costs.size(one)
        self.seconds = costs.of(one).talking
        self.needed = _needed(block, one)  # where one of the results is first read

    def grown(self, one: Collective, costs: Costs) -> tuple[BundleSize, float]:
        """The size with one more part, and the seconds."""
        size = self.size.plus(costs.size(one))
        return size, costs.together(self.parts[0][1], size)

    def add(self, block: InstructionBlock, position: int, one: Collective, size: BundleSize, seconds: float) -> None:
        self.parts.append((position, one))
        self.size, self.seconds = size, seconds
        self.needed = min(self.needed, _needed(block, one))


def _groups(
    block: InstructionBlock, early: bool, setting: Setting, among: Ends[Register]
) -> Iterator[list[tuple[int, Collective]]]:
    """Collectives that can be done together, with their positions, in order; each in one group at most.

    Early values' are done with early ones' alone. With `early` at the place of the first, where the others' operands
    have to be there, maybe since what makes them is done at an earlier place, too; else at that of the last, which has
    to come before anything reads the others' results.
    """
    costs = setting.costs
    open_groups: dict[tuple, _Group] = {}
    sooner: dict[Register, int] = {}
    for position, one in enumerate(block.instructions):
        end = among.of(one.operand) if isinstance(one, Collective) else ""
        kind = bundle_key(one) if isinstance(one, Collective) and end else None
        if kind is None or not isinstance(one, Collective):
            continue
        key = end, kind
        group = open_groups.get(key)
        if group is not None and _fits(block, group, one, sooner if early else None, position):
            size, seconds = group.grown(one, costs)
            # One more part has to take less time in the bundle than on its own.
            is_less = size.copied <= setting.buffer and seconds < group.seconds + costs.of(one).talking
            if is_less and setting.ok(one.result.name):
                group.add(block, position, one, size, seconds)
                sooner[one.result] = group.parts[0][0]
                continue
        if group is not None and len(group.parts) > 1:
            yield group.parts
        open_groups[key] = _Group(block, position, one, costs)
    yield from (group.parts for group in open_groups.values() if len(group.parts) > 1)


def _fits(
    block: InstructionBlock, group: _Group, one: Collective, sooner: Mapping[Register, int] | None, position: int
) -> bool:
    """Whether a collective can be done where its group is.

    Args:
        sooner: for groups at the place of their first, the places of what has moved to such a one; None for the last.
    """
    if sooner is not None:
        made = sooner.get(one.operand, block.makers.get(one.operand, -1))
        return made < group.parts[0][0]
    return group.needed > position


def _needed(block: InstructionBlock, one: Collective) -> int:
    return min(block.users(one.result), default=block.end)
