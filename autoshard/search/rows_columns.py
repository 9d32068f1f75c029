"""Some choices of each variable and their prices as columns of a linear program.

One 0/1 column per choice. Prices depend on choices through their kinds only, so tables become columns over pairs of
kinds whose marginals must be the choices (Schlesinger's local polytope); a layout that several users of a value can
want is paid once, by a column that is at least what each of them takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.rows_lines import LinearProgram
from autoshard.search.sharing import Shared
from autoshard.search.tables import MovePrice, Tables


@dataclass(frozen=True, eq=False)
class ColumnGroup:
    """Kinds of a variable's choices, ascending, with a column for each; no columns: there is just one kind."""

    kinds: np.ndarray
    columns: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Uses:
    """Who uses a value: the maker's group and the numbers of its kinds, per use a group and the pairs, and which use
    has which number."""

    maker: ColumnGroup
    rows: np.ndarray
    each: list[tuple[ColumnGroup, np.ndarray | None]]
    number: dict[tuple[int, int], int]


class PricedColumns(LinearProgram):
    """The choices `keep` of tables, of which each variable makes one; `work`: whether their prices count.

    Attributes:
        first: per variable, its first column; the columns of its choices follow each other.
        one: a column that is always 1.
        uses: who uses a value, by the id of its price.
        fine: per maker and user, kinds of both with a column for each pair.
    """

    def __init__(self, tables: Tables, keep: Sequence[np.ndarray], work: bool) -> None:
        super().__init__()
        self.keep, self.work = keep, work
        self._groups: dict[tuple, ColumnGroup] = {}
        self._pairs: dict[tuple, np.ndarray] = {}
        self.uses: dict[int, Uses] = {}
        self.fine: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self.first = np.concatenate([[0], np.cumsum([len(kept) for kept in keep])]).astype(int)
        self.choices = int(self.first[-1])
        self.columns(self.choices)
        for v, kept in enumerate(keep):
            self.equal.add(np.arange(self.first[v], self.first[v] + len(kept)), np.ones(len(kept)), 1.0)
        self.one = self.column()
        self.equal.add([self.one], [1.0], 1.0)
        for v, costs in enumerate(tables.unary):
            if len(costs):
                self._pay_alone(v, costs)
        for price in tables.prices:
            self._price(price)

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

    def _price(self, price: MovePrice) -> None:
        kinds_of_maker = np.unique(price.shared.maker[self.keep[price.scope[0]]])
        shared = restricted_to(price.shared, [self.keep[v] for v in price.scope])
        maker = self.group(price.scope[0], shared.maker)
        if shared.base.any():
            self._pay_alone_at(price.scope[0], shared.base[shared.maker])
        if not shared.users:
            return
        if len(shared.users) == 1:
            user = self.group(price.scope[1], shared.kinds[0])
            table = self.pair(maker, user)
            costs = shared.by_kinds - shared.base[:, None]
            self._pay(table, costs)
            self._note(price.scope[0], price.scope[1], shared.maker, shared.kinds[0], table)
            return
        uses: list[tuple[ColumnGroup, np.ndarray | None]] = []
        self.uses[id(price)] = Uses(maker, kinds_of_maker, uses, {})
        for user, (v, wants, kinds) in enumerate(zip(price.scope[1:], shared.users, shared.kinds, strict=True)):
            for use in range(wants.shape[1]):
                labels = wants[kinds, use]
                group = self.group(v, labels)
                self.uses[id(price)].number[user, use] = len(uses)
                uses.append((group, self.pair(maker, group)))
                self._note(price.scope[0], v, shared.maker, labels, uses[-1][1])
        for layout in np.unique(np.concatenate([group.kinds for group, _ in uses])).tolist():
            self._copies(uses, layout, shared.seconds[:, layout])

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


def restricted_to(shared: Shared, keep: Sequence[np.ndarray]) -> Shared:
    """The same with only some choices; layouts keep their numbers."""
    rows, maker = np.unique(shared.maker[keep[0]], return_inverse=True)
    users, kinds = [], []
    for wants, kind, kept in zip(shared.users, shared.kinds, keep[1:], strict=True):
        used, which = np.unique(kind[kept], return_inverse=True)
        users.append(wants[used])
        kinds.append(which)
    return Shared(shared.seconds[rows], shared.base[rows], maker, tuple(users), tuple(kinds))
