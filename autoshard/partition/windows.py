"""Operators whose blocks need something of other ranks: the steps before them, and what they then run as.

`exchange_steps(op, attrs, place)` is what lowering inserts and what prices count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from autoshard.ir.graph import Node
from autoshard.ops.registry import Operator, Place
from autoshard.ops.windows import Totals
from autoshard.partition.manual import is_together, steps_together
from autoshard.partition.together import TogetherStep
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep
from autoshard.strategy import Strategy
from autoshard.tensortype import TensorType


class Fetch(NamedTuple):
    """A window step of one operand; `of` is the type of the whole that it starts from."""

    operand: int
    step: WindowStep
    of: TensorType


class Gathered(NamedTuple):
    """What an operator's blocks come to, gathered: first a tensor of type `of` with an element for each block."""

    totals: Totals
    step: Step
    of: TensorType


class Exchanged(NamedTuple):
    """What happens before an operator runs on its blocks, and what it then runs as."""

    fetches: tuple[Fetch, ...]
    gathered: Gathered | None
    op: Operator
    attrs: Mapping[str, Any]


def exchanged(op: Operator, attrs: Mapping[str, Any], place: Place) -> Exchanged:
    """The window steps in order (those of one operand follow on each other), what else is gathered, the local call."""
    local = op.local_attributes(attrs, place)
    wanted = op.exchanged(attrs, place)
    layouts = list(place.operand_layouts)
    types = [of.with_shape(_padded(place, i)) for i, of in enumerate(place.operands)]
    fetches = []
    for window in wanted.windows:
        i, dim = window.operand, window.dim
        block = layouts[i].local_shape(types[i].shape)[dim]
        step = WindowStep.of(window, layouts[i], place.operands[i].shape[dim], block)
        fetches.append(Fetch(i, step, types[i]))
        layouts[i], types[i] = step.after, types[i].with_shape(step.made_shape(types[i].shape))
    attrs = {**local, **(wanted.attrs or {})}
    if wanted.totals is None:
        return Exchanged(tuple(fetches), None, op, attrs)
    after = wanted.totals.after
    attrs = {name: value for name, value in attrs.items() if name in after.attributes}
    return Exchanged(tuple(fetches), _gathered(wanted.totals, place), after, attrs)


def _gathered(totals: Totals, place: Place) -> Gathered:
    """The step that brings the totals of all blocks together."""
    i, dim = totals.operand, totals.dim
    layout, shape = place.operand_layouts[i], list(_padded(place, i))
    whole = layout.with_dims(() if at == dim else refs for at, refs in enumerate(layout.dims))
    (made,) = totals.total.result_types((place.operands[i],), totals.attrs)
    shape[dim] = layout.parts[dim]
    return Gathered(totals, Step("all_gather", layout, whole, layout.dims[dim], dim), made.with_shape(tuple(shape)))


def _padded(place: Place, i: int) -> tuple[int, ...]:
    """The shape of which operand i is held in blocks of equal size."""
    shape = place.operands[i].shape if place.padded_operands is None else place.padded_operands[i]
    layout = place.operand_layouts[i]
    return tuple(local * parts for local, parts in zip(layout.local_shape(shape), layout.parts, strict=True))


def exchange_steps(node: Node, strategy: Strategy) -> tuple[tuple[WindowStep | Step | TogetherStep, TensorType], ...]:
    """The steps of its own that a node runs with under a strategy, each with the type that it starts from."""
    if is_together(node):
        return steps_together(node, strategy)
    if not strategy.exchanges:
        return ()
    place = Place(node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts)
    needs = exchanged(node.op, node.attrs, place)
    gathered = () if needs.gathered is None else (needs.gathered,)
    return tuple((one.step, one.of) for one in (*needs.fetches, *gathered))
