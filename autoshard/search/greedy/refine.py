"""Splitting a strategy further along what it leaves free of the mesh.

Every free piece is left alone or given to a factor. There are (factors + 1) ** pieces ways to do so; two things keep
them few without leaving out any that could be chosen:
- pieces which nothing tells apart (equally large, on links of equal speed, in use by no neighbour) are
  interchangeable: of the ways that differ only in which of them is where, the first in order stands for all;
- where more than MOST are left, neighbouring pieces act together: along the mesh the factor changes at most so often
  that no more than MOST remain. That leaves out ways, but only on meshes of many axes, and of those that use few
  factors none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache

from autoshard.core.rule import Rule
from autoshard.core.strategy import Strategy, is_legal
from autoshard.layout.layout import Layout, Refs, free_refs
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs, size_of

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
