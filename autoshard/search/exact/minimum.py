"""The minimum of a network: cheap eliminations, bounds that strike out choices, then exact on what is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autoshard.search.exact import milp
from autoshard.search.exact.descent import Descent
from autoshard.search.exact.messages import MessagePassing, strike, tighten
from autoshard.search.exact.network import Network
from autoshard.search.exact.order import eliminate_up_to, forecast
from autoshard.search.exact.tight import read_tight
from autoshard.util.clock import now

# A step of at most so many cells is taken at once; so much work is not worth bounding first.
CHEAP = 100_000
DIRECT = 50_000_000
# Cells that elimination sums in a second, low; it is begun if half of the time left should do.
SPEED = 5e8
# Sweeps of message passing at most, and what part of the gap is as good as nothing when ties are read off.
SWEEPS = 60
TIGHT = 1e-6


@dataclass
class Minimum:
    """The best choice (original numbers) in units, and the bound; both inf: nothing is allowed."""

    choice: tuple[int, ...] | None
    upper: float
    lower: float
    stats: dict[str, float] = field(default_factory=dict)


class Search:
    """One minimization; `upper` and `choice` are the best known so far, in the network's units.

    With a `ceiling` nothing up to that value is struck out: the network is reduced for those who look for more than
    its minimum, and `upper` stays there. Without `branch` no integer program is tried: a good bound is enough.
    """

    def __init__(
        self,
        network: Network,
        deadline: float,
        cells: int,
        told: Callable[[float, float], None] = lambda low, high: None,
        ceiling: float | None = None,
        branch: bool = True,
    ):
        self.network = network
        self.deadline = deadline
        self.cells = cells
        self.told = told
        self.fixed = ceiling is not None
        self.branch = branch
        self.choice: tuple[int, ...] | None = None
        self.upper = math.inf if ceiling is None else ceiling
        self.lower = network.base

    def late(self) -> bool:
        return now() > self.deadline

    def run(self) -> Minimum:
        """The minimum, as far as time allows."""
        network = self.network
        stats = self.reduce()
        if not network.choices and math.isfinite(network.base) and network.base < self.upper:
            self.upper, self.choice = network.base, network.complete({})
        elif (
            self.branch
            and network.choices
            and math.isfinite(network.base)
            and self.lower < self.upper
            and not self.late()
        ):
            self._program()
        self.lower = min(max(self.lower, network.base), self.upper)
        stats |= {"largest_table": network.pool.largest, "eliminations": network.pool.computed}
        return Minimum(self.choice, self.upper, self.lower, stats)

    def reduce(self) -> dict[str, float]:
        """Shrink the network; all variables are gone afterwards unless tables would be too large or time is over."""
        network = self.network
        network.make_consistent()
        if not math.isfinite(network.base):
            return {}
        eliminate_up_to(network, min(CHEAP, self.cells), self.late)
        largest, work = forecast(network)
        stats = {"core": len(network.choices), "core_table": largest, "core_work": work}
        if network.choices and (largest > self.cells or work > DIRECT):
            self._tighten()
        if network.choices and math.isfinite(network.base) and (self.fixed or self.lower < self.upper):
            largest, work = forecast(network)
            if largest <= self.cells and work <= SPEED / 2 * (self.deadline - now()):
                eliminate_up_to(network, math.inf, self.late)
        return stats

    def _tighten(self) -> None:
        """Bound and strike out choices, in turn with eliminations that this makes cheap."""
        network = self.network
        for limit in (CHEAP, 10 * CHEAP):
            before = sum(len(kept) for kept in network.choices.values())
            messages = tighten(network, self.upper, self.hear, SWEEPS, self.late)
            self.lower = max(self.lower, min(messages.bound, self.upper))
            strike(messages)
            if not math.isfinite(network.base) or self.lower >= self.upper or self.late():
                return
            eliminate_up_to(network, min(limit, self.cells), self.late)
            left = sum(len(kept) for kept in network.choices.values())
            largest, work = forecast(network)
            if (largest <= self.cells and work <= DIRECT) or left > 0.9 * before:
                return

    def hear(self, messages: MessagePassing) -> float:
        """A bound that the message passing came to, and the choice that its ties say; the upper bound then."""
        self.lower = max(self.lower, min(messages.bound, self.upper))
        gap = self.upper - self.lower
        if not self.fixed and gap > 0:
            at = read_tight(messages, TIGHT * gap if math.isfinite(gap) else 0.0)
            if at is not None:
                self.consider(self._descend(at))
        self.told(self.lower, self.upper)
        return self.upper

    def _descend(self, at: dict[int, int]) -> dict[int, int]:
        names = {v: number for number, v in enumerate(sorted(at))}
        priced = [(tuple(names[v] for v in scope), table.data) for scope, table in self.network.tables.items()]
        found = Descent([self.network.size(v) for v in names], priced).improve([at[v] for v in names])
        return dict(zip(names, found, strict=True))

    def consider(self, at: dict[int, int]) -> None:
        """Keep a choice for the remaining variables if it is better than the best known."""
        value = self.network.total(at)
        if value < self.upper:
            self.upper = value
            self.choice = self.network.complete(self.network.original(at))

    def _program(self) -> None:
        network = self.network
        names = sorted(network.choices)
        number = {v: k for k, v in enumerate(names)}
        priced = [(tuple(number[v] for v in s), table.data) for s, table in sorted(network.tables.items())]
        if milp.cells(priced) > milp.COLUMNS:
            return
        answer = milp.minimize([network.size(v) for v in names], priced, self.deadline - now())
        if answer.infeasible:
            self.lower = self.upper
            return
        if answer.choice is not None:
            self.consider(dict(zip(names, answer.choice, strict=True)))
        if math.isfinite(answer.bound):
            # HiGHS ends within 1e-6 of its own, scaled, numbers at worst; a core with whole units closes the rest.
            self.lower = max(self.lower, min(network.base + np.floor(answer.bound), self.upper))
