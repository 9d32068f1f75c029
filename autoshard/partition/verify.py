"""The laws of a program. `verify_program` checks them all; a rewrite of a program must leave a verified one.

Registers are made once and before their use; what an operator makes of local blocks is what its results hold;
a step's layouts are those of its registers, and one such step can make the one of the other.
"""

from __future__ import annotations

from autoshard.errors import GraphError, ShapeError
from autoshard.ir.verify import describe
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import merge_refs
from autoshard.ops.registry import resolve
from autoshard.partition.program import Collective, Compute, Program, Register
from autoshard.redistribute.keep import keep
from autoshard.redistribute.step import KINDS, Step, relabel_pairs


def verify_program(program: Program) -> None:
    """Check every law of a program; rank-dependent attributes are resolved for the first and the last rank.

    Raises:
        GraphError: the first law that is broken; names the register or the node with its source line.
    """
    _check_order(program)
    for instruction in program.instructions:
        if isinstance(instruction, Compute):
            for rank in dict.fromkeys((0, program.mesh.devices - 1)):
                _check_compute(instruction, rank)
        else:
            _check_collective(instruction)
    _check_updates(program)


def _check_order(program: Program) -> None:
    names: set[str] = set()
    defined: set[Register] = set()

    def define(register: Register, where: str) -> None:
        if register in defined or register.name in names:
            raise GraphError(f"{where}: register {register.name!r} is defined twice")
        if register.layout.mesh is not program.mesh:
            mesh = register.layout.mesh
            raise GraphError(f"{where}: {register.name!r} lies on mesh '{mesh}', the program on '{program.mesh}'")
        if register.layout.rank != register.whole.rank:
            shown = f"[{register.layout}] of {register.name!r}"
            raise GraphError(f"{where}: layout {shown} does not fit {register.whole}")
        names.add(register.name)
        defined.add(register)

    for register in program.inputs:
        define(register, f"program {program.name!r}")
    for instruction in program.instructions:
        where = _where(instruction)
        for register in instruction.operands:
            if register not in defined:
                raise GraphError(f"{where}: register {register.name!r} is not defined before it")
        for register in instruction.results:
            define(register, where)
    for i, register in enumerate(program.outputs):
        if register not in defined:
            raise GraphError(f"program {program.name!r}: output {i}, {register.name!r}, is never defined")


def _where(instruction: Compute | Collective) -> str:
    if isinstance(instruction, Compute):
        return describe(instruction.node)
    serves = "a graph output" if instruction.serves is None else describe(instruction.serves)
    return f"{instruction.step} of {instruction.operand.name} for {serves}"


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
    if before.whole != after.whole:
        raise GraphError(f"{where}: it makes {after.whole} out of {before.whole}; a step keeps the type")
    if step.kind not in KINDS:
        raise GraphError(f"{where}: unknown kind {step.kind!r}; kinds are {', '.join(KINDS)}")
    if not _makes(step):
        raise GraphError(f"{where}: such a step cannot make [{step.after}] out of [{step.before}]")


def _makes(step: Step) -> bool:
    """Whether the step's kind along its axes turns its layout before into the one after."""
    before, after, axes = step.before, step.after, step.axes
    if not axes:
        return False
    if step.kind == "permute":
        return before.partial == after.partial and relabel_pairs(before, after) is not None
    if step.kind == "keep":
        return after.partial == _terms(before, axes) and keep(before, after) is not None
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
        if new.whole != old.whole or new.layout is not old.layout:
            raise GraphError(
                f"program {program.name!r}: output {new.name} ({new.whole} as [{new.layout}]) cannot replace "
                f"input {old.name} ({old.whole} as [{old.layout}]); type and layout must be equal"
            )
