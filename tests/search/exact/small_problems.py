"""Random small problems and the answers of going through all their choices, for the tests of the exact search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.wcsp import CostFactor, CostProblem, MemoryRow


@dataclass(frozen=True, eq=False)
class Enumerated:
    """Cost and bytes of every choice, as arrays over all variables."""

    cost: np.ndarray
    rows: tuple[np.ndarray, ...]

    @property
    def peak(self) -> np.ndarray:
        return np.max(self.rows, axis=0) if self.rows else np.zeros(self.cost.shape, np.int64)

    def within(self, limit: int | None) -> np.ndarray:
        return self.cost if limit is None else np.where(self.peak <= limit, self.cost, np.inf)


def enumerate_all(problem: CostProblem) -> Enumerated:
    cost = np.zeros(problem.sizes)
    for factor in problem.factors:
        cost = cost + spread(problem.sizes, factor.scope, factor.cost)
    rows = []
    for row in problem.rows:
        nbytes = np.zeros(problem.sizes, np.int64)
        for scope, array in row.terms:
            nbytes = nbytes + spread(problem.sizes, scope, array)
        rows.append(nbytes)
    return Enumerated(cost, tuple(rows))


def spread(sizes: tuple[int, ...], scope: tuple[int, ...], array: np.ndarray) -> np.ndarray:
    """The array over all variables' dims, of size 1 where it does not depend on one."""
    order = np.argsort(scope)
    shape = [1] * len(sizes)
    for v in scope:
        shape[v] = sizes[v]
    return array.transpose(order).reshape(shape)


def random_problem(rng: np.random.Generator, with_rows: bool) -> CostProblem:
    """Up to 7 variables of up to 4 choices; tables over 1 to 3 of them, some repeated, some partly forbidden."""
    count = int(rng.integers(1, 8))
    sizes = tuple(int(size) for size in rng.integers(1, 5, count))
    made: dict[tuple[int, ...], list[np.ndarray]] = {}
    factors = []
    for _ in range(rng.integers(0, 10)):
        scope = _scope(rng, count, int(rng.integers(1, 4)))
        known = made.setdefault(tuple(sizes[v] for v in scope), [])
        if not known or rng.random() < 0.7:
            known.append(_costs(rng, [sizes[v] for v in scope]))
        factors.append(CostFactor(scope, known[int(rng.integers(len(known)))]))
    rows = tuple(_row(rng, sizes) for _ in range(rng.integers(1, 5))) if with_rows else ()
    return CostProblem(sizes, factors, rows)


def random_limit(rng: np.random.Generator, known: Enumerated) -> int:
    """A limit: the least feasible one, one byte below it, or one further up."""
    allowed = np.isfinite(known.cost)
    if not allowed.any():
        return int(known.peak.max())
    least, most = int(known.peak[allowed].min()), int(known.peak[allowed].max())
    return int(rng.choice([least, least - 1, rng.integers(least, most + 1), rng.integers(least, most + 1)]))


def _scope(rng: np.random.Generator, count: int, arity: int) -> tuple[int, ...]:
    return tuple(int(v) for v in rng.permutation(count)[:arity])


def _costs(rng: np.random.Generator, shape: list[int]) -> np.ndarray:
    # Whole numbers make ties; the others are like seconds.
    costs = rng.integers(-3, 10, shape).astype(float) if rng.random() < 0.5 else rng.lognormal(-9, 3, shape)
    costs[rng.random(shape) < rng.choice([0.0, 0.1, 0.3])] = np.inf
    return costs


def _row(rng: np.random.Generator, sizes: tuple[int, ...]) -> MemoryRow:
    unit, terms = int(rng.choice([1, 7, 10**9])), []
    for _ in range(rng.integers(0, 2 * len(sizes))):
        scope = _scope(rng, len(sizes), 1 if rng.random() < 0.8 else 2)
        nbytes = rng.integers(0, 20, [sizes[v] for v in scope]) * unit + rng.integers(0, 2)
        terms.append((scope, nbytes))
    return MemoryRow(tuple(terms))
