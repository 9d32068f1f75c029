"""Sequential reweighted message passing: a lower bound of all assignments, and one for each choice of a variable.

(Kolmogorov, "A new look at reweighted message passing", IEEE TPAMI 37(5), 2015.) Choices whose bound is above a known
plan are out. Variables whose surroundings are equal, those of equal layers, send together (`message_schedule.py`), and
begin with the messages of the quotient graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from autoshard.search.exact.consistency import SparseTables
from autoshard.search.exact.enumerate_gap import enumerate_gap
from autoshard.search.exact.message_schedule import FactorOrbit, factor_orbits_of, orbits_of, quotient_graph_of, swept
from autoshard.search.exact.min_marginals import LARGE
from autoshard.search.exact.reduce import GraphicalModel
from autoshard.util.clock import now

LIKE = 4
"""How many members orbits must have on average for a start in common to pay: its sweeps take as long as those of all
where an orbit has two or three."""


class Srmp:
    """Message passing on tables. `lower` is a valid bound at any moment, `marginals` per variable and choice."""

    def __init__(self, factor_graph: GraphicalModel) -> None:
        self.factor_graph = factor_graph
        self.unary = [
            np.minimum(costs, LARGE) if len(costs) else np.zeros(size)
            for costs, size in zip(factor_graph.unary, factor_graph.sizes, strict=True)
        ]
        self.factor_orbits = factor_orbits_of(factor_graph)
        self.orbits = orbits_of(factor_graph, self.factor_orbits, self.unary)
        self.orbit_of = np.empty(len(factor_graph.sizes), dtype=np.int64)
        for i, orbit in enumerate(self.orbits):
            self.orbit_of[orbit.members] = i

    # -- passes

    def start(self, sweeps: int, end: float, gain: float, enough: float = math.inf) -> None:
        """Begin with messages that members of an orbit have in common, which is far less work than sweeps of all.

        Args:
            sweeps, end, gain, enough: as of `tighten`.
        """
        if len(self.orbits) * LIKE > len(self.factor_graph.sizes):
            return
        alike = quotient_graph_of(self.orbits, self.factor_orbits, self.orbit_of)
        _swept(alike, 0.0, sweeps, end, gain, enough)
        for factor_orbit, one, rows in zip(self.factor_orbits, alike.factor_orbits, alike.rows, strict=True):
            factor_orbit.reset([of[rows] for of in one.potentials])
        for orbit in self.orbits:
            orbit.potential = np.stack([self.unary[v] for v in orbit.members])
            for factor_orbit, position, rows in orbit.slots:
                orbit.potential -= factor_orbit.potentials[position][rows]

    def sweep(self) -> float:
        """Once forwards and once backwards; `lower` after it, but for rounding."""
        return swept(self.orbits, self.factor_orbits)

    # -- branches

    def state(self) -> list[np.ndarray]:
        """All messages as they stand, for `go_back`."""
        potential = (orbit.potential for orbit in self.orbits)
        return [
            one.copy()
            for one in (*potential, *(one for factor_orbit in self.factor_orbits for one in factor_orbit.potentials))
        ]

    def go_back(self, state: list[np.ndarray]) -> None:
        copies = iter(state)
        for orbit in self.orbits:
            orbit.potential = next(copies).copy()
        for factor_orbit in self.factor_orbits:
            factor_orbit.reset([next(copies).copy() for _ in factor_orbit.potentials])

    def forbid(self, variable: int, choices: np.ndarray) -> None:
        """From now on bound only what makes none of these choices."""
        orbit = self.orbits[self.orbit_of[variable]]
        orbit.potential[int(np.flatnonzero(orbit.members == variable)[0]), choices] += LARGE

    def slack(self, choice: Sequence[int]) -> np.ndarray:
        """Per variable, by how much the bound falls short of what this choice costs there and around."""
        found = np.zeros(len(self.factor_graph.sizes))
        for orbit in self.orbits:
            chosen = orbit.potential[np.arange(len(orbit.members)), [choice[v] for v in orbit.members]]
            found[orbit.members] += chosen - orbit.potential.min(axis=1)
        for factor_orbit in self.factor_orbits:
            least = factor_orbit.least()
            for row, scope in enumerate(factor_orbit.variables.tolist()):
                paid = factor_orbit.messages.multi_layout.at([choice[v] for v in scope])
                paid += sum(float(one[row, choice[v]]) for one, v in zip(factor_orbit.potentials, scope, strict=True))
                found[scope] += paid - least[row]
        return found

    # -- what comes out

    @property
    def lower(self) -> float:
        """No plan of these tables costs less."""
        total = sum(float(orbit.potential.min(axis=1).sum()) for orbit in self.orbits)
        return total + sum(float(factor_orbit.least().sum()) for factor_orbit in self.factor_orbits)

    def reduced(self) -> list[np.ndarray]:
        """Per variable, [choices]: by how much the bound rises if that choice is made."""
        found: list[np.ndarray] = [np.zeros(0)] * len(self.factor_graph.sizes)
        for orbit in self.orbits:
            total = orbit.potential - orbit.potential.min(axis=1, keepdims=True)
            for factor_orbit, position, rows in orbit.slots:
                marginal = factor_orbit.potentials[position][rows] + factor_orbit.message(position, rows)
                total = total + (marginal - marginal.min(axis=1, keepdims=True))
            for variable, row in zip(orbit.members.tolist(), total, strict=True):
                found[variable] = row
        return found

    def of_orbits(self, reduced: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Per orbit, how much the bound rises at least by each choice of one of its members.

        Args:
            reduced: as by `reduced()`.
        """
        return [np.min([reduced[v] for v in orbit.members], axis=0) for orbit in self.orbits]

    def listings(
        self, reduced: Sequence[np.ndarray], gap: float, most: int
    ) -> tuple[list[np.ndarray], list[SparseTables]]:
        """What all plans within `gap` of the bound choose from: per variable the costs above the bound, inf for what is
        out, and per factor orbit the combinations of choices.

        Args:
            reduced: as by `reduced()`.
            most: combinations of a factor orbit.

        Raises:
            TooMany: a factor orbit has more.
        """
        out = [np.where(costs <= gap, 0.0, np.inf) for costs in reduced]
        unary = list(out)
        for orbit in self.orbits:
            above = orbit.potential - orbit.potential.min(axis=1, keepdims=True)
            for variable, row in zip(orbit.members.tolist(), above, strict=True):
                unary[variable] = row + out[variable]
        found = []
        for factor_orbit in self.factor_orbits:
            masked = [
                one + np.stack([out[v] for v in column])
                for one, column in zip(factor_orbit.potentials, factor_orbit.variables.T.tolist(), strict=True)
            ]
            listed = enumerate_gap(factor_orbit.messages, masked, factor_orbit.least(), gap, most)
            found.append(SparseTables(factor_orbit.variables, listed.value, listed.choices, listed.excess))
        return unary, found

    def among(self, keep: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[SparseTables]]:
        """Lists what all assignments of some choices cost above the bound, in the form of `listings`.

        Args:
            keep: per variable, the choices; one array object for variables that share them.
        """
        unary = [np.full(size, np.inf) for size in self.factor_graph.sizes]
        for orbit in self.orbits:
            above = orbit.potential - orbit.potential.min(axis=1, keepdims=True)
            for variable, row in zip(orbit.members.tolist(), above, strict=True):
                unary[variable][keep[variable]] = row[keep[variable]]
        found = [_among(orbit, rows, keep) for orbit in self.factor_orbits for rows in _same_choices(orbit, keep)]
        return unary, found

    def tighten(self, sweeps: int, end: float, gain: float, enough: float = math.inf) -> float:
        """Sweep until the bound hardly grows or is `enough`; the bound.

        Args:
            end: by `clock.now`.
            gain: the least growth by a sweep, relatively, that is worth another.
        """
        _swept(self, self.lower, sweeps, end, gain, enough)
        return self.lower


