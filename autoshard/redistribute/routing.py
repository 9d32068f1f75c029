"""Routing: who sends which piece of its block to whom when blocks change hands, in rounds of permutes.

`Routing(before, after)` works for any two final layouts whose digits pair (`digits_of`): what a rank lacks comes to it
once, from one holder, and in each round every rank sends one piece and receives one. With one round this is a
relabeling of whole blocks; an exchange of dims over a group is the pairwise all-to-all, whose round 0 sends nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoshard.layout.layout import Layout, Refs
from autoshard.layout.mesh import AxisRef
from autoshard.redistribute.positions import Cuts, Digits, Tail, paired
from autoshard.util.memo import Memo

# Pieces received that are counted one by one at most; what is found is remembered.
COUNTED = 1 << 16
_COUNTED: Memo[tuple[Layout, Layout], float] = Memo()


@dataclass(frozen=True)
class Round:
    """One permute: `sources[r]` sends to rank r, `targets` is the inverse.

    `pieces[r]` is the place in rank r's new block, one number per joined tail; `cuts[r]` the piece of the source's
    block that r wants, one number per cut tail.
    """

    sources: list[int]
    targets: list[int]
    pieces: list[tuple[int, ...]]
    cuts: list[tuple[int, ...]]


class Routing:
    """How each rank gets the block that the layout `after` wants; both layouts have the same partial axes.

    Use `route`, which is None where the digits do not pair.
    """

    def __init__(self, before: Layout, after: Layout, digits: Digits, cuts: Cuts) -> None:
        self.mesh, self.digits = before.mesh, digits
        self._ends, self._cuts, self._clashing = (before, after), cuts, cuts.clashing
        self._known: dict[int, Round] = {}

    @cached_property
    def _pairs(self) -> tuple[tuple[Refs, Refs], ...]:
        """Pieces before and after that own the same digits; terms stay where they are."""
        terms = self._cuts.before(self._ends[0].partial)
        return (*self.digits.body, *(((ref,), (ref,)) for ref in terms))

    @cached_property
    def _loose(self) -> tuple[Refs, Refs, Refs]:
        """Pieces by which ranks that want the same are told apart, and those that hold the same: that do both, only
        the first, and only the second."""
        (before, after), cuts = self._ends, self._cuts
        wanted = [ref for tail in self.digits.cuts if not tail.is_compound for ref in tail.new]
        held = [ref for tail in self.digits.joins if not tail.is_compound for ref in tail.old]
        here, there = {*wanted, *cuts.after(after.free())}, {*held, *cuts.before(before.free())}
        return self._sorted(here & there), self._sorted(here - there), self._sorted(there - here)

    @property
    def share(self) -> float:
        """The share of its block that some rank receives from others."""
        if not self._clashing:
            return self.digits.missing  # that of all ranks alike: whatever tells them apart is among the digits
        if self.mesh.devices * self.rounds <= COUNTED:
            return self._counted
        return 1.0 if self._loose[1] else self.digits.missing

    @property
    def _counted(self) -> float:
        """The same by counting, in all rounds at once: a rank may stand at the same place along pieces that clash."""
        known = _COUNTED.get(self._ends)
        if known is None:
            shifts = np.array(self._shifts, dtype=np.int64).reshape(self.rounds, -1)
            sources = self._sources(self._turned(list(shifts.T[..., None]))[0])
            others = np.broadcast_to(sources != np.arange(len(self._ranks)), (self.rounds, len(self._ranks)))
            known = _COUNTED[self._ends] = float(others.sum(axis=0).max()) / self.rounds
        return known

    @property
    def rounds(self) -> int:
        return self.digits.rounds

    @cached_property
    def axes(self) -> Refs:
        """The pieces of the mesh along which blocks change hands."""
        found = {ref for refs in self._loose[1:] for ref in refs} if self._clashing else set()
        for old, new in self.digits.body:
            if old != new:
                found.update(old, new)
        for tail in self.digits.cuts:
            if tail.is_compound:
                found.update(tail.old, tail.new)
        for tail in self.digits.joins:
            found.update(tail.old, tail.new)
        clashing = {ref.name for ref in found} & self._clashing if self._clashing else ()
        if clashing:
            found = {ref for ref in found if ref.name not in clashing} | {self.mesh.axis(name) for name in clashing}
        return self._sorted(found)

    def _sorted(self, refs: Iterable[AxisRef]) -> Refs:
        """The refs in mesh order."""
        found = tuple(refs)
        return tuple(sorted(found, key=self.mesh.sort_key)) if len(found) > 1 else found

    @cached_property
    def _shifts(self) -> list[tuple[int, ...]]:
        """By how much each digit that is joined is shifted in each round."""
        return list(itertools.product(*(range(ref) for ref in self._joined_sizes)))

    @cached_property
    def _joined_sizes(self) -> list[int]:
        sizes = []
        for tail in self.digits.joins:
            sizes += [tail.ratio] if tail.is_compound else [ref.size for ref in tail.old]
        return sizes

    @cached_property
    def _ranks(self) -> np.ndarray:
        """The grid position of each rank."""
        return np.array([self.mesh.position(rank) for rank in self.mesh.listed("list the turns of an exchange")])

    def _index(self, refs: Iterable[AxisRef]) -> np.ndarray:
        index = np.zeros_like(self._ranks)
        for ref in refs:
            index = index * ref.size + self._ranks // self.mesh.stride(ref) % ref.size
        return index

    def round(self, number: int) -> Round:
        """Who sends what to whom in one of the rounds; remembered where that takes little memory."""
        known = self._known.get(number)
        if known is None:
            known = self._made(number)
            if self.mesh.devices * self.rounds <= COUNTED:
                self._known[number] = known
        return known

    def _made(self, number: int) -> Round:
        place, pieces = self._turned(self._shifts[number])
        sources = self._sources(place)
        cuts = [self._index(tail.new) % tail.ratio for tail in self.digits.cuts]
        return Round(sources.tolist(), np.argsort(sources).tolist(), _rows(pieces, sources), _rows(cuts, sources))

    def _turned(self, shifts: Sequence[int | np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """[..., ranks], the grid position from which each rank is sent to, and the places of the pieces in each joined
        tail; `shifts`, [..., 1] each, are those of the digits that are joined."""
        same, here, there = self._loose
        place = np.zeros_like(self._ranks)
        for old, new in self._pairs:
            place = place + self._placed(self._index(new), old)
        virtual = [(tail, self._index(tail.new)) for tail in self.digits.cuts if tail.is_compound]
        for tail, index in virtual:
            place = place + self._placed(index // tail.ratio, tail.old)
        rest = self._index(here)
        for tail, index in virtual:
            rest = rest * tail.ratio + index % tail.ratio
        coordinates = {ref: self._index((ref,)) for ref in same}
        joins = [tail for tail in self.digits.joins if tail.is_compound]
        shares: dict[Tail, np.ndarray] = {}
        for tail in reversed(joins):
            rest, shares[tail] = np.divmod(rest, tail.ratio)
        for ref in reversed(there):
            rest, coordinates[ref] = np.divmod(rest, ref.size)
        pieces = self._join(shifts, coordinates, shares)
        for tail in joins:
            place = place + self._placed(self._index(tail.new) * tail.ratio + shares[tail], tail.old)
        for ref, coordinate in coordinates.items():
            place = place + coordinate * self.mesh.stride(ref)
        return place, pieces

    def _join(
        self,
        given: Sequence[int | np.ndarray],
        coordinates: dict[AxisRef, np.ndarray],
        shares: dict[Tail, np.ndarray],
    ) -> list[np.ndarray]:
        """Shift the digits that are joined; the place of the pieces in each joined tail."""
        shifts, pieces = iter(given), []
        for tail in self.digits.joins:
            if tail.is_compound:
                shares[tail] = (shares[tail] + next(shifts)) % tail.ratio
                pieces.append(shares[tail])
                continue
            index = np.zeros_like(self._ranks)
            for ref in tail.old:
                coordinates[ref] = (coordinates[ref] + next(shifts)) % ref.size
                index = index * ref.size + coordinates[ref]
            pieces.append(index)
        return pieces

    def _placed(self, index: np.ndarray, refs: Refs) -> np.ndarray:
        """The part of a grid position that stands at `index` along the refs."""
        place = np.zeros_like(index)
        for ref in reversed(refs):
            index, coordinate = np.divmod(index, ref.size)
            place += coordinate * self.mesh.stride(ref)
        return place

    def _sources(self, place: np.ndarray) -> np.ndarray:
        """The ranks at grid positions."""
        return place if self.mesh.order is None else np.asarray(self.mesh.order)[place]


def _rows(columns: Sequence[np.ndarray], like: np.ndarray) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True)) if columns else [()] * len(like)


def route(before: Layout, after: Layout) -> Routing | None:
    """The routing from one layout to the other; None if their digits do not pair or their partial axes differ."""
    if before.partial != after.partial or before.reduction != after.reduction:
        return None
    cuts = Cuts(before, after)
    digits = paired(*cuts.dims)
    return None if digits is None else Routing(before, after, digits, cuts)
