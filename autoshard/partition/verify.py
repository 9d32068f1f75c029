"""The laws of a program. `verify_program` checks them all; a rewrite of a program must leave a verified one.

Registers are made once and before their use; what an operator makes of local blocks is what its results hold;
a step's layouts are those of its registers, and one such step can make the one of the other; what is padded is split.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir.verify import describe
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import Mesh, merge_refs
from autoshard.ops.attributes import resolve
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
    walk,
)
from autoshard.partition.verify_bundles import check_bundle, check_waits
from autoshard.partition.verify_nests import check_manual_collective, check_nest
from autoshard.redistribute.fetch import fetch
from autoshard.redistribute.replicate_to_partial import replicate_to_partial
from autoshard.redistribute.routing import route
from autoshard.redistribute.step import KINDS, Step
from autoshard.redistribute.window import WindowStep
from autoshard.util.errors import GraphError, LayoutError, ShapeError


def verify_program(program: Program) -> None:
    """Check every law of a program; rank-dependent attributes are resolved for the first and the last rank.

    Raises:
        GraphError: the first law that is broken; names the register or the node with its source line.
    """
    _check_order(program)
    for instruction in walk(program.instructions):
        if isinstance(instruction, Compute):
            for rank in dict.fromkeys((0, program.mesh.devices - 1)):
                _check_compute(instruction, rank)
        elif isinstance(instruction, Nest):
            check_nest(instruction)
        elif isinstance(instruction, ManualCollective):
            check_manual_collective(instruction)
        elif isinstance(instruction, Collective):
            _check_collective(instruction)
        elif isinstance(instruction, Bundle):
            check_bundle(instruction, _where(instruction))
    _check_updates(program)


def _check_order(program: Program) -> None:
    """Check that each register is defined once, on the program's mesh, and before it is read."""
    order = _DefinitionOrder(program.mesh)
    for register in program.inputs:
        order.define(register, f"program {program.name!r}")
    order.block(program.instructions)
    for i, register in enumerate(program.outputs):
        if register not in order.defined:
            raise GraphError(f"program {program.name!r}: output {i}, {register.name!r}, is never defined")


