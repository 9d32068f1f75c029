"""Who talks to whom, as the text of a program says it: names of axes of a finer mesh, or lists of ranks.

A text's mesh has an axis for each piece of an axis that some layout splits by, so that groups are axes by name. Where
layouts cut an axis in ways that have no common pieces (6 as 2 x 3 and as 3 x 2), or a group is a list, groups are rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoshard.layout.layout import Refs
from autoshard.layout.mesh import AxisRef, Grouping, GroupList, Groups, Mesh

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


class Cuts:
    """The pieces of a mesh's axes that a program speaks of."""

    def __init__(self, mesh: Mesh, refs: Iterable[AxisRef], listed: bool) -> None:
        self.mesh = mesh
        cuts = {name: {1, size} for name, size in mesh.axes}
        for ref in refs:
            cuts[ref.name] |= {ref.pre, ref.next}
        self._cuts = {name: sorted(places) for name, places in cuts.items()}
        self.is_named = not listed and all(
            high % low == 0 for places in self._cuts.values() for low, high in zip(places, places[1:], strict=False)
        )

    @cached_property
    def _pieces(self) -> dict[str, list[tuple[str, int, int]]]:
        """For each axis its pieces: name, and from where to where it lies."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for name, places in self._cuts.items():
            ends = list(zip(places, places[1:], strict=False)) or [(1, 1)]
            names = [name] if len(ends) == 1 else [f"{name}_{i}" for i in range(len(ends))]
            found[name] = [(piece, *end) for piece, end in zip(names, ends, strict=True)]
        return found

    @property
    def grid(self) -> Grid:
        ranks = tuple(self.mesh.order or self.mesh.listed("write the program of a rank"))
        if not self.is_named:
            return Grid((("ranks", len(ranks)),), tuple(range(len(ranks))))
        axes = ((name, end // first) for pieces in self._pieces.values() for name, first, end in pieces)
        return Grid(tuple(axes), ranks)

    def axes(self, over: Refs | Grouping) -> Axes:
        """The groups along refs, or those of a grouping."""
        if isinstance(over, GroupList):
            return over.rows
        refs = over.refs if isinstance(over, Groups) else over
        if self.is_named:
            return tuple(
                name
                for ref in refs
                for name, first, end in self._pieces[ref.name]
                if ref.pre <= first and end <= ref.next and end > first
            )
        groups = Groups(self.mesh, refs)
        rows = (tuple(groups.members(rank).tolist()) for rank in range(self.mesh.devices))
        return tuple(dict.fromkeys(rows))
