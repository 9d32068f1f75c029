"""The minimum of a network: cheap eliminations, bounds that strike out choices, then exact on what is left."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.search.exact.wcsp import milp
from autoshard.search.exact.wcsp.icm import Icm, first_assignment
from autoshard.search.exact.wcsp.network import Network, product
from autoshard.search.exact.wcsp.problem import Scope
from autoshard.search.exact.wcsp.scale import Scale, scaled
from autoshard.search.exact.wcsp.trws import Trws, pass_messages, strike_out
from autoshard.util.clock import now

# In which order variables leave: the one whose elimination costs the fewest cells first, ties by number.
#
# Equal layers look equal to this rule, so their variables leave in one pattern and the tables that arise are shared.


class EliminationOrder:
    """Neighbours and costs of the remaining variables, kept current while they leave one by one."""

    def __init__(self, network: Network):
        self.sizes = {v: network.size(v) for v in network.choices}
        self.around = {v: set(network.neighbours(v)) for v in network.choices}
        self._heap: list[tuple[int, int, int]] = []
        self._cost: dict[int, int] = {}
        for v in self.around:
            self._push(v)

    def _push(self, v: int) -> None:
        cells = product(self.sizes[u] for u in self.around[v]) * self.sizes[v] if self.sizes[v] > 1 else 1
        self._cost[v] = cells
        heapq.heappush(self._heap, (cells, v, self.sizes[v]))

    def pop(self, limit: float) -> tuple[int, int] | None:
        """The next variable and the cells to be summed for it; None where that is beyond the limit."""
        while self._heap:
            cells, v, _ = self._heap[0]
            if v not in self.around or self._cost[v] != cells:
                heapq.heappop(self._heap)
                continue
            if cells > limit:
                return None
            heapq.heappop(self._heap)
            self._leave(v)
            return v, cells
        return None

    def _leave(self, v: int) -> None:
        around = self.around.pop(v)
        for u in around:
            mine = self.around[u]
            if self.sizes[v] > 1:
                mine |= around
            mine.discard(u)
            mine.discard(v)
            self._push(u)


def eliminate_up_to(network: Network, limit: float, stop: Callable[[], bool] = lambda: False) -> None:
    """Eliminate variables, cheapest first, as long as one step sums at most `limit` cells."""
    order = EliminationOrder(network)
    while not stop() and (step := order.pop(limit)) is not None:
        network.eliminate(step[0])


def forecast(network: Network) -> tuple[float, float]:
    """The largest table that eliminating everything would make, and the cells it would sum; nothing is computed."""
    largest, work = 0.0, 0.0
    for cells, size in _steps(network):
        largest = max(largest, cells / size)
        work += cells
    return largest, work


def _steps(network: Network) -> Iterator[tuple[int, int]]:
    order = EliminationOrder(network)
    while (step := order.pop(float("inf"))) is not None:
        yield step[1], max(1, order.sizes[step[0]])


# A choice read off converged messages, consistent among ties.
#
# At a good bound, what remains of the tables says which choices and entries are tight, that is cost nothing above the
# bound; where mesh axes are alike, many are. One variable after another takes a tight choice, and what is not supported
# by a tight entry is dropped around it before the next (arc consistency on the tight entries: Cooper et al., "Soft arc
# consistency revisited", AIJ 2010). Where nothing tight is left, the cheapest stays.


def read_primal(messages: Trws, slack: float) -> dict[int, int] | None:
    """A position for every variable; entries up to `slack` above the bound count as tight. None: all choices struck."""
    state = _State(messages, slack)
    for v in messages.order:
        if not len(state.left[v]):
            return None
        if len(state.left[v]) > 1:
            state.left[v] = state.left[v][:1]
            state.spread(v)
    return {v: int(left[0]) for v, left in state.left.items()}


class _State:
    """The positions left per variable."""

    def __init__(self, messages: Trws, slack: float):
        self.messages = messages
        self.slack = slack
        self.left: dict[int, np.ndarray] = {}
        for v in messages.order:
            prices = messages.collected(v)
            self.left[v] = (
                np.flatnonzero(prices <= prices.min() + slack) if np.isfinite(prices.min()) else np.zeros(0, int)
            )
        for v in messages.order:
            if len(self.left[v]) == 1:
                self.spread(v)

    def spread(self, v: int) -> None:
        """Drop what the choices left of v, and of those that this changes, do not support."""
        waiting = [v]
        while waiting:
            for f, dim in self.messages.at[waiting.pop()]:
                scope = self.messages.tables[f][0]
                for other, u in enumerate(scope):
                    if other != dim and len(self.left[u]) > 1 and self._cut(f, other, u):
                        waiting.append(u)

    def _cut(self, f: int, dim: int, u: int) -> bool:
        """Whether table f takes choices away from its variable u, at place `dim`."""
        scope, table = self.messages.tables[f]
        total = table.data[np.ix_(*(self.left[w] for w in scope))]
        for d, w in enumerate(scope):
            total = total - self.messages.lent(f, d)[self.left[w]].reshape(
                [-1 if k == d else 1 for k in range(len(scope))]
            )
        support = total.min(axis=tuple(d for d in range(len(scope)) if d != dim))
        keep = support <= max(float(support.min()), 0.0) + self.slack
        if keep.all() or not np.isfinite(support.min()):
            return False
        self.left[u] = self.left[u][keep]
        return True


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


class NetworkSearch:
    """One minimization; `upper` and `choice` are the best known so far, in the network's units.

    With a `ceiling` nothing up to that value is struck out: the network is reduced for those who look for more than
    its minimum, and `upper` stays there. Without `branch` no integer program is tried: a good bound is enough.
    """

    def __init__(
        self,
        network: Network,
        deadline: float,
        cells: int,
        on_progress: Callable[[float, float], None] = lambda low, high: None,
        ceiling: float | None = None,
        branch: bool = True,
    ):
        self.network = network
        self.deadline = deadline
        self.cells = cells
        self.on_progress = on_progress
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
        stats |= {"largest_table": network.interner.largest, "eliminations": network.interner.computed}
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
            messages = pass_messages(network, self.upper, self.on_bound, SWEEPS, self.late)
            self.lower = max(self.lower, min(messages.bound, self.upper))
            strike_out(messages)
            if not math.isfinite(network.base) or self.lower >= self.upper or self.late():
                return
            eliminate_up_to(network, min(limit, self.cells), self.late)
            left = sum(len(kept) for kept in network.choices.values())
            largest, work = forecast(network)
            if (largest <= self.cells and work <= DIRECT) or left > 0.9 * before:
                return

    def on_bound(self, messages: Trws) -> float:
        """A bound that the message passing came to, and the choice that its ties say; the upper bound then."""
        self.lower = max(self.lower, min(messages.bound, self.upper))
        gap = self.upper - self.lower
        if not self.fixed and gap > 0:
            at = read_primal(messages, TIGHT * gap if math.isfinite(gap) else 0.0)
            if at is not None:
                self.consider(self._descend(at))
        self.on_progress(self.lower, self.upper)
        return self.upper

    def _descend(self, at: dict[int, int]) -> dict[int, int]:
        names = {v: number for number, v in enumerate(sorted(at))}
        priced = [(tuple(names[v] for v in scope), table.data) for scope, table in self.network.tables.items()]
        found = Icm([self.network.size(v) for v in names], priced).improve([at[v] for v in names])
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


# The least sum of priced scopes: a first choice, whole units, then the reductions.


# The largest table that elimination may make, in cells of 8 bytes.
CELLS = 20_000_000
# Value and bound this close, relatively, count as equal.
EQUAL = 1e-9

Progress = Callable[[float, float], None]


def minimum(
    sizes: Sequence[int],
    priced: Sequence[tuple[Scope, np.ndarray]],
    deadline: float,
    cells: int = CELLS,
    start: Sequence[int] | None = None,
    progress: Progress | None = None,
    branch: bool = True,
) -> tuple[Minimum, Scale]:
    """The least sum of the priced scopes; in units of the scale."""
    choice, upper = first_assignment(sizes, priced, start)
    network, scale = scaled(sizes, priced, upper)
    on_progress = (
        (lambda low, high: progress(scale.bound(low), scale.seconds(high))) if progress else (lambda low, high: None)
    )
    search = NetworkSearch(network, deadline, cells, on_progress, branch=branch)
    if choice is not None:
        search.choice = tuple(choice)
        search.upper = network.total(dict(enumerate(choice)))
    return search.run(), scale
