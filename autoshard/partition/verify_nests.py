"""The laws of what holds bodies, and of the collectives that manual computations write themselves.

What enters a body is what its arguments hold, what it yields is what the results hold; conditions are whole on every
rank; inside of a manual computation nothing lies or moves along its axes but by its own collectives.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.ir.flow import inside, manual_axes
from autoshard.ir.verify import describe
from autoshard.layout.layout import Layout
from autoshard.partition.program import Collective, ManualCollective, Nest, NestBody, Register, walk
from autoshard.redistribute.step import Step
from autoshard.util.errors import GraphError


def check_nest(nest: Nest) -> None:
    """Check what enters the bodies of a nest and what they yield.

    Raises:
        GraphError: the first law that is broken.
    """
    where = describe(nest.node)
    name, manual = nest.node.op.name, manual_axes(nest.node)
    if len(nest.bodies) != len(nest.node.regions):
        raise GraphError(f"{where}: it has {len(nest.bodies)} bodies for {len(nest.node.regions)} regions")
    for body in nest.bodies:
        is_condition = name == "While" and body is nest.bodies[0]
        _check_same(nest.entering if name != "Case" else (), body.args, manual, f"{where}: what enters")
        if is_condition:
            _check_condition(body.outputs, where)
        else:
            _check_same(nest.results, body.outputs, manual, f"{where}: what leaves")
        _check_manual(body, manual, where)
    if name == "Case":
        _check_condition(nest.entering, where)
    if name == "While":
        _check_same(nest.entering, nest.results, (), f"{where}: what it carries")


def _check_same(outer: Sequence[Register], inner: Sequence[Register], manual: Sequence[str], what: str) -> None:
    """That both sides of a border hold the same blocks."""
    if len(outer) != len(inner):
        raise GraphError(f"{what} are {len(outer)} registers outside and {len(inner)} inside")
    for one, other in zip(outer, inner, strict=True):
        if one.local != other.local or inside(one.layout, manual) is not other.layout:
            raise GraphError(
                f"{what} is {one} [{one.layout}] outside, but {other} [{other.layout}] inside; "
                "a border changes neither blocks nor layouts"
            )


def _check_condition(registers: Sequence[Register], where: str) -> None:
    """That a condition is one scalar that is whole on every rank, so that all take the same way."""
    if len(registers) != 1 or registers[0].whole.shape or registers[0].layout.partial:
        shown = ", ".join(f"{one} [{one.layout}]" for one in registers) or "nothing"
        raise GraphError(f"{where}: it is decided by {shown}; that has to be one scalar, whole on every rank")


def _check_manual(body: NestBody, manual: Sequence[str], where: str) -> None:
    """That nothing in the body of a manual computation is split or moved along the manual axes."""
    if not manual:
        return
    made = [one for instruction in walk(body.instructions) for one in instruction.results]
    for register in (*body.args, *made):
        if not _is_free(register.layout, manual):
            raise GraphError(f"{where}: inside, {register} lies as [{register.layout}], along a manual axis")
    for one in walk(body.instructions):
        if isinstance(one, Collective) and _crosses(one, manual):
            raise GraphError(f"{where}: inside, {one.step} of {one.operand.name} goes along a manual axis")


def _is_free(layout: Layout, manual: Sequence[str]) -> bool:
    refs = (*layout.partial, *(ref for dim in layout.dims for ref in dim))
    return not any(ref.name in manual for ref in refs)


def _crosses(one: Collective, manual: Sequence[str]) -> bool:
    """Whether ranks get something in a step from others that differ along a manual axis."""
    if any(ref.name in manual for ref in one.step.axes):
        return True
    if not isinstance(one.step, Step) or one.step.kind != "permute":
        return False
    mesh = one.operand.layout.mesh
    axes = [mesh.axis(name) for name in manual]
    turns = (one.step.round(number).sources for number in range(one.step.rounds))
    return any(
        mesh.index(rank, axes) != mesh.index(source, axes) for sources in turns for rank, source in enumerate(sources)
    )


def check_manual_collective(one: ManualCollective) -> None:
    """Check that a hand-written collective makes blocks of the size that its results have.

    Raises:
        GraphError: it does not.
    """
    if one.kind == "rank":
        return
    for operand, result in zip(one.operands, one.results, strict=True):
        shape = _shape_after(one, operand.local.shape)
        if shape != result.local.shape or operand.layout.partial or result.layout.partial:
            raise GraphError(
                f"{describe(one.node)}: over groups of {one.groups.size} ranks it makes {list(shape)} out of {operand} "
                f"[{operand.layout}], but its result is {result} [{result.layout}]"
            )


def _shape_after(one: ManualCollective, shape: tuple[int, ...]) -> tuple[int, ...]:
    attrs, name, sizes = one.node.attrs, one.node.op.name, list(shape)
    if name == "AllGather":
        sizes[attrs["dim"]] *= one.groups.size
    elif name == "ReduceScatter":
        sizes[attrs["dim"]] //= one.groups.size
    elif name == "AllToAll":
        sizes[attrs["split"]] //= one.groups.size
        sizes[attrs["concat"]] *= one.groups.size
    return tuple(sizes)
