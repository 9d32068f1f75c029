"""Grid: the mesh of a program's text, axes with their sizes, and the rank at each position.

This file needs numpy alone: exported code carries it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

Names = tuple[str, ...]
Rows = tuple[tuple[int, ...], ...]
Axes = Names | Rows
"""The axes along which members of a group differ, major first; or the groups themselves."""


@dataclass(frozen=True)
class Grid:
    """The mesh of a text: axes with their sizes, and the rank at each position, row by row."""

    axes: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    @property
    def names(self) -> Names:
        return tuple(name for name, _ in self.axes)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """For each rank its position."""
        return tuple(np.argsort(self.ranks).tolist())

    @cached_property
    def _coordinates(self) -> dict[str, np.ndarray]:
        sizes = [size for _, size in self.axes]
        found = np.unravel_index(np.asarray(self.positions), sizes) if sizes else ()
        return dict(zip(self.names, found, strict=True))

    def rows(self, axes: Axes) -> Rows:
        """The groups: members in order, each rank once.

        >>> Grid((("dp", 2), ("tp", 2)), (0, 1, 2, 3)).rows(("dp",))
        ((0, 2), (1, 3))
        """
        if axes and isinstance(axes[0], tuple):
            return axes  # type: ignore[return-value]
        inside, group = self._numbers(axes)
        rows: dict[int, list[tuple[int, int]]] = {}
        for rank in range(self.size):
            rows.setdefault(int(group[rank]), []).append((int(inside[rank]), rank))
        return tuple(tuple(rank for _, rank in sorted(row)) for row in rows.values())

    def index(self, axes: Axes) -> tuple[int, ...]:
        """For each rank where it stands in its group."""
        found = [0] * self.size
        for row in self.rows(axes):
            for place, rank in enumerate(row):
                found[rank] = place
        return tuple(found)

    def _numbers(self, axes: Axes) -> tuple[np.ndarray, np.ndarray]:
        """For each rank its number along the axes, and along all others."""
        inside = group = np.zeros(self.size, np.int64)
        for name in axes:
            inside = inside * dict(self.axes)[str(name)] + self._coordinates[str(name)]
        for name, size in self.axes:
            if name not in axes:
                group = group * size + self._coordinates[name]
        return inside, group