class _Passing(Protocol):
    def sweep(self) -> float: ...


def _swept(passing: _Passing, lower: float, sweeps: int, end: float, gain: float, enough: float = math.inf) -> None:
    """Sweep until the bound, `lower` at first, hardly grows or is `enough`."""
    for _ in range(sweeps):
        if lower >= enough or now() > end:
            break
        last, lower = lower, passing.sweep()
        if lower - last <= gain * abs(lower):
            break


def _same_choices(orbit: FactorOrbit, keep: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The rows of a factor orbit, in groups whose variables keep the same choices."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, scope in enumerate(orbit.variables.tolist()):
        groups.setdefault(tuple(id(keep[v]) for v in scope), []).append(row)
    return [np.array(rows) for rows in groups.values()]


def _among(orbit: FactorOrbit, rows: np.ndarray, keep: Sequence[np.ndarray]) -> SparseTables:
    """All possible combinations of the kept choices around some factors of an orbit."""
    kept = [keep[v] for v in orbit.variables[rows[0]].tolist()]
    # Positions with one choice take no dim: values have more users than numpy's arrays have dims.
    several = [position for position, choices in enumerate(kept) if not position or len(choices) > 1]
    dense = orbit.messages.multi_layout.restricted(kept).folded().dense
    total = dense - orbit.least()[rows].reshape(-1, *[1] * len(several))
    for position, (potentials, choices) in enumerate(zip(orbit.potentials, kept, strict=True)):
        shape = [len(choices) if other == position else 1 for other in several]
        total = total + potentials[np.ix_(rows, choices)].reshape(-1, *shape)
    table, *places = np.nonzero(total < LARGE / 2)
    choices = np.stack([np.broadcast_to(choices[:1], table.shape) for choices in kept], axis=1)
    for position, place in zip(several, places, strict=True):
        choices[:, position] = kept[position][place]
    return SparseTables(orbit.variables[rows], table, choices, np.maximum(total[table, *places], 0.0))
