"""What each choice of each variable costs at least: the least total with that choice (its min-marginal).

Elimination gives every bucket the cost below it; a second pass, from the last variable back to the first, brings the
cost above it (Shafer and Shenoy, 1990, in the min-plus semiring). Both passes share tables among equal layers. Where
tables would be too large, message passing gives lower bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.least_sum import CELLS
from autoshard.search.exact.messages import Messages
from autoshard.search.exact.moments import Moments, Priced
from autoshard.search.exact.network import Gone, Network
from autoshard.search.exact.order import eliminate_up_to, forecast
from autoshard.search.exact.pool import Part, Pool, Table
from autoshard.search.exact.problem import CostProblem, Scope, Solution
from autoshard.search.exact.scale import scaled
from autoshard.util.clock import now

# Cells that both passes may sum before bounds are given instead; some seconds of work.
WORK = 3e9
SWEEPS = 20


@dataclass(frozen=True, eq=False)
class Marginals:
    """`costs[v][i]`: the least cost of a solution in which variable v takes choice i, in seconds; inf: there is none.

    Where not `exact` they are lower bounds: under a memory limit that binds, or where tables grow too large.
    """

    costs: tuple[np.ndarray, ...]
    exact: bool


def marginals(problem: CostProblem, solution: Solution, *, cells: int = CELLS, time_limit: float = 20.0) -> Marginals:
    """The least cost with each choice of each variable.

    Under a limit: bounds at the prices of bytes that the solution was found with. `cells` and `time_limit` (seconds)
    as for `solve`.
    """
    deadline = now() + time_limit
    priced = [(tuple(factor.scope), factor.cost) for factor in problem.factors]
    fixed, limited = 0.0, False
    if problem.limit is not None and problem.rows:
        moments = Moments(problem.rows, problem.limit)
        limited = bool(moments.rows)
        prices = np.array([solution.prices[r] if solution.prices else 0.0 for r in moments.rows])
        priced += moments.priced(prices)
        fixed = float(prices @ (problem.limit - moments.constants))
    network, scale = scaled(problem.sizes, priced, math.inf)
    network.make_consistent()
    if not math.isfinite(network.base):
        return Marginals(tuple(np.full(size, np.inf) for size in problem.sizes), exact=True)
    kept = dict(network.choices)
    largest, work = forecast(network)
    exact = largest <= cells and work <= WORK
    if exact:
        eliminate_up_to(network, math.inf, lambda: now() > deadline)
        exact = not network.choices
    # Eliminated in part, a network has not all variables any more: bounds need a whole one.
    units = _passed_back(network) if exact else _bounded(_consistent(problem, priced), deadline)
    costs = []
    for v, size in enumerate(problem.sizes):
        mine = np.full(size, np.inf)
        mine[kept[v]] = scale.floor + scale.unit * units[v] - fixed - (0.0 if exact else scale.error)
        costs.append(np.maximum(mine, solution.bound))
    return Marginals(tuple(costs), exact and not limited)


def _consistent(problem: CostProblem, priced: list[Priced]) -> Network:
    network, _ = scaled(problem.sizes, priced, math.inf)
    network.make_consistent()
    return network


def _bounded(network: Network, deadline: float) -> list[np.ndarray]:
    messages = Messages(network)
    for _ in range(SWEEPS):
        messages.sweep(np.inf)
        if now() > deadline:
            break
    return [messages.bound + messages.collected(v) for v in range(len(network.full))]


def _passed_back(network: Network) -> list[np.ndarray]:
    """Units per choice left, for each variable of a network that is eliminated."""
    pool = network.pool
    above: dict[int, Table] = {}
    waiting: dict[Scope, list[Gone]] = {}
    children: dict[int, dict[Scope, list[Gone]]] = {}
    for gone in network.gone:
        mine = {scope: waiting.pop(scope) for scope, _ in gone.tables if scope in waiting}
        children[gone.variable] = mine
        if gone.around:
            waiting.setdefault(gone.around, []).append(gone)
    units: list[np.ndarray] = [np.zeros(0)] * len(network.full)
    for gone in reversed(network.gone):
        v = gone.variable
        if not gone.parts:
            units[v] = np.full(len(gone.kept[0]), network.base)
            continue
        parts = gone.parts
        if v in above:
            parts = (*parts, (above[v], tuple(range(1, len(gone.around) + 1))))
        clique = (v, *gone.around)
        units[v] = network.base + _onto(pool, parts, clique, (v,)).data
        for scope, below in children[v].items():
            total = _onto(pool, parts, clique, scope)
            for child in below:
                assert child.result is not None, "a child has left a table"
                above[child.variable] = pool.subtract(total, child.result)
    return units


def _onto(pool: Pool, parts: tuple[Part, ...], clique: Scope, scope: Scope) -> Table:
    """The sum of the parts (labels number the clique) minimized onto some of the clique's variables, ascending."""
    order = {u: number for number, u in enumerate(clique)}
    away = [order[u] for u in clique if u not in scope]
    left = sorted(u for u in clique if u in scope)
    if not away:
        # Nothing to minimize: a dim of size 1 stands for the label that goes.
        names = {order[u]: k + 1 for k, u in enumerate(left)}
        return _step(pool, parts, names, None)
    names = {label: k + 1 for k, label in enumerate(label for label in _sorted_labels(clique) if label != away[0])}
    table = _step(pool, parts, names, away[0])
    dims = [u for u in sorted(clique) if order[u] != away[0]]
    for label in away[1:]:
        gone = dims.index(clique[label])
        labels = tuple(0 if k == gone else k + 1 - (k > gone) for k in range(len(dims)))
        table, _ = pool.minimize(((table, labels),), len(dims) - 1)
        del dims[gone]
    return table


def _sorted_labels(clique: Scope) -> list[int]:
    """The labels of a clique in the order of its variables."""
    return sorted(range(len(clique)), key=lambda label: clique[label])


def _step(pool: Pool, parts: tuple[Part, ...], names: dict[int, int], away: int | None) -> Table:
    renamed = []
    for table, labels in parts:
        mine = [0 if label == away else names[label] for label in labels]
        renamed.append(_sorted_part(pool, table, mine))
    if away is None:
        one, _ = pool.intern(np.zeros(1))
        renamed.append((one, (0,)))
    return pool.minimize(tuple(sorted(renamed, key=lambda part: (part[0].serial, part[1]))), len(names))[0]


def _sorted_part(pool: Pool, table: Table, labels: list[int]) -> Part:
    """A part whose labels ascend, 0 aside."""
    order = sorted(range(len(labels)), key=lambda dim: labels[dim])
    if order == list(range(len(labels))):
        return table, tuple(labels)
    return pool.transpose(table, tuple(order)), tuple(labels[dim] for dim in order)
