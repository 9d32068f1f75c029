"""Operators whose blocks need something of other ranks: the steps before them, and what they then run as.

`exchange_steps(op, attrs, place)` is what lowering inserts and what prices count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.registry import Operator
from autoshard.ops.windows import OperandWindow, Ring, Totals, next_block
from autoshard.partition.composites import composite_steps, runs_decomposed
from autoshard.partition.manual import is_manual_collective, manual_steps
from autoshard.partition.manual_step import ManualStep
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep


class OperandFetch(NamedTuple):
    """A window step of one operand; `of` is the type of the whole that it starts from."""

    operand: int
    step: WindowStep
    of: TensorType


class Gathered(NamedTuple):
    """What an operator's blocks come to, gathered: tensors of types `of` with elements of each block."""

    totals: Totals
    step: Step
    of: tuple[TensorType, ...]


class Rounds(NamedTuple):
    """A ring: the step that moves on each moving operand, and the types and layouts of the state."""

    ring: Ring
    steps: tuple[OperandFetch, ...]
    state: tuple[tuple[TensorType, Layout], ...]


class Exchanged(NamedTuple):
    """What happens before an operator runs on its blocks, and what it then runs as."""

    fetches: tuple[OperandFetch, ...]
    gathered: Gathered | None
    op: Operator
    attrs: Mapping[str, Any]
    rounds: Rounds | None = None


def exchange_of(op: Operator, attrs: Mapping[str, Any], placement: OperatorPlacement) -> Exchanged:
    """The window steps in order (those of one operand follow on each other), what else is gathered, the local call."""
    local = op.local_attributes(attrs, placement)
    wanted = op.exchanged(attrs, placement)
    if wanted.ring is not None:
        return Exchanged((), None, wanted.ring.end, {}, _rounds(wanted.ring, placement))
    layouts = list(placement.operand_layouts)
    types = [of.with_shape(_padded(placement, i)) for i, of in enumerate(placement.operands)]
    fetches = []
    for window in wanted.windows:
        i, dim = window.operand, window.dim
        block = layouts[i].local_shape(types[i].shape)[dim]
        step = WindowStep.of(window, layouts[i], placement.operands[i].shape[dim], block)
        fetches.append(OperandFetch(i, step, types[i]))
        layouts[i], types[i] = step.after, types[i].with_shape(step.made_shape(types[i].shape))
    attrs = {**local, **(wanted.attrs or {})}
    if wanted.totals is None:
        return Exchanged(tuple(fetches), None, op, attrs)
    after = wanted.totals.after
    attrs = {name: value for name, value in attrs.items() if name in after.attributes}
    return Exchanged(tuple(fetches), _gathered(wanted.totals, placement), after, attrs)


def _gathered(totals: Totals, placement: OperatorPlacement) -> Gathered:
    """The step that brings the totals of all blocks together."""
    i, dim = totals.operands[0], totals.dim
    layout, shape = placement.operand_layouts[i], _padded(placement, i)
    whole = layout.with_dims(() if at == dim else refs for at, refs in enumerate(layout.dims))
    made = totals.total.result_types(tuple(placement.operands[one] for one in totals.operands), totals.attrs)
    true = placement.operands[i].shape

    def gathered(one: TensorType) -> TensorType:
        kept = [padded if size == own else own for padded, size, own in zip(shape, true, one.shape, strict=True)]
        kept[dim] = layout.parts[dim] * one.shape[dim]
        return one.with_shape(tuple(kept))

    return Gathered(totals, Step("all_gather", layout, whole, layout.dims[dim], dim), tuple(map(gathered, made)))


def _rounds(ring: Ring, placement: OperatorPlacement) -> Rounds:
    """Whole blocks go round, their padding too: after a turn a rank holds another's, which may have more of it."""
    dim, steps = ring.dim, []
    types = placement.operands
    if placement.padded_operands is not None:
        types = tuple(of.with_shape(shape) for of, shape in zip(types, placement.padded_operands, strict=True))
    for i in ring.moving:
        layout, of = placement.operand_layouts[i], types[i]
        block = placement.local_operand(i)[dim]
        window = OperandWindow(i, dim, layout.dims[dim], (next_block(block, layout.parts[dim]),))
        steps.append(OperandFetch(i, WindowStep.of(window, layout, of.shape[dim], block), of))
    lies = placement.result_layouts[0]

    def held(of: TensorType) -> tuple[TensorType, Layout]:
        dims = (refs if size > 1 else () for refs, size in zip(lies.dims, of.shape, strict=True))
        return of, lies.with_dims(dims)

    return Rounds(ring, tuple(steps), tuple(map(held, ring.begin.result_types(types, ring.turns[0]))))


def _padded(placement: OperatorPlacement, i: int) -> tuple[int, ...]:
    """The shape of which operand i is held in blocks of equal size."""
    shape = placement.operands[i].shape if placement.padded_operands is None else placement.padded_operands[i]
    layout = placement.operand_layouts[i]
    return tuple(local * parts for local, parts in zip(layout.local_shape(shape), layout.parts, strict=True))


def exchange_steps(node: Node, strategy: Strategy) -> tuple[tuple[WindowStep | Step | ManualStep, TensorType], ...]:
    """The steps of its own that a node runs with under a strategy, each with the type that it starts from."""
    if is_manual_collective(node):
        return manual_steps(node, strategy)
    if not strategy.exchanges:
        return ()
    if runs_decomposed(node, strategy):
        return tuple(composite_steps(node, strategy, exchange_steps))
    placement = OperatorPlacement(
        node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts
    )
    needs = exchange_of(node.op, node.attrs, placement)
    if needs.rounds is not None:
        once = tuple((one.step, one.of) for one in needs.rounds.steps)
        return once * (len(needs.rounds.ring.turns) - 1)
    fetched = tuple((one.step, one.of) for one in needs.fetches)
    return fetched if needs.gathered is None else (*fetched, *((needs.gathered.step, of) for of in needs.gathered.of))
