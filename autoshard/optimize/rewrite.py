"""Blocks under change: who makes and who reads each register, changes that exclude each other, and their application.

A pass looks at one block at a time (the program's own, or that of a loop, a branch or a manual computation), proposes
`Replacement`s, and `rewritten` applies those that touch nothing in common. Results keep their registers, so that no
reader has to be told; only where a value turns out to be held already its readers are `renamed` to the other one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.ir.flow import manual_axes
from autoshard.partition.program import (
    Bundle,
    Collective,
    Compute,
    Instruction,
    ManualCollective,
    Nest,
    NestBody,
    Program,
    Register,
    Start,
    Wait,
    walk,
)

Names = Mapping[Register, Register]


class InstructionBlock:
    """The instructions of a program or of a body, by their positions; `end` stands for what it hands on."""

    def __init__(self, instructions: Sequence[Instruction], outputs: Sequence[Register], manual: bool = False) -> None:
        self.instructions, self.outputs, self.manual = tuple(instructions), tuple(outputs), manual
        self.end = len(self.instructions)
        self.makers: dict[Register, int] = {}
        self._users: defaultdict[Register, list[int]] = defaultdict(list)
        makers, users = self.makers, self._users
        for i, one in enumerate(self.instructions):
            for register in one.results:
                makers[register] = i
            operands = one.operands
            for register in operands if len(operands) < 2 else dict.fromkeys(operands):
                users[register].append(i)
        for register in dict.fromkeys(self.outputs):
            self._users[register].append(self.end)

    def users(self, register: Register) -> list[int]:
        """Positions of the instructions that read it, in order; `end` if the block hands it on."""
        return self._users.get(register, [])

    @property
    def read(self) -> KeysView[Register]:
        """All registers that something reads."""
        return self._users.keys()

    def maker(self, register: Register) -> Instruction | None:
        """What makes it; None for what comes from outside."""
        position = self.makers.get(register)
        return None if position is None else self.instructions[position]


@dataclass(frozen=True)
class Replacement:
    """Instructions to take out, and what to put before which positions instead.

    `site` is the name under which a pass asks whether it may.
    """

    site: str
    removed: frozenset[int]
    inserted: Mapping[int, tuple[Instruction, ...]]
    renamed: Names = field(default_factory=dict)

    @property
    def new(self) -> list[Instruction]:
        return [one for some in self.inserted.values() for one in some]


class Accepted:
    """The changes of one sweep over a block: none takes out what another has taken out or reads."""

    def __init__(self, block: InstructionBlock) -> None:
        self._block = block
        self._removed: set[int] = set()
        self._read: set[int] = set()
        self.changes: list[Replacement] = []

    def free(self, places: Iterable[int]) -> bool:
        """Whether nothing has been done at these positions."""
        return self._removed.isdisjoint(places)

    def add(self, change: Replacement) -> bool:
        """Take the change if it fits the others."""
        read = {self._block.makers.get(one) for new in change.new for one in new.operands}
        read |= {self._block.makers.get(one) for one in change.renamed.values()}
        if not change.removed.isdisjoint(self._removed | self._read) or not self._removed.isdisjoint(read):
            return False
        self._removed |= change.removed
        self._read |= {position for position in read if position is not None}
        self.changes.append(change)
        return True


def dying(
    block: InstructionBlock, removed: Iterable[int], new: Iterable[Instruction], kept: Iterable[Register] = ()
) -> frozenset[int]:
    """What is taken out, with all that nobody needs then; `new` instructions and others need what they read, `kept`."""
    gone, read = set(removed), {one for instruction in new for one in instruction.operands}
    read.update(kept)
    left = list(gone)
    while left:
        for register in block.instructions[left.pop()].operands:
            position = block.makers.get(register)
            if position is None or position in gone or not is_pure(block.instructions[position]):
                continue
            results = block.instructions[position].results
            if all(one not in read and gone.issuperset(block.users(one)) for one in results):
                gone.add(position)
                left.append(position)
    return frozenset(gone)


def is_pure(one: Instruction) -> bool:
    """Whether it does nothing but make its results."""
    if isinstance(one, Compute):
        return not one.op.has_effects(one.attrs)
    return isinstance(one, Collective | Bundle)


# -- the blocks of a program


Sweep = Callable[[InstructionBlock], Sequence[Replacement]]


def rewritten(program: Program, sweep: Sweep) -> Program:
    """The program with one sweep's changes made in every block; the very same if there are none."""
    made: Names = {}
    instructions, outputs = _rewritten(program.instructions, program.outputs, sweep, False, made)
    if instructions == program.instructions and outputs == program.outputs:
        return program
    return replace(program, instructions=instructions, outputs=outputs)


