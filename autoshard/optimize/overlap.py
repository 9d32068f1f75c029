"""Overlap: a collective is started when its operands are there, and waited for where its results are first read.

In between the rank computes. Waits come as late as readers allow; starts as early as operands do and as is of use, for
what a collective makes lies in memory from its start. No start passes other communication, so that collectives begin in
the order that the program had, and each leaves time for those behind it. Operators that only change the form of
something, such as a cast of a parameter before its gather or of a gradient behind its reduction, go with the start or
with the wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.cost.instructions import Setting
from autoshard.optimize.rewrite import InstructionBlock, Replacement, is_pure, rewritten
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

    def sweep(block: InstructionBlock) -> Sequence[Replacement]:
        return _Sweep(block, setting).changes()

    return rewritten(program, sweep)


class _Sweep:
    """One block: which collectives are begun apart, and where."""

    def __init__(self, block: InstructionBlock, setting: Setting) -> None:
        self.block, self.setting, self.costs = block, setting, setting.costs
        self.moved: set[int] = set()
        self.waits: dict[Register, int] = {}
        """Before which positions registers are waited for."""
        self.last = 0
        """Before which position the next start may stand at the earliest."""

    def changes(self) -> list[Replacement]:
        found: list[Replacement] = []
        latest = self._latest_starts()
        for position, one in enumerate(self.block.instructions):
            begun = _can_start(one)
            change = None if begun is None else self._split_in_two(position, begun, latest[position])
            if begun is not None and change is not None and self.setting.ok(change.site):
                found.append(change)
                self._note(begun, change)
            elif communicates(one):
                self.last = position + 1
        return found

    def _note(self, one: Collective | Bundle, change: Replacement) -> None:
        self.last = max(self.last, min(change.inserted))
        self.moved |= change.removed
        wait = max(change.inserted)
        for register in (*one.results, *(r for new in change.inserted[wait] for r in new.results)):
            self.waits[register] = wait

    def _split_in_two(self, position: int, one: Collective | Bundle, latest: int) -> Replacement | None:
        """The collective as a start and a wait, if operators lie between the two."""
        ahead, behind = self._ahead(position, one), self._behind(one)
        ready = (self._ready(register) for at in (position, *ahead) for register in self.block.instructions[at].operands
                 if self.block.makers.get(register) not in ahead)  # fmt: skip
        first = max(self.last, *ready, 0)
        read = self._read(position, one, behind)
        first = min(max(first, latest), position)
        gone = frozenset((position, *ahead, *behind))
        between = (self.block.instructions[i] for i in range(first, read) if i not in gone)
        if not any(isinstance(other, Compute) and self.costs.of(other).computing for other in between):
            return None
        start = Start(one)
        inserted: dict[int, tuple[Instruction, ...]] = {first: (*(self.block.instructions[at] for at in ahead), start)}
        inserted[read] = (*inserted.get(read, ()), Wait(start), *(self.block.instructions[at] for at in behind))
        return Replacement(one.results[0].name, gone, inserted)

    def _ready(self, register: Register) -> int:
        return self.waits.get(register, self.block.makers.get(register, -1) + 1)

    def _read(self, position: int, one: Collective | Bundle, behind: Sequence[int]) -> int:
        """The position before which results are wanted, the operators that go with the wait aside."""
        results = [*one.results, *(r for at in behind for r in self.block.instructions[at].results)]
        users = (at for register in results for at in self.block.users(register) if at not in behind)
        return min(min(users, default=self.block.end), _next_nest(self.block, position))

    def _ahead(self, position: int, one: Collective | Bundle) -> list[int]:
        """Operators that make what is sent, each of one thing, from what comes into the block; in order."""
        found: set[int] = set()
        for register in one.operands:
            chain: list[int] = []
            at = self.block.makers.get(register)
            while at is not None and at not in self.moved and _is_form(self.block.instructions[at]):
                chain.append(at)
                at = self.block.makers.get(self.block.instructions[at].operands[0])
            if at is None:
                found.update(chain)
        return sorted(found)

    def _behind(self, one: Collective | Bundle) -> list[int]:
        """Operators that alone read what comes, and make as much or more of it; in order."""
        found: list[int] = []
        left = list(one.results)
        while left:
            register = left.pop()
            users = self.block.users(register)
            if len(users) != 1 or users[0] == self.block.end or users[0] in self.moved:
                continue
            user = self.block.instructions[users[0]]
            if _is_form(user) and user.results[0].local.nbytes >= register.local.nbytes:
                found.append(users[0])
                left += user.results
        return sorted(found)

    def _latest_starts(self) -> dict[int, int]:
        """Where each collective is to start at the latest to hide itself and those behind it: what it sends and makes
        lies in memory from there on."""
        found: dict[int, int] = {}
        at, left = self.block.end, 0.0  # the position that the next start stands before, and time unused behind it
        for position in reversed(range(self.block.end)):
            one = _can_start(self.block.instructions[position])
            if one is None:
                continue
            read = self._read(position, one, self._behind(one))
            if read < at:
                at, left = read, 0.0
            at, left = self._back(at, left - self.costs.of(one).talking)
            found[position] = min(at, position)
        return found

    def _back(self, at: int, left: float) -> tuple[int, float]:
        """The position from which operators before `at` take the time that is lacking, and what they take beyond."""
        while left < 0 and at > 0:
            at -= 1
            other = self.block.instructions[at]
            left += self.costs.of(other).computing if isinstance(other, Compute) else 0.0
        return at, left


def _is_form(one: Instruction) -> bool:
    """Whether it makes one thing of one thing, in another form or type."""
    changes = isinstance(one, Compute) and (one.op.name == "Cast" or bool(one.op.view))
    return changes and len(one.operands) == len(one.results) == 1 and is_pure(one)


def _can_start(one: Instruction) -> Collective | Bundle | None:
    if isinstance(one, Bundle):
        return one
    return one if isinstance(one, Collective) and one.step.communicates and bundle_key(one) is not None else None


def _next_nest(block: InstructionBlock, position: int) -> int:
    """The place of the next loop or branch: no collective runs on beside what may communicate inside."""
    rest = range(position + 1, block.end)
    return next((i for i in rest if isinstance(block.instructions[i], Nest)), block.end)
