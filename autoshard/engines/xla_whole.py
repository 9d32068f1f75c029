"""A program's step on whole arrays: what JAX's users call, each input split over the mesh as the plan says.

Dims that do not divide are padded at their end: `XlaStep.examples` says to which shapes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from autoshard.engines.check import check_runs
from autoshard.engines.kernels import kernels_of
from autoshard.engines.text import Writer
from autoshard.engines.xla_collectives import XlaCollectives
from autoshard.engines.xla_kernels import XlaKernels
from autoshard.ir.graph import DATA
from autoshard.partition.program import Collective, Instruction, Program, Register, walk
from autoshard.runtime.array import array_dtype
from autoshard.util.errors import PlanError


class XlaStep:
    """A program as one function under `jax.shard_map`, on whole arrays.

    Raises:
        PlanError: an operator that the engine xla lacks; axes whose pieces have no names; a partial input or output.
    """

    def __init__(self, program: Program) -> None:
        self._kernels = kernels_of("xla")
        check_runs(program, self._kernels)
        writer = Writer(program)
        self.program, self.text, self._axes = program, writer.text(), writer.cuts.axes
        if not writer.cuts.is_named:
            raise PlanError(
                f"{program.name!r} cuts an axis of its mesh '{program.mesh}' in ways that have no common pieces, or "
                "has groups that are lists of ranks, for which JAX's shardings have no names; the engine xla runs it"
            )
        self.in_specs = tuple(map(self._spec, program.inputs))
        self.out_specs = tuple(map(self._spec, program.outputs))

    def _spec(self, register: Register) -> PartitionSpec:
        if register.layout.partial:
            raise PlanError(f"{register.name} is partial [{register.layout}], which no sharding of JAX says")
        return PartitionSpec(*(self._axes(refs) or None for refs in register.layout.dims))

    @cached_property
    def mesh(self) -> AbstractMesh:
        """The mesh without devices."""
        return AbstractMesh(tuple(size for _, size in self.text.grid.axes), self.text.grid.names)

    @property
    def examples(self) -> list[jax.ShapeDtypeStruct]:
        """What goes in: whole, padded."""
        return [jax.ShapeDtypeStruct(one.whole.shape, array_dtype(one.whole.dtype)) for one in self.program.inputs]

    def over(self, mesh: Mesh | AbstractMesh) -> Any:
        """The jitted function over a mesh; what it updates is donated."""
        inside = jax.shard_map(
            self._local, mesh=mesh, in_specs=self.in_specs, out_specs=self.out_specs, check_vma=False
        )
        return jax.jit(inside, donate_argnums=tuple(self.program.updates.values()))

    def _local(self, *blocks: jax.Array) -> tuple:
        grid = self.text.grid
        return self.text.step(XlaKernels(grid, self._kernels), XlaCollectives(grid), self.text.constants, *blocks)

    def lowered(self, platform: str = "cpu") -> Any:
        """What `jax.jit(...).lower` gives, for devices that need not be here."""
        with jax.enable_x64(True):
            return self.over(self.mesh).trace(*self.examples).lower(lowering_platforms=(platform,))


def given_in_pieces(program: Program) -> Program:
    """The program that gets of arrays of data only the pieces that it takes of them.

    What a plan leaves whole as it comes in, and every rank takes its piece of at once, would be copied to each device
    as a whole.
    """
    readers: dict[Register, list[Instruction | None]] = {}
    for one in walk(program.instructions):
        for register in one.operands:
            readers.setdefault(register, []).append(one)
    outside = set(program.instructions)
    cuts: dict[Register, Collective] = {}
    for register, role in zip(program.inputs, program.roles, strict=False):
        only, *others = readers.get(register, [None])
        if role != DATA or others or register in program.outputs:
            continue
        if isinstance(only, Collective) and only in outside and _is_piece(only):
            cuts[register] = only
    inputs = tuple(cuts[one].result if one in cuts else one for one in program.inputs)
    left = tuple(one for one in program.instructions if one not in cuts.values())
    return replace(program, inputs=inputs, instructions=left)


def _is_piece(one: Collective) -> bool:
    """Whether it takes a piece of the same whole, padding included."""
    before, after = one.operand, one.result
    return one.step.kind == "slice" and (before.whole, before.size) == (after.whole, after.size)


def stablehlo(program: Program) -> str:
    """The StableHLO module of a program: whole arrays, a manual computation, the plan's collectives."""
    return XlaStep(program).lowered().as_text()
