"""Program: what every rank runs, as data. Local shapes, explicit collectives with their axes, nothing per rank.

A register is one local tensor; a Compute runs an operator on registers, a Collective changes a register's layout.
Rank-dependent attributes are Offsets, resolved when a rank runs or dumps the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.ops.registry import Operator
from autoshard.redistribute.step import Step
from autoshard.tensortype import TensorType


@dataclass(frozen=True, eq=False)
class Register:
    """A local tensor: its name, the type of the whole value it is a block of, and that value's layout."""

    name: str
    whole: TensorType
    layout: Layout

    @cached_property
    def local(self) -> TensorType:
        """Type of the block a rank holds."""
        return self.whole.with_shape(self.layout.local_shape(self.whole.shape))

    def __str__(self) -> str:
        return f"{self.name}: {self.local}"


@dataclass(frozen=True, eq=False)
class Compute:
    """One operator on local blocks. `node` is the operator of the graph that it is a share of."""

    op: Operator
    operands: tuple[Register, ...]
    results: tuple[Register, ...]
    attrs: Mapping[str, Any]
    node: Node


@dataclass(frozen=True, eq=False)
class Collective:
    """One step of a redistribution: slice and keep are local, the other kinds communicate over `step.groups`.

    `serves` is the node whose operand is brought into its layout (None: a graph output).
    """

    step: Step
    operand: Register
    result: Register
    serves: Node | None

    @property
    def operands(self) -> tuple[Register, ...]:
        return (self.operand,)

    @property
    def results(self) -> tuple[Register, ...]:
        return (self.result,)

    @property
    def nbytes_moved(self) -> float:
        """Bytes that one rank sends under a bandwidth-optimal algorithm."""
        return self.step.elements_moved(self.operand.whole.shape) * self.operand.whole.dtype.itemsize


Instruction = Compute | Collective


@dataclass(frozen=True, eq=False)
class Program:
    """A graph partitioned under a plan: registers in, instructions, registers out (one per graph input and output)."""

    name: str
    mesh: Mesh
    inputs: tuple[Register, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Register, ...]
    updates: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The instructions that communicate."""
        return tuple(one for one in self.instructions if isinstance(one, Collective) and one.step.communicates)

    @cached_property
    def last_uses(self) -> tuple[tuple[Register, ...], ...]:
        """Per instruction, the registers that nothing needs after it (results nobody reads included)."""
        seen = set(self.outputs)
        uses: list[tuple[Register, ...]] = []
        for instruction in reversed(self.instructions):
            ending = [one for one in dict.fromkeys((*instruction.operands, *instruction.results)) if one not in seen]
            seen.update(ending)
            uses.append(tuple(ending))
        return tuple(reversed(uses))
