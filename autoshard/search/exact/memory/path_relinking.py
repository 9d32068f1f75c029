"""Path relinking: what an assignment within the memory limit can take over from a faster one that needs too much.

Where the two differ, variables that share a factor belong together; parts that no factor joins can be taken over one by
one, so that seconds add up, and bytes nearly so. Which parts to take is a small integer program with a row per moment
that binds (Glover, Laguna and Marti, 2000, with an exact choice of the steps).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autoshard.search.exact.memory.integer_program import IntegerProgram
from autoshard.search.exact.memory.rows import MemoryRows

MOST_PARTS = 400
"""Parts that are weighed against each other at most."""
TRIES = 4
"""Programs solved for one pair; moments that a result exceeds are in the next."""
SECONDS = 3.0
SPARE = 1e-9


class PathRelinking:
    """Makes choices between two choices; `limit` in bytes."""

    def __init__(self, rows: MemoryRows, limit: int) -> None:
        self.rows, self.limit = rows, limit
        self.scopes = [factor.scope for factor in rows.factor_graph.factors]
        self._joined: dict[tuple, tuple[int, ...]] = {}

    def between(self, low: Sequence[int], high: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Choices that make some parts of `high` in `low`, best first by what the parts save alone."""
        parts = self._parts(low, high)
        if not 1 < len(parts) <= MOST_PARTS:
            return
        base, seconds = self.rows.at(low), self.rows.factor_graph.seconds(low)
        saved, more = np.zeros(len(parts)), np.zeros((len(parts), len(base)))
        for i, part in enumerate(parts):
            one = _taken(low, high, [part])
            saved[i] = seconds - self.rows.factor_graph.seconds(one)
            more[i] = self.rows.at(one) - base
        room, moments = self.limit - base, [int(base.argmax())]
        for _ in range(TRIES):
            taken = _best(saved, more[:, moments], room[moments])
            if taken is None or not taken.any():
                return
            found = _taken(low, high, [part for part, one in zip(parts, taken, strict=True) if one])
            nbytes = self.rows.at(found)
            if int(nbytes.max()) <= self.limit:
                yield found
                return
            worst = int(nbytes.argmax())
            # Where parts share bytes their sum says too little; what it is out by is kept free from then on.
            short = float(nbytes[worst] - (base + more[taken].sum(axis=0))[worst])
            room[worst] -= max(short, 0.0)
            if worst in moments and short <= 0:
                return
            moments += [worst] if worst not in moments else []

    def _parts(self, low: Sequence[int], high: Sequence[int]) -> list[list[int]]:
        """Variables that differ, in groups that no price joins."""
        differ = {v for v, (one, other) in enumerate(zip(low, high, strict=True)) if one != other}
        from scipy.cluster.hierarchy import DisjointSet  # only here: the import takes long

        joined = DisjointSet(sorted(differ))
        for scope in self.scopes:
            mine = [v for v in scope if v in differ]
            for v in mine[1:]:
                joined.merge(mine[0], v)
        return sorted(sorted(group) for group in joined.subsets())


def _taken(low: Sequence[int], high: Sequence[int], parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    found = list(low)
    for part in parts:
        for v in part:
            found[v] = high[v]
    return tuple(found)


def _best(saved: np.ndarray, more: np.ndarray, room: np.ndarray) -> np.ndarray | None:
    """Which parts save most with at most `room` bytes more at each moment."""
    program, possible = IntegerProgram(), np.isfinite(saved)
    parts, scale = program.columns(len(saved)), max(float(np.abs(more).max(initial=0.0)), 1.0)
    program.choices, program.upper = len(parts), possible.astype(float).tolist()
    program.cost = (-np.where(possible, saved, 0.0)).tolist()
    for nbytes, left in zip(more.T / scale, room / scale * (1 - SPARE), strict=True):
        program.below.add(parts, nbytes, float(left))
    found = program.solved(SECONDS).columns
    return None if found is None else found > 0.5