def _rewritten(
    instructions: Sequence[Instruction], outputs: Sequence[Register], sweep: Sweep, manual: bool, names: Names
) -> tuple[tuple[Instruction, ...], tuple[Register, ...]]:
    inner = tuple(_inside(one, sweep, manual) if isinstance(one, Nest) else one for one in instructions)
    changes = sweep(InstructionBlock(inner, outputs, manual))
    if not changes:
        return inner, tuple(outputs)
    removed = {position for change in changes for position in change.removed}
    inserted: dict[int, list[Instruction]] = {}
    for change in changes:
        for position, some in change.inserted.items():
            inserted.setdefault(position, []).extend(some)
    names = {**names, **{old: new for change in changes for old, new in change.renamed.items()}}
    found: list[Instruction] = []
    for position in range(len(inner) + 1):
        found += inserted.get(position, ())
        if position < len(inner) and position not in removed:
            found.append(inner[position])
    if not names:
        return tuple(found), tuple(outputs)
    return tuple(renamed(one, names) for one in found), tuple(final(one, names) for one in outputs)


def _inside(nest: Nest, sweep: Sweep, manual: bool) -> Nest:
    manual = manual or bool(manual_axes(nest.node))
    bodies = tuple(
        NestBody(body.args, *_rewritten(body.instructions, body.outputs, sweep, manual, {})) for body in nest.bodies
    )
    same = all(_same(old, new) for old, new in zip(nest.bodies, bodies, strict=True))
    return nest if same else replace(nest, bodies=bodies)


def _same(old: NestBody, new: NestBody) -> bool:
    return old.instructions == new.instructions and old.outputs == new.outputs


def final(register: Register, names: Names) -> Register:
    """The register that stands for this one in the end."""
    while register in names:
        register = names[register]
    return register


def renamed(one: Instruction, names: Names) -> Instruction:
    """The instruction reading other registers; the same one if it reads none of those that have new names."""
    if not names or names.keys().isdisjoint(one.operands):
        return one
    operands = tuple(final(register, names) for register in one.operands)
    if isinstance(one, Compute):
        return Compute(one.op, operands, one.results, one.attrs, one.node, one.composite)
    if isinstance(one, ManualCollective):
        return replace(one, operands=operands)
    if isinstance(one, Collective):
        return Collective(one.step, operands[0], one.result, one.serves)
    if isinstance(one, Bundle):
        return Bundle(tuple(replace(part, operand=final(part.operand, names)) for part in one.parts))
    assert not isinstance(one, Start | Wait), "no pass changes what a started collective reads"
    bodies = tuple(
        NestBody(
            body.args,
            tuple(renamed(inner, names) for inner in body.instructions),
            tuple(final(register, names) for register in body.outputs),
        )
        for body in one.bodies
    )
    return replace(one, entering=tuple(final(register, names) for register in one.entering), bodies=bodies)


def swept(program: Program, sweep: Sweep, most: int = 40) -> Program:
    """Sweeps until nothing changes, and away with what nobody reads."""
    for number in range(most):
        changed = rewritten(program, sweep)
        if not number or changed is not program:  # else nothing can have died
            changed = without_dead(changed)
        if changed is program:
            break
        program = changed
    return program


def without_dead(program: Program) -> Program:
    """The program without instructions that make only what nobody reads."""

    def sweep(block: InstructionBlock) -> list[Replacement]:
        read = block.read
        unread = [i for i, one in enumerate(block.instructions) if read.isdisjoint(one.results) and is_pure(one)]
        return [Replacement("", dying(block, unread, ()), {})] if unread else []

    return rewritten(program, sweep)


class Namer:
    """Names for new registers that no register of the program has."""

    def __init__(self, program: Program) -> None:
        self._taken = {one.name for one in _registers(program)}
        self._counts: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        base = name.rsplit(".moved", 1)[0]
        count = self._counts.get(base, 0)
        while (found := f"{base}.moved{count or ''}") in self._taken:
            count += 1
        self._counts[base] = count + 1
        self._taken.add(found)
        return found


def _registers(program: Program) -> Iterator[Register]:
    yield from program.inputs
    for one in walk(program.instructions):
        yield from one.results
        for body in one.bodies if isinstance(one, Nest) else ():
            yield from body.args
