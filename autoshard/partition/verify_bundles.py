"""The laws of collectives that run together or beside the computing: what a bundle may hold, who waits for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoshard.partition.program import Bundle, Collective, Instruction, Start, Wait
from autoshard.redistribute.window import WindowStep
from autoshard.util.errors import GraphError

BUNDLED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Kinds of collectives that can work on a common buffer."""


def bundle_key(one: Collective) -> tuple | None:
    """Equal for collectives that can be parts of one bundle; None for one that cannot be part of any."""
    if isinstance(one.step, WindowStep) or one.step.kind not in BUNDLED:
        return None
    reduction = one.step.reduction if one.step.kind in ("all_reduce", "reduce_scatter") else ""
    return one.step.kind, one.step.groups, reduction, one.operand.whole.dtype


def check_bundle(bundle: Bundle, where: str) -> None:
    """Check that the parts of a bundle go together.

    Raises:
        GraphError: fewer than two parts, or parts of several kinds, groups, reductions or element types.
    """
    if len(bundle.parts) < 2:
        raise GraphError(f"{where}: a bundle has at least two collectives, not {len(bundle.parts)}")
    first = bundle_key(bundle.parts[0])
    for one in bundle.parts:
        key = bundle_key(one)
        if key is None or key != first:
            raise GraphError(
                f"{where}: {one.step} of {one.operand} cannot be done together with {bundle.parts[0].step} of "
                f"{bundle.parts[0].operand}; a bundle is of one kind ({', '.join(BUNDLED)}), groups and type"
            )


def check_waits(instructions: Sequence[Instruction], where: Callable[[Instruction], str]) -> None:
    """Check that what a block begins it waits for once, later.

    Raises:
        GraphError: it does not, or waits for what it has not begun.
    """
    running: dict[Start, None] = {}
    for one in instructions:
        if isinstance(one, Start):
            if one in running:
                raise GraphError(f"{where(one)}: it is started twice")
            running[one] = None
        if isinstance(one, Wait):
            if one.start not in running:
                raise GraphError(f"{where(one)}: what it waits for runs nowhere before it in its block")
            del running[one.start]
    if running:
        raise GraphError(f"{where(next(iter(running)))}: nothing waits for it in its block")
