"""Cuts of a mesh of many axes into few units, so that a search that lists all strategies of an operator has few.

Where whole axes (or the prime pieces of a flat mesh) would allow an operator more than MOST strategies, or a tensor
more than PAIRS redistributions (all operators more than ALL_PAIRS), neighbours among them are used as one, in as many
parts as that allows. All cuts into so many parts are searched if they are at most FEW. Else all cuts into two parts
come first, in a short search from halves outwards as long as they get better; of those that cut one of these parts
again, NEXT are searched: where what they are cut at was best by itself and added to the best so far; and so on. What a
search says of its plan is then said of these cuts: `MeshCuts.description` names them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import cached_property

from autoshard.layout.mesh import Mesh
from autoshard.search.domains import MeshUnits, domain_size_bound, mesh_units_of
from autoshard.search.problem import Problem

MOST = 1000
"""The most strategies of an operator."""
PAIRS = 20_000
"""The most pairs of layouts of a tensor, whichever dim is which: between all of them redistributions are planned."""
ALL_PAIRS, SHORT_PAIRS = 1_000_000, 60_000
"""The same of all different operators together, and for a short search, in which two parts are always few: tables of a
million pairs take about a minute."""
FEW = 2
"""So many ways are all searched."""
NEXT = 2
"""How many ways are searched that have a part more."""
NAMED = 4
"""How many ways are named."""

Cuts = tuple[int, ...]
"""Between which units a mesh is cut."""


class MeshCuts:
    """The ways in which a problem's mesh is used, in the order in which they are searched.

    What came out of each is to be noted before the next is asked for.

    Args:
        short: use the mesh in few parts, two or as many as small graphs allow: least sums of more parts are hardly ever
            less (docs/reference/measured.md), and what they take grows with the square of the layouts. Of cuts into two
            parts those from halves outwards, as long as that gets better: there may be a better one further out.

    Attributes:
        is_whole: whether it is used in one way, all its units apart.
    """

    def __init__(self, problem: Problem, short: bool = False) -> None:
        self.problem, self.units, self.short = problem, mesh_units_of(problem.mesh, problem.graph), short
        unlike = max(len({node.key for node in problem.graph.nodes}), 1)
        self.pairs = SHORT_PAIRS // unlike if short else min(PAIRS, ALL_PAIRS // unlike)
        self.least_parts = 2 if short else 1
        self.is_whole = self._fits(self.units)
        self.searched: dict[Cuts, float] = {}

    @cached_property
    def parts(self) -> int:
        """In how many parts the mesh is used; found when it is asked for, as all ways to cut it are looked at."""
        return len(self.units) if self.is_whole else self._most_parts()

    @property
    def possible(self) -> int:
        """How many ways there are to use the mesh in as many parts as can be."""
        return 1 if self.is_whole else math.comb(len(self.units) - 1, self.parts - 1)

    @property
    def is_complete(self) -> bool:
        """Whether all of them are searched."""
        return self.possible <= FEW

    @property
    def total(self) -> int:
        """How many are searched, at most in a short search."""
        return self.possible if self.is_complete else len(self.units) - 1 + NEXT * (self.parts - 2)

    def _count(self, units: MeshUnits) -> int:
        return domain_size_bound(self.problem.graph, units)

    def _fits(self, units: MeshUnits) -> bool:
        ranks = {of.rank for node in self.problem.graph.nodes for of in (*node.operand_types, *node.result_types)}
        few = len(units) <= self.least_parts or all(_pairs(rank, units) <= self.pairs for rank in ranks)
        return few and self._count(units) <= MOST

    def _most_parts(self) -> int:
        """The largest number of parts in which all ways allow few strategies; one, if none does."""
        fits = 1
        for parts in range(2, len(self.units)):
            if not all(self._fits(self.units.cut(cuts)) for cuts in self._cuts(parts)):
                break
            fits = parts
        return fits

    def _cuts(self, parts: int) -> Iterator[Cuts]:
        return itertools.combinations(range(1, len(self.units)), parts - 1)

    def __iter__(self) -> Iterator[MeshUnits]:
        """Those with fewest strategies first, among ways with as many parts."""
        if self.is_whole:
            self.searched[tuple(range(1, len(self.units)))] = math.inf
            yield self.units
            return
        if self.short and not self.is_complete:
            yield from self._outwards()
        else:
            yield from self._search(self._cuts(self.parts if self.is_complete else 2))
        for parts in range(3, 1 if self.is_complete else self.parts + 1):
            yield from self._search(self._promising(parts))

    def _search(self, cuts: Iterable[Cuts]) -> Iterator[MeshUnits]:
        for one in sorted(cuts, key=lambda cuts: self._count(self.units.cut(cuts))):
            self.searched[one] = math.inf
            yield self.units.cut(one)

    def _outwards(self) -> Iterator[MeshUnits]:
        """Two parts: nearly equal ones first, then those to each side of them until one is no better than the best."""
        places = range(1, len(self.units))
        middle = min(places, key=lambda place: self._inequality((place,)))
        yield from self._search([(middle,)])
        for side in (reversed(places[: middle - 1]), places[middle:]):
            for place in side:
                least = min(self.searched.values())
                yield from self._search([(place,)])
                if self.searched[(place,)] >= least:
                    break

    def _inequality(self, cuts: Cuts) -> float:
        """How many times the largest part is the smallest."""
        sizes = self.units.cut(cuts).sizes
        return float(sizes.max() / sizes.min())

    def note(self, seconds: float) -> None:
        """Note what came out of the way that was given last: a plan's seconds, or a bound for all plans."""
        self.searched[next(reversed(self.searched))] = seconds

    def _promising(self, parts: int) -> list[Cuts]:
        """Ways with a part more than the best of those before, cut where that is good by itself."""
        before = sorted((cuts for cuts in self.searched if len(cuts) == parts - 2), key=self.searched.__getitem__)[
            :NEXT
        ]
        hope: dict[Cuts, float] = {}
        for cuts in before:
            for place in range(1, len(self.units)):
                if place in cuts or (place,) not in self.searched:
                    continue
                seconds = self.searched[cuts] + self.searched[(place,)]
                finer = tuple(sorted((*cuts, place)))
                hope[finer] = min(seconds, hope.get(finer, math.inf))
        return sorted(sorted(hope), key=hope.__getitem__)[:NEXT]

    @property
    def description(self) -> str:
        """Of which strategies a search speaks: '' where it is all on whole axes."""
        if self.is_whole:
            return ""
        named = [" | ".join(_shown(self.units.cut(cuts))) for cuts in list(self.searched)[-NAMED:]]
        more = f" and {len(self.searched) - len(named)} coarser or like ones" if len(self.searched) > len(named) else ""
        return f"parts of the mesh that are used as one: {', '.join(named)}{more}"


def _pairs(rank: int, units: MeshUnits) -> int:
    """About how many pairs of layouts a tensor has, those as one that differ in which dim is which.

    A unit is unused, along terms, or splits a dim, before and after: one that is split already or the next.
    """
    count, found = len(units), [1] + rank * [0]
    for _ in range(2 * count):
        found = [ways * (2 + dims) + (found[dims - 1] if dims else 0) for dims, ways in enumerate(found)]
    if not (units.ordered and rank):
        return sum(found)
    layouts = sum(math.comb(count, used) * math.comb(used + rank - 1, rank - 1) for used in range(count + 1))
    return min(sum(found), layouts**2)


def _shown(units: MeshUnits) -> Iterator[str]:
    mesh: Mesh = units.mesh
    return (".".join(map(mesh.show_ref, refs)) for refs in units.pieces)
