"""The least time within a memory limit, or the least memory, for tables too large to write out.

Prices of the bytes at moments that bind turn the limit into costs (Lagrangian relaxation): at any prices message
passing bounds everything (`rows_priced.py`), and choices that are best there are plans, or nearly. Prices follow the
cutting planes of all choices seen (Kelley, 1960). Plans that keep the limit take over from faster ones that do not what
still fits (`Relink`). At the end a program in whole numbers looks among all choices that no better plan can do
without, and proves the optimum where it can look at all of them. What was left out without proof is in the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from autoshard.search.exact.memory.columns import RowsProgram
from autoshard.search.exact.memory.lagrangian_subproblem import PricedSearch
from autoshard.search.exact.memory.rows import MemoryRows
from autoshard.search.exact.wcsp import highs
from autoshard.search.exact.wcsp.cutting_planes import Plane, model
from autoshard.util.clock import now
from autoshard.util.doing import so_far

# Plans between two: what a plan within the limit can take over from a faster one that needs too much.
#
# Where both choose differently, variables that share a price belong together; what does not hang together can be taken
# over alone, so that seconds add up, and bytes nearly so. Which parts to take is a small program in whole numbers with
# a row for each moment that binds (path relinking, Glover, Laguna and Marti, 2000, with an exact choice of the steps).


MOST_PARTS = 400
"""Parts that are weighed against each other at most."""
TRIES = 4
"""Programs solved for one pair; moments that a result exceeds are in the next."""
SECONDS = 3.0
SPARE = 1e-9


class Relink:
    """Makes choices between two choices; `limit` in bytes."""

    def __init__(self, rows: MemoryRows, limit: int) -> None:
        self.rows, self.limit = rows, limit
        self.scopes = [price.scope for price in rows.tables.prices]
        self._joined: dict[tuple, tuple[int, ...]] = {}

    def between(self, low: Sequence[int], high: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Choices that make some parts of `high` in `low`, best first by what the parts save alone."""
        parts = self._parts(low, high)
        if not 1 < len(parts) <= MOST_PARTS:
            return
        base, seconds = self.rows.at(low), self.rows.tables.seconds(low)
        saved, more = np.zeros(len(parts)), np.zeros((len(parts), len(base)))
        for i, part in enumerate(parts):
            one = _taken(low, high, [part])
            saved[i] = seconds - self.rows.tables.seconds(one)
            more[i] = self.rows.at(one) - base
        room, moments = self.limit - base, [int(base.argmax())]
        for _ in range(TRIES):
            taken = _best(saved, more[:, moments], room[moments])
            if taken is None or not taken.any():
                return
            found = _taken(low, high, [part for part, one in zip(parts, taken, strict=True) if one])
            nbytes = self.rows.at(found)
            if int(nbytes.max()) <= self.limit:
                yield found
                return
            worst = int(nbytes.argmax())
            # Where parts share bytes their sum says too little; what it is out by is kept free from then on.
            short = float(nbytes[worst] - (base + more[taken].sum(axis=0))[worst])
            room[worst] -= max(short, 0.0)
            if worst in moments and short <= 0:
                return
            moments += [worst] if worst not in moments else []

    def _parts(self, low: Sequence[int], high: Sequence[int]) -> list[list[int]]:
        """Variables that differ, in groups that no price joins."""
        differ = {v for v, (one, other) in enumerate(zip(low, high, strict=True)) if one != other}
        from scipy.cluster.hierarchy import DisjointSet  # only here: the import takes long

        joined = DisjointSet(sorted(differ))
        for scope in self.scopes:
            mine = [v for v in scope if v in differ]
            for v in mine[1:]:
                joined.merge(mine[0], v)
        return sorted(sorted(group) for group in joined.subsets())


