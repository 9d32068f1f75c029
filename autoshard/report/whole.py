"""What runs whole although it came split: the operators that gather an operand, why, and what that costs.

`gathered(planned, rows)` finds them in the program itself, so that no replication is silent, whichever search made the
plan. An axis that an operand's blocks lie along and that the operator takes the operand without is gathered away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import size_of
from autoshard.plan.plan import Decision
from autoshard.report.summary import Move, OperatorRow


@dataclass(frozen=True, eq=False)
class Gathering:
    """An operator that takes an operand's dim whole along `axes`, in which it came split.

    `nbytes` and `seconds` are those of the redistribution, of one time; `work_seconds` is what ranks compute more
    because they all do the same along these axes; 0 where the axes split something else of the operator.
    """

    node: Node
    move: Move
    dim: int
    axes: Refs
    why: str
    nbytes: float
    seconds: float
    work_seconds: float
    times: int


def gathered(rows: Iterable[OperatorRow]) -> Iterator[Gathering]:
    """The gatherings of all operators, in the order of the rows."""
    for row in rows:
        if row.node.regions:
            continue
        for move in row.moves:
            yield from _of_move(row, move)


def _of_move(row: OperatorRow, move: Move) -> Iterator[Gathering]:
    node, strategy = row.node, row.decision.strategy
    if move.value not in node.operands:
        return
    for dim, refs in enumerate(_gone(move.before, move.after)):
        if not refs:
            continue
        free = not any(ref.overlaps(other) for ref in refs for other in strategy.used)
        more = row.seconds * (1 - 1 / size_of(refs)) if free else 0.0
        why = _why(node, row.decision, node.operands.index(move.value), dim, refs)
        yield Gathering(node, move, dim, refs, why, move.nbytes, move.seconds, more, row.times)


def _gone(before: Layout, after: Layout) -> list[Refs]:
    """Per dim, the axes that split it before and nothing afterwards."""
    kept = [ref for refs in after.dims for ref in refs]
    return [tuple(ref for ref in refs if not any(ref.overlaps(one) for one in kept)) for refs in before.dims]


def _why(node: Node, decision: Decision, operand: int, dim: int, refs: Refs) -> str:
    strategy = decision.strategy
    rule, mesh = strategy.rule, strategy.mesh
    factors = [rule.factors[i] for i in rule.operands[operand][dim] if rule.factors[i].size > 1]
    reasons = [one for one in decision.cause.lost for factor in factors if f"cannot split {factor.name} " in one]
    if reasons:
        return reasons[0]
    if not factors:
        return "no other dim of the operator belongs to it"
    shown = ".".join(map(mesh.show_ref, refs))
    fixed = [factor.name for factor in factors if not factor.splittable]
    if fixed:
        return f"{shown} cannot split {fixed[0]}: every rank needs all of it (rule {rule})"
    others = [
        factor.name
        for factor, axes in zip(rule.factors, strategy.axes, strict=True)
        if any(ref.overlaps(other) for ref in refs for other in axes)
    ]
    if others:
        return f"{shown} splits {others[0]} instead"
    return f"{decision.cause.kind}: the operator runs by ({strategy}) all the same"
