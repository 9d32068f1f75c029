"""Combining small collectives: those of one kind, groups and element type work on a common buffer as one.

What that saves is the latency of all but one; what it costs is copying into the buffer and out of it. So a bundle grows
as long as the hardware's latency is worth more than its memory takes for the copies. Only collectives that can be
brought to one place are combined: later ones to the place of the first, or earlier ones to that of the last. And only
those of parameters on their way into a step and of gradients on their way out of it (`bundling.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from autoshard.cost.instructions import BundleSize, Costs, Setting
from autoshard.optimize.rewrite import InstructionBlock, Replacement, rewritten
from autoshard.partition.bundling import Ends, bundled, is_heavy
from autoshard.partition.program import Bundle, Collective, Compute, Instruction, Program, Register
from autoshard.partition.verify_bundles import bundle_key

Joinable = Collective | Bundle
Moved = dict[int, Instruction]
"""Instructions by their positions."""
FEW = 8
"""How many may be done ahead for one collective to join others."""


def combine(program: Program, setting: Setting) -> Program:
    """The program with bundles where these take less time than their parts one by one."""
    for early in (True, False):
        among = bundled(program)

        def sweep(block: InstructionBlock, early: bool = early, among: Ends[Register] = among) -> Sequence[Replacement]:
            return [group.bundled(early) for group in _groups(block, early, setting, among)]

        program = rewritten(program, sweep)
    return program


class _Group:
    """Collectives to be done together, with their positions, and what that takes, kept as the group grows."""

    def __init__(self, block: InstructionBlock, position: int, one: Joinable, costs: Costs) -> None:
        self.parts = [(position, one)]
        self.ahead: Moved = {}  # what is done before them
        self.size, self.seconds = _size(one, costs), costs.of(one).talking
        self.needed = _needed(block, one)  # where one of the results is first read

    @property
    def first(self) -> int:
        return self.parts[0][0]

    def grown(self, one: Joinable, costs: Costs) -> tuple[BundleSize, float]:
        """The size with one more part, and the seconds."""
        size = self.size.plus(_size(one, costs))
        return size, costs.together(_each(self.parts[0][1])[0], size)

    def add(self, block: InstructionBlock, position: int, one: Joinable, size: BundleSize, seconds: float) -> None:
        self.parts.append((position, one))
        self.size, self.seconds = size, seconds
        self.needed = min(self.needed, _needed(block, one))

    def bundled(self, early: bool) -> Replacement:
        """One bundle instead of the parts, where the first was or where the last."""
        bundle = Bundle(tuple(each for _, one in self.parts for each in _each(one)))
        removed = frozenset((*(position for position, _ in self.parts), *self.ahead))
        made = (*(one for _, one in sorted(self.ahead.items())), bundle)
        return Replacement(bundle.results[0].name, removed, {self.parts[0 if early else -1][0]: made})


def _each(one: Joinable) -> tuple[Collective, ...]:
    return one.parts if isinstance(one, Bundle) else (one,)


def _size(one: Joinable, costs: Costs) -> BundleSize:
    first, *others = map(costs.size, _each(one))
    return reduce(BundleSize.plus, others, first)


def _groups(block: InstructionBlock, early: bool, setting: Setting, among: Ends[Register]) -> Iterator[_Group]:
    """Collectives and bundles that can be done together, in order; each in one group at most.

    Early values' are done with early ones' alone. With `early` at the place of the first, where the others' operands
    have to be there, maybe since what makes them is done at an earlier place, too; else at that of the last, which has
    to come before anything reads the others' results.
    """
    costs = setting.costs
    open_groups: dict[tuple, _Group] = {}
    places = _EarlierPlaces(block)
    for position, one in enumerate(block.instructions):
        if not isinstance(one, Collective | Bundle):
            continue
        end, kind = among.of(one.operands[0]), bundle_key(_each(one)[0])
        if not end or kind is None:
            continue
        key = end, kind
        group, ahead = open_groups.get(key), None
        if group is not None:
            ahead = places.before(group.first, one) if early else {} if group.needed > position else None
        if group is not None and ahead is not None:
            size, seconds = group.grown(one, costs)
            # One more part has to take less time in the bundle than on its own.
            is_less = size.copied <= setting.buffer and seconds < group.seconds + costs.of(one).talking
            if is_less and setting.ok(one.results[0].name):
                group.add(block, position, one, size, seconds)
                group.ahead |= ahead
                places.move(group.first, one, ahead)
                continue
        if group is not None and len(group.parts) > 1:
            yield group
        open_groups[key] = _Group(block, position, one, costs)
    yield from (group for group in open_groups.values() if len(group.parts) > 1)


class _EarlierPlaces:
    """Where registers are made after what has moved to earlier places so far."""

    def __init__(self, block: InstructionBlock) -> None:
        self.block = block
        self._sooner: dict[Register, float] = {}

    def before(self, place: int, one: Joinable) -> Moved | None:
        """What must be done before a place for collectives to be done there: what ranks do by themselves with what is
        there already, such as to cut or transpose it; None where that is not enough."""
        found: Moved = {}
        pending = [*one.operands]
        while pending:
            register = pending.pop()
            if self._made(register) < place:
                continue
            position = self.block.makers[register]
            maker = self.block.instructions[position]
            if register in self._sooner or len(found) == FEW or not _is_light(maker):
                return None
            found[position] = maker
            pending += maker.operands
        return dict(sorted(found.items()))

    def move(self, place: int, one: Joinable, ahead: Moved) -> None:
        """Note that collectives are done at a place, and before it what is done ahead of them."""
        self._sooner.update(dict.fromkeys(one.results, place))
        self._sooner.update((result, place - 0.5) for other in ahead.values() for result in other.results)

    def _made(self, register: Register) -> float:
        return self._sooner.get(register, self.block.makers.get(register, -1))


def _is_light(one: Instruction) -> bool:
    if isinstance(one, Collective):
        return not one.step.communicates
    return isinstance(one, Compute) and not is_heavy(one.node) and not one.op.has_effects(one.attrs)


def _needed(block: InstructionBlock, one: Joinable) -> int:
    return min((user for result in one.results for user in block.users(result)), default=block.end)
