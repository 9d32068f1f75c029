"""Prices written out over kinds of choices, those between the same variables in one table.

Bytes of a moment depend on the same pairs of variables as redistributions do, and folding leaves several prices between
the same two. Message passing lets each price choose for itself, so prices apart give a lower bound than their sum does;
here a price joins another one that has all of its variables, as far as the table of both has room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoshard.search.bounds import Bounds
from autoshard.search.folded import Joined, Summed
from autoshard.search.rows_spanned import Spanned, SpannedMessages
from autoshard.search.shared_messages import LARGE, ChoiceGroups, SharedMessages
from autoshard.search.sharing import Shared

CELLS = 1 << 19
"""The largest table that is written out."""


@dataclass(frozen=True, eq=False)
class Written(Shared):
    """A price told by a `table` [kinds of the first variable, of the second, ...] instead of by layouts."""

    table: np.ndarray

    @staticmethod
    def of(table: np.ndarray, kinds: Sequence[np.ndarray]) -> Written:
        """From a table and, per position, the kind of each choice."""
        users = tuple(np.zeros((count, 1), np.int64) for count in table.shape[1:])
        return Written(np.zeros((len(table), 1)), np.zeros(len(table)), kinds[0], users, tuple(kinds[1:]), table)

    @property
    def by_position(self) -> tuple[np.ndarray, ...]:
        return self.maker, *self.kinds

    def restricted(self, keep: Sequence[np.ndarray]) -> Written:
        """The same with only some choices of each variable."""
        found = [np.unique(of[kept], return_inverse=True) for of, kept in zip(self.by_position, keep, strict=True)]
        return Written.of(self.table[np.ix_(*(used for used, _ in found))], [which for _, which in found])

    def at(self, choice: Sequence[int]) -> float:
        """Seconds at a choice."""
        return float(self.table[tuple(of[one] for of, one in zip(self.by_position, choice, strict=True))])

    def many(self, choices: np.ndarray) -> np.ndarray:
        """Seconds of many combinations [n, positions] of choices."""
        return self.table[tuple(of[column] for of, column in zip(self.by_position, choices.T, strict=True))]

    def along(self, position: int, choice: Sequence[int]) -> np.ndarray:
        """[choices of the position], seconds with everything else as in `choice`."""
        index: list = [of[one] for of, one in zip(self.by_position, choice, strict=True)]
        index[position] = slice(None)
        return self.table[tuple(index)][self.by_position[position]]

    @cached_property
    def by_kinds(self) -> np.ndarray:
        return self.table


class WrittenMessages(SharedMessages):
    """Min-marginals of a table: exact, whatever it says."""

    def __init__(self, shared: Written) -> None:
        self.shared, self.whole = shared, True
        self.table = np.minimum(shared.table, LARGE)
        self.groups = [ChoiceGroups(of, count) for of, count in zip(shared.by_position, self.table.shape, strict=True)]

    def message(self, position: int, grouped: list[np.ndarray]) -> np.ndarray:
        """As of any price's messages."""
        assert isinstance(self.shared, Written)
        away = [other for other in range(self.table.ndim) if other != position]
        found = [self._least(away, [one[row] for one in grouped]) for row in range(len(grouped[0]))]
        return np.stack(found)[:, self.shared.by_position[position]]

    def least_grouped(self, grouped: list[np.ndarray]) -> np.ndarray:
        """[values], the least of the table plus potentials by kinds."""
        every = range(self.table.ndim)
        return np.array([self._least(every, [one[row] for one in grouped]) for row in range(len(grouped[0]))])

    def _least(self, away: Sequence[int], potentials: Sequence[np.ndarray]) -> np.ndarray:
        """The table plus potentials, minimized over some positions, the last one first."""
        left = self.table
        for position in reversed(away):
            shape = [1] * left.ndim
            shape[position] = -1
            left = (left + potentials[position].reshape(shape)).min(axis=position)
        return left


