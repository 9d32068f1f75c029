"""Program: what every rank runs, as data. Local shapes, explicit collectives with their axes, nothing per rank.

A register is one local tensor; a Compute runs an operator on registers, a Collective changes a register's layout, a
Nest holds the bodies of a loop, a branch or a manual computation, whose own collectives are Togethers.
Rank-dependent attributes are Offsets, resolved when a rank runs or dumps the program. Passes put collectives together
(Bundle) and let them run while a rank computes (Start, Wait).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Grouping, Mesh
from autoshard.ops.calls import call_bytes
from autoshard.ops.registry import Operator
from autoshard.partition.manual_step import ManualStep
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep


@dataclass(frozen=True, eq=False)
class Register:
    """A local tensor: its name, the type of the whole value it is a block of, and that value's layout.

    The layout divides `whole`: dims of a value that do not divide are made larger at their end (`padding.py`). `size`
    is then the shape of the value itself, and what lies outside of it holds no meaning.
    """

    name: str
    whole: TensorType
    layout: Layout
    size: tuple[int, ...] | None = None

    @cached_property
    def local(self) -> TensorType:
        """Type of the block a rank holds, padding included."""
        return _block(self.whole, self.layout)

    @cached_property
    def true(self) -> TensorType:
        """Type of the value itself, without padding."""
        return self.whole if self.size is None else self.whole.with_shape(self.size)

    def __str__(self) -> str:
        return f"{self.name}: {self.local}"


@lru_cache(maxsize=1 << 12)
def _block(whole: TensorType, layout: Layout) -> TensorType:
    """The type of a rank's block, one for all registers alike."""
    return whole.with_shape(layout.local_shape(whole.shape))


@dataclass(frozen=True, eq=False)
class Compute:
    """One operator on local blocks. `node` is the operator that it is a share of: one of the graph, or a part of one,
    `composite`, that runs in parts."""

    op: Operator
    operands: tuple[Register, ...]
    results: tuple[Register, ...]
    attrs: Mapping[str, Any]
    node: Node
    composite: Node | None = None

    @cached_property
    def call_bytes(self) -> int:
        """Bytes that a rank takes for it while it runs, besides operands and results."""
        operands, results = (tuple(one.local for one in some) for some in (self.operands, self.results))
        return call_bytes(self.op, self.node.rule if self.op.has_rule else None, operands, results, self.attrs)

    @cached_property
    def function(self) -> Hashable:
        """Equal for operators that compute the same of the same operands; None where that is not known.

        The texts tell 1 from 1.0 and 0.0 from -0.0.
        """
        function = self.op.name, tuple(self.attrs.items()), tuple(map(str, self.attrs.values()))
        try:
            hash(function)
        except TypeError:
            return None
        return function

    def givers(self, ending: Collection[Register]) -> tuple[tuple[int, ...], ...]:
        """For each result the operands in whose memory the operator can make it: blocks just as large, among those that
        nothing needs after it (`ending`). Empty for an operator that makes all of its results anew."""
        count = len(self.operands)
        fitting = (
            tuple(
                i for i in places if i < count and self.operands[i] in ending and self.operands[i].local == result.local
            )
            for places, result in zip(self.op.over, self.results, strict=True)
        )
        return tuple(fitting) if self.op.over else ()


@dataclass(frozen=True, eq=False)
class Collective:
    """One step of a redistribution: slice and keep are local, the other kinds communicate over `step.groups`.

    `serves` is the node whose operand is brought into its layout (None: a graph output). A window step makes another
    tensor: what the node's blocks read of its operand.
    """

    step: Step | WindowStep
    operand: Register
    result: Register
    serves: Node | None

    @property
    def operands(self) -> tuple[Register, ...]:
        return (self.operand,)

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.result,)

    @cached_property
    def of(self) -> TensorType:
        """The type that the step works on, which both its layouts divide.

        Operands are padded to it before the step, and what it leaves is cut to the result's size, both locally.
        """
        before, after = self.operand.whole, self.result.whole
        if isinstance(self.step, WindowStep):
            return before
        splits = enumerate(zip(self.step.before.parts, self.step.after.parts, strict=True))
        sizes = (before.shape[dim] if old > 1 and new == 1 else after.shape[dim] for dim, (old, new) in splits)
        return before.with_shape(sizes)

    @property
    def nbytes_moved(self) -> float:
        """Bytes that one rank sends under a bandwidth-optimal algorithm, padding included."""
        return self.step.elements_moved(self.of.shape) * self.of.dtype.itemsize


