"""All combinations of choices around a value whose price, after message passing, is close to the least.

They are listed and never written out as an array over all choices: first the layouts that the maker leaves and that
the users want, one user after another, each time with the exact least cost of serving the users left (so that nothing
is begun that does not end within the gap), then the choices that mean these layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.min_marginals import MinMarginals

BLOCK = 1 << 16
"""Numbers that are worked on at once: few enough that the arrays of a step stay in the processor's caches."""


@dataclass(frozen=True, eq=False)
class GapEntries:
    """Combinations of several equal values: `value` [n], `choices` [n, positions], `excess` [n] above the least."""

    value: np.ndarray
    choices: np.ndarray
    excess: np.ndarray


class TooManyEntries(Exception):
    """More combinations than were asked for are within the gap."""


def enumerate_gap(
    messages: MinMarginals, potentials: list[np.ndarray], least: np.ndarray, gap: float, most: int
) -> GapEntries:
    """All combinations whose price plus potentials is at most `gap` above `least`.

    Args:
        potentials: [values, choices] per position, the maker first; inf for choices that are out.
        least: [values].

    Raises:
        TooMany: there are more than `most`.
    """
    return _Listing(messages, potentials, least, least + gap, most).run()


class _Listing:
    def __init__(
        self,
        messages: MinMarginals,
        potentials: list[np.ndarray],
        least: np.ndarray,
        allowed: np.ndarray,
        most: int,
    ) -> None:
        self.messages, self.potentials, self.most = messages, potentials, most
        self.least, self.allowed = least, allowed
        self.kinds, self.users = messages.reduced(potentials)
        self.served = messages.served(self.users)
        counted = len(self.users)
        self.left = sum(one.min(axis=1) for one in potentials[counted + 1 :]) + np.zeros(len(self.least))

    def run(self) -> GapEntries:
        value, kind = np.nonzero(self.kinds + self.served[-1] + self.left[:, None] <= self.allowed[:, None])
        cost = self.kinds[value, kind]
        layouts = np.zeros((len(value), 0), dtype=np.int64)
        shared = np.full((len(value), len(self.users)), np.inf)
        for user in range(len(self.users)):
            parts = self._blocks(len(value))
            found = [self._wanting(user, value[p], kind[p], cost[p], layouts[p], shared[p]) for p in parts]
            value, kind, cost, layouts, shared = (np.concatenate(column) for column in zip(*found, strict=True))
            self._check(len(value))
        return self._chosen(value, kind, cost + self.left[value], layouts)

    def _check(self, count: int) -> None:
        if count > self.most:
            raise TooManyEntries

    def _blocks(self, count: int) -> list[slice]:
        step = max(1, BLOCK // max(1, self.messages.seconds.shape[1]))
        return [slice(start, start + step) for start in range(0, max(count, 1), step)]

    def _wanting(self, user: int, value, kind, cost, layouts, shared) -> tuple[np.ndarray, ...]:
        """Combinations with each layout that the next user can want.

        `shared` [n, users] is what a user pays at least for wanting one of the layouts that are paid already.
        """
        prices = self.messages.seconds[kind]
        for column in layouts.T:
            prices[np.arange(len(prices)), column] = 0.0
        prices += self.users[user][value]
        prices += cost[:, None]
        rest = self.left + sum(one.min(axis=1) for one in self.users[user + 1 :])
        place, layout = np.nonzero(prices <= (self.allowed - rest)[value][:, None])
        total, value, kind = prices[place, layout], value[place], kind[place]
        shared = shared[place]
        for other in range(user + 1, len(self.users)):
            shared[:, other] = np.minimum(shared[:, other], self.users[other][value, layout])
        good = total + self._completed(user + 1, value, kind, shared) + self.left[value] <= self.allowed[value]
        wanted = np.concatenate([layouts[place], layout[:, None]], axis=1)
        return value[good], kind[good], total[good], wanted[good], shared[good]

    def _completed(self, first: int, value: np.ndarray, kind: np.ndarray, shared: np.ndarray) -> np.ndarray:
        """The least for all users from `first` on: some share what is paid, the others are served by themselves."""
        count = len(self.users)
        rest = ((1 << count) - 1) >> first << first
        best, subset = np.full(len(value), np.inf), rest
        while True:
            alone = self.served[subset][value, kind] if subset else np.zeros(len(value))
            for other in range(first, count):
                if not subset >> other & 1:
                    alone = alone + shared[:, other]
            best = np.minimum(best, alone)
            if not subset:
                return best
            subset = (subset - 1) & rest

    def _chosen(self, value: np.ndarray, kind: np.ndarray, cost: np.ndarray, layouts: np.ndarray) -> GapEntries:
        """The choices that mean the layouts, as far as the gap allows."""
        shared = self.messages.multi_layout
        least = [self.kinds - self.messages.base, *self.users]
        columns = [shared.maker, *self.messages.columns]
        wants = [kind, *layouts.T]
        chosen: list[np.ndarray] = []
        at = np.arange(len(value))
        for position, potentials in enumerate(self.potentials):
            if position < len(wants):
                sorted_by, starts = _by_group(columns[position], least[position].shape[1])
                wanted = wants[position][at]
                counts = starts[wanted + 1] - starts[wanted]
                repeat = np.repeat(np.arange(len(at)), counts)
                inner = np.arange(len(repeat)) - np.repeat(np.cumsum(counts) - counts, counts)
                choice = sorted_by[starts[wanted][repeat] + inner]
                before = least[position][value[at], wanted][repeat]
            else:
                size = potentials.shape[1]
                repeat, choice = np.repeat(np.arange(len(at)), size), np.tile(np.arange(size), len(at))
                before = potentials.min(axis=1)[value[at]][repeat]
            total = cost[repeat] + (potentials[value[at][repeat], choice] - before)
            good = total <= self.allowed[value[at][repeat]]
            chosen = [one[repeat[good]] for one in chosen] + [choice[good]]
            at, cost = at[repeat[good]], total[good]
            self._check(len(at))
        return self._exact(value[at], np.stack(chosen, axis=1), cost)

    def _exact(self, value: np.ndarray, choices: np.ndarray, cost: np.ndarray) -> GapEntries:
        """Where messages leave out a part of the price, the whole of it."""
        if not self.messages.whole:
            cost = self.messages.multi_layout.many(choices)
            cost = cost + sum(one[value, choices[:, i]] for i, one in enumerate(self.potentials))
            good = cost <= self.allowed[value]
            value, choices, cost = value[good], choices[good], cost[good]
        return GapEntries(value, choices, np.maximum(cost - self.least[value], 0.0))


def _by_group(groups: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers sorted by group, and where each of `count` groups starts (and the last ends)."""
    return np.argsort(groups, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))])
