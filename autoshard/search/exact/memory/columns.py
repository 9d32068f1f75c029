"""Some choices of each variable, their prices and the rows of some moments as one program in whole numbers.

A row sums what lies in memory at a moment: bytes over pairs of kinds, copies that several users share from the first to
the last of them, and what was found to be needed besides. Rows are added as they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.memory.copies import CopyUse, LiveCopies
from autoshard.search.exact.memory.integer_program import IntegerProgram
from autoshard.search.exact.memory.rows import MemoryRows, RowTerm
from autoshard.search.factor_graph import FactorGraph, ValueFactor

# Some choices of each variable and their prices as columns of an integer program.
#
# One 0/1 column per choice. Prices depend on choices through their kinds only, so tables become columns over pairs of
# kinds whose marginals must be the choices (Schlesinger's local polytope); a layout that several users of a value can
# want is paid once, by a column that is at least what each of them takes.


@dataclass(frozen=True, eq=False)
class ColumnGroup:
    """Kinds of a variable's choices, ascending, with a column for each; no columns: there is just one kind."""

    kinds: np.ndarray
    columns: np.ndarray | None


@dataclass(frozen=True, eq=False)
class ValueUses:
    """Who uses a value: the maker's group and the numbers of its kinds, per use a group and the pairs, and which use
    has which number."""

    maker: ColumnGroup
    rows: np.ndarray
    each: list[tuple[ColumnGroup, np.ndarray | None]]
    number: dict[tuple[int, int], int]


class CostColumns(IntegerProgram):
    """The choices `keep` of tables, of which each variable makes one; `work`: whether their prices count.

    Attributes:
        first: per variable, its first column; the columns of its choices follow each other.
        one: a column that is always 1.
        uses: who uses a value, by the id of its price.
        fine: per maker and user, kinds of both with a column for each pair.
    """

    def __init__(self, factor_graph: FactorGraph, keep: Sequence[np.ndarray], work: bool) -> None:
        super().__init__()
        self.keep, self.work = keep, work
        self._groups: dict[tuple, ColumnGroup] = {}
        self._pairs: dict[tuple, np.ndarray] = {}
        self.uses: dict[int, ValueUses] = {}
        self.fine: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self.first = np.concatenate([[0], np.cumsum([len(kept) for kept in keep])]).astype(int)
        self.choices = int(self.first[-1])
        self.columns(self.choices)
        for v, kept in enumerate(keep):
            self.equal.add(np.arange(self.first[v], self.first[v] + len(kept)), np.ones(len(kept)), 1.0)
        self.one = self.column()
        self.equal.add([self.one], [1.0], 1.0)
        for v, costs in enumerate(factor_graph.unary):
            if len(costs):
                self._pay_alone(v, costs)
        for factor in factor_graph.factors:
            self._factor(factor)

    def choice(self, columns: np.ndarray) -> tuple[int, ...]:
        """The choice that has the largest column of each variable."""
        return tuple(int(kept[columns[self.first[v] : self.first[v + 1]].argmax()]) for v, kept in enumerate(self.keep))

    # -- kinds

    def group(self, v: int, labels: np.ndarray) -> ColumnGroup:
        """Columns for the kinds of a variable's kept choices."""
        key = (v, labels.tobytes())
        if key not in self._groups:
            kinds, which = np.unique(labels, return_inverse=True)
            which, own = which.reshape(-1), np.arange(self.first[v], self.first[v + 1])
            if len(kinds) == 1:
                self._groups[key] = ColumnGroup(kinds, None)
            elif len(kinds) == len(labels):
                self._groups[key] = ColumnGroup(kinds, own[np.argsort(which)])
            else:
                columns = self.columns(len(kinds))
                for kind, column in enumerate(columns):
                    members = own[which == kind]
                    self.equal.add([*members, column], [*np.ones(len(members)), -1.0], 0.0)
                self._groups[key] = ColumnGroup(kinds, columns)
        return self._groups[key]

    def pair(self, one: ColumnGroup, other: ColumnGroup) -> np.ndarray | None:
        """[kinds of one, of the other] columns; None if both have just one kind."""
        if one.columns is None or other.columns is None:
            if one.columns is None and other.columns is None:
                return None
            return other.columns[None, :] if other.columns is not None else np.asarray(one.columns)[:, None]
        key = (id(one), id(other))
        if key not in self._pairs:
            table = self.columns(len(one.kinds) * len(other.kinds)).reshape(len(one.kinds), -1)
            for members, column in zip(table, one.columns, strict=True):
                self.equal.add([*members, column], [*np.ones(len(members)), -1.0], 0.0)
            for members, column in zip(table.T, other.columns, strict=True):
                self.equal.add([*members, column], [*np.ones(len(members)), -1.0], 0.0)
            self._pairs[key] = table
        return self._pairs[key]

    # -- prices

    def _pay(self, columns: np.ndarray | None, costs: np.ndarray) -> None:
        """Costs of columns; those of inf are impossible."""
        if columns is None:
            self.constant += float(costs.sum()) if self.work or np.isinf(costs).any() else 0.0
            return
        for column, cost in zip(columns.ravel().tolist(), costs.ravel().tolist(), strict=True):
            if math.isinf(cost):
                self.upper[column] = 0.0
            elif self.work:
                self.cost[column] += cost

    def _pay_alone(self, v: int, costs: np.ndarray) -> None:
        self._pay(np.arange(self.first[v], self.first[v + 1]), costs[self.keep[v]])

    def _factor(self, factor: ValueFactor) -> None:
        kinds_of_maker = np.unique(factor.multi_layout.maker[self.keep[factor.scope[0]]])
        multi_layout = factor.multi_layout.among([self.keep[v] for v in factor.scope])
        maker = self.group(factor.scope[0], multi_layout.maker)
        if multi_layout.base.any():
            self._pay_alone_at(factor.scope[0], multi_layout.base[multi_layout.maker])
        if not multi_layout.users:
            return
        if len(multi_layout.users) == 1:
            user = self.group(factor.scope[1], multi_layout.kinds[0])
            table = self.pair(maker, user)
            costs = multi_layout.by_kinds - multi_layout.base[:, None]
            self._pay(table, costs)
            self._note(factor.scope[0], factor.scope[1], multi_layout.maker, multi_layout.kinds[0], table)
            return
        uses: list[tuple[ColumnGroup, np.ndarray | None]] = []
        self.uses[id(factor)] = ValueUses(maker, kinds_of_maker, uses, {})
        for user, (v, wants, kinds) in enumerate(
            zip(factor.scope[1:], multi_layout.users, multi_layout.kinds, strict=True)
        ):
            for use in range(wants.shape[1]):
                labels = wants[kinds, use]
                group = self.group(v, labels)
                self.uses[id(factor)].number[user, use] = len(uses)
                uses.append((group, self.pair(maker, group)))
                self._note(factor.scope[0], v, multi_layout.maker, labels, uses[-1][1])
        for layout in np.unique(np.concatenate([group.kinds for group, _ in uses])).tolist():
            self._copies(uses, layout, multi_layout.seconds[:, layout])

    def _pay_alone_at(self, v: int, costs: np.ndarray) -> None:
        self._pay(np.arange(self.first[v], self.first[v + 1]), costs)

    def _copies(self, uses: list[tuple[ColumnGroup, np.ndarray | None]], layout: int, seconds: np.ndarray) -> None:
        """What it takes to have a layout for whichever users want it."""
        wanting = [
            None if table is None else table[:, int(np.searchsorted(group.kinds, layout))]
            for group, table in uses
            if layout in group.kinds
        ]
        if any(one is None for one in wanting):
            self._pay(None, seconds)
            return
        if len(wanting) == 1:
            self._pay(wanting[0], seconds)
            return
        for kind, cost in enumerate(seconds.tolist()):
            if math.isinf(cost):
                for one in wanting:
                    assert one is not None
                    self.upper[int(one[kind])] = 0.0
            elif cost > 0 and self.work:
                column = self.column()
                self.cost[column] = cost
                for one in wanting:
                    assert one is not None
                    self.below.add([int(one[kind]), column], [1.0, -1.0], 0.0)

    def _note(self, v: int, u: int, by_maker: np.ndarray, by_user: np.ndarray, table: np.ndarray | None) -> None:
        if table is not None:
            self.fine.setdefault((v, u), []).append((by_maker, by_user, table))