class _DefinitionOrder:
    """The registers that are defined so far, and their names."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.names: set[str] = set()
        self.defined: set[Register] = set()

    def define(self, register: Register, where: str) -> None:
        if register in self.defined or register.name in self.names:
            raise GraphError(f"{where}: register {register.name!r} is defined twice")
        if register.layout.mesh is not self.mesh:
            mesh = register.layout.mesh
            raise GraphError(f"{where}: {register.name!r} lies on mesh '{mesh}', the program on '{self.mesh}'")
        if register.layout.rank != register.whole.rank:
            shown = f"[{register.layout}] of {register.name!r}"
            raise GraphError(f"{where}: layout {shown} does not fit {register.whole}")
        _check_padding(register, where)
        self.names.add(register.name)
        self.defined.add(register)

    def block(self, instructions: Sequence[Instruction]) -> None:
        check_waits(instructions, _where)
        for instruction in instructions:
            where = _where(instruction)
            for register in instruction.operands:
                if register not in self.defined:
                    raise GraphError(f"{where}: register {register.name!r} is not defined before it")
            for body in instruction.bodies if isinstance(instruction, Nest) else ():
                self.body(body, where)
            for register in instruction.results:
                self.define(register, where)

    def body(self, body: NestBody, where: str) -> None:
        """A body sees what is defined around it; what it defines is not seen outside."""
        before = set(self.defined)
        for register in body.args:
            self.define(register, where)
        self.block(body.instructions)
        for register in body.outputs:
            if register not in self.defined:
                raise GraphError(f"{where}: {register.name!r}, which it yields, is never defined")
        self.defined.intersection_update(before)


def _check_padding(register: Register, where: str) -> None:
    """A dim is held larger than it is only where it is split, and in equal blocks."""
    sizes = zip(register.layout.parts, register.whole.shape, register.true.shape, strict=True)
    for dim, (parts, held, size) in enumerate(sizes):
        if held % parts or held < size or (held > size and parts == 1):
            raise GraphError(
                f"{where}: dim {dim} of {register.name!r}, of size {size}, is held as {held} in {parts} parts"
            )


def _where(instruction: Instruction) -> str:
    if isinstance(instruction, Compute | ManualCollective | Nest):
        return describe(instruction.node)
    serves = "a graph output" if instruction.serves is None else describe(instruction.serves)
    what = instruction.step if isinstance(instruction, Collective) else type(instruction).__name__.lower()
    return f"{what} of {', '.join(one.name for one in instruction.operands)} for {serves}"


def _check_compute(instruction: Compute, rank: int) -> None:
    where = f"{_where(instruction)} on rank {rank}"
    attrs = {name: resolve(value, rank) for name, value in instruction.attrs.items()}
    try:
        made = instruction.op.result_types(tuple(one.local for one in instruction.operands), attrs)
    except ShapeError as error:
        raise GraphError(f"{where}: {error}") from None
    held = tuple(one.local for one in instruction.results)
    if made != held:
        shown = ", ".join(map(str, instruction.operands))
        raise GraphError(
            f"{where}: from the blocks {shown} the operator makes ({', '.join(map(str, made))}), but its "
            f"result registers hold ({', '.join(map(str, held))})"
        )


def _check_collective(instruction: Collective) -> None:
    step, before, after = instruction.step, instruction.operand, instruction.result
    where = _where(instruction)
    if step.before is not before.layout or step.after is not after.layout:
        raise GraphError(
            f"{where}: the step goes from [{step.before}] to [{step.after}], "
            f"its registers from [{before.layout}] to [{after.layout}]"
        )
    if isinstance(step, WindowStep):
        _check_window(step, before, after, where)
        return
    if before.true != after.true:
        raise GraphError(f"{where}: it makes {after.true} out of {before.true}; a step keeps the type")
    if step.kind not in KINDS:
        raise GraphError(f"{where}: unknown kind {step.kind!r}; kinds are {', '.join(KINDS)}")
    if not _makes(step):
        raise GraphError(f"{where}: such a step cannot make [{step.after}] out of [{step.before}]")
    if not step.before.divides(instruction.of.shape) or not step.after.divides(instruction.of.shape):
        raise GraphError(f"{where}: both layouts must divide {instruction.of}, of which its registers are blocks")
    if any(
        parts > 1 and held != size
        for parts, held, size in zip(before.layout.parts, before.whole.shape, instruction.of.shape, strict=True)
    ):
        raise GraphError(f"{where}: {before.name} lies in blocks of {before.whole}, the step takes {instruction.of}")


def _check_window(step: WindowStep, before: Register, after: Register, where: str) -> None:
    """What a window step makes are the windows of all positions; all that they read is held by some rank."""
    held = before.layout.dims[step.dim]
    if not step.axes or held not in ((), step.axes):
        shown = f"dim {step.dim} of {before.name} lies as [{before.layout.show_dim(step.dim)}]"
        raise GraphError(f"{where}: {shown}; it must be whole, or split along the axes of the step")
    made = before.whole.with_shape(step.made_shape(before.whole.shape))
    if after.whole != made:
        raise GraphError(f"{where}: it makes {made}, but its result is a block of {after.whole}")
    block, size = before.local.shape[step.dim], before.true.shape[step.dim]
    # A step takes what is there of the tensor, or whole blocks, padding and all, where they only change hands.
    if step.block != block or step.size not in (size, before.whole.shape[step.dim]):
        raise GraphError(f"{where}: it takes blocks of {step.block} of {step.size}, but they are {block} of {size}")
    try:
        step.check()
    except LayoutError as error:
        raise GraphError(f"{where}: {error}") from None


def _makes(step: Step) -> bool:
    """Whether the step's kind along its axes turns its layout before into the one after."""
    before, after, axes = step.before, step.after, step.axes
    if not axes:
        return False
    if step.fetched is not None:
        return step.fetched == fetch(before, after, step.fetched.size)
    if step.kind == "permute":
        return before.partial == after.partial and route(before, after) is not None
    if step.kind == "keep":
        return after.partial == _terms(before, axes) and replicate_to_partial(before, after) is not None
    cut = step.dim if step.kind in ("slice", "reduce_scatter", "all_to_all") else None
    joined = {"all_gather": step.dim, "all_to_all": step.to_dim}.get(step.kind)
    if (step.kind == "all_reduce") != (cut is None and joined is None):
        return False
    olds = _grown(before.dims, cut, axes)
    news = _grown(after.dims, joined, axes)
    if step.kind in ("all_reduce", "reduce_scatter"):
        return olds == news and before.partial == _terms(after, axes)
    return olds == news and before.partial == after.partial


def _grown(dims: tuple[Refs, ...], dim: int | None, axes: Refs) -> list[Refs]:
    """The dims, one of them split further by the axes."""
    return [merge_refs((*refs, *axes)) if i == dim else refs for i, refs in enumerate(dims)]


def _terms(layout: Layout, axes: Refs) -> Refs:
    """The partial axes together with further ones, in the form that layouts keep them."""
    return merge_refs(sorted((*layout.partial, *axes), key=layout.mesh.sort_key))


def _check_updates(program: Program) -> None:
    """A new value takes the place of an input on every rank: it must be the same block."""
    for out, into in program.updates.items():
        if not 0 <= out < len(program.outputs) or not 0 <= into < len(program.inputs):
            raise GraphError(
                f"program {program.name!r} updates input {into} by output {out}; "
                f"it has {len(program.inputs)} inputs and {len(program.outputs)} outputs"
            )
        new, old = program.outputs[out], program.inputs[into]
        if new.whole != old.whole or new.true != old.true or new.layout is not old.layout:
            raise GraphError(
                f"program {program.name!r}: output {new.name} ({new.whole} as [{new.layout}]) cannot replace "
                f"input {old.name} ({old.whole} as [{old.layout}]); type and layout must be equal"
            )
