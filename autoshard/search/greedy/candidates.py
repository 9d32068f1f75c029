"""Candidates: which strategies are worth pricing for an operator some of whose neighbours are decided.

First those that neighbours suggest: a neighbour's layout projected onto the operator's factors, joined with the other
neighbours' where they do not disagree, then refined by splitting further along axes that are still free
(`refine.py`). Among them is every strategy that needs no communication and uses the mesh as far as it can, but for
what stands for each other, and on meshes of many axes. Where none is free of communication, the enumeration of all
strategies follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autoshard.core.rule import Dim, Rule
from autoshard.core.strategy import Strategy, is_legal, project
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of
from autoshard.search.greedy.refine import Axes, Refiner, Speed


def suggested(
    node: Node,
    mesh: Mesh,
    operands: Sequence[Sequence[Layout]],
    wanted: Sequence[Sequence[Layout]],
    speed: Speed | None = None,
) -> list[Strategy]:
    """Strategies that decided neighbours suggest, without repetition, in a fixed order.

    Args:
        operands: per operand, the layout it is left in and those of its copies; none where its producer is open.
        wanted: per result, the layouts that decided users want.
        speed: tells which axes have links of equal speed, so that one of them can stand for all.
    """
    refiner = Refiner(node.rule, mesh, itertools.chain(*operands, *wanted), speed)
    found = dict.fromkeys(joined(node, mesh, operands, wanted))
    for strategy in list(found):
        if not strategy.carried:
            found.update((Strategy(node.rule, mesh, axes), None) for axes in refiner.ways(strategy.axes))
    return list(found)


def joined(
    node: Node, mesh: Mesh, operands: Sequence[Sequence[Layout]], wanted: Sequence[Sequence[Layout]]
) -> list[Strategy]:
    """The suggestions before any refinement: what neighbours have or want, alone and together, and sums passed on."""
    found: dict[Strategy, None] = {}
    for axes in dict.fromkeys(_joined(node.rule, operands, wanted)):
        for carried, carriers in _carried(node, operands, axes):
            found.setdefault(Strategy(node.rule, mesh, axes, carried, carriers))
        found.setdefault(Strategy(node.rule, mesh, axes))
    return list(found)


def _joined(rule: Rule, operands: Sequence[Sequence[Layout]], wanted: Sequence[Sequence[Layout]]) -> Iterator[Axes]:
    """Each neighbour's projection, completed from the others in turn; and nothing split at all."""
    sides = [(rule.operands[i], layout) for i, layouts in enumerate(operands) for layout in layouts]
    sides += [(rule.results[j], layout) for j, layouts in enumerate(wanted) for layout in layouts]
    projections = list(dict.fromkeys(_projected(rule, dims, layout) for dims, layout in sides))
    for i, first in enumerate(projections):
        axes = first
        for other in projections[i:] + projections[:i]:
            axes = _complete(rule, axes, other)
        yield axes
        yield first
    yield ((),) * len(rule.factors)


def _projected(rule: Rule, dims: tuple[Dim, ...], layout: Layout) -> Axes:
    axes = project(rule, dims, layout)
    return _legal(rule, axes, axes)


def _complete(rule: Rule, axes: Axes, other: Axes) -> Axes:
    """`axes` with the splits of `other` for factors that are still whole, where the mesh axes are still free."""
    new = list(axes)
    for i, refs in enumerate(other):
        longer = new[i] == refs[: len(new[i])]
        rest = refs[len(new[i]) :] if longer else ()
        if rest and not any(_clash(ref, used) for ref in rest for one in new for used in one):
            new[i] = merge_refs(new[i] + rest)
    return _legal(rule, tuple(new), axes, other)


def _clash(a: AxisRef, b: AxisRef) -> bool:
    return a.overlaps(b) or not a.can_coexist(b)


def _legal(rule: Rule, axes: Axes, *neighbours: Axes) -> Axes:
    """The same without splits that the operator cannot run with (minor factors of a dim whose major ones are whole).

    Factors may be split unevenly where a neighbour has it so.
    """
    uneven = [i for i, refs in enumerate(axes) if any(refs == one[i] for one in neighbours)]
    if is_legal(rule, [size_of(refs) for refs in axes], uneven):
        return axes
    kept: list[Refs] = [()] * len(axes)
    for i, refs in enumerate(axes):
        kept[i] = refs
        if not is_legal(rule, [size_of(one) for one in kept], uneven):
            kept[i] = ()
    return tuple(kept)


def _carried(node: Node, operands: Sequence[Sequence[Layout]], axes: Axes) -> Iterator[tuple[Refs, tuple[int, ...]]]:
    """Ways to let partial sums pass through: all operands of a linear set are partial along the same free axes."""
    used = [ref for refs in axes for ref in refs]
    for members in node.op.linear_in(len(node.operands)) if node.rule.reduction == "sum" else ():
        terms = [_terms(operands[i]) for i in members]
        common = set.intersection(*terms) if terms else set()
        carried = tuple(sorted((ref for ref in common if not any(_clash(ref, one) for one in used)), key=_order))
        if carried:
            yield carried, members


def _terms(layouts: Sequence[Layout]) -> set[AxisRef]:
    """The axes along which an operand is left as terms of a sum."""
    return set(layouts[0].partial) if layouts and layouts[0].reduction == "sum" else set()


def _order(ref: AxisRef) -> tuple[str, int]:
    return ref.name, ref.pre
