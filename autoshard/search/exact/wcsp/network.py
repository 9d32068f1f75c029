"""The problem while it shrinks: tables by scope, choices left per variable, and how to get back what was taken out.

Variables leave by elimination (Dechter, "Bucket elimination", 1999): all tables that name one are summed and minimized
over it. Degrees 0, 1 and 2 are the cheap cases of the same step. The choice of a variable that left is found again
from the tables it left with, once its neighbours' choices are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from autoshard.search.exact.wcsp.interning import InternedTable, Part, TableInterner
from autoshard.search.exact.wcsp.problem import Scope


@dataclass(frozen=True, eq=False)
class Eliminated:
    """An eliminated variable: the tables it stood in, its neighbours, and the choices that each had then."""

    variable: int
    tables: tuple[tuple[Scope, InternedTable], ...]
    around: Scope
    kept: tuple[np.ndarray, ...]
    result: InternedTable | None
    parts: tuple[Part, ...]


class Network:
    """A sum of tables over variables; `base` is the constant part, inf once nothing is feasible."""

    def __init__(self, interner: TableInterner, sizes: Sequence[int]):
        ranges = {size: np.arange(size) for size in set(sizes)}
        self.interner = interner
        self.choices: dict[int, np.ndarray] = {v: ranges[size] for v, size in enumerate(sizes)}
        self.full = tuple(self.choices.values())
        self.tables: dict[Scope, InternedTable] = {}
        self.scopes: dict[int, set[Scope]] = {v: set() for v in self.choices}
        self.base = 0.0 if all(sizes) else np.inf
        self.eliminated: list[Eliminated] = []

    def copy(self) -> Network:
        other = Network.__new__(Network)
        other.interner, other.full, other.base = self.interner, self.full, self.base
        other.choices, other.tables = dict(self.choices), dict(self.tables)
        other.scopes = {v: set(scopes) for v, scopes in self.scopes.items()}
        other.eliminated = list(self.eliminated)
        return other

    def size(self, v: int) -> int:
        return len(self.choices[v])

    def add(self, scope: Scope, table: InternedTable, offset: float = 0.0) -> None:
        """Add a table over an ascending scope."""
        self.base += offset
        if not scope:
            return
        if scope in self.tables:
            table, more = self.interner.add(self.tables[scope], table)
            self.base += more
        self.tables[scope] = table
        for v in scope:
            self.scopes[v].add(scope)

    def neighbours(self, v: int) -> Scope:
        """The variables that share a table with v, ascending."""
        return tuple(sorted(set().union(*self.scopes[v]) - {v}))

    def eliminate(self, v: int) -> None:
        """Minimize v out, whatever the size of the table that this makes; one without a choice joins no tables."""
        if self.size(v) == 1:
            self._fix(v)
            return
        scopes = sorted(self.scopes.pop(v))
        around = tuple(sorted(set().union(*scopes) - {v}))
        tables = tuple((scope, self.tables.pop(scope)) for scope in scopes)
        for scope in scopes:
            for other in scope:
                if other != v:
                    self.scopes[other].discard(scope)
        kept = tuple(self.choices[u] for u in (v, *around))
        label = {u: number for number, u in enumerate((v, *around))}
        # Sorted by content, so that equal surroundings read the same whatever their variables' numbers are.
        parts = tuple(
            sorted(
                ((table, tuple(label[u] for u in scope)) for scope, table in tables),
                key=lambda part: (part[0].serial, part[1]),
            )
        )
        del self.choices[v]
        result = None
        if parts:
            result, offset = self.interner.minimize(parts, len(around))
            self.add(around, result, offset)
        self.eliminated.append(Eliminated(v, tables, around, kept, result, parts))

    def _fix(self, v: int) -> None:
        """Take a variable with one choice out of each of its tables."""
        for scope in sorted(self.scopes.pop(v)):
            around = tuple(u for u in scope if u != v)
            label = {u: number for number, u in enumerate((v, *around))}
            part = self.tables.pop(scope), tuple(label[u] for u in scope)
            result, offset = self.interner.minimize((part,), len(around))
            for u in around:
                self.scopes[u].discard(scope)
            self.add(around, result, offset)
        self.eliminated.append(Eliminated(v, (), (), (self.choices.pop(v),), None, ()))

    def restrict(self, keeps: dict[int, np.ndarray]) -> None:
        """Keep only some positions (ascending) of some variables' choices."""
        if not keeps:
            return
        touched = sorted({scope for v in keeps for scope in self.scopes[v]})
        for scope in touched:
            table, offset = self.interner.restrict(self.tables[scope], tuple(keeps.get(v) for v in scope))
            self.tables[scope] = table
            self.base += offset
        for v, keep in keeps.items():
            self.choices[v] = self.choices[v][keep]
            if not len(keep):
                self.base = np.inf

    def make_consistent(self) -> None:
        """Arc consistency: drop choices that some table forbids whatever its other variables do, until none is left."""
        suspects = sorted(self.choices)
        while suspects and np.isfinite(self.base):
            keeps = {}
            for v in suspects:
                alive = self._alive(v)
                if alive is not None and not alive.all():
                    keeps[v] = np.flatnonzero(alive)
            near = {u for v in keeps for scope in self.scopes[v] for u in scope}
            self.restrict(keeps)
            suspects = sorted(near)

    def _alive(self, v: int) -> np.ndarray | None:
        supports = [self.tables[scope].supports()[scope.index(v)] for scope in self.scopes[v]]
        return reduce(np.logical_and, supports) if supports else None

    def total(self, at: dict[int, int]) -> float:
        """The remaining tables' sum and the base; `at` gives each remaining variable's position among those left."""
        return self.base + sum(float(table.data[tuple(at[v] for v in scope)]) for scope, table in self.tables.items())

    def original(self, at: dict[int, int]) -> dict[int, int]:
        """Positions among the choices left, as the choices' own numbers."""
        return {v: int(self.choices[v][position]) for v, position in at.items()}

    def complete(self, chosen: dict[int, int]) -> tuple[int, ...]:
        """The best choice for every variable, given the remaining variables' choices (original numbers)."""
        chosen = dict(chosen)
        for eliminated in reversed(self.eliminated):
            where = {
                u: self._position(kept, u, chosen[u])
                for u, kept in zip(eliminated.around, eliminated.kept[1:], strict=True)
            }
            prices = np.zeros(len(eliminated.kept[0]))
            for scope, table in eliminated.tables:
                prices = prices + table.data[tuple(where.get(u, slice(None)) for u in scope)]
            chosen[eliminated.variable] = int(eliminated.kept[0][int(prices.argmin())])
        return tuple(chosen[v] for v in range(len(self.full)))

    def _position(self, kept: np.ndarray, v: int, choice: int) -> int:
        return choice if len(kept) == len(self.full[v]) else int(np.searchsorted(kept, choice))


def ascending(scope: Scope, array: np.ndarray) -> tuple[Scope, np.ndarray]:
    """The scope sorted, and the array with its dims in that order."""
    if all(a < b for a, b in zip(scope, scope[1:], strict=False)):
        return tuple(scope), array
    order = sorted(range(len(scope)), key=lambda dim: scope[dim])
    return tuple(scope[dim] for dim in order), array.transpose(order)


def product(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
