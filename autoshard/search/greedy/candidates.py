"""Candidates: which strategies are worth pricing for an operator some of whose neighbours are decided.

First those that neighbours suggest: a neighbour's layout projected onto the operator's factors, joined with the other
neighbours' where they do not disagree, then refined by splitting further along axes that are still free
(`Refiner`). Among them is every strategy that needs no communication and uses the mesh as far as it can, but for
what stands for each other, and on meshes of many axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache

from autoshard.core.rule import Dim, Rule
from autoshard.core.strategy import Strategy, is_legal, project
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout, Refs, free_refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of


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
        if rest and not any(ref.clashes(used) for ref in rest for one in new for used in one):
            new[i] = merge_refs(new[i] + rest)
    return _legal(rule, tuple(new), axes, other)


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
        carried = tuple(sorted((ref for ref in common if not any(ref.clashes(one) for one in used)), key=_order))
        if carried:
            yield carried, members


def _terms(layouts: Sequence[Layout]) -> set[AxisRef]:
    """The axes along which an operand is left as terms of a sum."""
    return set(layouts[0].partial) if layouts and layouts[0].reduction == "sum" else set()


def _order(ref: AxisRef) -> tuple[str, int]:
    return ref.name, ref.pre


# Splitting a strategy further along what it leaves free of the mesh.
#
# Every free piece is left alone or given to a factor. There are (factors + 1) ** pieces ways to do so; two things keep
# them few without leaving out any that could be chosen:
# - pieces which nothing tells apart (equally large, on links of equal speed, in use by no neighbour) are
#   interchangeable: of the ways that differ only in which of them is where, the first in order stands for all;
# - where more than MOST are left, neighbouring pieces act together: along the mesh the factor changes at most so often
#   that no more than MOST remain. That leaves out ways, but only on meshes of many axes, and of those that use few
#   factors none.


Axes = tuple[Refs, ...]
Speed = Callable[[AxisRef], Hashable]
"""What tells links apart: equal for pieces along which everything takes equally long."""

MOST = 400
"""Ways in which one strategy is split further: all that there are on three axes, for six factors."""


class Refiner:
    """Splits strategies further in the middle of some decided neighbours.

    Args:
        around: the layouts that neighbours have or want.
        speed: without it no two pieces are interchangeable.
    """

    def __init__(self, rule: Rule, mesh: Mesh, around: Iterable[Layout], speed: Speed | None = None) -> None:
        self.rule, self.mesh, self.speed = rule, mesh, speed
        self.factors = [i for i, factor in enumerate(rule.factors) if factor.splittable]
        self.used = list(dict.fromkeys(ref for layout in around for ref in layout.used))
        self.cuts: dict[str, set[int]] = {}
        for ref in self.used:
            self.cuts.setdefault(ref.name, set()).update((ref.pre, ref.next))

    def ways(self, axes: Axes) -> Iterator[Axes]:
        """`axes`, and what comes of giving free pieces of the mesh to factors; what does not fit where it is given goes
        to the factors behind, as far as they take it."""
        free = list(_pieces(free_refs(self.mesh, [ref for refs in axes for ref in refs]), self.cuts))
        known: dict[tuple[Axes, int, int], Axes] = {}
        found = (self._laid(axes, free, places, known) for places in self._places(free))
        yield from dict.fromkeys(one for one in found if one is not None)

    def _places(self, free: Sequence[AxisRef]) -> Iterable[tuple[int, ...]]:
        """Per way where each piece goes: the place of a factor, or behind them for none."""
        like = [self._like(piece) for piece in free]
        return _few_placements(tuple([like.index(one) for one in like]), len(self.factors) + 1, MOST)

    def _like(self, piece: AxisRef) -> Hashable:
        """Equal for interchangeable pieces."""
        if self.speed is None or any(piece.overlaps(ref) for ref in self.used):
            return piece
        return piece.size, self.speed(piece)

    def _laid(
        self,
        axes: Axes,
        free: Sequence[AxisRef],
        places: Sequence[int],
        known: dict[tuple[Axes, int, int], Axes],
    ) -> Axes | None:
        """None where a piece that is given to factors fits none: another way leaves it alone.

        Args:
            known: what axes become with a piece at a place; ways that begin alike share it.
        """
        for k, (piece, place) in enumerate(zip(free, places, strict=True)):
            if place == len(self.factors):
                continue
            laid = known.get((axes, k, place))
            if laid is None:
                laid = given(self.rule, self.factors[place:] + self.factors[:place], piece, axes)
                known[axes, k, place] = laid
            if laid == axes:
                return None
            axes = laid
        return axes


@lru_cache(maxsize=256)
def _few_placements(like: tuple[int, ...], places: int, most: int) -> Sequence[tuple[int, ...]]:
    """At most so many placements: with as many runs as that allows, but those with one run in any case."""
    found = list(placements(like, places, 1))
    for runs in range(2, len(like) + 1):
        more = list(itertools.islice(placements(like, places, runs), most + 1))
        if len(more) > most:
            break
        found = more
    return found


def placements(like: Sequence[Hashable], places: int, runs: int) -> Iterator[tuple[int, ...]]:
    """All sequences of places, one per piece, in lexicographic order, that have at most so many runs of equal places;
    of interchangeable pieces a later one never has an earlier place.

    >>> list(placements("aa", 2, 2))
    [(0, 0), (0, 1), (1, 1)]
    >>> list(placements("ab", 2, 1))
    [(0, 0), (1, 1)]
    """
    before = [max((k for k in range(i) if like[k] == like[i]), default=-1) for i in range(len(like))]

    def follow(chosen: tuple[int, ...], left: int) -> Iterator[tuple[int, ...]]:
        i = len(chosen)
        if i == len(like):
            yield chosen
            return
        first = chosen[before[i]] if before[i] >= 0 else 0
        for place in range(first, places):
            same = bool(chosen) and place == chosen[-1]
            if same or left:
                yield from follow((*chosen, place), left - (not same))

    return follow((), runs)


def given(rule: Rule, factors: Sequence[int], piece: AxisRef, axes: Axes) -> Axes:
    """The axes with as much of the piece as the factors take, one after the other."""
    for i in factors:
        share = math.gcd(rule.factors[i].size // size_of(axes[i]), piece.size)
        if share == 1:
            continue
        major, rest = piece.split(share)
        put = axes[:i] + (merge_refs((*axes[i], major)),) + axes[i + 1 :]
        others = [k for k in range(len(axes)) if k != i]
        if is_legal(rule, [size_of(refs) for refs in put], others):
            axes, piece = put, rest
    return axes


def splits_further(strategy: Strategy) -> bool:
    """Whether a part of the mesh that a strategy leaves idle could split one of its factors further."""
    rule, factors = strategy.rule, [i for i, factor in enumerate(strategy.rule.factors) if factor.splittable]
    return any(given(rule, factors, piece, strategy.axes) != strategy.axes for piece in strategy.free())


def _pieces(refs: Iterable[AxisRef], cuts: dict[str, set[int]]) -> Iterator[AxisRef]:
    """The free pieces, cut where neighbours' layouts cut an axis: they are not joined across these places."""
    for ref in refs:
        inside = sorted(place for place in cuts.get(ref.name, ()) if ref.pre < place < ref.next)
        bounds = [ref.pre, *inside, ref.next]
        if any(high % low for low, high in itertools.pairwise(bounds)):
            yield ref
            continue
        yield from (AxisRef(ref.name, low, high // low) for low, high in itertools.pairwise(bounds))
