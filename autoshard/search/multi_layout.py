"""Multi-layout cost of one value: its redistributions as a function of who makes it and who uses it.

Each layout in which it is wanted, and not left, is paid once (facility location). Everything is said in numbers of
layouts, of which there are far fewer than strategies; `dense` writes it out over strategies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class MultiLayoutCost:
    """Prices of one value.

    Attributes:
        seconds: [maker's kinds, layouts], from how the maker leaves it to each layout that is wanted; what the maker
            itself wants, and pays for anyway, is free here.
        base: [maker's kinds], seconds for what the maker itself wants: the outputs among them.
        maker: [maker's choices], the kind of each choice.
        users: per user, [kinds, wants]: the layouts that it wants.
        kinds: per user, [choices], the kind of each choice.
    """

    seconds: np.ndarray
    base: np.ndarray
    maker: np.ndarray
    users: tuple[np.ndarray, ...]
    kinds: tuple[np.ndarray, ...]

    @staticmethod
    def of(
        seconds: np.ndarray, left: np.ndarray, own: Sequence[np.ndarray], wants: Sequence[np.ndarray]
    ) -> MultiLayoutCost:
        """From [left, layouts] seconds.

        Args:
            left: [maker's choices], row of `seconds`.
            own: layouts that the maker wants, [maker's choices] each.
            wants: per user, [choices, uses] layouts.
        """
        rows, maker = _kinds(np.stack([left, *own], axis=1))
        seconds = seconds[rows[:, 0]].copy()
        base, every = np.zeros(len(rows)), np.arange(len(rows))
        for column in rows.T[1:]:
            base += seconds[every, column]
            seconds[every, column] = 0.0
        pairs = [_kinds(uses) for uses in wants]
        return MultiLayoutCost(
            seconds, base, maker, tuple(rows for rows, _ in pairs), tuple(kinds for _, kinds in pairs)
        )

    @property
    def is_free(self) -> bool:
        """Whether nothing ever costs anything."""
        return not self.base.any() and not any(self.seconds[:, np.unique(rows)].any() for rows in self.users)

    def among(self, keep: Sequence[np.ndarray]) -> MultiLayoutCost:
        """The same with only some choices of the maker and of each user; layouts keep their numbers."""
        rows, maker = np.unique(self.maker[keep[0]], return_inverse=True)
        users, kinds = [], []
        for wants, kind, kept in zip(self.users, self.kinds, keep[1:], strict=True):
            used, which = np.unique(kind[kept], return_inverse=True)
            users.append(wants[used])
            kinds.append(which)
        return MultiLayoutCost(self.seconds[rows], self.base[rows], maker, tuple(users), tuple(kinds))

    def restricted(self, keep: Sequence[np.ndarray]) -> MultiLayoutCost:
        """The same, and without the layouts that then nobody wants."""
        some = self.among(keep)
        layouts = _different([wants.reshape(-1) for wants in some.users]) if some.users else np.arange(1)
        users = tuple(np.searchsorted(layouts, wants) for wants in some.users)
        return MultiLayoutCost(some.seconds[:, layouts], some.base, some.maker, users, some.kinds)

    def kind_of(self, position: int) -> np.ndarray:
        """[choices of the position], the kind of each; the maker is position 0."""
        return self.kinds[position - 1] if position else self.maker

    def folded(self) -> MultiLayoutCost:
        """The same of the users alone that have several choices; what the others want counts as the maker's own."""
        settled = [rows[kinds] for rows, kinds in zip(self.users, self.kinds, strict=True) if len(kinds) == 1]
        several = [i for i, kinds in enumerate(self.kinds) if len(kinds) > 1]
        wanted, seconds = _different([rows.reshape(-1) for rows in settled]), self.seconds.copy()
        seconds[:, wanted] = 0.0
        base = self.base + self.seconds[:, wanted].sum(axis=1)
        users, kinds = (tuple(found[i] for i in several) for found in (self.users, self.kinds))
        return MultiLayoutCost(seconds, base, self.maker, users, kinds)

    @property
    def cells(self) -> int:
        """Size of `dense`."""
        return math.prod([len(self.maker), *map(len, self.kinds)])

    def at(self, choice: Sequence[int]) -> float:
        """Seconds at the choices of the maker and the users."""
        row = self.maker[choice[0]]
        wanted = {
            int(layout)
            for rows, kinds, one in zip(self.users, self.kinds, choice[1:], strict=True)
            for layout in rows[kinds[one]]
        }
        return float(self.base[row] + sum(self.seconds[row, layout] for layout in sorted(wanted)))

    def many(self, choices: np.ndarray) -> np.ndarray:
        """Seconds of many combinations [n, positions] of choices."""
        row = self.maker[choices[:, 0]]
        found, paid = self.base[row], np.zeros((len(row), self.seconds.shape[1]), dtype=bool)
        for rows, kinds, column in zip(self.users, self.kinds, choices.T[1:], strict=True):
            for wanted in rows[kinds[column]].T:
                paid[np.arange(len(row)), wanted] = True
        return found + np.where(paid, self.seconds[row], 0.0).sum(axis=1)

    def along(self, position: int, choice: Sequence[int]) -> np.ndarray:
        """[choices of the position], seconds with everything else as in `choice`; the maker is position 0."""
        users = list(zip(self.users, self.kinds, choice[1:], strict=True))
        if position == 0:
            wanted = _different([rows[kinds[one]] for rows, kinds, one in users])
            return (self.base + self.seconds[:, wanted].sum(axis=1))[self.maker]
        others = [rows[kinds[one]] for i, (rows, kinds, one) in enumerate(users) if i != position - 1]
        row = self.maker[choice[0]]
        paid = _different(others)
        prices = self.seconds[row].copy()
        before = self.base[row] + prices[paid].sum()
        prices[paid] = 0.0
        rows, kinds, _ = users[position - 1]
        different = [(rows[:, :use] != rows[:, use : use + 1]).all(axis=1) for use in range(rows.shape[1])]
        return (before + sum(np.where(new, prices[rows[:, use]], 0.0) for use, new in enumerate(different)))[kinds]

    @cached_property
    def by_kinds(self) -> np.ndarray:
        """[maker's kinds, first user's kinds, ...] seconds."""
        count = len(self.users)
        total = self.base.reshape(-1, *[1] * count) + np.zeros([1, *map(len, self.users)])
        columns = [(user, rows[:, use]) for user, rows in enumerate(self.users) for use in range(rows.shape[1])]
        for place, (user, wanted) in enumerate(columns):
            price = _along(self.seconds[:, wanted], (0, user + 1), count + 1)
            for other, earlier in columns[:place]:
                if other == user:
                    paid = _along((earlier == wanted)[None], (0, user + 1), count + 1)
                else:
                    paid = _along(earlier[:, None] == wanted[None, :], (other + 1, user + 1), count + 1)
                price = np.where(paid, 0.0, price)
            total = total + price
        return total

    @cached_property
    def dense(self) -> np.ndarray:
        """[maker's choices, first user's choices, ...] seconds."""
        return self.by_kinds[np.ix_(self.maker, *self.kinds)]


def _different(wanted: Sequence[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, np.intp)


def _kinds(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different rows, and which each one is."""
    different, which = np.unique(rows, axis=0, return_inverse=True)
    return different, which.reshape(-1)


def _along(array: np.ndarray, axes: tuple[int, int], count: int) -> np.ndarray:
    """A matrix as an array of `count` dims that varies along two of them."""
    first, second = axes
    array, axes = (array, axes) if first < second else (array.T, (second, first))
    shape = [1] * count
    for axis, size in zip(axes, array.shape, strict=True):
        shape[axis] = size
    return array.reshape(shape)
