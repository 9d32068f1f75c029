"""Tables and rows at the choices that are left, as HiGHS is given them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from autoshard.search.exact import milp
from autoshard.search.exact.moments import Moments, Priced
from autoshard.search.exact.network import ascending


def merged(priced: Sequence[Priced], kept: Sequence[np.ndarray]) -> list[Priced]:
    """One table per scope, at the kept choices."""
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for scope, array in priced:
        order, moved = ascending(scope, array)
        cut = moved[np.ix_(*(kept[v] for v in order))]
        tables[order] = tables[order] + cut if order in tables else cut
    return sorted(tables.items(), key=lambda item: item[0])


def cut_limits(moments: Moments, limits: np.ndarray, kept: Sequence[np.ndarray]) -> list[milp.Limit]:
    """The rows at the kept choices, divided by what divides all of a row's bytes."""
    terms = [(scope, array[np.ix_(*(kept[v] for v in scope))]) for scope, array in moments.terms]
    found = []
    for r, most in enumerate(limits.tolist()):
        mine = moments.share.indices[moments.share.indptr[r] : moments.share.indptr[r + 1]]
        mine = [terms[t] for t in mine if terms[t][1].any()]
        unit = reduce(math.gcd, (int(np.gcd.reduce(array, axis=None)) for _, array in mine), 0) or 1
        if sum(int(array.max()) for _, array in mine) > most:
            found.append(milp.Limit([(scope, array // unit) for scope, array in mine], most // unit))
    return found
