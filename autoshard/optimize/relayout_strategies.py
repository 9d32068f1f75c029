"""An operator of a program on other blocks: the strategies that follow from where one operand or the result shall lie.

All of it derives from the operator's rule: factors' axes by projection, partial sums by its linear operands. Only
operators on even blocks, which exchange nothing while they run, are put elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from autoshard.core.rule import Rule
from autoshard.core.strategy import Strategy, is_legal, project
from autoshard.core.tensortype import TensorType
from autoshard.layout.layout import Layout, Refs
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.registry import Operator
from autoshard.optimize.rewrite import is_pure
from autoshard.partition.program import Compute, Instruction, Register
from autoshard.util.errors import LayoutError


def movable(one: Instruction | None) -> Compute | None:
    """The instruction, if it is an operator that can be asked to run on other blocks."""
    if not isinstance(one, Compute) or one.op is not one.node.op or not one.op.has_rule or not is_pure(one):
        return None
    if len(one.results) != 1 or len(one.operands) != len(one.node.operands) or one.node.regions:
        return None
    types = (*one.node.operand_types, *one.node.result_types)
    for register, of in zip((*one.operands, *one.results), types, strict=True):
        if register.size is not None or register.whole is not of and register.whole != of:
            return None
    exchanging = [i for i, factor in enumerate(one.node.rule.factors) if factor.exchange]
    if not exchanging:
        return one
    split = _split_factors(_shape(one))
    return None if any(split[i] for i in exchanging) else one


@lru_cache(maxsize=1 << 12)
def _split_factors(of: OperatorForm) -> tuple[Refs, ...]:
    """The axes that split each factor as the operator runs now."""
    rule = of.rule
    axes: tuple[Refs, ...] = ((),) * len(rule.factors)
    for layout, dims in zip((*of.operands, of.result), (*rule.operands, *rule.results), strict=True):
        axes = _either(axes, project(rule, dims, layout))
    return axes


def _either(axes: Sequence[Refs], others: Sequence[Refs]) -> tuple[Refs, ...]:
    return tuple(one or other for one, other in zip(axes, others, strict=True))


class OperatorForm(NamedTuple):
    """What an operator's strategies derive from: equal for all operators alike, so that each is looked into once."""

    op: Operator
    rule: Rule
    types: tuple[TensorType, ...]
    operands: tuple[Layout, ...]
    result: Layout


def _shape(one: Compute) -> OperatorForm:
    node = one.node
    layouts = tuple(register.layout for register in one.operands)
    return OperatorForm(node.op, node.rule, (*node.operand_types, *node.result_types), layouts, one.results[0].layout)


def with_operand(one: Compute, places: Sequence[int], layout: Layout) -> Strategy | None:
    """The strategy in which these operands have that layout, other factors split as now where that is possible.

    None if there is none: the rule does not let it pass, or the operator is not linear in what is partial.
    """
    return _with_operand(_shape(one), tuple(places), layout)


@lru_cache(maxsize=1 << 12)
def _with_operand(of: OperatorForm, places: tuple[int, ...], layout: Layout) -> Strategy | None:
    rule = of.rule
    wanted: tuple[Refs, ...] = ((),) * len(rule.factors)
    own: set[int] = set()
    for position in places:
        wanted = _either(wanted, project(rule, rule.operands[position], layout))
        own.update(i for dim in rule.operands[position] for i in dim)
    axes = _joined(wanted, own, _split_factors(of), (*wanted, layout.partial))
    carriers: tuple[int, ...] = ()
    if layout.partial:
        found = _carriers(of, places)
        if found is None or rule.reduction != "sum" or layout.reduction != "sum":
            return None
        carriers = found
    strategy = _legal(of, axes, layout.partial, carriers)
    if strategy is None or any(strategy.operand_layouts[position] is not layout for position in places):
        return None
    return strategy


def with_result(one: Compute, layout: Layout) -> Strategy | None:
    """The strategy that leaves the result in that layout; None if there is none."""
    return _with_result(_shape(one), layout)


@lru_cache(maxsize=1 << 12)
def _with_result(of: OperatorForm, layout: Layout) -> Strategy | None:
    rule = of.rule
    wanted = project(rule, rule.results[0], layout)
    own = {i for dim in rule.results[0] for i in dim}
    now = _split_factors(of)
    axes = _joined(wanted, own, now, wanted)
    reduced = tuple(ref for i in rule.contracted for ref in axes[i])
    if any(not any(term.contains(ref) for term in layout.partial) for ref in reduced):
        axes = tuple(() if i in rule.contracted else refs for i, refs in enumerate(axes))
        reduced = ()
    carried = tuple(ref for ref in layout.partial if not any(ref.overlaps(other) for other in reduced))
    carriers = tuple(i for i, lies in enumerate(of.operands) if lies.partial) if carried else ()
    if carried and not carriers:  # no operand has such terms
        return None
    strategy = _legal(of, axes, carried, carriers)
    return strategy if strategy is not None and strategy.result_layouts[0] is layout else None


def _joined(wanted: Sequence[Refs], own: Iterable[int], now: Sequence[Refs], taken: Iterable[Refs]) -> tuple[Refs, ...]:
    """The wanted axes for the factors `own`, for the others the present ones as far as those are free."""
    used, own = [ref for refs in taken for ref in refs], set(own)
    found: list[Refs] = []
    for i, refs in enumerate(now):
        if i in own:
            found.append(wanted[i])
            continue
        free = not any(ref.clashes(other) for ref in refs for other in used)
        found.append(refs if free else ())
    return tuple(found)


def _carriers(of: OperatorForm, places: Sequence[int]) -> tuple[int, ...] | None:
    """The operands that have to be terms of sums, if these ones are."""
    sets = of.op.linear_in(len(of.operands))
    return next((indices for indices in sets if set(places) <= set(indices)), None)


def _legal(of: OperatorForm, axes: tuple[Refs, ...], carried: Refs, carriers: tuple[int, ...]) -> Strategy | None:
    rule, mesh = of.rule, of.result.mesh
    strategy = Strategy(rule, mesh, axes, carried, carriers)
    if not is_legal(rule, strategy.parts) or strategy.exchanges:
        return None
    try:
        layouts = (*strategy.operand_layouts, *strategy.result_layouts)
    except LayoutError:  # an axis twice
        return None
    divided = zip(layouts, of.types, strict=True)
    return strategy if all(layout.divides(kind.shape) for layout, kind in divided) else None


def with_strategy(one: Compute, strategy: Strategy, operands: Sequence[Register], result: Register) -> Compute:
    """The operator run by this strategy."""
    node = one.node
    placement = OperatorPlacement(
        node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts
    )
    attrs = node.op.local_attributes(node.attrs, placement)
    return Compute(node.op, tuple(operands), (result,), attrs, node, one.composite)


def reduces(layout: Layout, to: Layout) -> bool:
    """Whether terms end on the way from one layout to the other."""
    return any(not any(term.contains(ref) for term in to.partial) for ref in layout.partial)
