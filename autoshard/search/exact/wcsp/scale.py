"""From seconds to whole units: sums become exact, and the error made by rounding is known.

The unit is a power of two chosen so that the way from the sum of all minima up to a known value takes 2**50 of them;
entries beyond that way cannot be part of anything better and become inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.wcsp.interning import InternedTable, TableInterner
from autoshard.search.exact.wcsp.network import Network, ascending
from autoshard.search.exact.wcsp.problem import Term


@dataclass(frozen=True)
class Scale:
    """seconds = floor + unit * units, within `error` seconds."""

    floor: float
    unit: float
    error: float

    def seconds(self, units: float) -> float:
        return self.floor + self.unit * units

    def bound(self, units: float) -> float:
        """A lower bound in seconds from one in units."""
        return self.seconds(units) - self.error


def scaled(sizes: Sequence[int], priced: Sequence[Term], upper: float) -> tuple[Network, Scale]:
    """The network of the priced scopes, given a value that some choice has (inf where none is known)."""
    arrays = {id(array): array for _, array in priced}
    least = {key: float(array.min()) if array.size else math.inf for key, array in arrays.items()}
    floor = math.fsum(least[id(array)] for _, array in priced) if priced else 0.0
    interner = TableInterner()
    network = Network(interner, sizes)
    if not math.isfinite(floor):
        network.base = math.inf
        return network, Scale(0.0, 1.0, 0.0)
    way = upper - floor if math.isfinite(upper) else _spread(priced, arrays, least)
    unit = 2.0 ** math.ceil(math.log2(max(way, abs(floor) / 4, 1e-290)) - 50)
    count = len(priced) + 1
    # What rounding the entries to units, and the two sums in seconds, can do.
    seen = abs(floor) + (abs(upper) if math.isfinite(upper) else 0.0)
    error = count * unit / 2 + 4 * np.finfo(float).eps * seen
    if math.isfinite(upper):
        interner.cap = math.ceil((way + error) / unit)
    tables: dict[tuple, tuple[InternedTable, float]] = {}
    for scope, array in priced:
        order, moved = ascending(scope, array)
        key = (id(array), tuple(sorted(range(len(scope)), key=lambda dim, scope=scope: scope[dim])))
        if key not in tables:
            with np.errstate(over="ignore"):
                tables[key] = interner.intern(np.rint((moved - least[id(array)]) / unit))
        network.add(order, *tables[key])
    return network, Scale(floor, unit, float(error))


def _spread(priced: Sequence[Term], arrays: dict[int, np.ndarray], least: dict[int, float]) -> float:
    """The sum over all tables of the largest finite entry less the smallest."""
    most = {key: float(array[np.isfinite(array)].max()) - least[key] for key, array in arrays.items()}
    return math.fsum(most[id(array)] for _, array in priced)
