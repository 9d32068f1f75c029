"""Min-marginals of multi-layout costs: the least cost plus potentials, for many equal values at once.

Which copies of the value to make, and who uses which, is a facility location problem with few users: all partitions of
the users into groups that share a copy are enumerated by subsets, for all layouts at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np

from autoshard.search.multi_layout import MultiLayoutCost

LARGE = 1e3
"""Seconds that stand for what is impossible: sums with it keep their digits."""
BLOCK = 1 << 16
"""Numbers that are worked on at once: they stay in a processor's cache."""
MANY = 96
"""From so many prices on they are worked on column by column."""
MOST = 8
"""Users beyond this are left to the bound as if nothing they want cost anything."""


class MinMarginals:
    """Min-marginals of one Shared; positions count the maker as 0, then the users.

    Of a user with several wants only the dearest counts, and of more than MOST users only the first: what comes out is
    then below the least cost, never above it. `whole` tells that nothing is left out so; users of `counted`, which come
    first, count, and to others all choices are the same.
    """

    _kinds: ClassVar[dict[type[MultiLayoutCost], type[MinMarginals]]] = {}

    def __init_subclass__(cls, of: type[MultiLayoutCost]) -> None:
        MinMarginals._kinds[of] = cls

    @staticmethod
    def of(multi_layout: MultiLayoutCost) -> MinMarginals:
        """Those of a cost, of whatever kind it is."""
        return MinMarginals._kinds.get(type(multi_layout), MinMarginals)(multi_layout)

    def __init__(self, multi_layout: MultiLayoutCost) -> None:
        self.multi_layout = multi_layout
        self.base = np.minimum(multi_layout.base, LARGE)
        self.seconds = np.minimum(multi_layout.seconds, LARGE)
        self.wants = [_dearest(rows, self.seconds) for rows in multi_layout.users]
        self._turned = np.ascontiguousarray(self.seconds.T)
        self.columns = [wanted[kinds] for wanted, kinds in zip(self.wants, multi_layout.kinds, strict=True)]
        self.counted = range(min(len(self.wants), MOST))
        self.whole = len(self.counted) == len(self.wants) and all(rows.shape[1] == 1 for rows in multi_layout.users)
        self.groups = [ChoiceGroups(multi_layout.maker, len(self.base))]
        self.groups += [ChoiceGroups(column, self.seconds.shape[1]) for column in self.columns]

    def least(self, potentials: list[np.ndarray]) -> np.ndarray:
        """[values], the least cost plus potentials; `potentials` has [values, choices] per position."""
        return self.least_grouped([self.grouped(position, one) for position, one in enumerate(potentials)])

    def grouped(self, position: int, potentials: np.ndarray) -> np.ndarray:
        """Potentials of a position by the maker's kinds, or by the layout that the user wants."""
        return self.groups[position].least(potentials)

    def message(self, position: int, grouped: list[np.ndarray]) -> np.ndarray:
        """[values, choices of the position], the least cost plus all other positions' potentials, given that choice.

        Args:
            grouped: as by `grouped`, per position.
        """
        maker, user = grouped[0] + self.base, position - 1
        users = [grouped[i + 1] for i in self.counted]
        if len(self.wants) == 1:
            if position == 0:
                return (min_plus(users[0], self.seconds) + self.base)[:, self.multi_layout.maker]
            return min_plus(maker, self._turned)[:, self.columns[0]]
        if position and user not in self.counted:
            others = self.least_grouped(grouped) - grouped[position].min(axis=1)
            return np.repeat(others[:, None], len(self.columns[user]), axis=1)
        if position:
            found, kinds = self._wanting(user, maker, users), self.columns[user]
        else:
            found, kinds = self.served(users)[-1] + self.base, self.multi_layout.maker
        for i in range(len(self.counted), len(self.wants)):
            found = found + grouped[i + 1].min(axis=1)[:, None]
        return found[:, kinds]

    def least_grouped(self, grouped: list[np.ndarray]) -> np.ndarray:
        """[values], the least cost plus potentials, given by kinds."""
        maker, users = grouped[0] + self.base, [grouped[i + 1] for i in self.counted]
        if users:
            maker = maker + self.served(users)[-1]
        return np.minimum.reduce(maker, axis=1) + sum(one.min(axis=1) for one in grouped[len(self.counted) + 1 :])

    def reduced(self, potentials: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Potentials by the maker's kinds, with its base; and by layout for each user that counts."""
        maker = self.groups[0].least(potentials[0]) + self.base
        return maker, [self.groups[i + 1].least(potentials[i + 1]) for i in self.counted]

    def served(self, users: list[np.ndarray]) -> np.ndarray:
        """[subsets of the users (as bit sets), values, kinds]: the least to serve just these."""
        return self._served(_sums(users, self.seconds.shape[1]))

    def _served(self, sums: np.ndarray) -> np.ndarray:
        """The same, given what users of each subset pay for wanting a layout."""
        alone = np.empty((*sums.shape[:2], len(self.seconds)))
        alone[0] = 0.0
        alone[1:] = min_plus(sums[1:], self.seconds)
        count = len(sums).bit_length() - 1
        if count < 2:
            return alone
        served = alone.copy()
        for user in range(1, count):
            first = 1 << user
            together, rest, starts = _splits(user)
            # The user shares a copy with some of those before it, and the rest of these are served by themselves.
            served[first : 2 * first] = np.minimum.reduceat(alone[first + together] + served[rest], starts, axis=0)
        return served

    def _wanting(self, user: int, maker: np.ndarray, users: list[np.ndarray]) -> np.ndarray:
        """[values, layouts], the least of everything else given the layout that the user wants."""
        others = [one for i, one in enumerate(users) if i != user]
        if not others:
            return min_plus(maker, self._turned)
        # Of the others some share this layout, and the rest is served by itself.
        sums = _sums(others, self.seconds.shape[1])
        rest = self._served(sums)[::-1]
        return np.minimum.reduce(min_plus(maker + rest, self._turned) + sums)


def _sums(users: list[np.ndarray], layouts: int) -> np.ndarray:
    """[subsets, values, layouts], what the users of each subset pay together for wanting a layout."""
    values = len(users[0]) if users else 1
    found = np.empty((1 << len(users), values, layouts))
    found[0] = 0.0
    for i, one in enumerate(users):
        np.add(found[: 1 << i], one, out=found[1 << i : 2 << i])
    return found


class ChoiceGroups:
    """Least over the choices of each kind."""

    def __init__(self, kinds: np.ndarray, count: int) -> None:
        self.order = np.argsort(kinds, kind="stable")
        self.present, self.starts = np.unique(kinds[self.order], return_index=True)
        self.count = count
        self.same = len(self.present) == count == len(kinds) and bool((self.order == np.arange(count)).all())

    def least(self, potentials: np.ndarray) -> np.ndarray:
        if self.same:
            return potentials
        if len(self.present) == self.count:
            return np.minimum.reduceat(potentials[:, self.order], self.starts, axis=1)
        found = np.full((len(potentials), self.count), LARGE)
        found[:, self.present] = np.minimum.reduceat(potentials[:, self.order], self.starts, axis=1)
        return found


def min_plus(prices: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """[..., rows of seconds], least over its columns of price plus seconds."""
    if prices.size * len(seconds) <= BLOCK and prices.size < MANY * prices.shape[-1]:
        return np.minimum.reduce(prices[..., None, :] + seconds, axis=-1)
    flat = prices.reshape(-1, prices.shape[-1])
    if len(flat) >= MANY and len(flat) >= 2 * seconds.shape[1]:
        found = _by_columns(flat, seconds)
    else:
        step = max(1, BLOCK // max(1, seconds.size))
        parts = [(flat[start : start + step, None, :] + seconds).min(axis=2) for start in range(0, len(flat), step)]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return found.reshape(*prices.shape[:-1], len(seconds))


def _by_columns(flat: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The same, one column of seconds after another for all prices at once: faster where rows of them are short."""
    columns = np.ascontiguousarray(flat.T)
    found = columns[0] + seconds[:, :1]
    total = np.empty_like(found)
    for i in range(1, len(columns)):
        np.add(columns[i], seconds[:, i : i + 1], out=total)
        np.minimum(found, total, out=found)
    return np.ascontiguousarray(found.T)


def _dearest(rows: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Per kind of a user, the one of its wants that costs most on average."""
    if rows.shape[1] == 1:
        return rows[:, 0]
    return rows[np.arange(len(rows)), seconds.mean(axis=0)[rows].argmax(axis=1)]


@lru_cache(maxsize=MOST + 1)
def _splits(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All ways to take apart the subsets of `count` users, one subset behind the other: one part, the other part, and
    where each subset starts."""
    pairs = [(part, subset ^ part) for subset in range(1 << count) for part in range(subset + 1) if not part & ~subset]
    together, rest = np.array(pairs).T
    return together, rest, np.flatnonzero(np.diff(together | rest, prepend=-1))