@dataclass(frozen=True, eq=False)
class ManualCollective:
    """A collective that a manual computation does by its own words: `node`, over `groups` of ranks.

    `kind` is the collective that moves the data (an all_gather also for what no collective of `Comm` does at once); a
    kind of "rank" moves nothing: each rank says its own number.
    """

    node: Node
    operands: tuple[Register, ...]
    results: tuple[Register, ...]
    kind: str
    groups: Grouping

    @cached_property
    def step(self) -> ManualStep:
        """What it moves."""
        itemsize = max(1, self.of.dtype.itemsize)
        local = sum(one.local.nbytes for one in self.operands) / itemsize
        return ManualStep(self.kind, (*self.operands, *self.results)[0].layout, self.groups, local)

    @property
    def of(self) -> TensorType:
        """The type of what it works on; the first, if there are several."""
        return (*self.operands, *self.results)[0].whole

    @property
    def serves(self) -> Node:
        return self.node

    @property
    def communicates(self) -> bool:
        return self.step.communicates

    @property
    def nbytes_moved(self) -> float:
        """Bytes that one rank sends under a bandwidth-optimal algorithm."""
        return self.step.elements_moved() * self.of.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Bundle:
    """Collectives of one kind over the same groups, of one element type, done as one on a common buffer."""

    parts: tuple[Collective, ...]

    @cached_property
    def operands(self) -> tuple[Register, ...]:
        return tuple(one.operand for one in self.parts)

    @cached_property
    def results(self) -> tuple[Register, ...]:
        return tuple(one.result for one in self.parts)

    @property
    def serves(self) -> Node | None:
        return self.parts[0].serves

    @property
    def nbytes_moved(self) -> float:
        """Bytes that one rank sends under a bandwidth-optimal algorithm, for all parts."""
        return sum(one.nbytes_moved for one in self.parts)

    def __str__(self) -> str:
        return f"{len(self.parts)} x {self.parts[0].step}"


@dataclass(frozen=True, eq=False)
class Start:
    """Begins a collective whose results are there after its Wait; the rank goes on meanwhile."""

    of: Collective | Bundle

    @property
    def operands(self) -> tuple[Register, ...]:
        return self.of.operands

    @property
    def results(self) -> tuple[Register, ...]:
        return ()

    @property
    def serves(self) -> Node | None:
        return self.of.serves


@dataclass(frozen=True, eq=False)
class Wait:
    """Waits for what a Start of the same block began. What that sends must lie in memory until here."""

    start: Start

    @property
    def operands(self) -> tuple[Register, ...]:
        return self.start.of.operands

    @property
    def results(self) -> tuple[Register, ...]:
        return self.start.of.results

    @property
    def serves(self) -> Node | None:
        return self.start.of.serves


@dataclass(frozen=True, eq=False)
class NestBody:
    """A block inside a Nest: the registers that it starts from, instructions, the registers that it yields.

    Instructions may read registers from outside (`captured`).
    """

    args: tuple[Register, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Register, ...]

    @cached_property
    def captured(self) -> tuple[Register, ...]:
        """The registers from outside that it reads, in the order of first use."""
        own = {*self.args, *(one for instruction in self.instructions for one in instruction.results)}
        used = [one for instruction in self.instructions for one in instruction.operands]
        return tuple(one for one in dict.fromkeys((*used, *self.outputs)) if one not in own)

    @cached_property
    def last_uses(self) -> tuple[tuple[Register, ...], ...]:
        return endings(self.instructions, (*self.outputs, *self.captured))