class Merged:
    """Tables with prices joined, with the attributes of `Summed`; choices and what they cost are the same."""

    def __init__(self, tables: Summed) -> None:
        self.choices, self.unary, self.sizes = tables.choices, tables.unary, tables.sizes
        self._known: dict[tuple, Shared] = {}
        self._kinds: dict[tuple, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        groups = self._grouped(tables)
        self.prices = [Joined(scope, self._shared(scope, members)) for scope, members in groups]

    def _grouped(self, tables: Summed) -> list[tuple[tuple[int, ...], list[Joined]]]:
        """Prices with those that they take in, in the order of the prices."""
        prices = [Joined(price.scope, price.shared) for price in tables.prices]
        order = sorted(range(len(prices)), key=lambda i: -len(prices[i].scope))
        hosts: dict[int, list[Joined]] = {}
        around: list[list[int]] = [[] for _ in tables.sizes]
        for i in order:
            price, scope = prices[i], set(prices[i].scope)
            able = (j for j in around[price.scope[0]] if scope <= set(prices[j].scope))
            host = next((j for j in able if self._fits(prices[j].scope, [*hosts[j], price])), None)
            if host is not None:
                hosts[host].append(price)
                continue
            hosts[i] = [price]
            for variable in price.scope:
                around[variable].append(i)
        return [(prices[i].scope, hosts[i]) for i in sorted(hosts)]

    def _fits(self, scope: tuple[int, ...], members: Sequence[Joined]) -> bool:
        _, firsts = self._kinds_of(scope, members)
        return math.prod(map(len, firsts)) <= CELLS

    def _kinds_of(self, scope: tuple[int, ...], members: Sequence[Joined]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Per variable of the scope, the kind of each choice under all members, and a choice of each kind."""
        key = self._key(scope, members)
        if key not in self._kinds:
            kinds, firsts = [], []
            for variable in scope:
                mine = [_kinds_at(one, variable) for one in members if variable in one.scope]
                _, first, which = np.unique(np.stack(mine), axis=1, return_index=True, return_inverse=True)
                kinds.append(which.reshape(-1))
                firsts.append(first)
            self._kinds[key] = kinds, firsts
        return self._kinds[key]

    @staticmethod
    def _key(scope: tuple[int, ...], members: Sequence[Joined]) -> tuple:
        """The same for equal prices joined in the same way."""
        place = {variable: i for i, variable in enumerate(scope)}
        return tuple((id(one.shared), tuple(place[v] for v in one.scope)) for one in members)

    def _shared(self, scope: tuple[int, ...], members: list[Joined]) -> Shared:
        host = members[0].shared
        plain = len(members) == 1 and not isinstance(host, Spanned) and all(one.shape[1] == 1 for one in host.users)
        key = self._key(scope, members)
        if key not in self._known:
            written = not plain and self._fits(scope, members)
            self._known[key] = self._sum(scope, members) if written else host
        return self._known[key]

    def _sum(self, scope: tuple[int, ...], members: Sequence[Joined]) -> Written:
        kinds, firsts = self._kinds_of(scope, members)
        place = {variable: i for i, variable in enumerate(scope)}
        total = np.zeros([len(first) for first in firsts])
        for one in members:
            dims = [place[v] for v in one.scope]
            dense = one.shared.restricted([firsts[i] for i in dims]).dense
            shape = [len(first) if i in dims else 1 for i, first in enumerate(firsts)]
            total += dense.transpose(np.argsort(dims)).reshape(shape)
        return Written.of(total, kinds)


def _kinds_at(price: Joined, variable: int) -> np.ndarray:
    position = price.scope.index(variable)
    return price.shared.kinds[position - 1] if position else price.shared.maker


class RowsBounds(Bounds):
    """Bounds of tables some of whose prices are written out or spanned."""

    def __init__(self, tables: Summed) -> None:
        super().__init__(tables)
        for bunch in self.bunches:
            if isinstance(bunch.messages.shared, Spanned):
                bunch.messages = SpannedMessages(bunch.messages.shared)
            elif isinstance(bunch.messages.shared, Written):
                bunch.messages = WrittenMessages(bunch.messages.shared)