class MemoryProgram(CostColumns):
    """The program of the choices `keep`; the rows of no moment are in it at first.

    With `work` the sum of prices is minimized within `limit`; without, the largest row is, in parts of `limit`: the
    `excess` over nothing.
    """

    def __init__(self, rows: MemoryRows, keep: Sequence[np.ndarray], limit: int, work: bool) -> None:
        super().__init__(rows.factor_graph, keep, work)
        self.rows, self.limit = rows, limit
        self.allowed = limit if work else 0
        self.moments: dict[int, int] = {}
        self.extra: dict[tuple, tuple[int, int, int]] = {}
        self._live: dict[tuple, list[tuple[int, int]]] = {}
        self.excess = int(self.columns(1, 0.0 if work else math.inf)[0])
        self.cost[self.excess] = 0.0 if work else 1.0

    # -- rows

    def _bytes(self, piece: RowTerm) -> tuple[np.ndarray | None, np.ndarray]:
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

    def _lying(self, copies: LiveCopies, moment: int) -> list[tuple[int, int]]:
        """Columns for the copies of a value that lie in memory at a moment, with the bytes of each."""
        sides = copies.at(moment)
        if not sides[0] and not sides[1]:
            return []
        key = (id(copies), *(tuple((want.user, want.use) for want in side) for side in sides))
        if key not in self._live:
            uses = self.uses[id(copies.factor)]
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

    def _moving(self, copies: LiveCopies, moment: int) -> list[tuple[int, int]]:
        """Columns for the buffers of users behind others that have a value brought at a moment, and their bytes."""
        found, uses = [], self.uses[id(copies.factor)]
        for want in copies.wants:
            if want.begin != moment or want.behind is None:
                continue
            before = CopyUse(*want.behind, 0, 0)
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

    def _wanting(self, uses: ValueUses, want: CopyUse, row: int, layout: int) -> int | None:
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
            v = self.rows.factor_graph.position[variable]
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


def _read(fine: np.ndarray, coarse: np.ndarray) -> np.ndarray | None:
    """Per fine kind, its coarse kind; None if fine kinds do not tell that."""
    kinds, first, which = np.unique(fine, return_index=True, return_inverse=True)
    read = coarse[first]
    return read if bool((read[which.reshape(-1)] == coarse).all()) else None
