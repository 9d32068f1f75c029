"""Before a run: whether an engine runs all operators of a program."""

from __future__ import annotations

from autoshard.engines.kernels import Kernels
from autoshard.partition.program import Compute, Program, walk
from autoshard.util.errors import PlanError, at
from costmodel import format_count


def check_runs(program: Program, kernels: Kernels) -> None:
    """Check that the engine has every operator of the program.

    Raises:
        PlanError: it lacks some; the message names the first with its line in the model, and the others.
    """
    found = {}
    for one in walk(program.instructions):
        if isinstance(one, Compute):
            why = _reason(one, kernels)
            if why is not None:
                found.setdefault(one.op.name, (one, why))
    if not found:
        return
    first, why = next(iter(found.values()))
    others = [name for name in found if name != first.op.name]
    more = f"; nor does it run {', '.join(others)}" if others else ""
    raise PlanError(
        f"engine {kernels.engine!r} does not run {first.node.label} ({first.op.name}){at(first.node.source)}: {why}"
        f"{more}. The engine numpy runs {format_count(len(found), 'such operator')}"
    )


def _reason(one: Compute, kernels: Kernels) -> str | None:
    # What gives its operand on asks something of the plan alone, which has been done: a constraint.
    if one.op.has_effects(one.attrs) and one.op.view != "same":
        return "it does something besides its results"
    return kernels.lacking(one.op, one.attrs)