def _taken(low: Sequence[int], high: Sequence[int], parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    found = list(low)
    for part in parts:
        for v in part:
            found[v] = high[v]
    return tuple(found)


def _best(saved: np.ndarray, more: np.ndarray, room: np.ndarray) -> np.ndarray | None:
    """Which parts save most with at most `room` bytes more at each moment."""
    from scipy.optimize import LinearConstraint  # only here: the import takes long
    from scipy.sparse import csr_array

    if not np.isfinite(saved).all():
        possible = np.isfinite(saved)
        saved, upper = np.where(possible, saved, 0.0), possible.astype(float)
    else:
        upper = np.ones(len(saved))
    scale = max(float(np.abs(more).max(initial=0.0)), 1.0)
    room = room / scale * (1 - SPARE)
    rows = LinearConstraint(csr_array(more.T / scale), -np.inf, room)  # pyright: ignore[reportArgumentType]
    found = highs.least(-saved / (float(np.abs(saved).max()) or 1.0), np.ones(len(saved)), upper, rows, SECONDS)
    return None if found.x is None else found.x > 0.5


EQUAL = 1e-9
ROUNDS = 24
"""Prices that are tried at most."""
STILL = 6
"""Prices tried one after another that gain nothing, after which it is enough."""
GAINED = 1e-4
"""A bound that rises by less, relatively, is no gain."""
BEGIN = 0.05
"""The share of the cost that what is over the limit may cost at first; highest prices rise where they are reached."""
SAME = 1e-3
"""Prices that differ by less, relatively, are the same."""
ASCENT = 0.7
"""Of the time, for prices."""
POLISH = (100, 1e-5)
"""Sweeps at the best prices, and the gain of one that is worth another."""
THOROUGH = (12, 1e-4)
"""Choices of a variable, and how much they raise the bound, for a last plan at the best prices."""
TIES = 1e-5
"""What all seconds together weigh at most against the least memory, as a part of it: of equal bytes the faster."""
COLUMNS = 60_000
"""The largest program that is tried in whole numbers."""
WIDER = (1.5, 2.5, 5.0, 8.0, 12.0, 20.0, math.inf)
"""How many choices per variable are searched completely in the end, one after another."""


class RowsSearch:
    """One search; `value` and `bound` are seconds, or without `work` the largest row in parts of `limit`."""

    def __init__(self, rows: MemoryRows, limit: int, end: float, work: bool = True) -> None:
        self.rows, self.limit, self.end, self.work = rows, limit, end, work
        self.tables = rows.tables
        self.bound, self.value = -math.inf, math.inf
        self.best: tuple[int, ...] | None = None
        self.prices = np.zeros(rows.model.moments)
        self.planes: list[Plane] = []
        self.choices: list[tuple[int, ...]] = []
        self.near: PricedSearch | None = None
        self.relink = Relink(rows, limit)
        self.weight = 1.0 if work else TIES / max(_dearest(self.tables), 1e-300)
        self.at_prices = -math.inf
        self.polished: PricedSearch | None = None
        self.reduced: list[np.ndarray] = []
        self.stats: dict[str, float] = {"prices tried": 0, "programs": 0}

    def run(self) -> None:
        """Prices, then plans, then the proof, as far as time allows."""
        self._ascend()
        self._polish()
        self.improve()

    def glance(self) -> float:
        """A first bound: at no price, or that of the moment at which the fastest choice needs most."""
        if self.work:
            self._evaluate(self.prices)
            return self.bound
        fastest = PricedSearch(self.tables, self.end).choice()
        if fastest is not None:
            self.know(fastest)
        self._evaluate(np.ones(len(self.prices)) if fastest is None else _only(self.rows.at(fastest)))
        return self.bound

    def improve(self) -> None:
        """Look for better plans than the best, or for a first one, among ever more choices, until there is none or time
        is over."""
        self.stats.pop("kept", None)
        for most in WIDER:
            if self.closed or self.left < 0 or not self._prove(most):
                break

    @property
    def closed(self) -> bool:
        return math.isfinite(self.value) and self.value - self.bound <= EQUAL * abs(self.value)

    @property
    def gap(self) -> float:
        return (self.value - self.bound) / abs(self.value)

    @property
    def left(self) -> float:
        return self.end - now()

    # -- plans

    def consider(self, choice: Sequence[int]) -> np.ndarray:
        """[moments] bytes of a choice; it is kept if it is the best."""
        nbytes, seconds = self.rows.at(choice), self.tables.seconds(choice)
        if not self.work:
            value = int(nbytes.max()) / self.limit if math.isfinite(seconds) else math.inf
        else:
            value = seconds if int(nbytes.max()) <= self.limit else math.inf
        if value < self.value:
            self.value, self.best = value, tuple(choice)
            if self.work:
                so_far(best=value)
        return nbytes

    def _offer(self, choice: Sequence[int]) -> np.ndarray:
        """The same, and what this choice and the best have in common."""
        nbytes = self.consider(choice)
        if self.work and self.best is not None and tuple(choice) != self.best:
            for found in self.relink.between(self.best, choice):
                self.consider(found)
        return nbytes

    # -- prices

    def _ascend(self) -> None:
        """Raise the bound by better prices; the choices that are best there may be plans."""
        until, still = now() + ASCENT * self.left, 0
        if not self.planes:
            self.glance()
        if not self.planes:
            return
        box, tried = self._box(), [self.prices] if not self.work else []
        for turn in range(ROUNDS):
            if self.closed or still >= STILL or now() > until:
                break
            target, _ = model(self.planes, box, simplex=not self.work)
            at_edge = self.work and target >= 0.999 * box
            box = np.where(at_edge, 4 * box, box)
            step = 1.0 if turn % 4 == 3 or np.any(at_edge) or not self.work and turn < 2 else 0.5
            prices, before, value = self.prices + step * (target - self.prices), self.bound, self.value
            if any(np.allclose(prices, one, rtol=SAME, atol=0.0) for one in tried):
                break  # no other prices promise more: what is left is between the bound and the choices there
            tried.append(prices)
            if not self._evaluate(prices):
                break
            gained = self.bound - before > GAINED * abs(self.bound) or self.value < value * (1 - GAINED)
            still = 0 if gained else still + 1

    def _box(self) -> np.ndarray:
        """The highest prices to begin with: BEGIN of the cost for an excess like the first one."""
        first = self.planes[0]
        if not self.work:
            return np.ones(len(self.prices))
        excess = np.maximum(first.excess, 0.02)
        return BEGIN * abs(first.cost) / excess

    def _evaluate(self, prices: np.ndarray) -> bool:
        """The bound at prices (seconds per `limit` bytes) and a choice there; False if time was too short for one."""
        self.stats["prices tried"] += 1
        prices = np.where(prices < 1e-6 * prices.max(initial=0.0), 0.0, prices)
        if not self.work:
            prices = prices / prices.sum()
        priced = self.rows.priced(prices / self.limit, self.weight)
        self.near = PricedSearch(priced, min(self.end, now() + max(1.0, 0.2 * self.left)), self.near)
        self._raise(prices, self.near)
        return self.know(self.near.choice(others=self._promising(prices)))

    def _raise(self, prices: np.ndarray, search: PricedSearch) -> None:
        bound = self._bound_of(prices, search.lower)
        if bound > self.at_prices:
            self.at_prices, self.prices = bound, prices
        self.bound = max(self.bound, bound)
        if self.work:
            so_far(bound=self.bound)

    def _bound_of(self, prices: np.ndarray, lower: float) -> float:
        """What the least sum with priced bytes says of seconds, or of the largest row."""
        constants = self.rows.constants - (self.limit if self.work else 0)
        return lower + float(prices @ constants) / self.limit - (0.0 if self.work else TIES)

    def know(self, choice: tuple[int, ...] | None) -> bool:
        """Look at a choice, which may be a plan, and tells what prices are worth trying; False if there is none."""
        if choice is None:
            return False
        nbytes = self._offer(choice)
        cost = self.tables.seconds(choice) if self.work else 0.0
        excess = (nbytes - (self.limit if self.work else 0)) / self.limit
        self.planes.append(Plane(cost, excess, self.bound))
        self.choices.append(tuple(choice))
        return True

    def _promising(self, prices: np.ndarray) -> list[tuple[int, ...]]:
        """Of the choices seen, the one that is least at these prices, and the best plan."""
        known = [] if self.best is None else [self.best]
        if self.planes:
            costs = [plane.cost + float(prices @ plane.excess) for plane in self.planes]
            known.append(self.choices[int(np.argmin(costs))])
        return known

    def _polish(self) -> None:
        """A tighter bound, and a better plan, at the best prices."""
        if self.closed or self.near is None or self.left < 0:
            return
        priced = self.rows.priced(self.prices / self.limit, self.weight)
        search = PricedSearch(priced, self.end, self.near)
        search.tighten(*POLISH)
        self._raise(self.prices, search)
        self.polished = search
        for few, near in ((4, THOROUGH[1]), THOROUGH):
            if not self.closed and self.left > 0:
                self.know(search.choice(few, near, self._promising(self.prices)))

    # -- whole numbers

    def _prove(self, most: float) -> bool:
        """The best among the choices that raise the bound least, `most` per variable on average; False if these are too
        many."""
        if not self.reduced:
            self.reduced = self._reduced()
        reduced = self.reduced
        every = np.sort(np.concatenate(reduced))
        beyond = self.value - self.at_prices + EQUAL * abs(self.value)
        beyond = min(beyond, float(every[int(min(most * len(reduced), len(every) - 1))]))
        keep = [np.flatnonzero(one <= max(beyond, one.min())) for one in reduced]
        if self.best is not None:
            keep = [np.union1d(kept, [one]) for kept, one in zip(keep, self.best, strict=True)]
        count = sum(map(len, keep))
        if count == self.stats.get("kept"):
            return True  # nothing new to look at
        self.stats["kept"] = count
        bound = self._whole(keep, 0.5 * self.left)
        left_out = min(
            float(np.delete(one, kept).min(initial=math.inf)) for one, kept in zip(reduced, keep, strict=True)
        )
        self.bound = max(self.bound, min(bound, self.at_prices + left_out, self.value))
        return bound > -math.inf  # inf: none of these is a plan, but one of more of them may be

    def _reduced(self) -> list[np.ndarray]:
        """By how much the best bound rises for each choice, at least."""
        search = self.polished
        if search is None:
            return [np.zeros(size) for size in self.tables.sizes]
        # By how much the best bound is above this one is known for all choices.
        higher = self.at_prices - self._bound_of(self.prices, search.lower)
        return [np.maximum(one - higher, 0.0) for one in search.folded.marginals(search.bounds.reduced())]

    def _whole(self, keep: Sequence[np.ndarray], seconds: float) -> float:
        """The best plan among these choices becomes known; a bound for all of them, -inf if they are too many."""
        self.stats["programs"] += 1
        until = min(self.end, now() + seconds)
        penalty = 20 * max(abs(self.bound), 1e-9)
        program = RowsProgram(self.rows, keep, self.limit, penalty, self.work)
        for moment in np.flatnonzero(self.prices).tolist():
            program.add_row(moment)
        bound = -math.inf
        while program.size <= COLUMNS and now() < until:
            answer = program.whole(until - now(), hard=True)
            bound = max(bound, math.inf if answer.impossible else answer.bound - EQUAL / 4 * abs(answer.bound))
            if answer.columns is None:
                break
            choice = program.choice(answer.columns)
            nbytes = self.consider(choice)
            allowed = self.limit if self.work else self.value * self.limit
            most = self.limit if self.work else (float(answer.columns[program.excess]) + 1e-9) * self.limit
            over = peaks(nbytes, most)
            if not over or (not self.work and bound * self.limit >= allowed * (1 - EQUAL)):
                break
            self._explain(program, choice, over)
        self.stats["largest program"] = max(self.stats.get("largest program", 0), program.size)
        return bound

    def _explain(self, program: RowsProgram, choice: tuple[int, ...], over: list[int]) -> None:
        """Tell a program why a choice is over the limit."""
        new = [moment for moment in over if moment not in program.moments]
        for moment in new:
            program.add_row(moment)
        told = bool(new)
        for moment in over:
            for number, more in self.rows.spots(choice, moment):
                told |= program.add_spot(number, more, choice)
        if not told:
            program.exclude(choice, [v for v, kept in enumerate(program.keep) if len(kept) > 1])


WINDOW = 12
"""Of moments that follow each other so closely, one row is added at a time."""


def peaks(nbytes: np.ndarray, most: float) -> list[int]:
    """Moments above `most`, the highest first, that do not lie close to each other; three at most."""
    left, found = nbytes.astype(float), []
    while len(found) < 3:
        moment = int(left.argmax())
        if left[moment] <= most:
            break
        found.append(moment)
        left[max(0, moment - WINDOW) : moment + WINDOW + 1] = -1.0
    return found


def _only(nbytes: np.ndarray) -> np.ndarray:
    """The price 1 at the moment with the most bytes."""
    prices = np.zeros(len(nbytes))
    prices[int(nbytes.argmax())] = 1.0
    return prices


def _dearest(tables) -> float:
    """At most what any choice costs, in seconds."""
    total = sum(_most(costs) for costs in tables.unary)
    return total + sum(_most(price.shared.base) + float(_rows(price.shared.seconds)) for price in tables.prices)


def _most(costs: np.ndarray) -> float:
    return float(np.max(costs, where=np.isfinite(costs), initial=0.0))


def _rows(seconds: np.ndarray) -> float:
    """The largest sum of a row: all layouts at once."""
    return float(np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=1).max(initial=0.0))