@dataclass(frozen=True, eq=False)
class Nest:
    """A loop, a branch or a manual computation: `node` says which, `bodies` are its regions.

    Every rank takes the same way through it, except where `divergent` says that ranks may differ: inside of a manual
    computation each decides on its own blocks. `trips` is how often a loop runs, known or assumed.
    """

    node: Node
    entering: tuple[Register, ...]
    results: tuple[Register, ...]
    bodies: tuple[NestBody, ...]
    divergent: bool = False
    trips: int = 1

    @cached_property
    def operands(self) -> tuple[Register, ...]:
        """All registers that it reads: those that enter, and those that its bodies capture."""
        captured = (one for body in self.bodies for one in body.captured)
        return tuple(dict.fromkeys((*self.entering, *captured)))

    @cached_property
    def communicates(self) -> bool:
        """Whether ranks talk to each other inside."""
        return any(communicates(one) for body in self.bodies for one in body.instructions)


Instruction = Compute | Collective | ManualCollective | Nest | Bundle | Start | Wait


def communicates(one: Instruction) -> bool:
    """Whether ranks talk to each other in an instruction."""
    if isinstance(one, Collective):
        return one.step.communicates
    return isinstance(one, Bundle | Start | Wait) or isinstance(one, ManualCollective | Nest) and one.communicates


def parts_of(one: Instruction) -> tuple[Instruction, ...]:
    """The collectives that an instruction does at once or begins; none for one that is itself what it does."""
    if isinstance(one, Bundle):
        return one.parts
    return (one.of,) if isinstance(one, Start) else ()


def walk(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """The instructions with all instructions inside them, each before what it holds."""
    for one in instructions:
        yield one
        yield from walk(parts_of(one))
        if isinstance(one, Nest):
            for body in one.bodies:
                yield from walk(body.instructions)


def timed(instructions: Iterable[Instruction], times: int = 1) -> Iterator[tuple[Instruction, int]]:
    """As `walk`, each with how often a step of the program runs it."""
    for one in instructions:
        yield one, times
        yield from timed(parts_of(one), times)
        if isinstance(one, Nest):
            for body in one.bodies:
                yield from timed(body.instructions, times * one.trips)


def endings(instructions: Sequence[Instruction], kept: Iterable[Register]) -> tuple[tuple[Register, ...], ...]:
    """Per instruction, the registers that nothing needs after it (results nobody reads included)."""
    seen = set(kept)
    uses: list[tuple[Register, ...]] = []
    for instruction in reversed(instructions):
        ending = [one for one in dict.fromkeys((*instruction.operands, *instruction.results)) if one not in seen]
        seen.update(ending)
        uses.append(tuple(ending))
    return tuple(reversed(uses))


@dataclass(frozen=True, eq=False)
class Program:
    """A graph partitioned under a plan: registers in, instructions, registers out (one per graph input and output).

    `roles` and `updates` are the graph's: what each input is, and which input each output replaces.
    """

    name: str
    mesh: Mesh
    inputs: tuple[Register, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Register, ...]
    updates: Mapping[int, int] = field(default_factory=dict)
    roles: tuple[str, ...] = ()

    @cached_property
    def collectives(self) -> tuple[Collective | ManualCollective, ...]:
        """The instructions that communicate, those inside of loops, branches and manual computations too."""
        moving = (one for one in walk(self.instructions) if isinstance(one, Collective | ManualCollective))
        return tuple(one for one in moving if one.step.communicates)

    @cached_property
    def last_uses(self) -> tuple[tuple[Register, ...], ...]:
        """Per instruction, the registers that nothing needs after it (results nobody reads included)."""
        return endings(self.instructions, self.outputs)
