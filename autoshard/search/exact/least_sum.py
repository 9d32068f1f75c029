"""The least sum of priced scopes: a first choice, whole units, then the reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.search.exact.descent import first_choice
from autoshard.search.exact.minimum import Minimum, Search
from autoshard.search.exact.problem import Scope
from autoshard.search.exact.scale import Scale, scaled

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
    choice, upper = first_choice(sizes, priced, start)
    network, scale = scaled(sizes, priced, upper)
    told = (lambda low, high: progress(scale.bound(low), scale.seconds(high))) if progress else (lambda low, high: None)
    search = Search(network, deadline, cells, told, branch=branch)
    if choice is not None:
        search.choice = tuple(choice)
        search.upper = network.total(dict(enumerate(choice)))
    return search.run(), scale
