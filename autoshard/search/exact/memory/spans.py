"""Prices of copies that also cost for the bytes they take: how many depends on which users share the copy.

A copy lies in memory from the first to the last of those who share it, so a set of users has a price per byte of its
own. Messages part the users into such sets in the best way, which bounds what any choice pays from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoshard.search.exact.min_marginals import LARGE, MOST, MinMarginals
from autoshard.search.multi_layout import MultiLayoutCost


@dataclass(frozen=True, eq=False)
class SpanCost(MultiLayoutCost):
    """A price where a copy shared by a set of users also costs `weights` of the set for its bytes and its buffers'.

    Sets are bits for the first MOST users; [kinds of the maker, layouts] `nbytes` and `moving`.
    """

    nbytes: np.ndarray
    moving: np.ndarray
    weights: tuple[tuple[float, float], ...]

    def restricted(self, keep: Sequence[np.ndarray]) -> SpanCost:
        """The same with only some choices of the maker and of each user."""
        plain = super().restricted(keep)
        rows = np.unique(self.maker[keep[0]])
        users = zip(self.users, self.kinds, keep[1:], strict=True)
        wanted = [wants[np.unique(kinds[kept])].reshape(-1) for wants, kinds, kept in users]
        cells = np.ix_(rows, np.unique(np.concatenate(wanted)) if wanted else np.arange(1))
        parts = (plain.seconds, plain.base, plain.maker, plain.users, plain.kinds)
        return SpanCost(*parts, self.nbytes[cells], self.moving[cells], self.weights)

    def at(self, choice: Sequence[int]) -> float:
        """Seconds, and prices of bytes, at the choices of the maker and the users."""
        return float(self.many(np.asarray(choice)[None])[0])

    def many(self, choices: np.ndarray) -> np.ndarray:
        """The same for many combinations [n, positions] of choices."""
        row, every = self.maker[choices[:, 0]], np.arange(len(choices))
        sets = np.zeros((len(row), self.seconds.shape[1]), np.int64)
        paid = np.zeros(sets.shape, bool)
        for user, (rows, kinds, column) in enumerate(zip(self.users, self.kinds, choices.T[1:], strict=True)):
            for wanted in rows[kinds[column]].T:
                paid[every, wanted] = True
                if user < MOST:
                    sets[every, wanted] |= 1 << user
        lying, moving = np.moveaxis(np.asarray(self.weights)[sets], -1, 0)
        costs = self.seconds[row] + lying * self.nbytes[row] + moving * self.moving[row]
        return self.base[row] + np.where(paid, costs, 0.0).sum(axis=1)

    def along(self, position: int, choice: Sequence[int]) -> np.ndarray:
        """[choices of the position], the same with everything else as in `choice`."""
        kinds, first, which = np.unique(
            self.kinds[position - 1] if position else self.maker, return_index=True, return_inverse=True
        )
        choices = np.tile(np.asarray(choice), (len(kinds), 1))
        choices[:, position] = first
        return self.many(choices)[which.reshape(-1)]

    @cached_property
    def by_kinds(self) -> np.ndarray:
        """[maker's kinds, first user's kinds, ...] the same."""
        counts = len(self.base), *map(len, self.users)
        if any(wants.shape[1] != 1 for wants in self.users) or len(self.users) > MOST:
            each = replace(self, maker=np.arange(counts[0]), kinds=tuple(np.arange(count) for count in counts[1:]))
            return each.many(np.indices(counts).reshape(len(counts), -1).T).reshape(counts)
        total = np.zeros(counts) + self.base.reshape(-1, *[1] * len(self.users))
        wants = [rows[:, 0] for rows in self.users]
        more = self._more()
        for bits in range(1, len(more)):
            members = [user for user in range(len(wants)) if bits >> user & 1]
            if more[bits].any():
                shape = [counts[0]] + [count if user in members else 1 for user, count in enumerate(counts[1:])]
                total += _where_equal(more[bits], [wants[user] for user in members]).reshape(shape)
        for user, wanted in enumerate(wants):
            shape = [counts[0]] + [count if other == user else 1 for other, count in enumerate(counts[1:])]
            total += np.where(np.isinf(self.seconds[:, wanted]), np.inf, 0.0).reshape(shape)
        return total

    def _more(self) -> np.ndarray:
        """[sets of users, kinds of the maker, layouts]: a set pays for a layout the sum of this over its subsets
        (Moebius inversion)."""
        possible = np.where(np.isinf(self.seconds), 0.0, self.seconds)
        lying, moving = np.asarray(self.weights).T[:, :, None, None]
        found = possible + lying * self.nbytes + moving * self.moving
        found[0] = 0.0
        for user in range(len(self.users)):
            with_user = np.arange(len(found)) >> user & 1 == 1
            found[with_user] -= found[~with_user]
        return found


def _where_equal(costs: np.ndarray, wants: list[np.ndarray]) -> np.ndarray:
    """[rows, kinds of each user] the cost of the layout that all of them want; 0 where they do not want the same."""
    same = np.ones([1] * len(wants), bool)
    for user, wanted in enumerate(wants):
        shape = [-1 if other == user else 1 for other in range(len(wants))]
        first = wants[0].reshape([-1] + [1] * (len(wants) - 1))
        same = same & (wanted.reshape(shape) == first)
    return costs[:, wants[0]].reshape(len(costs), -1, *[1] * (len(wants) - 1)) * same


class SpanMinMarginals(MinMarginals):
    """Messages where what a copy costs depends on who shares it."""

    def __init__(self, multi_layout: SpanCost) -> None:
        super().__init__(multi_layout)
        self._priced = {
            (lying, moving): np.minimum(
                multi_layout.seconds + lying * multi_layout.nbytes + moving * multi_layout.moving, LARGE
            )
            for lying, moving in set(multi_layout.weights)
        }
        self.weights = multi_layout.weights
        self.whole = False

    def served(self, users: list[np.ndarray], which: Sequence[int] | None = None) -> np.ndarray:
        """As in the plain messages; `which` tells the numbers of the users if these are not all."""
        sums, sets = self._summed(users, range(len(users)) if which is None else which, 0)
        alone = np.stack(
            [self._least(one, self._priced[self.weights[bits]]) for one, bits in zip(sums, sets, strict=True)]
        )
        alone[0] = 0.0
        served = alone.copy()
        for subset in range(1, len(sums)):
            low = subset & -subset
            part = (subset - 1) & subset
            while part:
                if part & low:
                    np.minimum(served[subset], alone[part] + served[subset ^ part], out=served[subset])
                part = (part - 1) & subset
        return served

    def _wanting(self, user: int, maker: np.ndarray, users: list[np.ndarray]) -> np.ndarray:
        which = [i for i in range(len(users)) if i != user]
        others = [users[i] for i in which]
        sums, sets = self._summed(others, which, 1 << user)
        rest = self.served(others, which)[::-1] if others else np.zeros((1, *maker.shape))
        found = [
            self._least(maker + left, self._priced[self.weights[bits]].T) + one
            for one, bits, left in zip(sums, sets, rest, strict=True)
        ]
        return np.minimum.reduce(found)

    def _summed(self, users: list[np.ndarray], which: Sequence[int], bits: int) -> tuple[list[np.ndarray], list[int]]:
        """Per subset of the users, [values, layouts] what they pay to want a layout, and all their numbers as bits."""
        values = len(users[0]) if users else 1
        sums, sets = [np.zeros((values, self.seconds.shape[1]))], [bits]
        for one, number in zip(users, which, strict=True):
            sums += [before + one for before in sums]
            sets += [before | 1 << number for before in sets]
        return sums, sets

    @staticmethod
    def _least(prices: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        return (prices[:, None, :] + seconds).min(axis=2)


def scaled(multi_layout: MultiLayoutCost, work: float) -> MultiLayoutCost:
    """The same where a second counts as `work`."""
    return replace(multi_layout, seconds=work * multi_layout.seconds, base=work * multi_layout.base)
