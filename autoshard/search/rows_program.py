"""Some choices of each variable, their prices and the rows of some moments as one program in whole numbers.

A row sums what lies in memory at a moment: bytes over pairs of kinds, copies that several users share from the first to
the last of them, and what was found to be needed besides. Rows are added as they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoshard.search.rows import MemoryRows, RowPiece
from autoshard.search.rows_columns import PricedColumns, Uses
from autoshard.search.rows_copies import Copies, Want
from autoshard.search.rows_lines import LinearSolution


class RowsProgram(PricedColumns):
    """The program of the choices `keep`; the rows of no moment are in it at first.

    With `work` the sum of prices is minimized, and bytes above `limit` cost `excess` seconds per `limit` of them;
    without, the largest row is, in parts of `limit`.
    """

    def __init__(self, rows: MemoryRows, keep: Sequence[np.ndarray], limit: int, excess: float, work: bool) -> None:
        super().__init__(rows.tables, keep, work)
        self.rows, self.limit = rows, limit
        self.allowed = limit if work else 0
        self.moments: dict[int, int] = {}
        self.extra: dict[tuple, tuple[int, int, int]] = {}
        self._live: dict[tuple, list[tuple[int, int]]] = {}
        self.excess = int(self.columns(1, math.inf)[0])
        self.cost[self.excess] = excess if work else 1.0

    # -- rows

    def _bytes(self, piece: RowPiece) -> tuple[np.ndarray | None, np.ndarray]:
        """Columns of a piece and the bytes of each."""
        kept = [self.keep[v] for v in piece.scope]
        if len(piece.scope) == 1:
            v = piece.scope[0]
            return np.arange(self.first[v], self.first[v + 1]), piece.table.spread[kept[0]]
        labels = [kinds[one] for kinds, one in zip(piece.table.kinds, kept, strict=True)]
        for by_maker, by_user, table in self.fine.get((piece.scope[0], piece.scope[1]), ()):
            sides = [_read(fine, coarse) for fine, coarse in zip((by_maker, by_user), labels, strict=True)]
            if sides[0] is not None and sides[1] is not None:
                return table, piece.table.nbytes[np.ix_(sides[0], sides[1])]
        groups = [self.group(v, one) for v, one in zip(piece.scope, labels, strict=True)]
        return self.pair(groups[0], groups[1]), piece.table.nbytes[np.ix_(groups[0].kinds, groups[1].kinds)]

    def add_row(self, moment: int) -> None:
        """From now on what lies in memory at a moment counts."""
        if moment in self.moments:
            return
        constant = int(self.rows.constants[moment])
        columns, numbers = [np.array([self.excess])], [np.array([-1.0])]
        for piece in self.rows.pieces:
            if not piece.first <= moment <= piece.last:
                continue
            mine, nbytes = self._bytes(piece)
            least = int(nbytes.min())
            constant += least
            if mine is not None and int(nbytes.max()) > least:
                above = (nbytes - least).ravel()
                columns.append(mine.ravel()[above > 0])
                numbers.append(above[above > 0] / self.limit)
        for copies in self.rows.copies:
            lying = self._lying(copies, moment) + self._moving(copies, moment)
            columns.append(np.array([column for column, _ in lying], int))
            numbers.append(np.array([nbytes / self.limit for _, nbytes in lying]))
        for key, (first, last, column) in self.extra.items():
            if first <= moment <= last:
                columns.append(np.array([column]))
                numbers.append(np.array([key[1] / self.limit]))
        self.moments[moment] = len(self.below.right)
        self.below.add(np.concatenate(columns), np.concatenate(numbers), (self.allowed - constant) / self.limit)

    def _lying(self, copies: Copies, moment: int) -> list[tuple[int, int]]:
        """Columns for the copies of a value that lie in memory at a moment, with the bytes of each."""
        sides = copies.at(moment)
        if not sides[0] and not sides[1]:
            return []
        key = (id(copies), *(tuple((want.user, want.use) for want in side) for side in sides))
        if key not in self._live:
            uses = self.uses[id(copies.price)]
            self._live[key] = []
            for row, kind in enumerate(uses.rows.tolist()):
                for layout in np.flatnonzero(copies.nbytes[kind]).tolist():
                    found = [
                        [c for w in side if (c := self._wanting(uses, w, row, layout)) is not None] for side in sides
                    ]
                    column = self._lies(found, self.one if uses.maker.columns is None else int(uses.maker.columns[row]))
                    if column is not None:
                        self._live[key].append((column, int(copies.nbytes[kind, layout])))
        return self._live[key]

    def _moving(self, copies: Copies, moment: int) -> list[tuple[int, int]]:
        """Columns for the buffers of users behind others that have a value brought at a moment, and their bytes."""
        found, uses = [], self.uses[id(copies.price)]
        for want in copies.wants:
            if want.begin != moment or want.behind is None:
                continue
            before = Want(*want.behind, 0, 0)
            for row, kind in enumerate(uses.rows.tolist()):
                for layout in np.flatnonzero(copies.moving[kind]).tolist():
                    mine = self._wanting(uses, want, row, layout)
                    other = self._wanting(uses, before, row, layout)
                    if mine is None or mine == other:
                        continue
                    column = mine if other is None else self.column()
                    if other is not None:
                        self.below.add([mine, other, column], [1.0, -1.0, -1.0], 0.0)
                    found.append((column, int(copies.moving[kind, layout])))
        return found

    def _wanting(self, uses: Uses, want: Want, row: int, layout: int) -> int | None:
        """The column of: the maker is of kind number `row` and the user wants the layout; None if it never does."""
        group, table = uses.each[uses.number[want.user, want.use]]
        place = int(np.searchsorted(group.kinds, layout))
        if place == len(group.kinds) or group.kinds[place] != layout:
            return None
        return self.one if table is None else int(table[row, place])

    def _lies(self, sides: list[list[int]], maker: int) -> int | None:
        """A column that is 1 if one of the now's is, or one of the before's and one of the after's."""
        now, before, after = sides
        if not now and not (before and after):
            return None
        if not (before and after) and len(set(now)) == 1:
            return now[0]
        column = self.column()
        for one in set(now):
            self.below.add([one, column], [1.0, -1.0], 0.0)
        if before and after:
            first, last = self.any_of(before), self.any_of(after)
            if first == last:
                self.below.add([first, column], [1.0, -1.0], 0.0)
            elif maker == self.one:
                self.below.add([first, last, column], [1.0, 1.0, -1.0], 1.0)
            else:
                self.below.add([first, last, maker, column], [1.0, 1.0, -1.0, -1.0], 0.0)
        return column

    def add_spot(self, number: int, more: int, choice: Sequence[int]) -> bool:
        """From now on a term that pieces do not tell completely takes `more` bytes besides where its variables choose
        as in `choice`; False if that was known."""
        term = self.rows.model.terms[number]
        spot: list[tuple[int, tuple[int, ...]]] = []
        for variable in term.variables:
            v = self.rows.tables.position[variable]
            reads = [part.read for part in term.parts if part.variable is variable]
            listed = self.rows.choices(v)
            mine = [(read, read(listed[choice[v]])) for read in reads]
            like = [i for i, c in enumerate(self.keep[v]) if all(read(listed[c]) is at for read, at in mine)]
            spot.append((v, tuple(like)))
        key = (number, more, tuple(spot))
        if key in self.extra:
            return False
        column = self.column()
        self.extra[key] = term.first, term.last, column
        columns = [column] + [int(self.first[v]) + i for v, like in spot for i in like]
        self.below.add(columns, [-1.0] + [1.0] * (len(columns) - 1), len(spot) - 1.0)
        for moment, row in self.moments.items():
            if term.first <= moment <= term.last:
                self.below.rows.append(np.array([row]))
                self.below.columns.append(np.array([column]))
                self.below.numbers.append(np.array([more / self.limit]))
        return True

    def exclude(self, choice: Sequence[int], variables: Sequence[int]) -> None:
        """Forbid that all of these variables choose as in `choice`."""
        places = [int(self.first[v] + np.searchsorted(self.keep[v], choice[v])) for v in variables]
        self.below.add(places, [1.0] * len(places), len(places) - 1.0)

    def whole(self, seconds: float, hard: bool) -> LinearSolution:
        """The best choice; `hard`: nothing above the limit."""
        upper = np.array(self.upper)
        upper[self.excess] = 0.0 if hard and self.work else np.inf
        return self.solved(upper, seconds)


def _read(fine: np.ndarray, coarse: np.ndarray) -> np.ndarray | None:
    """Per fine kind, its coarse kind; None if fine kinds do not tell that."""
    kinds, first, which = np.unique(fine, return_index=True, return_inverse=True)
    read = coarse[first]
    return read if bool((read[which.reshape(-1)] == coarse).all()) else None
