"""The rows that can bind, made ready: constants taken out, dominated rows dropped, equal terms held once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from autoshard.search.exact.wcsp import milp
from autoshard.search.exact.wcsp.network import ascending
from autoshard.search.exact.wcsp.problem import MemoryRow, Scope, Term


class BindingRows:
    """Rows as sums of shared terms, in bytes above each row's constant part.

    `rows` are the numbers of the rows kept, `constants` (int64) what they hold whatever is chosen, `terms` the distinct
    (scope, int64 array of least entry 0), `share[r, t]` how often row r has term t.
    """

    def __init__(self, rows: Sequence[MemoryRow], limit: int | None):
        reader = _RowsReader()
        read = [reader.row(row) for row in rows]
        kept = [r for r, (constant, most, _) in enumerate(read) if limit is None or constant + most > limit]
        self.rows = [r for place, r in enumerate(kept) if not _covered(place, kept, read)]
        self.constants = np.array([read[r][0] for r in self.rows], np.int64)
        numbers: dict[tuple, int] = {}
        self.terms: list[Term] = []
        places, columns = [], []
        for place, r in enumerate(self.rows):
            for scope, array in read[r][2].items():
                key = (scope, id(array))
                if key not in numbers:
                    numbers[key] = len(self.terms)
                    self.terms.append((scope, array))
                places.append(place)
                columns.append(numbers[key])
        shape = (len(self.rows), len(self.terms))
        from scipy.sparse import csr_array  # only here: the import takes long

        self.share = csr_array((np.ones(len(places), np.int64), (places, columns)), shape=shape)
        self._priced: dict[tuple[float, int], np.ndarray] = {}

    def at(self, choice: Sequence[int]) -> np.ndarray:
        """Bytes of every kept row at a choice, constants included."""
        values = [int(array[tuple(choice[v] for v in scope)]) for scope, array in self.terms]
        return self.constants + self.share @ np.array(values, np.int64)

    def priced(self, prices: np.ndarray) -> list[Term]:
        """The terms priced: prices (per byte) of the rows, summed over the rows that share a term."""
        weights = self.share.T @ prices
        found = []
        for (scope, array), weight in zip(self.terms, weights.tolist(), strict=True):
            if weight:
                key = (weight, id(array))
                if key not in self._priced:
                    self._priced[key] = weight * array
                found.append((scope, self._priced[key]))
        return found

    def forget(self) -> None:
        self._priced.clear()


class _RowsReader:
    """Reads rows so that equal arrays stay one object."""

    def __init__(self):
        self._least: dict[int, int] = {}
        self._moved: dict[tuple, np.ndarray] = {}
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        self._kept: list[np.ndarray] = []
        self._same: dict[tuple, np.ndarray] = {}

    def row(self, row: MemoryRow) -> tuple[int, int, dict[Scope, np.ndarray]]:
        """Its constant part, the most it can be above that, and its terms."""
        constant, terms = 0, {}
        for scope, nbytes in row.terms:
            if not nbytes.size:
                continue
            order, array, least = self._term(scope, nbytes)
            constant += least
            if order:
                terms[order] = self._sum(terms[order], array) if order in terms else array
        terms = {scope: array for scope, array in terms.items() if array.any()}
        return constant, sum(int(array.max()) for array in terms.values()), terms

    def _term(self, scope: Scope, nbytes: np.ndarray) -> tuple[Scope, np.ndarray, int]:
        if id(nbytes) not in self._least:
            self._least[id(nbytes)] = int(nbytes.min())
            self._kept.append(nbytes)
        least = self._least[id(nbytes)]
        order, moved = ascending(scope, nbytes)
        key = (id(nbytes), moved.shape, moved.strides)
        if key not in self._moved:
            self._moved[key] = self._intern(np.ascontiguousarray(moved, np.int64) - least)
        return order, self._moved[key], least

    def _intern(self, array: np.ndarray) -> np.ndarray:
        return self._same.setdefault((array.shape, array.tobytes()), array)

    def _sum(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        key = (id(left), id(right))
        if key not in self._sums:
            total = left + right
            self._sums[key] = self._intern(total)
        return self._sums[key]


def _covered(place: int, kept: list[int], read: list[tuple[int, int, dict[Scope, np.ndarray]]]) -> bool:
    """Whether another kept row is never below this one (of equal rows the first stays)."""
    constant, most, terms = read[kept[place]]
    for other, r in enumerate(kept):
        more_constant, more, theirs = read[r]
        if other == place or more_constant + more < constant + most or len(theirs) < len(terms):
            continue
        if more_constant >= constant and _below(terms, theirs):
            equal = more_constant == constant and len(theirs) == len(terms) and _below(theirs, terms)
            if not equal or other < place:
                return True
    return False


def _below(terms: dict[Scope, np.ndarray], theirs: dict[Scope, np.ndarray]) -> bool:
    if not terms.keys() <= theirs.keys():
        return False
    return all(array is theirs[scope] or bool((array <= theirs[scope]).all()) for scope, array in terms.items())


# Tables and rows at the choices that are left, as HiGHS is given them.


def merged(priced: Sequence[Term], kept: Sequence[np.ndarray]) -> list[Term]:
    """One table per scope, at the kept choices."""
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for scope, array in priced:
        order, moved = ascending(scope, array)
        cut = moved[np.ix_(*(kept[v] for v in order))]
        tables[order] = tables[order] + cut if order in tables else cut
    return sorted(tables.items(), key=lambda item: item[0])


def cut_limits(binding: BindingRows, limits: np.ndarray, kept: Sequence[np.ndarray]) -> list[milp.LinearLimit]:
    """The rows at the kept choices, divided by what divides all of a row's bytes."""
    terms = [(scope, array[np.ix_(*(kept[v] for v in scope))]) for scope, array in binding.terms]
    found = []
    for r, most in enumerate(limits.tolist()):
        mine = binding.share.indices[binding.share.indptr[r] : binding.share.indptr[r + 1]]
        mine = [terms[t] for t in mine if terms[t][1].any()]
        unit = reduce(math.gcd, (int(np.gcd.reduce(array, axis=None)) for _, array in mine), 0) or 1
        if sum(int(array.max()) for _, array in mine) > most:
            found.append(milp.LinearLimit([(scope, array // unit) for scope, array in mine], most // unit))
    return found
