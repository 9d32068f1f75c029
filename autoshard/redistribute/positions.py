"""Mixed-radix positions: what two layouts of one tensor say about where its elements lie, digit by digit.

Along a dim the number of an element's block is written in mixed radix, most significant digit first. Each digit is
*owned* by the piece of the mesh that splits the dim there: the digit of what a rank holds is where it stands along
that piece. `digits_of(before, after)` pairs the owners of both layouts. Everything is symbolic in the mesh size: an
axis of 4,096 ranks is twelve pieces of two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef, size_of


@dataclass(frozen=True)
class Tail:
    """The minor end of a dim, where one layout cuts it into more parts than the other.

    `ratio` is how many times more; `old` is empty where only the layout after splits, `new` where only the one before.
    """

    dim: int
    old: Refs
    new: Refs
    ratio: int

    @property
    def is_compound(self) -> bool:
        """Whether the pieces of both ends share no boundary: (2, 3) parts against 3."""
        return bool(self.old) and bool(self.new)


@dataclass(frozen=True)
class Digits:
    """How two layouts own the digits of a tensor's dims.

    Attributes:
        body: (old pieces, new pieces) of equal product; different ones mean that blocks change hands.
        cuts: tails that only the layout after splits (further).
        joins: tails that only the layout before splits (further).
    """

    body: tuple[tuple[Refs, Refs], ...]
    cuts: tuple[Tail, ...]
    joins: tuple[Tail, ...]

    @property
    def exchanges_blocks(self) -> bool:
        """Whether some rank holds nothing of what it wants."""
        return any([old != new for old, new in self.body]) or any(
            [tail.is_compound for tail in (*self.cuts, *self.joins)]
        )

    @property
    def rounds(self) -> int:
        """From how many ranks a rank receives the pieces of its block (itself included)."""
        return math.prod(tail.ratio for tail in self.joins)

    @property
    def missing(self) -> float:
        """The share of its wanted block that some rank lacks: 1, or what is joined from the others."""
        return 1.0 if self.exchanges_blocks else 1 - 1 / self.rounds


def digits_of(before: Layout, after: Layout) -> Digits | None:
    """The owners of the digits of both layouts, partial axes aside.

    None if no common digits exist: a dim is split into numbers of parts of which neither divides the other.
    """
    cuts = Cuts(before, after)
    return paired(*cuts.dims)


class Cuts:
    """The pieces of two layouts, cut alike: where either cuts an axis or a dim, or `fine`, further into prime sizes.

    Axes that the two cut at places which do not fit each other (2 and 3 of 6) are `clashing`: each layout keeps its
    own pieces of them, and those of one are never free in the other.
    """

    def __init__(self, before: Layout, after: Layout, fine: bool = False) -> None:
        both = (None if fine else _coarse(before, after)) or cutter(before, after)
        self.clashing: frozenset[str] = frozenset()
        if both is not None:
            self.before = self.after = both
        else:
            self.before, self.after = _own(before), _own(after)
            names = {ref.name for ref in before.used} & {ref.name for ref in after.used}
            self.clashing = frozenset(name for name in names if _clash(name, before, after))
        olds, news = [], []
        for old, new in zip(before.dims, after.dims, strict=True):
            olds.append(self.before(old) if old else old)
            # Pieces that are the same on both sides stay so, clash or not.
            news.append(olds[-1] if old == new else self.after(new))
        self.dims = tuple(olds), tuple(news)


def _own(layout: Layout) -> Callable[[Iterable[AxisRef]], Refs]:
    cut = cutter(layout)
    assert cut is not None, f"the pieces of one layout [{layout}] fit each other"
    return cut


def _clash(name: str, *layouts: Layout) -> bool:
    refs = [ref for layout in layouts for ref in layout.used if ref.name == name]
    return not all(ref.can_coexist(other) for ref, other in itertools.combinations(refs, 2))


def uncovered(refs: Refs, others: Refs) -> Refs:
    """The pieces of the refs that no other covers; one that does not fit an other that overlaps it stays whole."""
    if not refs or refs == others:
        return ()
    left: list[AxisRef] = list(refs)
    for other in others:
        kept = []
        for ref in left:
            if not ref.overlaps(other) or not ref.can_coexist(other):
                kept.append(ref)
            elif not other.contains(ref):
                parts = ref.prefix_without_overlap(other), ref.suffix_without_overlap(other)
                kept += [part for part in parts if part is not None]
        left = kept
    return tuple(left)


def paired(before: tuple[Refs, ...], after: tuple[Refs, ...]) -> Digits | None:
    """The same for lists of pieces that are cut alike."""
    body, cuts, joins = [], [], []
    for dim, (olds, news) in enumerate(zip(before, after, strict=True)):
        if olds == news:
            body += [(olds, news)] if olds else []
            continue
        done_old, done_new = _pair(olds, news, body)
        old, new = olds[done_old:], news[done_new:]
        if not old and not new:
            continue
        parts, wanted = size_of(old), size_of(new)
        if parts % wanted == 0:
            joins.append(Tail(dim, old, new, parts // wanted))
        elif wanted % parts == 0:
            cuts.append(Tail(dim, old, new, wanted // parts))
        else:
            return None
    return Digits(tuple(body), tuple(cuts), tuple(joins))


def _pair(olds: Refs, news: Refs, body: list) -> tuple[int, int]:
    """Pair off the pieces up to the last boundary that both lists share; how many of each that takes."""
    i = j = done_old = done_new = 0
    old = new = 1
    while i < len(olds) or j < len(news):
        if j == len(news) or (i < len(olds) and old <= new):
            old *= olds[i].size
            i += 1
        else:
            new *= news[j].size
            j += 1
        if old == new:
            body.append((olds[done_old:i], news[done_new:j]))
            done_old, done_new = i, j
    return done_old, done_new


def cutter(*layouts: Layout) -> Callable[[Iterable[AxisRef]], Refs] | None:
    """Cuts refs where a ref of any layout begins or ends, and further into pieces of prime size.

    None if no one splitting of an axis holds all.
    """
    pieces = _split(_boundaries(*layouts), _prime_pieces)
    return None if pieces is None else Cutter(pieces, _prime_pieces).cut


def _coarse(before: Layout, after: Layout) -> Callable[[Iterable[AxisRef]], Refs] | None:
    """Cuts refs where a ref of either layout begins or ends, and a dim where the other layout's parts are as many.

    No further: that keeps the digits few, however large the mesh. None if no one splitting of an axis holds all.
    """
    places = _boundaries(before, after)
    for olds, news in zip(before.dims, after.dims, strict=True):
        if olds and news and olds != news:
            parts, wanted = size_of(olds), size_of(news)
            if parts != wanted:
                _add_boundary(places, *((olds, wanted) if parts > wanted else (news, parts)))
    pieces = _split(places, _pieces)
    return None if pieces is None else Cutter(pieces, _pieces).cut


def _boundaries(*layouts: Layout) -> dict[str, set[int]]:
    """Where the refs of the layouts begin and end, per axis that they use."""
    places: dict[str, set[int]] = {}
    for layout in layouts:
        for refs in (*layout.dims, layout.partial):
            for name, pre, size in refs:
                known = places.get(name)
                if known is None:
                    known = places[name] = {1, layout.mesh.sizes[name]}
                known.add(pre)
                known.add(pre * size)
    return places


def _add_boundary(places: dict[str, set[int]], refs: Refs, parts: int) -> None:
    """Add the place at which the refs make that many parts, if one does."""
    made = 1
    for name, pre, size in refs:
        if made * size > parts:
            if parts % made == 0 and size % (parts // made) == 0:
                places[name].add(pre * (parts // made))
            return
        made *= size


Pieces = Callable[[str, tuple[int, ...]], Refs | None]


def _split(places: dict[str, set[int]], pieces: Pieces) -> dict[str, Refs] | None:
    found: dict[str, Refs] = {}
    for name, marks in places.items():
        cut = pieces(name, tuple(sorted(marks)))
        if cut is None:
            return None
        found[name] = cut
    return found


class Cutter(NamedTuple):
    """The pieces of each axis that is cut, and how an axis is cut of which nothing is known."""

    known: dict[str, Refs]
    others: Pieces

    def cut(self, refs: Iterable[AxisRef]) -> Refs:
        """The refs, each as its pieces."""
        found: list[AxisRef] = []
        for ref in refs:
            name, pre, size = ref
            known = self.known.get(name) or self.others(name, (1, pre, pre * size)) or ()
            if len(known) == 1:
                found.append(known[0])
            else:
                end = pre * size
                found += [piece for piece in known if pre <= piece[1] < end]
        return tuple(found)


@lru_cache(maxsize=1 << 14)
def _pieces(name: str, places: tuple[int, ...]) -> Refs | None:
    """The pieces of an axis between the places."""
    if any(high % low for low, high in itertools.pairwise(places)):
        return None
    return tuple(AxisRef(name, low, high // low) for low, high in itertools.pairwise(places) if high > low)


@lru_cache(maxsize=1 << 14)
def _prime_pieces(name: str, places: tuple[int, ...]) -> Refs | None:
    """The pieces of an axis between the places, each of prime size."""
    pieces = []
    for low, high in itertools.pairwise(places):
        if high % low:
            return None
        for prime in primes(high // low):
            pieces.append(AxisRef(name, low, prime))
            low *= prime
    return tuple(pieces)


@lru_cache(maxsize=1 << 12)
def primes(number: int) -> tuple[int, ...]:
    """The prime factors in ascending order."""
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return (*found, number) if number > 1 else tuple(found)
